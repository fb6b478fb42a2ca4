"""HEFT: list scheduling by upward rank, with transfers that compete for ports."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agents.base import PlannerResult
from agents.placement.grouping import GroupedProblem
from agents.placement.incumbent import Incumbent
from agents.placement.packing import Packing
from envs.graphs.op_graph import NONE
from envs.simulation.problem import StepProblem

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]

_REPAIRS = 16  # schedules tried with less and less room for state when activations overflow


class Heft:
    """Heterogeneous earliest finish time on the pieces of the fused graph.

    Pieces are taken by falling upward rank (mean compute and mean transfer seconds to the end of
    the step); the first piece of a group decides the group's device: the one where that piece
    finishes first, among those with room for the group's state. Where that leaves some group
    without room, the list is scheduled again with a look-ahead: a device is taken only if a
    `Packing` of all groups still to be placed is found. Transfers wait for their send and receive
    ports, and a tensor already sent to a device is not sent again; both ends append, there is no
    insertion into gaps. The plan is simulated in the 1F1B order and in HEFT's own, and the faster
    is kept. If live activations overflow a device in the simulation, the room for state is lowered
    by the excess and the list scheduled again.

    Topcuoglu, Hariri, Wu, "Performance-effective and low-complexity task scheduling for
    heterogeneous computing", IEEE TPDS 13(3), 2002, section 4.2; contention as in Sinnen, Sousa,
    "Communication contention in task scheduling", IEEE TPDS 16(6), 2005.

    Args:
        groups: groups of the fused graph.
    """

    def __init__(self, *, groups: int) -> None:
        self.groups = groups

    def plan(
        self, problem: StepProblem, budget_s: float, deterministic_limit: int | None = None
    ) -> PlannerResult:
        """As `Planner.plan`; needs neither budget nor limit."""
        incumbent = Incumbent(problem)
        grouped = incumbent.group(self.groups)
        if grouped is None:
            return incumbent.result()
        priority = _by_upward_rank(grouped)
        rank = np.empty(len(priority), dtype=np.int64)
        rank[priority] = np.arange(len(priority))
        own_order = np.argsort(rank[grouped.fusion.piece], kind="stable")
        room = problem.capacity.copy()
        for _ in range(_REPAIRS):
            device = _Schedule(grouped, room).place(priority)
            if device is None:
                device = _Schedule(grouped, room, Packing(grouped, room)).place(priority)
            if device is None:
                return incumbent.result(reason="a group found no device with room for its state")
            placed = grouped.fusion.expand(device)
            excess = incumbent.offer(placed)
            excess = np.maximum(excess, incumbent.offer(placed, own_order))
            if incumbent.plan is not None:
                break
            room = grouped.less_room(room, device, excess)
        return incumbent.result()


def _by_upward_rank(grouped: GroupedProblem) -> IntArray:
    """(N,) pieces by falling rank; equal ranks in the graph's order, so it is topological."""
    problem = grouped.problem
    graph = problem.graph
    mean = np.where(np.isfinite(problem.op_seconds), problem.op_seconds, 0.0).sum(axis=1)
    mean /= np.maximum(np.isfinite(problem.op_seconds).sum(axis=1), 1)
    classes = problem.topology.link_class
    apart = classes[~np.eye(len(classes), dtype=np.bool_)]
    uses = graph.uses
    moved = np.zeros(len(uses))
    if len(apart):
        moved = problem.transfer_seconds[uses[:, 1]][:, apart].mean(axis=1)
    rank = mean.copy()
    for u in range(graph.num_operators - 1, -1, -1):
        row = slice(int(graph.use_ptr[u]), int(graph.use_ptr[u + 1]))
        rank[u] += (moved[row] + rank[uses[row, 0]]).max(initial=0.0)
    return np.lexsort((np.arange(len(rank)), -rank))


class _Schedule:
    """The partial schedule of a HEFT run."""

    def __init__(
        self, grouped: GroupedProblem, room: FloatArray, packing: Packing | None = None
    ) -> None:
        self.grouped = grouped
        self.packing = packing
        graph, topology = grouped.problem.graph, grouped.problem.topology
        self.inputs: list[list[int]] = [[] for _ in range(graph.num_operators)]
        for _, consumer, tensor in graph.edges.tolist():
            self.inputs[consumer].append(tensor)
        self.producer: list[int] = graph.producer.tolist()
        self.finish = np.zeros(graph.num_operators)
        self.device_free = np.zeros(topology.num_devices)
        self.port_free = np.zeros(topology.num_ports)
        self.arrived: dict[tuple[int, int], float] = {}  # (tensor, device): seconds
        self.room = room.copy()  # (D,) bytes for state
        self.group_device = np.full(grouped.num_groups, NONE, dtype=np.int64)

    def place(self, priority: IntArray) -> IntArray | None:
        """(G,) devices, or None when a group finds no room."""
        for piece in priority.tolist():
            group = int(self.grouped.fusion.piece_group[piece])
            if self.group_device[group] == NONE:
                chosen = self._choose(piece, group)
                if chosen == NONE:
                    return None
                self.group_device[group] = chosen
                self.room[chosen] -= self.grouped.state[group]
            device = int(self.group_device[group])
            end = self._finish(piece, device, self.port_free, self.arrived)
            self.finish[piece] = self.device_free[device] = end
        return self.group_device

    def _choose(self, piece: int, group: int) -> int:
        """The device for `group`, whose first piece is `piece`, or NONE."""
        fits = self.grouped.allowed[group] & (self.grouped.state[group] <= self.room)
        ends = sorted(
            (self._finish(piece, d, self.port_free.copy(), {}), d)
            for d in np.flatnonzero(fits).tolist()
        )
        for _, device in ends:
            if self.packing is None or self.packing.pin(group, device):
                return int(device)
        return NONE

    def _finish(
        self, piece: int, device: int, port_free: FloatArray, arrived: dict[tuple[int, int], float]
    ) -> float:
        """When `piece` would end on `device`; transfers are booked in `port_free`, `arrived`."""
        problem, topology = self.grouped.problem, self.grouped.problem.topology
        ready = float(self.device_free[device])
        for tensor in sorted(self.inputs[piece], key=lambda t: self.finish[self.producer[t]]):
            source = int(self.group_device[self.grouped.fusion.piece_group[self.producer[tensor]]])
            at = float(self.finish[self.producer[tensor]])
            if source != device:
                known = self.arrived.get((tensor, device))
                if known is None:
                    link = topology.link_class[source, device]
                    seconds = float(problem.transfer_seconds[tensor, link])
                    if seconds > 0.0:
                        ports = [topology.send_port[source, device],
                                 topology.receive_port[source, device]]  # fmt: skip
                        at = max(at, float(port_free[ports].max())) + seconds
                        port_free[ports] = at
                    arrived[tensor, device] = at
                else:
                    at = known
            ready = max(ready, at)
        return ready + float(problem.op_seconds[piece, device])
