from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from agents.bandwidth.joint import PlacementAlone
from agents.placement.integer_program.order import OrderFormulation
from agents.placement.milp import Milp
from envs.step.allocated import allocated_problem, uniform_allocation
from envs.step.problem import StepProblem
from tests.agents.bandwidth.joint_steps import (
    AMPLE_S,
    best_of_all,
    check_promises,
    diamond_step,
    placer,
    unplaced_steps,
)
from tests.strength import examples

pytestmark = pytest.mark.slow


@examples(8)
@given(problem=unplaced_steps())
def test_the_plan_is_that_of_the_planner_at_those_shares(problem: StepProblem) -> None:
    alone = PlacementAlone(placement=placer(), allocation=uniform_allocation)
    result = alone.plan_jointly(problem, AMPLE_S, 8)
    check_promises(problem, result)
    shares = uniform_allocation(problem.topology.network)
    placed = placer().plan(allocated_problem(problem, shares), AMPLE_S, 8)
    assert result.step_time == placed.step_time
    assert result.allocation is not None
    assert np.array_equal(result.allocation.rate, shares.rate)


def test_a_proof_for_those_shares_is_no_bound_for_others() -> None:
    """An exact planner proves its plan; with other shares there is a faster one."""
    problem = diamond_step(15.0)
    exact = Milp(
        formulation=OrderFormulation(gap=0.0, at_once=8), warm_start=None, chains=False, seed=0
    )
    shares = uniform_allocation(problem.topology.network)
    proved = exact.plan(allocated_problem(problem, shares), AMPLE_S, 500)
    assert proved.status == "optimal"
    assert proved.step_time <= best_of_all(problem, [shares]) * (1 + 1e-6)
    alone = PlacementAlone(placement=exact, allocation=uniform_allocation)
    result = alone.plan_jointly(problem, AMPLE_S, 500)
    check_promises(problem, result)
    assert result.status == "feasible"


def test_what_fits_no_server_is_infeasible() -> None:
    alone = PlacementAlone(placement=placer(), allocation=uniform_allocation)
    result = alone.plan_jointly(diamond_step(3.0), AMPLE_S, 8)
    assert (result.plan, result.status, result.lower_bound) == (None, "infeasible", float("inf"))
