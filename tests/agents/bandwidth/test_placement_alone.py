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
from tests.asking import jointly, planned
from tests.strength import examples

pytestmark = pytest.mark.slow


@examples(8)
@given(problem=unplaced_steps())
def test_the_plan_is_that_of_the_planner_at_those_shares(problem: StepProblem) -> None:
    alone = PlacementAlone(placement=placer(), allocation=uniform_allocation)
    result = jointly(alone, problem, AMPLE_S, 8)
    check_promises(problem, result)
    shares = uniform_allocation(problem.topology.network)
    placed = planned(placer(), allocated_problem(problem, shares), AMPLE_S, 8)
    assert result.value == placed.value
    assert result.solution.allocation is not None
    assert np.array_equal(result.solution.allocation.rate, shares.rate)


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
    alone = PlacementAlone(placement=exact, allocation=uniform_allocation)
    result = jointly(alone, problem, AMPLE_S, 500)
    check_promises(problem, result)
    assert result.status == "feasible"


def test_what_fits_no_server_is_infeasible() -> None:
    alone = PlacementAlone(placement=placer(), allocation=uniform_allocation)
    result = jointly(alone, diamond_step(3.0), AMPLE_S, 8)
    assert (result.solution, result.status, result.bound) == (None, "infeasible", float("inf"))
