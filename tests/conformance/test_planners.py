"""What every planner promises, on random problems."""

from __future__ import annotations

from typing import cast

import numpy as np
import pytest
from hydra import compose
from hydra.utils import get_object
from hypothesis import HealthCheck, given
from omegaconf import OmegaConf

from agents.solver import Result
from agents.step.lower_bound import lower_bound
from agents.step.problems import Planner, StepPlanning
from envs.step.plans import Plan
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from experiments.config.composing import hydra_over_configs
from experiments.config.config_source import SHIPPED_CONFIGS, options
from experiments.config.targets import build
from tests.agents.placement.random_problems import cluster, pipeline, problems
from tests.asking import planned
from tests.strength import examples

SMALL = {"groups": 6}
CHANGES: dict[str, dict[str, object]] = {  # of the shipped configs, that suit small problems
    "random": SMALL | {"samples": 5},
    "contiguous": SMALL,
    "contiguous_speed": SMALL,
    "heft": {"groups": [3, 6]},
    "m_etf": {"groups": [3, 6]},
    "m_sct": {"groups": [3, 6]},
    "dp": SMALL,
    "learned": {"groups": 24},
    "local_search": {"groups": [3, 6]},
    "cp_sat": {"operators": 8},
}


def shipped() -> list[str]:
    """Every name in the group `agent` of what plans a step."""
    nodes = {name: SHIPPED_CONFIGS.node(f"agent/{name}") for name in options("agent")}
    classes = {name: get_object(x["_target_"]) for name, x in nodes.items() if "_target_" in x}
    return [name for name, one in classes.items() if StepPlanning in getattr(one, "solves", ())]


SOLVERS = ("cp_sat", "fusion_milp", "milp")
BUDGET, LIMIT = 20.0, 100
SETTINGS = examples(80, suppress_health_check=[HealthCheck.too_slow])


NAMES = [
    pytest.param(name, marks=[pytest.mark.slow] if name in SOLVERS else []) for name in shipped()
]


def make(name: str) -> Planner:
    """The planner as the group `agent` has it, with the changes above."""
    with hydra_over_configs():
        node = compose("plan", [f"agent={name}", "seed=3"])
    whole = OmegaConf.create(
        {"seed": 3, "agent": OmegaConf.merge(node.agent, CHANGES.get(name, {}))}
    )
    described = cast(dict[str, object], OmegaConf.to_container(whole, resolve=True))["agent"]
    return cast(Planner, build(cast(dict[str, object], described)))


@pytest.fixture(params=NAMES, scope="module")
def planner(request: pytest.FixtureRequest) -> Planner:
    return make(request.param)


def check(problem: StepProblem, result: Result[Plan]) -> None:
    """A result keeps its word."""
    if result.solution is None:
        assert result.status in ("infeasible", "limit")
        assert result.reason
        assert result.value == np.inf
        return
    assert result.status in ("feasible", "optimal")
    assert result.solution.violations(problem) == []
    device, order = result.solution.placement.device, result.solution.order
    timeline = StepSimulator(problem).run(device, order)
    assert (timeline.peak_memory <= problem.capacity).all()
    assert result.value == timeline.step_time
    assert result.value >= lower_bound(problem).seconds * (1 - 1e-9)
    assert result.value >= result.bound * (1 - 1e-9)
    times = [step_time for _, step_time in result.history]
    assert times == sorted(times, reverse=True)
    assert times[-1] == result.value
    assert result.seconds >= result.history[-1][0]


@SETTINGS
@given(problem=problems())
def test_plans_are_feasible_and_their_step_times_are_simulated(
    planner: Planner, problem: StepProblem
) -> None:
    result = planned(planner, problem, BUDGET, LIMIT)
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
    check(problem, result := planned(planner, problem, BUDGET, LIMIT))
    assert result.solution is not None


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=(pytest.mark.proof, pytest.mark.slow) if name in SOLVERS else ())
        for name in shipped()
    ],
)
def test_equal_seeds_and_limits_give_equal_plans(name: str) -> None:
    problem = pipeline([1.0, 2.0, 1.5, 1.0, 3.0], 3, cluster([0, 0, 1]), [2, 2, 1])
    first, second = (planned(make(name), problem, BUDGET, LIMIT) for _ in range(2))
    assert first.solution is not None
    assert second.solution is not None
    np.testing.assert_array_equal(first.solution.placement.device, second.solution.placement.device)
    np.testing.assert_array_equal(first.solution.order, second.solution.order)
    assert (first.value, first.evaluations) == (second.value, second.evaluations)


@pytest.mark.parametrize("name", NAMES)
def test_a_model_that_fits_nowhere_is_refused_with_the_number_of_bytes(name: str) -> None:
    problem = pipeline([1.0, 1.0, 1.0], 2, cluster([0, 1], [5.0, 4.5]))
    result = planned(make(name), problem, BUDGET, LIMIT)
    assert (result.solution, result.status) == (None, "infeasible")
    assert "does not fit: 12 bytes" in result.reason


@pytest.mark.parametrize(
    "name", [pytest.param("fusion_milp", marks=pytest.mark.slow), "local_search"]
)
@pytest.mark.usefixtures("ticking")
def test_searches_respect_the_budget_and_beat_the_expert_split(name: str) -> None:
    problem = pipeline([1.0, 2.0, 1.5, 1.0, 3.0, 2.0], 4, cluster([0, 0, 1, 1]), [2, 2, 1, 1])
    result = planned(make(name), problem, 1.5)
    expert = planned(make("contiguous_speed"), problem, 1.5)
    assert result.seconds < 1.7
    assert result.value <= expert.value
