"""Policy routing: which link a connection takes to a server that several links lead to.

A connection takes one link. Two rules choose it:

* a socket bound to the address of a NIC sends through that NIC, whatever the destination;
* a socket that is not bound, connecting to a server's own address, is spread over the NICs that
  the plan gives a rate to that server, in proportion to the rates, by a hash of its ports.

What reaches a server's NIC address unbound goes through the plane of that address, as always.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import gcd

from agents.bandwidth.enforcement.hosts import Host, HostNic
from agents.bandwidth.enforcement.script import attempt, command, comment
from agents.bandwidth.enforcement.server_plan import Lane, ServerPlan, Uplink
from envs.errors import InputError

MOST_WEIGHT = 256  # of a next hop
_RESERVED = range(253, 256)  # tables default, main and local
_TABLES = 2**31  # numbers of tables end below
_MAIN_PRIORITY = 32_766  # of the rule that consults the main table
_HASH_POLICY = "/proc/sys/net/ipv4/fib_multipath_hash_policy"


@dataclass(frozen=True)
class PolicyRouting:
    """Rules and tables from `first` on, one for each NIC and one for sockets that are not bound.

    Args:
        first_table: number of the first routing table; this and the following ones are the plan's.
        first_priority: priority of the first rule, likewise.

    Raises:
        InputError: a number is out of range.
    """

    first_table: int
    first_priority: int

    def __post_init__(self) -> None:
        self._check(1)

    def checks(self, plan: ServerPlan, device: Callable[[HostNic], str]) -> list[str]:
        """What must hold before: addresses, reverse-path filters, the hash of ports."""
        lines = [
            f'[ -n "$(ip -4 -o addr show to {plan.host.address}/32)" ] || '
            f"refuse 'this machine does not have the address {plan.host.address}'"
        ]
        for up in plan.uplinks:
            lines += [
                f'[ -n "$(ip -4 -o addr show dev {device(up.nic)} to {up.nic.address}/32)" ] || '
                f"refuse '{device(up.nic)} does not have the address {up.nic.address}'",
            ]
            own, conf = device(up.nic), "/proc/sys/net/ipv4/conf"
            lines += [  # the larger of the two settings counts: 1 is strict, 2 is loose
                f'case "$(cat {conf}/all/rp_filter {conf}/{own}/rp_filter)" in *2*) ;; *1*) '
                f"refuse 'strict reverse-path filter: sysctl -w net/ipv4/conf/{own}/rp_filter=2' "
                ";; esac"
            ]
        if any(len(_weights(plan, host)) > 1 for host in plan.destinations):
            lines.append(
                f'[ "$(cat {_HASH_POLICY})" -eq 1 ] || '
                "refuse 'ports do not choose links: sysctl -w net.ipv4.fib_multipath_hash_policy=1'"
            )
        return lines

    def apply(self, plan: ServerPlan, device: Callable[[HostNic], str]) -> list[str]:
        """The tables, then the rules that consult them.

        Raises:
            InputError: the numbers of tables or rules reach those of the kernel.
        """
        self._check(len(plan.uplinks) + 1)
        lines: list[str] = []
        for number, up in enumerate(plan.uplinks):
            table = self.first_table + number
            lines += ["", comment(f"Sockets bound to {up.nic.address} send through {up.name}.")]
            for lane in up.lanes:
                lines.append(command(
                    "ip", "-4", "route", "replace", f"{lane.destination.address}/32",
                    "via", lane.gateway.address, "dev", device(up.nic), "table", table,
                ))  # fmt: skip
            lines.append(self._rule(number, "from", f"{up.nic.address}/32"))
        number = len(plan.uplinks)
        lines += ["", comment("Other sockets: to each server by the rates of the plan.")]
        for host in plan.destinations:
            hops: list[object] = []
            for (up, lane), weight in _weights(plan, host):
                hops += ["nexthop", "via", lane.gateway.address, "dev", device(up.nic)]
                hops += ["weight", weight]
            lines.append(command(
                "ip", "-4", "route", "replace", f"{host.address}/32", "src", plan.host.address,
                "table", self.first_table + number, *hops,
            ))  # fmt: skip
        return [*lines, self._rule(number)]

    def clean(self, plan: ServerPlan) -> list[str]:
        """Rules of our priority and table, then what the tables hold."""
        lines = [comment("The rules and tables of the plan.")]
        for number in range(len(plan.uplinks) + 1):
            priority, table = self.first_priority + number, self.first_table + number
            rule = command("ip", "-4", "rule", "del", "priority", priority, "table", table)
            lines.append(f"while {rule} 2>/dev/null; do :; done")
            lines.append(attempt("ip", "-4", "route", "flush", "table", table))
        return lines

    def _check(self, count: int) -> None:
        """Refuse `count` tables and rules that are not all free."""
        last = self.first_table + count - 1
        if self.first_table < 1 or last >= _TABLES or self._reserved(last):
            raise InputError(
                f"config key 'first_table': {self.first_table} to {last} are not all free tables"
            )
        last = self.first_priority + count - 1
        if self.first_priority < 1 or last >= _MAIN_PRIORITY:
            raise InputError(
                f"config key 'first_priority': {self.first_priority} to {last} are not all in "
                f"1..{_MAIN_PRIORITY - 1}"
            )

    def _reserved(self, last: int) -> bool:
        return self.first_table < _RESERVED.stop and last >= _RESERVED.start

    def _rule(self, number: int, *selector: str) -> str:
        priority, table = self.first_priority + number, self.first_table + number
        return command("ip", "-4", "rule", "add", *selector, "priority", priority, "table", table)


def _weights(plan: ServerPlan, host: Host) -> list[tuple[tuple[Uplink, Lane], int]]:
    """The lanes that carry a plan's traffic to a server, and their shares as small integers.

    A server that the plan gives no rate to is still reached: by its first lane. A lane far slower
    than the fastest one (half a weight) gets no connection that did not ask for it.
    """
    lanes = plan.lanes_to(host)
    given = [(up, lane) for up, lane in lanes if lane.bits(plan.framing) > 0]
    if not given:
        return [(lanes[0], 1)]
    most = max(lane.rate for _, lane in given)
    weights = [round(MOST_WEIGHT * lane.rate / most) for _, lane in given]
    divisor = gcd(*weights)
    return [
        (pair, weight // divisor) for pair, weight in zip(given, weights, strict=True) if weight
    ]
