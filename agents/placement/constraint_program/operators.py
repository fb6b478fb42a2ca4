"""When operators run, where, and in which order, in a constraint program."""

from __future__ import annotations

from itertools import combinations

import numpy as np
from numpy.typing import NDArray

from agents.placement.constraint_program.placement import PlacementVariables
from agents.placement.constraint_program.program import ConstraintProgram
from envs.step.problem import StepProblem

IntArray = NDArray[np.int64]


class OperatorVariables:
    """Start, end, position and device of every operator; devices run one operator at a time.

    The positions are those of one permutation of all operators: "u before v" is a literal for every
    pair that may compete for a device or a port, positions follow it, and it follows the paths of
    the graph. Operators that nothing orders may have equal positions.

    Args:
        program: takes the variables.
        problem: at least one operator.
        seconds: (N, D) units; no operator is where it takes more than `horizon`.
        horizon: units, the largest end.
        lower: units, the least value of `finish`.
    """

    def __init__(
        self,
        program: ConstraintProgram,
        problem: StepProblem,
        seconds: IntArray,
        horizon: int,
        lower: int,
    ) -> None:
        n = problem.graph.num_operators
        self.program = program
        self.problem = problem
        self.seconds = seconds
        self.horizon = horizon
        self.place = PlacementVariables(program, problem, seconds <= horizon)
        self.place.use_in_order()
        self.finish = program.integer(min(lower, horizon), horizon)
        self.start = [program.integer(0, horizon) for _ in range(n)]
        self.end = [program.integer(0, horizon) for _ in range(n)]
        above, self._below = _reachable(problem.graph.edges, n)
        self.position = [
            program.integer(above[v].bit_count(), n - 1 - self._below[v].bit_count())
            for v in range(n)
        ]
        self._before: dict[tuple[int, int], int] = {}
        for v in range(n):
            lengths = [(on, -int(seconds[v, d])) for d, on in self.place.of(v).items()]
            program.add_linear([(self.end[v], 1), (self.start[v], -1), *lengths], lower=0, upper=0)
            program.add_order(self.end[v], self.finish)
        for u, v in np.unique(problem.graph.edges[:, :2], axis=0).tolist():
            program.add_order(self.end[u], self.start[v])
            program.add_order(self.position[u], self.position[v], gap=1)
        for d in range(problem.topology.num_devices):
            self._add_device(d, [v for v in range(n) if d in self.place.of(v)])

    def before(self, u: int, v: int) -> int:
        """The literal "u before v", for u != v."""
        if u > v:  # no path of the graph leads to a smaller number
            return ~self.before(v, u)
        if self._below[u] >> v & 1:
            return self.program.true
        if (u, v) not in self._before:
            literal = self.program.boolean()
            self.program.add_order(self.position[u], self.position[v], gap=1, when=[literal])
            self.program.add_order(self.position[v], self.position[u], gap=1, when=[~literal])
            self._before[u, v] = literal
        return self._before[u, v]

    def order_literals(self, position: IntArray) -> list[int]:
        """All literals "u before v" or their negations, as they are true for `position` (N,)."""
        return [
            literal if position[u] < position[v] else ~literal
            for (u, v), literal in self._before.items()
        ]

    def together(self, u: int, v: int) -> bool:
        """Whether u and v are always on one device."""
        return bool(self.place.atom[u] == self.place.atom[v])

    def _add_device(self, d: int, here: list[int]) -> None:
        """Device d runs those of the operators `here` that are on it, one at a time."""
        program = self.program
        on = {v: self.place.of(v)[d] for v in here}
        program.add_no_overlap(
            [program.fixed_interval(self.start[v], int(self.seconds[v, d]), on[v]) for v in here]
        )
        load = [(on[v], -int(self.seconds[v, d])) for v in here]
        program.add_linear([(self.finish, 1), *load], lower=0)
        for u, v in combinations(here, 2):
            before = self.before(u, v)
            if before != program.true:
                program.add_order(self.end[u], self.start[v], when=[before, on[u], on[v]])
                program.add_order(self.end[v], self.start[u], when=[~before, on[u], on[v]])


def _reachable(edges: IntArray, count: int) -> tuple[list[int], list[int]]:
    """Bit sets of each operator's ancestors and of its descendants."""
    above, below = [0] * count, [0] * count
    for u, v in edges[np.argsort(edges[:, 1], kind="stable"), :2].tolist():
        above[v] |= above[u] | 1 << u
    for u, v in edges[np.argsort(-edges[:, 0], kind="stable"), :2].tolist():
        below[u] |= below[v] | 1 << v
    return above, below
