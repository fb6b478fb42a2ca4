"""A placement model that knows the order: start times, and who goes first where two collide."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Lt

from agents.placement.integer_program.model import PlacementModel, Terms, negative
from agents.placement.integer_program.schedule import Conflicts, Move, Schedule
from agents.step.grouping import GroupedProblem
from agents.step.lower_bound import paths, windows
from envs.arrays import BoolArray, FloatArray, IntArray
from envs.bounds import Count, bounded

TOLERANCE = 1e-6  # of times, relative to the horizon
_FRACTIONS = (0.0, 0.05, 0.15, 0.4)  # of the critical path, for the windows of loads


@bounded
@dataclass(frozen=True)
class OrderFormulation:
    """Makes `OrderModel`.

    Args:
        gap: relative, at which a round ends.
        at_once: disjunctions of each kind that one solution adds, at most.
    """

    gap: Annotated[float, Ge(0.0), Lt(1.0)] = 1e-06
    at_once: Count = 30

    def __call__(self, grouped: GroupedProblem) -> OrderModel:
        """The model of `grouped`."""
        return OrderModel(grouped, self.gap, self.at_once)


class OrderModel(PlacementModel):
    """`PlacementModel` with the rules of the simulator: the whole problem but for live activations.

    Variables, in seconds / `scale`: start S[p] of every piece; arrival A[t, d] of tensor t on d.
    F[p] = S[p] + seconds of p where it is. Rows from the beginning:

        T >= F[p],   S[v] >= F[u] + seconds of the transfer from u to v,
        A[t, d] >= F[producer of t] + seconds of its transfer to d,   S[v] >= A[t, d] if v is on d

    and, for sets of pieces with a head of at least r and a tail of at least q (longest paths of
    fastest pieces), T >= r + q + seconds of the set on d.

    A disjunction is added when a solution breaks it (`learn`): of two pieces on one device, or of
    two transfers through one port, one ends before the other starts. Which one, a binary y[p, q]
    says ("p stands before q in the order"), the same for the devices and for the ports, which
    serve by the positions of producers; positions of all pieces, which rise along every dependency,
    keep the y free of cycles. Transfers of one producer go by the positions of their first
    consumers. All rows hold for every plan, so the bound of the program does, too.

    A solution that breaks nothing gives an order in which the simulator is at least as fast.

    Args:
        grouped: the groups.
        gap: relative, at which a round ends.
        at_once: disjunctions of each kind that one solution adds, at most.
    """

    def __init__(self, grouped: GroupedProblem, gap: float, at_once: int) -> None:
        super().__init__(grouped)
        self.gap = gap
        self.at_once = at_once
        self.complete = True
        problem = grouped.problem
        graph = problem.graph
        self._graph, self._topology = graph, problem.topology
        self._group = grouped.fusion.piece_group
        finite = np.where(np.isfinite(problem.op_seconds), problem.op_seconds, 0.0)
        self._work = finite / self.scale
        self._move = problem.transfer_seconds / self.scale
        self._everywhere = np.ones_like(problem.topology.link_class, dtype=np.bool_)
        most = self._move.max(axis=1, initial=0.0).sum() * max(1, problem.topology.num_devices - 1)
        self.horizon = float(self._work.max(axis=1, initial=0.0).sum() + most) or 1.0
        self._far = float(graph.num_operators + 1)  # positions never differ by as much
        self.start = self.program.add_columns(graph.num_operators, upper=self.horizon)
        self.arrival: dict[Move, int] = {}
        self._position: IntArray | None = None
        self._before: dict[tuple[int, int], int] = {}
        self._same: dict[tuple[int, int], Terms] = {}
        self._first: dict[Move, int] = {}
        self._parted = Conflicts(set(), set())
        self._add_dependencies()
        self._add_windows()

    def finish_of(self, piece: int, sign: float) -> Terms:
        """Terms of sign * F[piece]."""
        return [
            (self.start[piece : piece + 1], sign),
            (self.place[self._group[piece]], sign * self._work[piece]),
        ]

    def add_overflow(self, device: IntArray, excess: FloatArray) -> None:
        """As `AssignmentModel.add_overflow`; another order might have fitted."""
        super().add_overflow(device, excess)
        self.complete = False

    def order(self, solution: FloatArray) -> IntArray:
        """(N,) a topological order of the pieces that follows the start times of a solution."""
        return self._schedule(solution).order()

    def learn(self, solution: FloatArray, best: float) -> bool:
        """Add the disjunctions that a solution breaks; whether there were any.

        `best` are the seconds of the best plan so far.
        """
        schedule = self._schedule(solution)
        if best > 0.0:
            self.horizon = min(self.horizon, best / self.scale * (1.0 + TOLERANCE))
        broken = schedule.collisions(self.at_once) or schedule.contradictions()
        pieces = [pair for pair in broken.pieces if pair not in self._parted.pieces]
        for one, other in pieces:
            self._part_pieces(one, other)
        moves = [pair for pair in broken.moves if pair not in self._parted.moves]
        for one_move, other_move in moves:
            self._part_moves(one_move, other_move)
        self._parted = Conflicts(self._parted.pieces | set(pieces), self._parted.moves | set(moves))
        return bool(pieces or moves)

    def _schedule(self, solution: FloatArray) -> Schedule:
        device = self.devices(solution)[self._group]
        count = len(device)
        position = np.arange(count, dtype=np.float64)
        if self._position is not None and self._position[-1] < len(solution):
            position = np.round(solution[self._position])
        return Schedule(
            problem=self.grouped.problem,
            scale=self.scale,
            grain=TOLERANCE * self.horizon,
            device=device,
            start=solution[self.start],
            finish=solution[self.start] + self._work[np.arange(count), device],
            position=position,
            arrival={
                move: float(solution[column])
                for move, column in self.arrival.items()
                if column < len(solution)
            },
        )

    def _add_dependencies(self) -> None:
        for u, v, tensor in self._graph.edges.tolist():
            a, b = int(self._group[u]), int(self._group[v])
            moved: Terms = []
            if a != b:
                moved = negative(self.moving([tensor], (b,), self._everywhere))
            self.program.add_row(
                [(self.start[v : v + 1], 1.0), *self.finish_of(u, -1.0), *moved], lower=0.0
            )
        ends = np.ones(self._graph.num_operators, dtype=np.bool_)
        ends[self._graph.edges[:, 0]] = False
        for piece in np.flatnonzero(ends).tolist():
            self.program.add_row([(self.finish, 1.0), *self.finish_of(piece, -1.0)], lower=0.0)

    def _add_windows(self) -> None:
        able = np.isfinite(self.grouped.problem.op_seconds)
        head, tail, path = paths(self._graph, np.where(able, self._work, np.inf).min(axis=1))
        for inside in windows(head, tail, path, _FRACTIONS):
            load = np.zeros_like(self.grouped.seconds)
            np.add.at(load, self._group[inside], self._work[inside])
            self.program.add_rows(
                load.shape[1],
                [(np.repeat(self.finish, load.shape[1]), 1.0), (self.place.T, -load.T)],
                lower=head[inside].min() + tail[inside].min(),
            )

    # disjunctions

    def _y(self, p: int, q: int) -> tuple[int, bool]:
        """The binary of the pair, and whether it says that p (not q) is first."""
        if self._position is None:
            count = self._graph.num_operators
            self._position = self.program.add_columns(count, upper=float(count))
            edges = self._graph.edges
            ends = [(self._position[edges[:, 1]], 1.0), (self._position[edges[:, 0]], -1.0)]
            self.program.add_rows(len(edges), ends, lower=1.0)
        key = (min(p, q), max(p, q))
        if key not in self._before:
            one, other = self._position[list(key)]
            self._before[key] = self._rises(one, other, 1.0, -1.0)
        return self._before[key], p < q

    def _rises(self, one: int, other: int, least: float, most: float) -> int:
        """A binary: position `other` is `least` above `one` at least, or else `most` at most."""
        column = int(self.program.add_columns(1, upper=1.0, integer=True)[0])
        rise: Terms = [([other], 1.0), ([one], -1.0), ([column], -self._far)]
        self.program.add_row(rise, lower=least - self._far, upper=most)
        return column

    def _either(self, y: tuple[int, bool], first: bool) -> tuple[Terms, float]:
        """Terms and constant of -horizon * (1 - [y says `first`])."""
        column, upright = y
        if upright == first:
            return [(np.array([column]), -self.horizon)], -self.horizon
        return [(np.array([column]), self.horizon)], 0.0

    def _part_pieces(self, p: int, q: int) -> None:
        y = self._y(p, q)
        same, apart = self._same_device(int(self._group[p]), int(self._group[q]))
        for sooner, later, first in ((p, q, True), (q, p, False)):
            terms, constant = self._either(y, first)
            self.program.add_row(
                [
                    (self.start[later : later + 1], 1.0),
                    *self.finish_of(sooner, -1.0),
                    *terms,
                    *same,
                ],
                lower=constant + apart,
            )

    def _same_device(self, a: int, b: int) -> tuple[Terms, float]:
        """Terms and constant of -horizon * (1 - [groups a and b are on one device])."""
        if a == b:
            return [], 0.0
        key = (min(a, b), max(a, b))
        if key not in self._same:
            if key in self._pairs:
                columns = np.diag(self._pairs[key])
            else:
                columns = self.program.add_columns(1, upper=1.0)
                count = self.place.shape[1]
                self.program.add_rows(
                    count,
                    [(np.repeat(columns, count), 1.0), (self.place[a], -1.0),
                     (self.place[b], -1.0)],
                    lower=-1.0,
                )  # fmt: skip
            self._same[key] = [(columns, -self.horizon)]
        return self._same[key], -self.horizon

    def _part_moves(self, one: Move, other: Move) -> None:
        producer = self._graph.producer
        u, v = int(producer[one[0]]), int(producer[other[0]])
        y = self._y(u, v) if u != v else self._first_consumer(one, other)
        ways = {move: self._ways(move) for move in (one, other)}
        for ports in (self._topology.send_port, self._topology.receive_port):
            for port in np.intersect1d(ports[ways[one]], ports[ways[other]]):
                for sooner, later, first in ((one, other, True), (other, one, False)):
                    terms, constant = self._either(y, first)
                    holds = {move: ways[move] & (ports == port) for move in (sooner, later)}
                    used: Terms = [
                        (self._sent_of(move[0])[pairs], -self.horizon)
                        for move, pairs in holds.items()
                    ]
                    self.program.add_row(
                        [([self._arrival(later)], 1.0), ([self._arrival(sooner)], -1.0),
                         *negative(self._carrying(later, holds[later])), *used, *terms],
                        lower=constant - 2.0 * self.horizon,
                    )  # fmt: skip

    def _ways(self, move: Move) -> BoolArray:
        """(D, D) the pairs (s, d of the move) on which it takes time."""
        tensor, d = move
        pairs = np.zeros_like(self._everywhere)
        pairs[:, d] = self._move[tensor][self._topology.link_class[:, d]] > 0.0
        pairs[d, d] = False
        return pairs

    def _carrying(self, move: Move, pairs: BoolArray) -> Terms:
        """Terms of the seconds of a move on `pairs` (D, D)."""
        return self.moving([move[0]], self._targets(move[0]), pairs)

    def _sent_of(self, tensor: int) -> IntArray:
        home = int(self._group[self._graph.producer[tensor]])
        return self.sent(home, self._targets(tensor))

    def _arrival(self, move: Move) -> int:
        if move not in self.arrival:
            tensor, d = move
            column = int(self.program.add_columns(1, upper=self.horizon)[0])
            self.arrival[move] = column
            producer = int(self._graph.producer[tensor])
            self.program.add_row(
                [([column], 1.0), *self.finish_of(producer, -1.0),
                 *negative(self._carrying(move, self._ways(move)))],
                lower=0.0,
            )  # fmt: skip
            for consumer in self._remote(tensor):
                here = self.place[self._group[consumer], d : d + 1]
                self.program.add_row(
                    [(self.start[consumer : consumer + 1], 1.0), ([column], -1.0),
                     (here, -self.horizon)],
                    lower=-self.horizon,
                )  # fmt: skip
        return self.arrival[move]

    def _remote(self, tensor: int) -> list[int]:
        """Consumers of a tensor in other groups than its producer's."""
        consumers = self._graph.consumers(tensor)
        home = self._group[self._graph.producer[tensor]]
        found: list[int] = consumers[self._group[consumers] != home].tolist()
        return found

    def _first_consumer(self, one: Move, other: Move) -> tuple[int, bool]:
        """A binary: the first consumer of `one` stands before that of `other`."""
        self._y(0, self._graph.num_operators - 1)  # positions
        a, b = self._first_position(one), self._first_position(other)
        tie = 0.0 if one[0] < other[0] else 1.0  # the tensor's number decides between equals
        return self._rises(a, b, tie, tie - 1.0), True

    def _first_position(self, move: Move) -> int:
        """The column of the position of the first consumer there."""
        if move not in self._first:
            assert self._position is not None
            tensor, d = move
            consumers = self._remote(tensor)
            far = self._far
            column = int(self.program.add_columns(1, upper=far)[0])
            chosen = self.program.add_columns(len(consumers), upper=1.0, integer=True)
            sent = self._sent_of(tensor)[self._ways(move)]
            self.program.add_row([(chosen, 1.0), (sent, -1.0)], lower=0.0)
            for number, consumer in enumerate(consumers):
                position = self._position[consumer]
                here = self.place[self._group[consumer], d]
                self.program.add_row([([chosen[number]], 1.0), ([here], -1.0)], upper=0.0)
                self.program.add_row(
                    [([column], 1.0), ([position], -1.0), ([here], far)], upper=far
                )
                self.program.add_row(
                    [([column], 1.0), ([position], -1.0), ([chosen[number]], -far)], lower=-far
                )
            self._first[move] = column
        return self._first[move]
