"""Open vSwitch: quality-of-service queues on every port, flows that choose the queue."""

from __future__ import annotations

from dataclasses import dataclass

from agents.bandwidth.enforcement.hosts import HostNic
from agents.bandwidth.enforcement.queues import Queues
from agents.bandwidth.enforcement.script import Script, command, comment
from agents.bandwidth.enforcement.server_plan import ServerPlan, Uplink
from envs.errors import InputError

COOKIE = "0x4d57"  # of our flows; a clean-up touches no other
OWNER = "external-ids:meshwright"  # holds the interface in our rows of the switch's database
_REST = 0  # the queue of everything the plan does not name
_MOST_QUEUES = 61_440  # queue numbers of linux-htb end below
_ABOUT = (
    "Enforces a bandwidth plan with Open vSwitch queues (linux-htb) and policy routing.",
    "Needs the kernel datapath: the userspace datapath (netdev, DPDK) ignores set_queue, and every",
    "packet would leave through queue 0.",
    "Rates are whole bit/s of Ethernet frames as the kernel counts them, headers included; bursts",
    "are bits. A queue sends at its rate at most and borrows nothing (max-rate = min-rate).",
)


@dataclass(frozen=True)
class OpenVSwitch(Queues):
    """`ovs-vsctl` and `ovs-ofctl` commands: a queue for each destination server and NIC.

    Every NIC is a port of a bridge of its own, and the bridge's local port has the NIC's address.
    OpenFlow cannot tell acknowledgements by their length: they share the queue of their
    destination, or queue 0 where the plan gives that destination nothing.

    Args: those of `Queues`, and
        flow_priority: of our flows in the bridges' tables.

    Raises:
        InputError: naming the config key that is out of range.
    """

    flow_priority: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("flow_priority", self.flow_priority, 1, 65_535)

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
            about=_ABOUT,
            programs=("ip", "ovs-vsctl", "ovs-ofctl"),
            checks=[*checks, *self.routing.checks(plan, bridge)],
            apply=[*apply, *self.routing.apply(plan, bridge)],
            clean=[*clean, *self.routing.clean(plan)],
        )

    def _queues(self, plan: ServerPlan, up: Uplink) -> list[str]:
        device, switch = up.nic.interface, bridge(up.nic)
        capacity = plan.framing.kernel_bits(up.capacity)
        given = [(lane, lane.bits(plan.framing)) for lane in up.lanes]
        queues = {_REST: (int(capacity * self.rest_share), 0)}
        queues |= {lane.number: (bits, 1) for lane, bits in given if bits}
        if max(queues) >= _MOST_QUEUES:
            raise InputError(f"Open vSwitch has no more than {_MOST_QUEUES} queues")
        mark = f"{OWNER}={device}"
        words: list[object] = ["ovs-vsctl", "--", "set", "Port", device, "qos=@plan"]
        words += ["--", "--id=@plan", "create", "QoS", "type=linux-htb", mark]
        words += [f"other-config:max-rate={capacity}"]
        words += [f"queues:{number}=@queue{number}" for number in queues]
        for number, (bits, priority) in queues.items():
            burst = 8 * self.burst(bits)
            words += ["--", f"--id=@queue{number}", "create", "Queue", mark]
            words += [f"other-config:{key}-rate={bits}" for key in ("min", "max")]
            words += [f"other-config:burst={burst}", f"other-config:priority={priority}"]
        lines = ["", comment(f"{up.name} is {device} on {switch}, {capacity} bit/s."),
                 _wrapped(command(*words))]  # fmt: skip
        for lane, bits in given:
            lines.append(comment(lane.about()))
            for address in lane.destination.addresses if bits else ():
                match = f"in_port=LOCAL,ip,nw_dst={address}"
                action = f"actions=set_queue:{lane.number},normal"
                lines.append(command(
                    "ovs-ofctl", "add-flow", switch,
                    f"cookie={COOKIE},priority={self.flow_priority},{match},{action}",
                ))  # fmt: skip
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
        command("ovs-ofctl", "del-flows", bridge(up.nic), f"cookie={COOKIE}/-1"),
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
