"""What a solution of the order model says: who runs when, and which rules that breaks."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from typing import TypeVar

import numpy as np

from agents.step.grouping import topological
from envs.arrays import FloatArray, IntArray
from envs.step.problem import StepProblem

Move = tuple[int, int]  # tensor, receiving device
Item = TypeVar("Item")
Pair = TypeVar("Pair")


@dataclass(frozen=True)
class Conflicts:
    """Pairs, the smaller first, of which one must go before the other."""

    pieces: set[tuple[int, int]]  # on one device
    moves: set[tuple[Move, Move]]  # through one port

    def __bool__(self) -> bool:
        return bool(self.pieces or self.moves)


@dataclass(frozen=True)
class _Arc:
    """Piece `before` must stand before `after` in the order, because of `why`."""

    before: int
    after: int
    why: Conflicts


_NO_CONFLICT = Conflicts(set(), set())


@dataclass(frozen=True, eq=False)
class Schedule:
    """Placement and times of all pieces and of the transfers that a solution times.

    Times are in seconds / `scale`; differences below `grain` are none.
    """

    problem: StepProblem  # of the pieces
    scale: float  # seconds
    grain: float
    device: IntArray  # (N,)
    start: FloatArray  # (N,)
    finish: FloatArray  # (N,)
    position: FloatArray  # (N,) decides between equal times
    arrival: dict[Move, float]  # end of a transfer, where it is not as early as possible

    def collisions(self, most: int) -> Conflicts:
        """The longest overlaps of pieces on a device and of transfers at a port, `most` each."""
        pieces: dict[tuple[int, int], float] = {}
        for d in np.unique(self.device):
            mine = np.flatnonzero(self.device == d)
            spans = zip(
                self.start[mine].tolist(), self.finish[mine].tolist(), mine.tolist(), strict=True
            )
            pieces |= _overlaps(sorted(spans), 2.0 * self.grain)
        moves: dict[tuple[Move, Move], float] = {}
        for spans_of_port in self._transfers().values():
            moves |= _overlaps(spans_of_port, 2.0 * self.grain)
        return Conflicts(_longest(pieces, most), _longest(moves, most))

    def contradictions(self) -> Conflicts:
        """The pairs for which no order serves devices and ports as the times say."""
        arcs = self._arcs()
        alive = set(range(len(self.device)))
        while True:
            inner = [arc for arc in arcs if arc.before in alive and arc.after in alive]
            kept = {arc.before for arc in inner} & {arc.after for arc in inner}
            if kept == alive:
                return Conflicts(
                    set().union(*(arc.why.pieces for arc in inner)),
                    set().union(*(arc.why.moves for arc in inner)),
                )
            alive = kept

    def order(self) -> IntArray:
        """(N,) an order that serves devices and ports as the times say, where there is one.

        Otherwise a topological order by start time.
        """
        found = self._sorted(self._arcs())
        return self._sorted(self._dependencies()) if len(found) < len(self.device) else found

    def _dependencies(self) -> list[_Arc]:
        return [_Arc(u, v, _NO_CONFLICT) for u, v, _ in self.problem.graph.edges.tolist()]

    def _arcs(self) -> list[_Arc]:
        """Who must stand before whom for the simulator to serve as the times say."""
        arcs = self._dependencies()
        rank = self._ranks()
        for d in np.unique(self.device):
            mine = np.flatnonzero(self.device == d)
            mine = mine[np.argsort(rank[mine])]
            arcs += [
                _Arc(p, q, Conflicts({(min(p, q), max(p, q))}, set()))
                for p, q in pairwise(mine.tolist())
            ]
        producer = self.problem.graph.producer
        for moves in self._transfers().values():
            for (_, _, one), (_, _, other) in pairwise(moves):
                why = Conflicts(set(), {(min(one, other), max(one, other))})
                u, v = int(producer[one[0]]), int(producer[other[0]])
                if u != v:
                    arcs.append(_Arc(u, v, why))
                    continue
                first = min(self._receivers(one), key=lambda piece: int(rank[piece]))
                arcs += [_Arc(first, c, why) for c in self._receivers(other) if c != first]
        return arcs

    def _sorted(self, arcs: list[_Arc]) -> IntArray:
        """Pieces in a topological order of the arcs, the earliest first; fewer than N: a cycle."""
        pairs = [(arc.before, arc.after) for arc in arcs]
        return topological(np.array(pairs, dtype=np.int64).reshape(-1, 2), self._ranks())

    def _ranks(self) -> IntArray:
        """(N,) place of each piece by start, finish and position."""
        early, late = (np.round(times / self.grain) for times in (self.start, self.finish))
        return np.argsort(np.lexsort((np.arange(len(early)), self.position, late, early)))

    def _receivers(self, move: Move) -> list[int]:
        """The consumers that wait for a transfer."""
        tensor, d = move
        consumers = self.problem.graph.consumers(tensor)
        found: list[int] = consumers[self.device[consumers] == d].tolist()
        return found

    def _transfers(self) -> dict[int, list[tuple[float, float, Move]]]:
        """Start and end of the transfers through each port, by start."""
        graph, topology = self.problem.graph, self.problem.topology
        ports: dict[int, list[tuple[float, float, Move]]] = {}
        for tensor in range(graph.num_tensors):
            producer = int(graph.producer[tensor])
            source = int(self.device[producer])
            for d in np.unique(self.device[graph.consumers(tensor)]).tolist():
                link = topology.link_class[source, d]
                seconds = float(self.problem.transfer_seconds[tensor, link]) / self.scale
                if d == source or seconds <= 0.0:
                    continue
                earliest = float(self.finish[producer]) + seconds
                end = max(earliest, self.arrival.get((tensor, d), 0.0))
                for matrix in (topology.send_port, topology.receive_port):
                    port = int(matrix[source, d])
                    ports.setdefault(port, []).append((end - seconds, end, (tensor, d)))
        return {port: sorted(moves) for port, moves in ports.items()}


def _overlaps(
    spans: Iterable[tuple[float, float, Item]], grain: float
) -> dict[tuple[Item, Item], float]:
    """How long spans (start, end, what), sorted by start, overlap, where neither precedes."""
    found: dict[tuple[Item, Item], float] = {}
    running: list[tuple[float, float, Item]] = []
    for span in spans:
        running = [other for other in running if other[1] > span[0] + grain]
        for other in running:
            if span[1] > other[0] + grain:
                low, high = sorted([other[2], span[2]])  # type: ignore[type-var]
                found[low, high] = min(span[1], other[1]) - span[0]
        running.append(span)
    return found


def _longest(overlaps: dict[Pair, float], most: int) -> set[Pair]:
    return set(sorted(overlaps, key=lambda pair: -overlaps[pair])[:most])
