"""A bandwidth plan as shell files, two for each server: one applies it, one takes it back.

Their commands: queues of `tc` or Open vSwitch, and policy routing over several links.

Names of interfaces and addresses are such as a shell takes for one word: `hosts` refuses others.
A connection takes one link. Two rules choose it:

* a socket bound to the address of a NIC sends through that NIC, whatever the destination;
* a socket that is not bound, connecting to a server's own address, is spread over the NICs that
  the plan gives a rate to that server, in proportion to the rates, by a hash of its ports.

What reaches a server's NIC address unbound goes through the plane of that address, as always.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from math import gcd
from typing import Annotated

from annotated_types import Ge, Le

from envs.bounds import Share, bounded
from envs.errors import InputError
from experiments.papers.enforcement.hosts import ServerPlan, Uplink

_FAILED = "the plan could not be applied and was taken back"


@dataclass
class Script:
    """What one server runs; lines are shell commands or comments.

    Attributes:
        about: the comment at the head.
        programs: what must be installed.
        checks: what must hold before anything is changed.
        apply: what puts the plan in place of nothing.
        clean: what takes it back; does nothing where there is no plan.
    """

    about: Sequence[str]
    programs: Sequence[str]
    checks: list[str] = field(default_factory=list)
    apply: list[str] = field(default_factory=list)
    clean: list[str] = field(default_factory=list)

    def files(self, server: str, notes: Sequence[str] = ()) -> dict[str, str]:
        """`<server>.apply.sh` and `<server>.clean.sh`; `notes` are further lines of the heads."""
        apply_name, clean_name = f"{server}.apply.sh", f"{server}.clean.sh"
        checks = [
            'refuse() { echo "$0: $*" >&2; exit 1; }',
            "[ \"$(id -u)\" -eq 0 ] || refuse 'only root may change queues and routes'",
            *(f"command -v {name} >/dev/null || refuse 'the program {name} is missing'"
              for name in self.programs),
        ]  # fmt: skip
        apply = [
            *_head([*self.about, "", f"To take it back: sh {clean_name}", *notes]),
            *checks,
            *self.checks,
            "",
            "# An earlier plan goes first; a plan that fails half way is taken back.",
            "clean() {",
            *(f"  {line}" if line else "" for line in self.clean),
            "}",
            "clean",
            f"trap 'clean; echo \"$0: {_FAILED}\" >&2' EXIT",
            "trap 'exit 130' HUP INT TERM  # not every shell runs the line above on a signal",
            *self.apply,
            "",
            "trap - EXIT HUP INT TERM",
        ]
        undo = f"Takes back what {apply_name} did; may run at any time, any number of times."
        clean = [*_head([undo, *notes]), *checks, "", *self.clean]
        return {apply_name: "\n".join([*apply, ""]), clean_name: "\n".join([*clean, ""])}


def comment(text: str) -> str:
    """`text` as one line of comment, whatever it contains."""
    plain = " ".join("".join(c if c.isprintable() else " " for c in text).split())
    return f"# {plain}" if plain else "#"


def attempt(command: str) -> str:
    """A command that may fail: there may be nothing to take back."""
    return f"{command} 2>/dev/null || true"


def _head(lines: Iterable[str]) -> list[str]:
    return ["#!/bin/sh", *map(comment, lines), "set -eu", ""]


MOST_WEIGHT = 256  # of a next hop
_RESERVED = range(253, 256)  # tables default, main and local
_LAST_TABLE = 2**31 - 1
_LAST_PRIORITY = 32_765  # the next rule consults the main table
_HASH_POLICY = "/proc/sys/net/ipv4/fib_multipath_hash_policy"
_CONF = "/proc/sys/net/ipv4/conf"


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
        self._numbers(1)

    def complete(self, script: Script, plan: ServerPlan, devices: Sequence[str]) -> None:
        """Addresses, filters and the hash of ports are checked; tables come before their rules.

        `devices` are what has the address of each NIC.

        Raises:
            InputError: the numbers of tables or rules reach those of the kernel.
        """
        own, hops = plan.host.address, list(_hops(plan, devices))
        numbers = self._numbers(len(devices) + 1)
        script.checks.append(
            f'[ -n "$(ip -4 -o addr show to {own}/32)" ] || '
            f"refuse 'this machine does not have the address {own}'"
        )
        for up, device, (table, priority) in zip(plan.uplinks, devices, numbers, strict=False):
            address = up.nic.address
            script.checks += [
                f'[ -n "$(ip -4 -o addr show dev {device} to {address}/32)" ] || '
                f"refuse '{device} does not have the address {address}'",
                # the larger of the two settings counts: 1 is strict, 2 is loose
                f'case "$(cat {_CONF}/all/rp_filter {_CONF}/{device}/rp_filter)" in *2*) ;; *1*) '
                f"refuse 'strict reverse-path filter: "
                f"sysctl -w net/ipv4/conf/{device}/rp_filter=2' ;; esac",
            ]
            script.apply += [
                "",
                comment(f"Sockets bound to {address} send through {up.name}."),
                *(f"ip -4 route replace {channel.destination.address}/32 "
                  f"via {channel.gateway.address} dev {device} table {table}"
                  for channel in up.channels.values()),
                f"ip -4 rule add from {address}/32 priority {priority} table {table}",
            ]  # fmt: skip
        table, priority = numbers[-1]
        script.apply += [
            "",
            comment("Other sockets: to each server by the rates of the plan."),
            *(f"ip -4 route replace {address}/32 src {own} table {table} {' '.join(ways)}"
              for address, ways in hops),
            f"ip -4 rule add priority {priority} table {table}",
        ]  # fmt: skip
        if any(len(ways) > 1 for _, ways in hops):
            script.checks.append(
                f'[ "$(cat {_HASH_POLICY})" -eq 1 ] || '
                "refuse 'ports do not choose links: sysctl -w net.ipv4.fib_multipath_hash_policy=1'"
            )
        script.clean.append(comment("The rules and tables of the plan."))
        for table, priority in numbers:
            script.clean += [
                f"while ip -4 rule del priority {priority} table {table} 2>/dev/null; do :; done",
                attempt(f"ip -4 route flush table {table}"),
            ]

    def _numbers(self, count: int) -> Sequence[tuple[int, int]]:
        """So many tables and priorities, all of which are free."""
        tables = range(self.first_table, self.first_table + count)
        priorities = range(self.first_priority, self.first_priority + count)
        for name, own, last, taken in (
            ("first_table", tables, _LAST_TABLE, _RESERVED),
            ("first_priority", priorities, _LAST_PRIORITY, ()),
        ):
            if own[0] < 1 or own[-1] > last or set(own) & set(taken):
                fault = f"{own[0]} to {own[-1]} are not all free numbers up to {last}"
                raise InputError(fault, field=name)
        return [*zip(tables, priorities, strict=True)]


def _hops(plan: ServerPlan, devices: Sequence[str]) -> Iterator[tuple[str, list[str]]]:
    """The address of each server, and the next hops of the plan's traffic to it, by their shares.

    A server that the plan gives no rate to is still reached: by its first channel. A channel far
    slower than the fastest one (half a weight) gets no connection that did not ask for it.
    """
    links = [(up.channels, device) for up, device in zip(plan.uplinks, devices, strict=True)]
    for number in sorted({number for channels, _ in links for number in channels}):
        own = [(channels[number], device) for channels, device in links if number in channels]
        given = [pair for pair in own if pair[0].bits] or own[:1]
        most = max(channel.rate for channel, _ in given)
        weights = [round(MOST_WEIGHT * channel.rate / most) if most else 1 for channel, _ in given]
        divisor = gcd(*weights)
        yield (
            own[0][0].destination.address,
            [
                f"nexthop via {channel.gateway.address} dev {device} weight {weight // divisor}"
                for (channel, device), weight in zip(given, weights, strict=True)
                if weight
            ],
        )


@bounded
@dataclass(frozen=True)
class Backend(ABC):
    """What turns the plan of a server into commands, and the settings of its queues.

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

    @abstractmethod
    def script(self, plan: ServerPlan) -> Script:
        """What one server runs."""

    def of(self, up: Uplink, rest: int) -> dict[int, tuple[int, int, int]]:
        """Bit/s, burst in bytes and priority of each queue; number `rest` has what is not named."""
        bits = {rest: int(up.bits * self.rest_share)}
        bits |= {number: channel.bits for number, channel in up.channels.items() if channel.bits}
        return {
            number: (own, max(self.least_burst, int(own / 8 * self.burst_s)), int(number != rest))
            for number, own in bits.items()
        }


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
class TrafficControl(Backend):
    """`tc` commands: one HTB class for each destination server and NIC, and one for the rest.

    Pure acknowledgements and other TCP packets below 128 bytes go to the class for the rest: they
    belong to the data that comes the other way, and must not wait behind a plan's data.

    Args: those of `Backend`, and
        quantum: bytes a class sends in turn; HTB's own choice is too large for fast classes.
    """

    quantum: Annotated[int, Ge(1500), Le(200_000)] = 60000

    def script(self, plan: ServerPlan) -> Script:
        """What one server runs."""
        script, devices = Script(_ABOUT_TC, ["ip", "tc"]), [up.nic.interface for up in plan.uplinks]
        script.clean.append(comment("Queue disciplines with the plan's handle, and all in them."))
        for up, device in zip(plan.uplinks, devices, strict=True):
            script.apply += self._classes(up, device)
            script.clean.append(attempt(f"tc qdisc del dev {device} root handle {HANDLE}"))
        self.routing.complete(script, plan, devices)
        return script

    def _classes(self, up: Uplink, device: str) -> list[str]:
        classes = {
            number: f"tc class add dev {device} parent {HANDLE} classid {HANDLE}{number:x} htb "
            f"rate {bits}bit ceil {bits}bit burst {burst} cburst {burst} prio {priority} "
            f"quantum {self.quantum}"
            for number, (bits, burst, priority) in self.of(up, _REST_CLASS).items()
        }
        filters = f"tc filter add dev {device} parent {HANDLE} protocol ip prio"
        lines = [
            "",
            comment(f"{up.name} is {device}, {up.bits} bit/s."),
            f"tc qdisc replace dev {device} root handle {HANDLE} htb default {_REST_CLASS:x}",
            comment("Acknowledgements and what the plan does not name."),
            classes[_REST_CLASS],
            # An IPv4 header without options, TCP, and a total length below 128.
            f"{filters} 1 u32 match u8 0x05 0x0f at 0 match ip protocol 6 0xff "
            f"match u16 0x0000 0xff80 at 2 flowid {HANDLE}{_REST_CLASS:x}",
        ]
        for number, channel in up.channels.items():
            lines.append(comment(channel.about))
            if channel.bits:
                lines.append(classes[number])
                lines += (
                    f"{filters} 2 u32 match ip dst {address}/32 flowid {HANDLE}{number:x}"
                    for address in channel.destination.addresses
                )
        return lines


