"""What every planner of bandwidth promises, on random placed steps."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
from hydra.utils import get_class
from hypothesis import given
from omegaconf import OmegaConf

from agents.base import BandwidthPlanner, PlannerResult
from agents.step.lower_bound import lower_bound
from envs.step.allocated import allocated_problem
from envs.step.plans import Plan
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from experiments.run.targets import build
from tests.agents.bandwidth.placed_steps import cluster, placed_steps, serial_sends
from tests.paths import CONF
from tests.strength import examples

AGENTS = CONF / "agent"
EXACT = "convex"
BUDGET, LIMIT = 20.0, 2000
SETTINGS = examples(100)


def shipped() -> dict[str, BandwidthPlanner]:
    """Every option of `conf/agent` that allocates and needs no further value."""
    found = {}
    for path in sorted(AGENTS.glob("*.yaml")):
        node = OmegaConf.load(path)
        whole = OmegaConf.create({"seed": 3, "agent": node})
        if hasattr(get_class(node["_target_"]), "allocate") and not OmegaConf.missing_keys(node):
            described = cast(dict[str, object], OmegaConf.to_container(whole, resolve=True))
            found[path.stem] = build(cast(dict[str, object], described["agent"]))
    return found


PLANNERS = shipped()


def check(problem: StepProblem, plan: Plan, result: PlannerResult) -> None:
    """A result keeps its word."""
    if result.plan is None:
        assert result.status in ("infeasible", "limit")
        assert result.reason
        assert result.allocation is None
        assert result.step_time == np.inf
        return
    assert result.plan is plan
    assert result.allocation is not None
    assert result.allocation.violations(problem.topology.network) == []
    allocated = allocated_problem(problem, result.allocation)
    simulator = StepSimulator(allocated)
    assert plan.violations(allocated, simulator) == []
    assert result.step_time == simulator.step_time(plan.placement.device, plan.order)
    assert result.step_time >= result.lower_bound
    assert result.step_time >= lower_bound(problem).seconds * (1 - 1e-9)
    assert result.status in ("feasible", "optimal")
    times = [step_time for _, step_time in result.trajectory]
    assert times == sorted(times, reverse=True)
    assert times[-1] == result.step_time
    assert result.seconds >= result.trajectory[-1][0]


def test_the_rules_and_the_exact_planner_are_shipped() -> None:
    assert {"uniform", "proportional", "square_root", EXACT} <= set(PLANNERS)


@pytest.mark.parametrize("tight", [False, True])
def test_results_keep_their_word_and_none_beats_the_exact_one(tight: bool) -> None:
    @SETTINGS
    @given(placed=placed_steps(tight=tight))
    def on_random_steps(placed: tuple[StepProblem, Plan]) -> None:
        problem, plan = placed
        found = {
            name: planner.allocate(problem, plan, BUDGET, LIMIT)
            for name, planner in PLANNERS.items()
        }
        exact = found[EXACT]
        for result in found.values():
            check(problem, plan, result)
            assert exact.step_time <= result.step_time
            assert exact.lower_bound <= result.step_time
            assert result.lower_bound <= exact.step_time
            assert tight or result.plan is not None
        assert tight or exact.status == "optimal"

    on_random_steps()


@pytest.mark.parametrize("name", sorted(PLANNERS))
def test_equal_limits_give_equal_allocations(name: str) -> None:
    problem, plan = serial_sends([1.0, 4.0, 2.5], cluster(4, planes_=2))
    first, second = (PLANNERS[name].allocate(problem, plan, BUDGET, LIMIT) for _ in range(2))
    assert first.allocation is not None
    assert second.allocation is not None
    np.testing.assert_array_equal(first.allocation.rate, second.allocation.rate)
