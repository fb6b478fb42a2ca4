"""Placement with rates or weights: promises of every planner, and what each has for itself."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from agents.bandwidth.convex import ConvexRates
from agents.bandwidth.joint import Alternation, PlacementAlone
from agents.bandwidth.shared_placement import SharedPlacement
from agents.bandwidth.weights import JointMilp, WeightDescent, weights_of
from agents.placement.integer_program.order import OrderFormulation
from agents.placement.milp import Milp
from agents.solver import Budget
from agents.step.problems import JointPlanning
from envs.step.allocated import allocated_problem, uniform_allocation
from envs.step.fair import Fair
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from tests.agents.bandwidth.joint_steps import (
    AMPLE_S,
    best_of_all,
    check_promises,
    diamond_step,
    placer,
    unplaced_steps,
)
from tests.asking import allocated, jointly, planned
from tests.strength import examples

RATES = ConvexRates(gap=1e-6, rounds=60)
SHARING = SharedPlacement(levels=(4, 8), kick_groups=4, gap=0.0, at_once=8)
ALONE = PlacementAlone(placement=placer())
ALTERNATION = Alternation(placement=placer(), bandwidth=RATES, turn_share=0.25, patience=2)
FAIR, WEIGHTS = (
    JointMilp(placement=placer(), sharing=SHARING, weights=weights, patience=1)
    for weights in (None, WeightDescent())
)


@examples(8, 3)
@given(problem=unplaced_steps())
@pytest.mark.slow
def test_plans_keep_their_promises_and_no_more_choice_makes_them_slower(
    problem: StepProblem,
) -> None:
    alone, turns = jointly(ALONE, problem, AMPLE_S, 6), jointly(ALTERNATION, problem, AMPLE_S, 24)
    fair, weights = (jointly(planner, problem, AMPLE_S, 6) for planner in (FAIR, WEIGHTS))
    for result in (alone, turns, fair, weights):
        check_promises(problem, result)
    assert turns.value <= alone.value  # the share of one turn
    assert weights.value <= fair.value
    assert weights.figures == fair.figures == {"fair_sharing_s": fair.value}
    shares = uniform_allocation(problem.topology.network)
    assert alone.value == planned(placer(), allocated_problem(problem, shares), AMPLE_S, 6).value
    assert np.array_equal(alone.solution.allocation.rate, shares.rate)


@examples(8, 3)
@given(problem=unplaced_steps(operators=(3, 6), memory=3.0))
@pytest.mark.slow
def test_tight_memory_is_kept_or_the_reason_given(problem: StepProblem) -> None:
    result = jointly(WEIGHTS, problem, AMPLE_S, 6)
    if result.solution is not None:
        check_promises(problem, result)
    else:
        assert result.status in ("infeasible", "limit")
        assert result.reason


@pytest.mark.parametrize("planner", [ALONE, ALTERNATION, WEIGHTS])
def test_what_fits_no_server_is_infeasible(planner: PlacementAlone) -> None:
    result = jointly(planner, diamond_step(3.0), AMPLE_S, 6)
    assert (result.solution, result.status, result.bound) == (None, "infeasible", float("inf"))
    assert result.reason


def test_the_rates_are_those_of_the_plan_and_a_turn_begins_with_uniform_shares() -> None:
    """No other allocation to its plan is faster than the one it returns."""
    problem = diamond_step(15.0)
    result = jointly(ALTERNATION, problem, AMPLE_S, 80)
    assert result.solution is not None
    alone = allocated(RATES, problem, result.solution, AMPLE_S)
    assert result.value == pytest.approx(alone.value, rel=1e-6)
    uniform = uniform_allocation(problem.topology.network)
    assert result.value < best_of_all(problem, [uniform])
    shares = allocated_problem(problem, uniform)
    placed = planned(placer(), shares, AMPLE_S, 20).solution
    first = StepSimulator(shares).step_time(placed.placement.device, placed.order)
    assert result.history[0][1] == first


@pytest.mark.slow
def test_a_proof_for_those_shares_is_no_bound_for_others() -> None:
    """An exact planner proves its plan; with other shares there is a faster one."""
    problem = diamond_step(15.0)
    exact = Milp(
        formulation=OrderFormulation(gap=0.0, at_once=8), warm_start=None, chains=False, seed=0
    )
    shares = uniform_allocation(problem.topology.network)
    proved = planned(exact, allocated_problem(problem, shares), AMPLE_S, 500)
    assert proved.status == "optimal"
    assert proved.value <= best_of_all(problem, [shares]) * (1 + 1e-6)
    result = jointly(PlacementAlone(placement=exact), problem, AMPLE_S, 500)
    check_promises(problem, result)
    assert result.status == "feasible"


@pytest.mark.slow
def test_weights_go_on_from_plans_and_their_weights_and_two_runs_agree() -> None:
    problem = diamond_step(15.0)
    first, same = (jointly(WEIGHTS, problem, AMPLE_S, 6) for _ in range(2))
    assert (first.value, first.evaluations) == (same.value, same.evaluations)
    again, kept = (
        planner.solve(JointPlanning(problem), Budget(AMPLE_S, 1), [first.solution])
        for planner in (WEIGHTS, FAIR)
    )
    check_promises(problem, again)
    assert again.value <= first.value
    plan = first.solution
    fair = Fair().simulator(problem).step_time(plan.placement.device, plan.order)
    assert again.figures["fair_sharing_s"] <= fair
    assert len(np.unique(weights_of(kept.solution, problem))) <= 2  # 1 where nothing is sent
