"""`ContiguousDP.plan`: pipelines for the makespan."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given

from agents.partition.dp import ContiguousDP
from agents.placement.baselines import SingleDevice
from tests.agents.partition.dp_graphs import small_problem
from tests.agents.placement.random_problems import cluster, pipeline
from tests.strength import SEEDS, examples

PLANNER = ContiguousDP(ideals=10_000, groups=16)


def test_equal_stages_on_equal_devices_fill_the_pipeline() -> None:
    problem = pipeline([1.0] * 4, 8, cluster([0, 0, 0, 0], 1000.0))
    result = PLANNER.plan(problem, 30.0)
    assert result.plan is not None
    assert len(set(result.plan.placement.device.tolist())) == 4
    assert result.plan.violations(problem) == []
    single = SingleDevice().plan(problem, 1.0)
    assert result.step_time < 0.5 * single.step_time


def test_one_micro_batch_on_slow_links_stays_on_one_device() -> None:
    problem = pipeline([1.0] * 3, 1, cluster([0, 1], 1000.0))
    result = PLANNER.plan(problem, 30.0)
    single = SingleDevice().plan(problem, 1.0)
    assert result.step_time <= single.step_time


@pytest.mark.slow
def test_less_room_is_left_until_the_peak_fits() -> None:
    loose = pipeline([1.0] * 4, 4, cluster([0, 0], 1000.0))
    peak = PLANNER.plan(loose, 30.0)
    assert peak.plan is not None
    state = loose.graph.state_bytes.sum()
    for room in np.linspace(0.5, 2.0, 7) * state:
        problem = pipeline([1.0] * 4, 4, cluster([0, 0], float(room)))
        result = PLANNER.plan(problem, 30.0)
        if result.plan is None:
            assert result.status in {"infeasible", "limit"}
            assert result.reason
        else:
            assert result.plan.violations(problem) == []


@given(SEEDS)
@examples(100)
def test_plans_of_random_steps_keep_every_rule(seed: int) -> None:
    problem = small_problem(seed)
    result = PLANNER.plan(problem, 30.0)
    assert result.step_time >= result.lower_bound
    if result.plan is None:
        assert result.status in {"infeasible", "limit"}
        assert result.reason
    else:
        assert result.plan.violations(problem) == []
        assert result.trajectory[-1][1] == result.step_time


def test_many_kinds_of_devices_come_in_a_fixed_order() -> None:
    speeds = [1.0, 1.5, 2.0, 3.0, 1.2, 1.7, 2.5]
    problem = pipeline([1.0] * 14, 8, cluster([0] * 7, 1e6), speeds)
    result = PLANNER.plan(problem, 30.0)
    assert result.plan is not None
    assert len(set(result.plan.placement.device.tolist())) >= 4
    single = SingleDevice().plan(problem, 1.0)
    assert result.step_time < 0.6 * single.step_time


def test_a_limit_makes_the_plan_reproducible() -> None:
    problem = pipeline([1.0] * 6, 4, cluster([0, 0, 1], 1000.0))
    first, second = (PLANNER.plan(problem, 30.0, deterministic_limit=300) for _ in range(2))
    assert first.step_time == second.step_time
    assert first.evaluations == second.evaluations
    assert first.plan is not None
    assert second.plan is not None
    np.testing.assert_array_equal(first.plan.placement.device, second.plan.placement.device)
    assert first.evaluations < PLANNER.plan(problem, 30.0).evaluations


def test_a_budget_that_is_spent_at_once_still_gives_a_split_and_no_more() -> None:
    problem = pipeline([1.0] * 16, 8, cluster([0, 0, 0, 0], 1e6))
    result = PLANNER.plan(problem, 1e-9)
    assert result.plan is not None
    assert result.evaluations == 1
    single = SingleDevice().plan(problem, 1.0)
    assert result.step_time < 0.5 * single.step_time
