"""Linux traffic control: a hierarchical token bucket on every NIC, filters by destination."""

from __future__ import annotations

from dataclasses import dataclass

from agents.bandwidth.enforcement.hosts import HostNic
from agents.bandwidth.enforcement.queues import Queues
from agents.bandwidth.enforcement.script import Script, attempt, command, comment
from agents.bandwidth.enforcement.server_plan import ServerPlan, Uplink

HANDLE = "4d57:"  # of the queue discipline; a clean-up touches no other
_REST = 0xFFFF  # class of everything the plan does not name
_ABOUT = (
    "Enforces a bandwidth plan with tc (HTB and u32) and policy routing.",
    "Rates are bit/s of Ethernet frames as the kernel counts them, headers included; bursts and",
    "quanta are bytes. A class sends at its rate at most and borrows nothing (ceil = rate).",
    "The queue discipline at the root of each NIC is replaced; the clean-up restores the default.",
)


@dataclass(frozen=True)
class TrafficControl(Queues):
    """`tc` commands: one HTB class for each destination server and NIC, and one for the rest.

    Pure acknowledgements and other TCP packets below 128 bytes go to the class for the rest: they
    belong to the data that comes the other way, and must not wait behind a plan's data.

    Args: those of `Queues`, and
        quantum: bytes a class sends in turn; HTB's own choice is too large for fast classes.

    Raises:
        InputError: naming the config key that is out of range.
    """

    quantum: int

    def __post_init__(self) -> None:
        super().__post_init__()
        self.check("quantum", self.quantum, 1500, 200_000)

    def script(self, plan: ServerPlan) -> Script:
        """What one server runs."""
        apply, clean = [], [comment("Queue disciplines with the plan's handle, and all in them.")]
        for up in plan.uplinks:
            apply += self._queues(plan, up)
            clean.append(
                attempt("tc", "qdisc", "del", "dev", up.nic.interface, "root", "handle", HANDLE)
            )
        return Script(
            about=_ABOUT,
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
            command("tc", "qdisc", "replace", "dev", device, "root", "handle", HANDLE,
                    "htb", "default", f"{_REST:x}"),
            comment("Acknowledgements and what the plan does not name."),
            *self._class(device, _REST, rest, 0),
            # An IPv4 header without options, TCP, and a total length below 128.
            command("tc", "filter", "add", "dev", device, "parent", HANDLE, "protocol", "ip",
                    "prio", 1, "u32", "match", "u8", "0x05", "0x0f", "at", 0,
                    "match", "ip", "protocol", 6, "0xff",
                    "match", "u16", "0x0000", "0xff80", "at", 2, "flowid", f"{HANDLE}{_REST:x}"),
        ]  # fmt: skip
        for lane in up.lanes:
            bits = lane.bits(plan.framing)
            lines.append(comment(lane.about()))
            if bits == 0:
                continue
            lines += self._class(device, lane.number, bits, 1)
            for address in lane.destination.addresses:
                lines.append(command(
                    "tc", "filter", "add", "dev", device, "parent", HANDLE, "protocol", "ip",
                    "prio", 2, "u32", "match", "ip", "dst", f"{address}/32",
                    "flowid", f"{HANDLE}{lane.number:x}",
                ))  # fmt: skip
        return lines

    def _class(self, device: str, minor: int, bits: int, priority: int) -> list[str]:
        burst = self.burst(bits)
        return [command(
            "tc", "class", "add", "dev", device, "parent", HANDLE, "classid",
            f"{HANDLE}{minor:x}", "htb", "rate", f"{bits}bit", "ceil", f"{bits}bit",
            "burst", burst, "cburst", burst, "prio", priority, "quantum", self.quantum,
        )]  # fmt: skip


def interface(nic: HostNic) -> str:
    """Where the addresses of a NIC are: on the NIC itself."""
    return nic.interface
