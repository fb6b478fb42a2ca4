"""What every planner promises, on random problems."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
from hydra import compose, initialize_config_dir
from hypothesis import HealthCheck, given
from omegaconf import OmegaConf

from agents.base import Planner, PlannerResult
from agents.step.lower_bound import lower_bound
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from experiments.run.targets import build
from tests.agents.placement.random_problems import cluster, pipeline, problems
from tests.paths import CONF
from tests.strength import examples

SMALL = {"groups": 6}  # changes to the shipped configs that suit small problems
PLANNERS: dict[str, dict[str, object]] = {
    "random": SMALL | {"samples": 5},
    "single_device": {},
    "contiguous": SMALL,
    "contiguous_speed": SMALL,
    "heft": {"groups": [3, 6]},
    "m_etf": {"groups": [3, 6]},
    "m_sct": {"groups": [3, 6]},
    "dp": SMALL,
    "learned": {"groups": 24},
    "local_search": {"groups": [3, 6]},
    "fusion_milp": {},
    "milp": {},
    "cp_sat": {"operators": 8},
}
SOLVERS = ("cp_sat", "fusion_milp", "milp")
NAMES = [
    pytest.param(name, marks=[pytest.mark.slow] if name in SOLVERS else [])
    for name in sorted(PLANNERS)
]
BUDGET, LIMIT = 20.0, 100
SETTINGS = examples(80, suppress_health_check=[HealthCheck.too_slow])


def make(name: str) -> Planner:
    """The planner as `conf/agent` ships it, with the changes above."""
    with initialize_config_dir(str(CONF), version_base=None):
        node = compose("plan", [f"agent={name}", "seed=3"])
    whole = OmegaConf.create({"seed": 3, "agent": OmegaConf.merge(node.agent, PLANNERS[name])})
    described = cast(dict[str, object], OmegaConf.to_container(whole, resolve=True))["agent"]
    return cast(Planner, build(cast(dict[str, object], described)))


@pytest.fixture(params=NAMES, scope="module")
def planner(request: pytest.FixtureRequest) -> Planner:
    return make(request.param)


def check(problem: StepProblem, result: PlannerResult) -> None:
    """A result keeps its word."""
    if result.plan is None:
        assert result.status in ("infeasible", "limit")
        assert result.reason
        assert result.step_time == np.inf
        return
    assert result.status in ("feasible", "optimal")
    assert result.plan.violations(problem) == []
    device, order = result.plan.placement.device, result.plan.order
    timeline = StepSimulator(problem).run(device, order)
    assert (timeline.peak_memory <= problem.capacity).all()
    assert result.step_time == timeline.step_time
    assert result.step_time >= lower_bound(problem).seconds * (1 - 1e-9)
    assert result.step_time >= result.lower_bound * (1 - 1e-9)
    times = [step_time for _, step_time in result.trajectory]
    assert times == sorted(times, reverse=True)
    assert times[-1] == result.step_time
    assert result.seconds >= result.trajectory[-1][0]


@SETTINGS
@given(problem=problems())
def test_plans_are_feasible_and_their_step_times_are_simulated(
    planner: Planner, problem: StepProblem
) -> None:
    result = planner.plan(problem, BUDGET, LIMIT)
    check(problem, result)
    bound = lower_bound(problem)
    if not bound.memory_ok:
        assert result.status == "infeasible"
        assert result.reason == bound.reason


@examples(15, suppress_health_check=[HealthCheck.too_slow])
@given(problem=problems(tight=False, unsupported=False))
def test_where_memory_is_ample_every_planner_finds_a_plan(
    planner: Planner, problem: StepProblem
) -> None:
    check(problem, result := planner.plan(problem, BUDGET, LIMIT))
    assert result.plan is not None


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.proof if name in SOLVERS else ())
        for name in sorted(PLANNERS)
    ],
)
def test_equal_seeds_and_limits_give_equal_plans(name: str) -> None:
    problem = pipeline([1.0, 2.0, 1.5, 1.0, 3.0], 3, cluster([0, 0, 1]), [2, 2, 1])
    first, second = (make(name).plan(problem, BUDGET, LIMIT) for _ in range(2))
    assert first.plan is not None
    assert second.plan is not None
    np.testing.assert_array_equal(first.plan.placement.device, second.plan.placement.device)
    np.testing.assert_array_equal(first.plan.order, second.plan.order)
    assert (first.step_time, first.evaluations) == (second.step_time, second.evaluations)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_that_fits_nowhere_is_refused_with_the_number_of_bytes(name: str) -> None:
    problem = pipeline([1.0, 1.0, 1.0], 2, cluster([0, 1], [5.0, 4.5]))
    result = make(name).plan(problem, BUDGET, LIMIT)
    assert (result.plan, result.status) == (None, "infeasible")
    assert "does not fit: 12 bytes" in result.reason


@pytest.mark.parametrize(
    "name", [pytest.param("fusion_milp", marks=pytest.mark.slow), "local_search"]
)
@pytest.mark.usefixtures("ticking")
def test_searches_respect_the_budget_and_beat_the_expert_split(name: str) -> None:
    problem = pipeline([1.0, 2.0, 1.5, 1.0, 3.0, 2.0], 4, cluster([0, 0, 1, 1]), [2, 2, 1, 1])
    result = make(name).plan(problem, 1.5)
    expert = make("contiguous_speed").plan(problem, 1.5)
    assert result.seconds < 1.7
    assert result.step_time <= expert.step_time
