"""What every planner of bandwidth promises, on random placed steps."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
from hydra.utils import get_class
from hypothesis import given
from omegaconf import OmegaConf

from agents.solver import Result
from agents.step.lower_bound import lower_bound
from agents.step.problems import BandwidthPlanner, BandwidthPlanning
from envs.step.allocated import allocated_problem
from envs.step.plans import Plan
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from experiments.config.config_source import SHIPPED_CONFIGS, options
from experiments.config.targets import build
from tests.agents.bandwidth.placed_steps import cluster, placed_steps, serial_sends
from tests.asking import allocated
from tests.strength import examples

EXACT = "convex"
BUDGET, LIMIT = 20.0, 2000
SETTINGS = examples(100)


def shipped() -> dict[str, BandwidthPlanner]:
    """Every option of the group `agent` that allocates and needs no further value."""
    found = {}
    for name in options("agent"):
        node = OmegaConf.create(SHIPPED_CONFIGS.node(f"agent/{name}"))
        if "_target_" not in node:  # changes another option, of which none allocates
            continue
        whole = OmegaConf.create({"seed": 3, "agent": node})
        solves = getattr(get_class(node["_target_"]), "solves", ())
        if BandwidthPlanning in solves and not OmegaConf.missing_keys(node):
            described = cast(dict[str, object], OmegaConf.to_container(whole, resolve=True))
            found[name] = build(cast(dict[str, object], described["agent"]))
    return found


PLANNERS = shipped()


def check(problem: StepProblem, plan: Plan, result: Result[Plan]) -> None:
    """A result keeps its word."""
    if result.solution is None:
        assert result.status in ("infeasible", "limit")
        assert result.reason
        assert result.value == np.inf
        return
    assert result.solution.order is plan.order
    assert result.solution.allocation is not None
    assert result.solution.allocation.violations(problem.topology.network) == []
    allocated = allocated_problem(problem, result.solution.allocation)
    simulator = StepSimulator(allocated)
    assert plan.violations(allocated, simulator) == []
    assert result.value == simulator.step_time(plan.placement.device, plan.order)
    assert result.value >= result.bound
    assert result.value >= lower_bound(problem).seconds * (1 - 1e-9)
    assert result.status in ("feasible", "optimal")
    times = [step_time for _, step_time in result.history]
    assert times == sorted(times, reverse=True)
    assert times[-1] == result.value
    assert result.seconds >= result.history[-1][0]


def test_the_rules_and_the_exact_planner_are_shipped() -> None:
    assert {"uniform", "proportional", "square_root", EXACT} <= set(PLANNERS)


@pytest.mark.parametrize("tight", [False, True])
def test_results_keep_their_word_and_none_beats_the_exact_one(tight: bool) -> None:
    @SETTINGS
    @given(placed=placed_steps(tight=tight))
    def on_random_steps(placed: tuple[StepProblem, Plan]) -> None:
        problem, plan = placed
        found = {
            name: allocated(planner, problem, plan, BUDGET, LIMIT)
            for name, planner in PLANNERS.items()
        }
        exact = found[EXACT]
        for result in found.values():
            check(problem, plan, result)
            assert exact.value <= result.value
            assert exact.bound <= result.value
            assert result.bound <= exact.value
            assert tight or result.solution is not None
        assert tight or exact.status == "optimal"

    on_random_steps()


@pytest.mark.parametrize("name", sorted(PLANNERS))
def test_equal_limits_give_equal_allocations(name: str) -> None:
    problem, plan = serial_sends([1.0, 4.0, 2.5], cluster(4, planes_=2))
    first, second = (allocated(PLANNERS[name], problem, plan, BUDGET, LIMIT) for _ in range(2))
    assert first.solution.allocation is not None
    assert second.solution.allocation is not None
    np.testing.assert_array_equal(first.solution.allocation.rate, second.solution.allocation.rate)