COOKIE = "0x4d57"  # of our flows; a clean-up touches no other
OWNER = "external-ids:meshwright"  # holds the interface in our rows of the switch's database
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
class OpenVSwitch(Backend):
    """`ovs-vsctl` and `ovs-ofctl` commands: a queue for each destination server and NIC.

    Every NIC is a port of a bridge of its own, and the bridge's local port has the NIC's address.
    OpenFlow cannot tell acknowledgements by their length: they share the queue of their
    destination, or queue 0 where the plan gives that destination nothing.

    Args: those of `Backend`, and
        flow_priority: of our flows in the bridges' tables.
    """

    flow_priority: Annotated[int, Ge(1), Le(65_535)] = 4000

    def script(self, plan: ServerPlan) -> Script:
        """What one server runs.

        Raises:
            InputError: a NIC is on no bridge, or there are more servers than queues.
        """
        script, switches = Script(_ABOUT_OVS, ["ip", "ovs-vsctl", "ovs-ofctl"]), list[str]()
        for up in plan.uplinks:
            switch = up.nic.bridge
            if switch is None:
                raise InputError(f"{up.nic.interface} is on no Open vSwitch bridge", field="bridge")
            switches.append(switch)
            script.checks.append(
                f'[ "$(ovs-vsctl get Bridge {switch} datapath_type)" != netdev ] || '
                f"refuse '{switch} has the userspace datapath, which ignores set_queue'"
            )
            script.apply += self._rows(up, switch)
            script.clean += _clean(up.nic.interface, switch)
        self.routing.complete(script, plan, switches)
        return script

    def _rows(self, up: Uplink, switch: str) -> list[str]:
        device, queues = up.nic.interface, self.of(up, 0)
        if max(queues) >= _MOST_QUEUES:
            raise InputError(f"Open vSwitch has no more than {_MOST_QUEUES} queues")
        mark = f"{OWNER}={device}"
        links = " ".join(f"queues:{number}=@queue{number}" for number in queues)
        rows = [
            "ovs-vsctl",
            f"set Port {device} qos=@plan",
            f"--id=@plan create QoS type=linux-htb {mark} other-config:max-rate={up.bits} {links}",
        ]
        rows += (
            f"--id=@queue{number} create Queue {mark} other-config:min-rate={bits} "
            f"other-config:max-rate={bits} other-config:burst={8 * burst} "
            f"other-config:priority={priority}"
            for number, (bits, burst, priority) in queues.items()
        )
        lines = [
            "",
            comment(f"{up.name} is {device} on {switch}, {up.bits} bit/s."),
            " \\\n  -- ".join(rows) + " >/dev/null",  # it would print the rows' identifiers
        ]
        for number, channel in up.channels.items():
            lines.append(comment(channel.about))
            lines += (
                f"ovs-ofctl add-flow {switch} cookie={COOKIE},priority={self.flow_priority},"
                f"in_port=LOCAL,ip,nw_dst={address},actions=set_queue:{number},normal"
                for address in channel.destination.addresses
                if channel.bits
            )
        return lines


def _clean(device: str, switch: str) -> list[str]:
    """Our flows, then our rows of the database: first what refers to others."""
    find = f"ovs-vsctl --bare --columns=_uuid find %s {OWNER}={device}"
    return [
        comment(f"Flows of the plan on {switch}, queues of the plan on {device}."),
        f"ovs-ofctl del-flows {switch} cookie={COOKIE}/-1",
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
