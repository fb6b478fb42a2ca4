"""Where the order of a placed step is cut into phases."""

from __future__ import annotations

from typing import Protocol

import numpy as np

from envs.arrays import IntArray
from envs.graphs.op_graph import Phase
from envs.step.plans import Plan
from envs.step.problem import StepProblem


class PhaseCut(Protocol):
    """Cuts the order of a plan.

    Phase p of a step begins when all operators at positions before `begins[p]` of the order have
    ended.
    """

    @property
    def most(self) -> int:
        """The largest P."""

    def __call__(self, problem: StepProblem, plan: Plan) -> IntArray:
        """(P,) first position of each phase: 0, then rising, all below N; 1 <= P <= `most`."""


class WholeStep:
    """One phase: the rates of a static allocation."""

    most = 1

    def __call__(self, problem: StepProblem, plan: Plan) -> IntArray:
        del problem, plan
        return np.zeros(1, dtype=np.int64)


class PassBoundaries:
    """At the first backward operator, after the last forward operator, at the first update.

    In a pipeline these are its filling, its steady state, its draining, and the rest from the first
    update on. Phases without operators are left out.
    """

    most = 4

    def __call__(self, problem: StepProblem, plan: Plan) -> IntArray:
        """(P,) first position of each phase, P <= 4."""
        phase = problem.graph.phase[plan.order]
        cuts = {0}
        forward = np.flatnonzero(phase == Phase.FORWARD)
        if len(forward):
            cuts.add(int(forward[-1]) + 1)
        for part in (Phase.BACKWARD, Phase.OPTIMIZER):
            found = np.flatnonzero(phase == part)
            if len(found):
                cuts.add(int(found[0]))
        return np.array(sorted(cuts - {len(phase)}), dtype=np.int64)
