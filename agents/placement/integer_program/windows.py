"""Why a simulated step takes as long as it does: its critical path, by group."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agents.placement.integer_program.model import PlacementModel
from agents.step.grouping import FloatArray, GroupedProblem, IntArray
from envs.graphs.op_graph import NONE, OpGraph, Phase
from envs.step.step import StepSimulator


def critical_seconds(
    simulator: StepSimulator, grouped: GroupedProblem, group_device: IntArray
) -> FloatArray:
    """(G,) seconds of the critical path that each group is responsible for.

    `simulator` plays the pieces. The path is followed backwards from the operator that ends last:
    an operator starts when an input arrives or when its device becomes free. A group answers for
    the compute of its pieces on the path and for the transfers (waiting for ports included) that
    they receive along it. The seconds add up to the step time.
    """
    graph, group = grouped.problem.graph, grouped.fusion.piece_group
    device = grouped.fusion.expand_pieces(group_device)
    order = simulator.order(device)
    timeline = simulator.run(device, order)
    before = np.full(graph.num_operators, -1, dtype=np.int64)  # on the same device
    for d in np.unique(device):
        mine = order[device[order] == d]
        before[mine[1:]] = mine[:-1]
    inputs: list[list[int]] = [[] for _ in range(graph.num_operators)]
    for _, consumer, tensor in graph.edges.tolist():
        inputs[consumer].append(tensor)
    received = zip(
        timeline.transfer_tensor.tolist(), timeline.transfer_destination.tolist(), strict=True
    )
    arrival = dict(zip(received, timeline.transfer_finish.tolist(), strict=True))
    start, finish = timeline.op_start, timeline.op_finish
    seconds = np.zeros(grouped.num_groups)
    op = int(finish.argmax()) if len(finish) else -1
    while op >= 0:
        seconds[group[op]] += finish[op] - start[op]
        cause = int(before[op])
        for tensor in inputs[op]:
            producer = int(graph.producer[tensor])
            at = arrival.get((tensor, int(device[op])), finish[producer])
            if at == start[op] > 0.0:
                seconds[group[op]] += at - finish[producer]
                cause = producer
                break
        op = cause if start[op] > 0.0 else -1
    return seconds


_MOST = 128  # windows, evenly drawn where there are more
_SURPRISE = 1.01  # a lesson is learned when the step takes this many times what the model said
_RELEVANT = 1.3  # ... and is not this many times slower than the best plan


@dataclass(frozen=True)
class WindowFormulation:
    """Makes `WindowModel`.

    Args:
        forgiven: part of its blame a group takes along when it moves; see `add_lesson`.
    """

    forgiven: float

    def __call__(self, grouped: GroupedProblem) -> WindowModel:
        """The model of `grouped`."""
        return WindowModel(grouped, self.forgiven)


class WindowModel(PlacementModel):
    """`PlacementModel` with `add_windows`, and with what simulations teach instead of an order.

    Where all micro-batches are alike its optimum before any lesson is a bound on every order.

    Args:
        grouped: the groups.
        forgiven: see `add_lesson`.
    """

    gap = 0.02  # relative, at which a round ends: the model is no more accurate than that
    complete = False  # the copies of a piece in other micro-batches may be shorter

    def __init__(self, grouped: GroupedProblem, forgiven: float) -> None:
        super().__init__(grouped)
        self.forgiven = forgiven
        self.simulator = StepSimulator(grouped.problem)
        add_windows(self)

    def order(self, solution: FloatArray) -> IntArray | None:
        """None: the model says nothing of the order."""
        return None

    def learn(self, solution: FloatArray, device: IntArray, expected: float, best: float) -> bool:
        """Add a lesson if the step of `device` (G,) is longer than `expected` but worth it."""
        blame = critical_seconds(self.simulator, self.grouped, device)
        if not expected * _SURPRISE < float(blame.sum()) <= _RELEVANT * best:
            return False
        self.add_lesson(device, blame, self.forgiven)
        return True

    def add_lesson(self, device: IntArray, blame: FloatArray, forgiven: float) -> None:
        """T >= step time of `device` (G,), less for every group that moves away.

        `blame` (G,) are the seconds of the simulated step that each group answers for, all of them
        together the step time; moving group g elsewhere takes `forgiven` * blame[g] off.
        """
        row = self.place[np.arange(len(device)), device]
        self.program.add_row(
            [(self.finish, 1.0), (row, -forgiven * blame / self.scale)],
            lower=(1.0 - forgiven) * float(blame.sum()) / self.scale,
        )


@dataclass(frozen=True, eq=False)
class Window:
    """Pieces that run after the head of one piece and before the tail of another."""

    first: int  # a piece of the first micro-batch, NONE: no head
    last: int  # a piece of the first micro-batch, NONE: no tail
    seconds: FloatArray  # (G, D) seconds of the pieces in the window, by group


def add_windows(model: PlacementModel) -> None:
    """T >= head of p + tail of q + what a device does between the two, for many p and q.

    Variables: a head H[p] and a tail Q[p] for each piece p of the first micro-batch, in
    seconds / `scale`:

        H[v] >= H[u] + seconds of u + seconds of the transfer from u to v,

    backwards for Q. For every device d and every window (p, q) of `windows`

        T >= H[p] + Q[q] + seconds on d of the pieces, of all micro-batches, in the window:

    a device cannot start on such work before the first micro-batch reaches it, does it one piece
    at a time, and the last micro-batch still has its way back to go. Where all micro-batches are
    alike this is a bound on every order.
    """
    graph = model.grouped.problem.graph
    group = model.grouped.fusion.piece_group
    chain = np.flatnonzero((graph.micro_batch == 0) & (graph.phase != Phase.OPTIMIZER)).tolist()
    head = dict(zip(chain, model.program.add_columns(len(chain)).tolist(), strict=True))
    tail = dict(zip(chain, model.program.add_columns(len(chain)).tolist(), strict=True))
    finite = np.isfinite(model.grouped.problem.op_seconds)
    seconds = np.where(finite, model.grouped.problem.op_seconds, 0.0)
    for u, v, tensor in graph.edges.tolist():
        if u not in head or v not in head:
            continue
        a, b = int(group[u]), int(group[v])
        moved: list[tuple[IntArray, FloatArray]] = []
        if a != b:
            cost = model.grouped.problem.transfer_seconds[tensor]
            cost = cost[model.grouped.problem.topology.link_class] / model.scale
            moved = [(model.together(a, b), -cost)]
        for later, sooner, piece in ((head[v], head[u], u), (tail[u], tail[v], v)):
            place = model.place[group[piece]]
            model.program.add_row(
                [(later, 1.0), (sooner, -1.0), (place, -seconds[piece] / model.scale), *moved],
                lower=0.0,
            )
    for window in windows(graph, group, seconds, model.grouped.num_groups):
        ends = [(head[window.first], -1.0)] if window.first != NONE else []
        ends += [(tail[window.last], -1.0)] if window.last != NONE else []
        for d in range(model.place.shape[1]):
            work = (model.place[:, d], -window.seconds[:, d] / model.scale)
            model.program.add_row([(model.finish, 1.0), *ends, work], lower=0.0)


def windows(graph: OpGraph, group: IntArray, seconds: FloatArray, num_groups: int) -> list[Window]:
    """Windows of a fused graph, 128 at most; those that cover the same pieces stand once.

    What descends from p; what precedes q; what descends from p and precedes q, for p a forward
    piece of the first micro-batch and q the last backward piece of its group that descends from
    p. "Descends from p" means: from the copy of p in any micro-batch.
    """
    below, above = _reachable(graph)
    chain = np.flatnonzero((graph.micro_batch == 0) & (graph.phase != Phase.OPTIMIZER))
    copies = _copies(graph, group)
    after = {int(p): _union(below, copies[int(p)]) for p in chain}
    before = {int(p): _union(above, copies[int(p)]) for p in chain}
    found: dict[int, tuple[int, int]] = {}
    for p in chain.tolist():
        found.setdefault(after[p], (p, NONE))
        found.setdefault(before[p], (NONE, p))
        back = chain[(group[chain] == group[p]) & (graph.phase[chain] == Phase.BACKWARD)].tolist()
        back = [q for q in back if below[p] >> q & 1]
        if graph.phase[p] == Phase.FORWARD and back:
            found.setdefault(after[p] & before[back[-1]], (p, back[-1]))
    result = []
    drawn = np.unique(np.linspace(0, len(found) - 1, min(len(found), _MOST)).astype(np.int64))
    chosen = [list(found.items())[number] for number in drawn]
    for members, (first, last) in chosen:
        inside = np.array([members >> p & 1 for p in range(graph.num_operators)], dtype=np.bool_)
        load = np.zeros((num_groups, seconds.shape[1]))
        np.add.at(load, group[inside], seconds[inside])
        result.append(Window(first, last, load))
    return result


def _reachable(graph: OpGraph) -> tuple[list[int], list[int]]:
    """Bit sets of each piece's descendants and ancestors, itself included."""
    below = [1 << piece for piece in range(graph.num_operators)]
    above = [1 << piece for piece in range(graph.num_operators)]
    for u, v, _ in graph.edges[np.argsort(-graph.edges[:, 0], kind="stable")].tolist():
        below[u] |= below[v]
    for u, v, _ in graph.edges[np.argsort(graph.edges[:, 1], kind="stable")].tolist():
        above[v] |= above[u]
    return below, above


def _copies(graph: OpGraph, group: IntArray) -> dict[int, list[int]]:
    """For each piece of the first micro-batch: the pieces that repeat it, itself included.

    The k-th piece of a group, phase and replica repeats the k-th of the first micro-batch.
    """
    rows: dict[tuple[int, int, int, int], list[int]] = {}
    keys = np.stack([group, graph.phase, graph.replica, graph.micro_batch], axis=1)
    for piece, (g, phase, replica, number) in enumerate(keys.tolist()):
        rows.setdefault((g, phase, replica, number), []).append(piece)
    found: dict[int, list[int]] = {}
    for (g, phase, replica, number), pieces in rows.items():
        model = rows.get((g, phase, replica, 0), [])
        if number >= 0 and len(model) == len(pieces):
            for original, piece in zip(model, pieces, strict=True):
                found.setdefault(original, []).append(piece)
    return found


def _union(sets: list[int], pieces: list[int]) -> int:
    total = 0
    for piece in pieces:
        total |= sets[piece]
    return total
