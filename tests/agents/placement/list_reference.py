"""List scheduling in plain Python: slow, obvious, and independent of the compiled schedule."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from agents.step.grouping import GroupedProblem
from envs.graphs.op_graph import NONE

IntArray = NDArray[np.int64]
Calendar = list[tuple[float, float]]  # begin, end


def gap(calendars: list[Calendar], ready: float, seconds: float) -> float:
    """The first time from `ready` on at which all calendars are free for `seconds`."""
    ends = [end for calendar in calendars for _, end in calendar if end > ready]
    for start in sorted({ready, *ends}):
        busy = [
            begin < start + seconds and end > start
            for calendar in calendars
            for begin, end in calendar
        ]
        if not any(busy):
            return start
    raise AssertionError("after the last end everything is free")


@dataclass
class Reference:
    """A partial schedule of the pieces of `grouped`."""

    grouped: GroupedProblem
    room: list[float]
    home: dict[int, int] = field(default_factory=dict)  # device by group
    start: dict[int, float] = field(default_factory=dict)
    finish: dict[int, float] = field(default_factory=dict)
    arrival: dict[tuple[int, int], float] = field(default_factory=dict)  # by tensor, device
    calendar: dict[tuple[str, int], Calendar] = field(default_factory=dict)

    def inputs(self, piece: int) -> list[int]:
        """Tensors that `piece` reads."""
        return [t for _, consumer, t in self.grouped.problem.graph.edges.tolist()
                if consumer == piece]  # fmt: skip

    def ready(self) -> list[int]:
        """Pieces not yet scheduled of which all inputs are computed."""
        producer = self.grouped.problem.graph.producer
        pieces = range(self.grouped.problem.graph.num_operators)
        return [
            piece
            for piece in pieces
            if piece not in self.start
            and all(int(producer[t]) in self.finish for t in self.inputs(piece))
        ]

    def devices(self, piece: int) -> list[int]:
        """Devices that can take `piece`."""
        group = int(self.grouped.fusion.piece_group[piece])
        if group in self.home:
            return [self.home[group]]
        return [
            d
            for d in range(len(self.room))
            if self.grouped.allowed[group, d] and self.grouped.state[group] <= self.room[d]
        ]

    def calendar_of(self, kind: str, number: int) -> Calendar:
        return self.calendar.setdefault((kind, number), [])

    def receive(self, piece: int, device: int, keep: bool) -> float:
        """When all inputs of `piece` are on `device`; `keep`: the transfers stay."""
        problem, topology = self.grouped.problem, self.grouped.problem.topology
        before = {key: list(calendar) for key, calendar in self.calendar.items()}
        arrived = 0.0
        producer = problem.graph.producer
        tensors = sorted(self.inputs(piece), key=lambda t: (self.finish[int(producer[t])], t))
        for tensor in tensors:
            at = self.finish[int(producer[tensor])]
            source = self.home[int(self.grouped.fusion.piece_group[producer[tensor]])]
            if source != device and (tensor, device) in self.arrival:
                at = self.arrival[tensor, device]
            elif source != device:
                link = topology.link_class[source, device]
                seconds = float(problem.transfer_seconds[tensor, link])
                if seconds > 0.0:
                    ports = [
                        self.calendar_of("port", int(topology.send_port[source, device])),
                        self.calendar_of("port", int(topology.receive_port[source, device])),
                    ]
                    begin = gap(ports, at, seconds)
                    at = begin + seconds
                    for port in ports:
                        port.append((begin, at))
                if keep:
                    self.arrival[tensor, device] = at
            arrived = max(arrived, at)
        if not keep:
            self.calendar = before
        return arrived

    def run(self, piece: int, device: int, start: float) -> None:
        end = start + float(self.grouped.problem.op_seconds[piece, device])
        self.calendar_of("device", device).append((start, end))
        self.start[piece], self.finish[piece] = start, end

    def decide(self, piece: int, device: int) -> None:
        group = int(self.grouped.fusion.piece_group[piece])
        if group not in self.home:
            self.home[group] = device
            self.room[device] -= float(self.grouped.state[group])

    def released(self, device: int) -> float:
        return max((end for _, end in self.calendar_of("device", device)), default=0.0)


def heft(grouped: GroupedProblem, room: list[float], priority: list[int]) -> Reference | None:
    """HEFT with insertion; None when a group finds no room."""
    schedule = Reference(grouped, list(room))
    seconds = grouped.problem.op_seconds
    for piece in priority:
        ends = []
        for d in schedule.devices(piece):
            arrived = schedule.receive(piece, d, keep=False)
            length = float(seconds[piece, d])
            ends.append((gap([schedule.calendar_of("device", d)], arrived, length) + length, d))
        if not ends:
            return None
        device = min(ends)[1]
        schedule.decide(piece, device)
        arrived = schedule.receive(piece, device, keep=True)
        length = float(seconds[piece, device])
        start = gap([schedule.calendar_of("device", device)], arrived, length)
        schedule.run(piece, device, start)
    return schedule


def earliest(
    grouped: GroupedProblem, room: list[float], rank: list[float], favourite: list[int]
) -> Reference | None:
    """ETF or, with favourite children, SCT; None when a group finds no room."""
    schedule = Reference(grouped, list(room))
    seconds = grouped.problem.op_seconds
    latest: dict[int, int] = {}  # the last piece of each device
    while len(schedule.start) < len(rank):
        ready = schedule.ready()
        arrived = {
            (piece, d): schedule.receive(piece, d, keep=False)
            for piece in ready
            for d in schedule.devices(piece)
        }
        if any(not schedule.devices(piece) for piece in ready):
            return None

        def start_of(piece: int, d: int, arrived: dict[tuple[int, int], float] = arrived) -> float:
            return max(arrived[piece, d], schedule.released(d))

        reserved: dict[int, int] = {}
        for d, parent in latest.items():
            child = favourite[parent]
            group = int(grouped.fusion.piece_group[child]) if child != NONE else NONE
            if child in ready and group not in schedule.home and (child, d) in arrived:
                ends = {e: start_of(child, e) + float(seconds[child, e])
                        for e in schedule.devices(child)}  # fmt: skip
                if ends[d] == min(ends.values()):
                    reserved[d] = child
        candidates = []
        for piece in ready:
            urgent = max(arrived[piece, d] for d in schedule.devices(piece))
            choices = []
            for d in schedule.devices(piece):
                mine = reserved.get(d) == piece
                start = start_of(piece, d)
                if d in reserved and not mine:
                    start = max(start, urgent)
                choices.append((start + float(seconds[piece, d]), not mine, d, start))
            _, other, device, start = min(choices)
            candidates.append((start, not other, -rank[piece], piece, device))
        piece, device = min(candidates)[3:]
        schedule.decide(piece, device)
        schedule.receive(piece, device, keep=True)
        schedule.run(piece, device, start_of(piece, device))
        latest[device] = piece
    return schedule
