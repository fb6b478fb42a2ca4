"""m-ETF: the earliest task first, with memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agents.base import PlannerResult
from agents.placement.incumbent import Incumbent
from agents.placement.list_scheduling.earliest import EarliestStart
from agents.placement.list_scheduling.planner import (
    best_granularity,
    compile_kernels,
    offer_schedules,
    require_granularities,
)
from agents.placement.list_scheduling.rank import upward_rank
from envs.graphs.op_graph import NONE
from envs.step.problem import StepProblem


class MEtf:
    """Memory-constrained earliest task first on the pieces of the fused graph.

    Of all pieces that are ready and all devices with room for the state of their groups, the pair
    that can start first is scheduled next; among equals the piece of larger upward rank. The first
    piece of a group decides the group's device. Transfers wait for their send and receive ports
    and take the first gap that the two have in common; a tensor already sent to a device is not
    sent again. `offer_schedules` says what happens when memory is short, and in which orders the
    plan is simulated.

    Hwang, Chow, Anger, Lee, "Scheduling precedence graphs in systems with interprocessor
    communication times", SIAM Journal on Computing 18(2), 1989; with memory and co-location as in
    Jeon, Cai, Srivastava, Jiang, Ke, Meng, Xie, Gupta, "Baechi: fast device placement of machine
    learning graphs", SoCC 2020.

    Args:
        groups: numbers of groups of the fused graph, of which the best plan is kept; as many as
            operators: nothing is fused that need not be.

    Raises:
        InputError: `groups` is empty, or one of them is below 1.
    """

    def __init__(self, *, groups: Sequence[int]) -> None:
        require_granularities(groups)
        self.groups = tuple(groups)

    def plan(
        self, problem: StepProblem, budget_s: float, deterministic_limit: int | None = None
    ) -> PlannerResult:
        """As `Planner.plan`; needs no limit, and the budget only to make room in memory."""
        compile_kernels(EarliestStart(np.zeros(0), np.zeros(0, dtype=np.int64), 1))
        return best_granularity(
            lambda groups, left_s: self._plan(problem, groups, left_s), self.groups, budget_s
        )

    def _plan(self, problem: StepProblem, groups: int, budget_s: float) -> PlannerResult:
        incumbent = Incumbent(problem)
        grouped = incumbent.group(groups)
        if grouped is None:
            return incumbent.result()
        rank = upward_rank(grouped.problem)
        nobody = np.full(len(rank), NONE, dtype=np.int64)
        devices = problem.topology.num_devices
        return offer_schedules(
            incumbent, grouped, lambda: EarliestStart(rank, nobody, devices), budget_s
        )
