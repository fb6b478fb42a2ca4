"""Policy routing: which link a connection takes to a server that several links lead to.

A connection takes one link. Two rules choose it:

* a socket bound to the address of a NIC sends through that NIC, whatever the destination;
* a socket that is not bound, connecting to a server's own address, is spread over the NICs that
  the plan gives a rate to that server, in proportion to the rates, by a hash of its ports.

What reaches a server's NIC address unbound goes through the plane of that address, as always.
"""

from __future__ import annotations

import shlex
from collections.abc import Callable
from dataclasses import dataclass
from math import gcd
from typing import Annotated

from annotated_types import Ge, Le

from envs.bounds import Share, bounded
from envs.errors import InputError
from experiments.papers.enforcement.hosts import Host, HostNic, Lane, ServerPlan, Uplink
from experiments.papers.enforcement.scripts import Script, attempt, command, comment

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

    first_table: int = 4000
    first_priority: int = 4000

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
                way = lane.destination.address, lane.gateway.address, device(up.nic), table
                lines.append(command("ip -4 route replace {}/32 via {} dev {} table {}", *way))
            lines.append(self._rule(number, f"from {up.nic.address}/32 "))
        number = len(plan.uplinks)
        lines += ["", comment("Other sockets: to each server by the rates of the plan.")]
        for host in plan.destinations:
            to = host.address, plan.host.address, self.first_table + number
            hops = (
                command("nexthop via {} dev {} weight {}", lane.gateway.address, device(up.nic), x)
                for (up, lane), x in _weights(plan, host)
            )
            route = command("ip -4 route replace {}/32 src {} table {}", *to)
            lines.append(" ".join([route, *hops]))
        return [*lines, self._rule(number)]

    def clean(self, plan: ServerPlan) -> list[str]:
        """Rules of our priority and table, then what the tables hold."""
        lines = [comment("The rules and tables of the plan.")]
        for number in range(len(plan.uplinks) + 1):
            priority, table = self.first_priority + number, self.first_table + number
            rule = f"ip -4 rule del priority {priority} table {table}"
            lines.append(f"while {rule} 2>/dev/null; do :; done")
            lines.append(attempt("ip -4 route flush table {}", table))
        return lines

    def _check(self, count: int) -> None:
        """Refuse `count` tables and rules that are not all free."""
        last = self.first_table + count - 1
        if self.first_table < 1 or last >= _TABLES or self._reserved(last):
            raise InputError(
                f"{self.first_table} to {last} are not all free tables", field="first_table"
            )
        last = self.first_priority + count - 1
        if self.first_priority < 1 or last >= _MAIN_PRIORITY:
            raise InputError(
                f"{self.first_priority} to {last} are not all in 1..{_MAIN_PRIORITY - 1}",
                field="first_priority",
            )

    def _reserved(self, last: int) -> bool:
        return self.first_table < _RESERVED.stop and last >= _RESERVED.start

    def _rule(self, number: int, selector: str = "") -> str:
        priority, table = self.first_priority + number, self.first_table + number
        return f"ip -4 rule add {selector}priority {priority} table {table}"


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


@bounded
@dataclass(frozen=True)
class Queues:
    """Settings of the queues.

    Args:
        routing: chooses the NIC of each connection.
        rest_share: of a NIC's capacity, the rate of what the plan does not name; it comes on top.
        burst_s: seconds; a queue may catch up on as much of its rate after a late timer.
        least_burst: bytes; and on as much at least: one segment as large as they get.
    """

    routing: PolicyRouting = PolicyRouting()
    rest_share: Annotated[float, Ge(0.0001), Le(1.0)] = 0.03
    burst_s: Share = 0.002
    least_burst: Annotated[int, Ge(1600), Le(2**24)] = 65536

    def burst(self, bits: int) -> int:
        """Bytes that a queue of `bits` bit/s may send at once."""
        return max(self.least_burst, int(bits / 8 * self.burst_s))


HANDLE = "4d57:"  # of the queue discipline; a clean-up touches no other
_REST_CLASS = 0xFFFF  # class of everything the plan does not name
_ABOUT_TC = (
    "Enforces a bandwidth plan with tc (HTB and u32) and policy routing.",
    "Rates are bit/s of Ethernet frames as the kernel counts them, headers included; bursts and",
    "quanta are bytes. A class sends at its rate at most and borrows nothing (ceil = rate).",
    "The queue discipline at the root of each NIC is replaced; the clean-up restores the default.",
)


