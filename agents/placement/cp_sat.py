"""CP-SAT: the exact planner of small graphs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from agents.constraint_program.search import FusedSearch, PartitionProgramSearch, StepSearch
from agents.constraint_program.solver import CpSettings
from agents.partition.search import PartitionSearch
from agents.placement.local_search import LocalSearch
from agents.solver import Budget, Result
from agents.step.grouping import GroupedProblem
from agents.step.incumbent import PartitionIncumbent, StepAndPartitionSolver, StepIncumbent
from agents.step.problems import Partition, PartitionPlanner, Planner, StepPlanning
from envs.bounds import Count, Share, bounded
from envs.partition.problem import PartitionProblem
from envs.step.plans import Plan

PARTITION_HINT = PartitionSearch(
    first_moves=20000, growth=2.0, hot=0.1, warm=0.03, cold=0.001, starts=(), start_share=0.0,
)  # fmt: skip


@bounded
@dataclass(frozen=True, eq=False, kw_only=True)
class CpSat(StepAndPartitionSolver):
    """Placement and order together by CP-SAT (OR-tools), until the optimum is proved.

    The program is `MakespanModel`: the simulator's own rules in integers. Every solution is
    simulated and the fastest plan that fits is kept, so that a search cut short has a plan and a
    bound. Times become integers exactly where they have a common unit; otherwise they are rounded
    down, and so is the bound: a gap then remains, some 1e-6 of the longest times, and the status is
    `feasible`.

    A graph of more than `operators` operators is fused to groups of at most so many pieces. Then
    the optimum is that of the groups, stated in `Result.reason`; the lower bound is that of
    `agents.step.lower_bound`, which holds for all plans. The rest of the budget is another
    planner's, local search by default, which works on all operators. Windows of the program around
    the best plan, the other pieces fixed, were worse on every graph tried (docs/planners.md).

    Max-load and latency are the programs `MaxLoadModel` and `LatencyModel`, never fused.

    CP-SAT runs in a process of its own.

    Guarantees:
        The proved optimum of small graphs; of larger ones that of their groups, where it finishes.

    Source:
        Own program; the solver is that of Perron, Didier, Gay, "The CP-SAT-LP solver", CP 2023.

    Args:
        operators: of the largest program.
        hint: gives the plan from which CP-SAT starts, of the operators or of the pieces.
        partition_hint: gives the placement from which CP-SAT starts for max-load and latency.
        hint_share: part of the budget the hint may take.
        hint_seconds: seconds the hint takes at most.
        hint_limit: its limit in a deterministic search, in its own units.
        fused_share: part of the budget for the program of a fused graph.
        rest: plans the operators of a fused graph afterwards.
        rest_limit: its limit in a deterministic search, in its own units.
        workers: parallel searches of CP-SAT; one in a deterministic search.
        seed: of CP-SAT.
    """

    operators: Count = 64
    hint: Planner = LocalSearch(groups=(), starts=(), start_share=0.0, partitions=PARTITION_HINT)
    partition_hint: PartitionPlanner = PARTITION_HINT
    hint_share: Share = 0.1
    hint_seconds: Annotated[float, Ge(0.0)] = 0.5
    hint_limit: Count = 20000
    fused_share: Share = 0.2
    rest: Planner = LocalSearch(partitions=PARTITION_HINT)
    rest_limit: Count = 200000
    workers: Annotated[int, Ge(1), Le(256)] = 2
    seed: int = 0

    def _plan(self, incumbent: StepIncumbent, budget: Budget) -> str:
        """`Budget.evaluations` counts CP-SAT's deterministic seconds.

        A deterministic second is about one second of work on a fast core.
        """
        problem, budget_s, limit = incumbent.problem, budget.seconds, budget.evaluations
        if problem.graph.num_operators <= self.operators:
            return self._exact(StepSearch(incumbent, problem), budget_s, limit)
        grouped = self._fuse(incumbent)
        if grouped is None:
            return ""
        fused = FusedSearch(incumbent, grouped)
        self._search(fused, self.fused_share * budget_s, limit)
        began = incumbent.seconds
        if began < budget_s and not incumbent.optimal:
            rest = Budget(budget_s - began, None if limit is None else self.rest_limit)
            incumbent.adopt(self.rest.solve(StepPlanning(problem), rest), began)
        groups, pieces = grouped.num_groups, grouped.problem.graph.num_operators
        return f"CP-SAT's bound of {groups} groups, {pieces} pieces: {fused.summary}"

    def _partition(self, problem: PartitionProblem, budget: Budget) -> Result[Plan]:
        """Of `MaxLoadProblem` and `LatencyProblem`, not fused.

        Raises:
            InputError: the problem is of another kind.
        """
        incumbent = PartitionIncumbent(problem)
        search = PartitionProgramSearch(incumbent)
        hints = self._hint_budget(budget.seconds, budget.evaluations)
        hint = self.partition_hint.solve(Partition(problem), hints).solution
        if hint is not None:
            search.begin(hint)
        if problem.step.graph.num_operators:
            search.run(self._settings(budget.evaluations), budget.seconds, budget.evaluations)
        incumbent.prove(search.bound)
        if incumbent.plan is None and search.bound == np.inf:
            incumbent.impossible = "CP-SAT proved that no placement is feasible"
        return incumbent.result()

    def _exact(self, search: StepSearch, budget_s: float, limit: int | None) -> str:
        incumbent = search.incumbent
        if incumbent.problem.graph.num_operators == 0:
            incumbent.offer(np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64))
            return ""
        self._search(search, budget_s, limit)
        if incumbent.may_move:  # the program knows no memory moves
            return f"CP-SAT's bound without moves: {search.summary}"
        incumbent.prove(search.bound)
        if incumbent.plan is None and search.bound == np.inf:
            incumbent.without_plan = "infeasible"
            return "CP-SAT proved that no plan fits"
        return f"CP-SAT's bound: {search.summary}"

    def _search(self, search: StepSearch, budget_s: float, limit: int | None) -> None:
        hints = self._hint_budget(budget_s - search.incumbent.seconds, limit)
        hint = self.hint.solve(StepPlanning(search.problem), hints).solution
        if hint is not None:
            search.begin(hint)
        search.run(self._settings(limit), budget_s, limit)

    def _hint_budget(self, seconds: float, limit: int | None) -> Budget:
        """Of a hint, with `seconds` left for everything."""
        if limit is not None:
            return Budget(seconds, self.hint_limit)
        return Budget(min(self.hint_share * seconds, self.hint_seconds))

    def _settings(self, limit: int | None) -> CpSettings:
        return CpSettings(self.workers if limit is None else 1, self.seed)

    def _fuse(self, incumbent: StepIncumbent) -> GroupedProblem | None:
        """At most `operators` pieces, if so few groups have so few."""
        groups = self.operators
        while True:
            grouped = incumbent.group(groups)
            if grouped is None:
                return None
            pieces = grouped.problem.graph.num_operators
            if pieces <= self.operators or groups == 1:
                return grouped
            groups = max(1, groups * self.operators // pieces)
