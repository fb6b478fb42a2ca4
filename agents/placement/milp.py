"""The same MILP without fusion: every operator is placed by itself."""

from __future__ import annotations

from dataclasses import dataclass, replace

import highspy
import numpy as np

from agents.placement.integer_program.order import OrderFormulation
from agents.placement.integer_program.rounds import ROUND_NODES, Formulation, Rounds
from agents.solver import Budget
from agents.step.grouping import GroupedProblem
from agents.step.incumbent import StepIncumbent, StepSolver
from agents.step.problems import Planner, StepPlanning
from envs.step.fusion import fuse_chains
from envs.step.plans import Placement, Plan

_ROUNDS = 15  # into which the budget is divided; a round that teaches nothing is made longer
_WARM = 0.1  # share of the budget for a warm start
_TRUST = 1e-6  # relative; HiGHS's tolerances, taken off its bound
_PROVED = 3e-6  # relative distance from that bound that counts as optimal: tolerances, and the gap


@dataclass(frozen=True, eq=False, kw_only=True)
class Milp(StepSolver):
    """One MILP (HiGHS) over all operators, solved in rounds as `Rounds` says.

    A variable decides for each operator and device; the operators of a co-location group share
    theirs, nothing else is fused. Where such a unit alone takes longer than a whole plan that is
    known to fit, it is not placed. HiGHS starts cold in every round unless there is a warm start.

    With `OrderFormulation` the model is complete but for live activations: when a round ends
    without a gap and its solution breaks no rule of the simulator, the plan is optimal where
    activations fit, and `Result.bound` is HiGHS's if that is higher. With `chains`
    that holds for the fused graph alone, and no bound is claimed.

    Guarantees:
        The proved optimum where HiGHS finishes and activations fit.

    Source:
        Own model, solved in rounds as in Hooker, Ottosson, "Logic-based Benders decomposition",
        Mathematical Programming 96, 2003.

    Args:
        formulation: makes the model.
        warm_start: a planner whose plan is offered first, and its placement to HiGHS; or None.
        chains: whether chains of operators are fused first, and nothing else.
        seed: of HiGHS.
    """

    formulation: Formulation = OrderFormulation()
    warm_start: Planner | None = None
    chains: bool = False
    seed: int = 0

    def _plan(self, incumbent: StepIncumbent, budget: Budget) -> str:
        """`Budget.evaluations` counts branch-and-bound nodes."""
        problem, budget_s, node_limit = incumbent.problem, budget.seconds, budget.evaluations
        every = np.arange(problem.topology.num_devices)
        hint = None
        if self.warm_start is not None:
            share = replace(budget, seconds=_WARM * budget_s)
            plan = self.warm_start.solve(StepPlanning(problem), share).solution
            if plan is not None:
                incumbent.offer_plan(plan)
                hint = plan.placement.device
        upper = _upper(incumbent)
        chains = GroupedProblem.fused(problem, fuse_chains(problem)) if self.chains else None
        grouped = chains or GroupedProblem.unfused(problem)
        # a device a thousand times slower than others would set the scale of the MILP, and what is
        # left of HiGHS's precision for the others: no group is where it alone takes too long
        within = grouped.allowed & (grouped.seconds <= upper * (1.0 + _TRUST))
        grouped = replace(grouped, allowed=within)
        rounds = Rounds(incumbent, grouped, every, self.formulation, self.seed, hint)
        nodes, bound, slice_s = 0, 0.0, budget_s / _ROUNDS
        while incumbent.seconds < budget_s and not rounds.finished:
            left = budget_s - incumbent.seconds
            if node_limit is None:
                rounds.solve(min(slice_s, left), highspy.kHighsIInf)
                slice_s *= 1.0 if rounds.learned else 2.0
            elif nodes < node_limit:
                limit = min(ROUND_NODES, node_limit - nodes)
                nodes += max(rounds.solve(left, limit), 1)
            else:
                break
            whole = chains is None and not problem.memory_moves  # those of parts of a group
            if rounds.model.complete and whole:
                least = min(rounds.proved, incumbent.step_time, upper)
                bound = max(bound, least * (1.0 - _TRUST))
        if incumbent.lower_bound < bound <= incumbent.step_time:
            incumbent.prove(bound)
            incumbent.gap = _PROVED
            if np.isinf(bound):
                incumbent.without_plan = "infeasible"
        return rounds.summary


def _upper(incumbent: StepIncumbent) -> float:
    """Seconds that the best plan does not exceed: the one known, or all on one device; or inf."""
    problem, simulator = incumbent.problem, incumbent.simulator
    upper = incumbent.step_time
    for index in range(problem.topology.num_devices):
        device = np.full(problem.graph.num_operators, index, dtype=np.int64)
        order = simulator.order(device)
        seconds = simulator.step_time(device, order)
        if seconds < upper and not Plan(Placement(device), order).violations(problem, simulator):
            upper = seconds
    return upper
