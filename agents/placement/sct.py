"""m-SCT: small communication times, with memory."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from agents.base import PlannerResult
from agents.placement.incumbent import Incumbent
from agents.placement.list_scheduling.earliest import EarliestStart
from agents.placement.list_scheduling.favourites import favourite_children
from agents.placement.list_scheduling.planner import (
    best_granularity,
    compile_kernels,
    offer_schedules,
    require_granularities,
)
from agents.placement.list_scheduling.rank import upward_rank
from envs.errors import InputError
from envs.graphs.op_graph import NONE
from envs.step.problem import StepProblem


class MSct:
    """Memory-constrained small communication times: m-ETF that keeps devices for favourites.

    `favourite_children` says which child of a piece should run next to it; while that child is
    ready and can finish nowhere earlier, its parent's device is kept for it, and other pieces go
    there only when they are urgent (`EarliestStart`). All else is as in `MEtf`. When the linear
    program is not solved within its limit, no piece has a favourite child, which makes the
    schedule that of m-ETF; the result's `reason` says so.

    Hanen, Munier, "An approximation algorithm for scheduling dependent tasks on m processors with
    small communication delays", 1995; with memory and co-location as in Jeon, Cai, Srivastava,
    Jiang, Ke, Meng, Xie, Gupta, "Baechi: fast device placement of machine learning graphs", SoCC
    2020.

    Args:
        groups: numbers of groups of the fused graph, of which the best plan is kept; as many as
            operators: nothing is fused that need not be.
        lp_seconds: time limit of the linear program.

    Raises:
        InputError: `lp_seconds` is not positive; `groups` is empty, or one of them is below 1.
    """

    def __init__(self, *, groups: Sequence[int], lp_seconds: float) -> None:
        if not lp_seconds > 0.0:
            raise InputError(f"{lp_seconds} is not above 0", field="lp_seconds")
        require_granularities(groups)
        self.groups = tuple(groups)
        self.lp_seconds = lp_seconds

    def plan(
        self, problem: StepProblem, budget_s: float, deterministic_limit: int | None = None
    ) -> PlannerResult:
        """As `Planner.plan`; the deterministic limit counts simplex iterations."""
        compile_kernels(EarliestStart(np.zeros(0), np.zeros(0, dtype=np.int64), 1))

        def plan(groups: int, left_s: float) -> PlannerResult:
            return self._plan(problem, groups, left_s, deterministic_limit)

        return best_granularity(plan, self.groups, budget_s)

    def _plan(
        self, problem: StepProblem, groups: int, budget_s: float, limit: int | None
    ) -> PlannerResult:
        incumbent = Incumbent(problem)
        grouped = incumbent.group(groups)
        if grouped is None:
            return incumbent.result()
        seconds = self.lp_seconds
        if limit is None:
            seconds = min(seconds, max(budget_s - incumbent.seconds, 0.0))
        favourite = favourite_children(grouped.problem, seconds, limit)
        reason = ""
        if favourite is None:
            reason = "the linear program of m-SCT reached its limit: no piece has a favourite child"
            favourite = np.full(grouped.problem.graph.num_operators, NONE, dtype=np.int64)
        rank = upward_rank(grouped.problem)
        devices = problem.topology.num_devices
        return offer_schedules(
            incumbent, grouped, lambda: EarliestStart(rank, favourite, devices), budget_s, reason
        )