@bounded
@dataclass(frozen=True)
class TrafficControl(Queues):
    """`tc` commands: one HTB class for each destination server and NIC, and one for the rest.

    Pure acknowledgements and other TCP packets below 128 bytes go to the class for the rest: they
    belong to the data that comes the other way, and must not wait behind a plan's data.

    Args: those of `Queues`, and
        quantum: bytes a class sends in turn; HTB's own choice is too large for fast classes.
    """

    quantum: Annotated[int, Ge(1500), Le(200_000)] = 60000

    def script(self, plan: ServerPlan) -> Script:
        """What one server runs."""
        apply, clean = [], [comment("Queue disciplines with the plan's handle, and all in them.")]
        for up in plan.uplinks:
            apply += self._queues(plan, up)
            clean.append(attempt("tc qdisc del dev {} root handle {}", up.nic.interface, HANDLE))
        return Script(
            about=_ABOUT_TC,
            programs=("ip", "tc"),
            checks=self.routing.checks(plan, interface),
            apply=[*apply, *self.routing.apply(plan, interface)],
            clean=[*clean, *self.routing.clean(plan)],
        )

    def _queues(self, plan: ServerPlan, up: Uplink) -> list[str]:
        device = up.nic.interface
        capacity = plan.framing.kernel_bits(up.capacity)
        rest = int(capacity * self.rest_share)
        lines = [
            "",
            comment(f"{up.name} is {device}, {capacity} bit/s."),
            command("tc qdisc replace dev {} root handle {} htb default {}", device, HANDLE,
                    f"{_REST_CLASS:x}"),
            comment("Acknowledgements and what the plan does not name."),
            *self._class(device, _REST_CLASS, rest, 0),
            # An IPv4 header without options, TCP, and a total length below 128.
            command(
                "tc filter add dev {} parent {} protocol ip prio 1 u32 match u8 0x05 0x0f at 0 "
                "match ip protocol 6 0xff match u16 0x0000 0xff80 at 2 flowid {}",
                device, HANDLE, f"{HANDLE}{_REST_CLASS:x}",
            ),
        ]  # fmt: skip
        for lane in up.lanes:
            bits = lane.bits(plan.framing)
            lines.append(comment(lane.about()))
            if bits == 0:
                continue
            lines += self._class(device, lane.number, bits, 1)
            for address in lane.destination.addresses:
                flow = device, HANDLE, address, f"{HANDLE}{lane.number:x}"
                lines.append(command(
                    "tc filter add dev {} parent {} protocol ip prio 2 u32 match ip dst {}/32 "
                    "flowid {}", *flow,
                ))  # fmt: skip
        return lines

    def _class(self, device: str, minor: int, bits: int, priority: int) -> list[str]:
        burst, own = self.burst(bits), f"{HANDLE}{minor:x}"
        return [command(
            "tc class add dev {} parent {} classid {} htb rate {}bit ceil {}bit burst {} cburst {} "
            "prio {} quantum {}",
            device, HANDLE, own, bits, bits, burst, burst, priority, self.quantum,
        )]  # fmt: skip


def interface(nic: HostNic) -> str:
    """Where the addresses of a NIC are: on the NIC itself."""
    return nic.interface


COOKIE = "0x4d57"  # of our flows; a clean-up touches no other
OWNER = "external-ids:meshwright"  # holds the interface in our rows of the switch's database
_REST_QUEUE = 0  # the queue of everything the plan does not name
_MOST_QUEUES = 61_440  # queue numbers of linux-htb end below
_ABOUT_OVS = (
    "Enforces a bandwidth plan with Open vSwitch queues (linux-htb) and policy routing.",
    "Needs the kernel datapath: the userspace datapath (netdev, DPDK) ignores set_queue, and every",
    "packet would leave through queue 0.",
    "Rates are whole bit/s of Ethernet frames as the kernel counts them, headers included; bursts",
    "are bits. A queue sends at its rate at most and borrows nothing (max-rate = min-rate).",
)


