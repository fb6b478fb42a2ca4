from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from agents.bandwidth.shared_placement import SharedPlacement
from agents.solver import Budget
from agents.step.lower_bound import lower_bound
from agents.step.problems import SharedPlanning
from envs.step.fair import Fair
from envs.step.plans import Plan
from envs.step.problem import StepProblem
from envs.step.step import SINGLE_PORT
from tests.agents.bandwidth.joint_steps import AMPLE_S, diamond_step
from tests.agents.bandwidth.placed_steps import placed_steps, plan_of
from tests.refusal import refusal
from tests.strength import examples

FAIR = Fair(name="fair", multipath=True)


def planner(levels: tuple[int, ...] = (4, 8)) -> SharedPlacement:
    return SharedPlacement(levels=levels, kick_groups=4, gap=0.0, at_once=8, seed=0)


@examples(12)
@given(step=placed_steps())
@pytest.mark.parametrize("communication", [FAIR, SINGLE_PORT], ids=["fair", "single_port"])
def test_it_is_never_slower_than_what_it_starts_from(
    communication: Fair, step: tuple[StepProblem, Plan]
) -> None:
    problem, plan = step
    simulator = communication.simulator(problem)
    result = planner().solve(
        SharedPlanning(problem, communication=communication), Budget(AMPLE_S, 2), [plan]
    )
    assert result.solution is not None
    assert result.solution.violations(problem, simulator) == []
    played = simulator.step_time(result.solution.placement.device, result.solution.order)
    assert result.value == played >= lower_bound(problem).seconds == result.bound
    assert played <= simulator.step_time(plan.placement.device, plan.order)


def test_it_leaves_a_plan_on_one_device() -> None:
    problem = diamond_step(100.0)
    plan = plan_of(problem, dict.fromkeys(problem.graph.op_names, 0))
    result = planner().solve(
        SharedPlanning(problem, communication=FAIR), Budget(AMPLE_S, 10), [plan]
    )
    every = np.stack(np.meshgrid(*[np.arange(3)] * 4), axis=-1).reshape(-1, 4)
    best = min(FAIR.simulator(problem).step_time(device) for device in every)
    assert result.value <= best * (1 + 1e-9)


def test_levels_are_needed() -> None:
    with refusal() as error:
        planner(levels=())
    assert error.value.field == "levels"