@bounded
@dataclass(frozen=True)
class OpenVSwitch(Queues):
    """`ovs-vsctl` and `ovs-ofctl` commands: a queue for each destination server and NIC.

    Every NIC is a port of a bridge of its own, and the bridge's local port has the NIC's address.
    OpenFlow cannot tell acknowledgements by their length: they share the queue of their
    destination, or queue 0 where the plan gives that destination nothing.

    Args: those of `Queues`, and
        flow_priority: of our flows in the bridges' tables.
    """

    flow_priority: Annotated[int, Ge(1), Le(65_535)] = 4000

    def script(self, plan: ServerPlan) -> Script:
        """What one server runs.

        Raises:
            InputError: a NIC is on no bridge, or there are more servers than queues.
        """
        checks, apply, clean = [], [], []
        for up in plan.uplinks:
            checks.append(
                f'[ "$(ovs-vsctl get Bridge {bridge(up.nic)} datapath_type)" != netdev ] || '
                f"refuse '{bridge(up.nic)} has the userspace datapath, which ignores set_queue'"
            )
            apply += self._queues(plan, up)
            clean += _clean(up)
        return Script(
            about=_ABOUT_OVS,
            programs=("ip", "ovs-vsctl", "ovs-ofctl"),
            checks=[*checks, *self.routing.checks(plan, bridge)],
            apply=[*apply, *self.routing.apply(plan, bridge)],
            clean=[*clean, *self.routing.clean(plan)],
        )

    def _queues(self, plan: ServerPlan, up: Uplink) -> list[str]:
        device, switch = up.nic.interface, bridge(up.nic)
        capacity = plan.framing.kernel_bits(up.capacity)
        given = [(lane, lane.bits(plan.framing)) for lane in up.lanes]
        queues = {_REST_QUEUE: (int(capacity * self.rest_share), 0)}
        queues |= {lane.number: (bits, 1) for lane, bits in given if bits}
        if max(queues) >= _MOST_QUEUES:
            raise InputError(f"Open vSwitch has no more than {_MOST_QUEUES} queues")
        mark = f"{OWNER}={device}"
        words = ["ovs-vsctl", "--", "set", "Port", device, "qos=@plan"]
        words += ["--", "--id=@plan", "create", "QoS", "type=linux-htb", mark]
        words += [f"other-config:max-rate={capacity}"]
        words += [f"queues:{number}=@queue{number}" for number in queues]
        for number, (bits, priority) in queues.items():
            burst = 8 * self.burst(bits)
            words += ["--", f"--id=@queue{number}", "create", "Queue", mark]
            words += [f"other-config:{key}-rate={bits}" for key in ("min", "max")]
            words += [f"other-config:burst={burst}", f"other-config:priority={priority}"]
        lines = ["", comment(f"{up.name} is {device} on {switch}, {capacity} bit/s."),
                 _wrapped(shlex.join(words))]  # fmt: skip
        for lane, bits in given:
            lines.append(comment(lane.about()))
            for address in lane.destination.addresses if bits else ():
                match = f"priority={self.flow_priority},in_port=LOCAL,ip,nw_dst={address}"
                flow = f"cookie={COOKIE},{match},actions=set_queue:{lane.number},normal"
                lines.append(command("ovs-ofctl add-flow {} {}", switch, flow))
        return lines


def bridge(nic: HostNic) -> str:
    """Where the addresses of a NIC are: on the local port of its bridge.

    Raises:
        InputError: the NIC is on no bridge.
    """
    if nic.bridge is None:
        raise InputError(f"{nic.interface} is on no Open vSwitch bridge", field="bridge")
    return nic.bridge


def _clean(up: Uplink) -> list[str]:
    """Our flows, then our rows of the database: first what refers to others."""
    device = up.nic.interface
    find = f"ovs-vsctl --bare --columns=_uuid find %s {OWNER}={device}"
    return [
        comment(f"Flows of the plan on {bridge(up.nic)}, queues of the plan on {device}."),
        command("ovs-ofctl del-flows {} {}", bridge(up.nic), f"cookie={COOKIE}/-1"),
        f"for qos in $({find % 'QoS'}); do",
        '  for port in $(ovs-vsctl --bare --columns=name find Port "qos=$qos"); do',
        '    ovs-vsctl clear Port "$port" qos',
        "  done",
        '  ovs-vsctl destroy QoS "$qos"',
        "done",
        f"for queue in $({find % 'Queue'}); do",
        '  ovs-vsctl destroy Queue "$queue"',
        "done",
    ]


def _wrapped(line: str) -> str:
    """One command over several lines, one for each row; it would print the rows' identifiers."""
    return line.replace(" -- ", " \\\n  -- ") + " >/dev/null"
