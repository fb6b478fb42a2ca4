"""`ContiguousDP.plan`: pipelines for the makespan."""

from __future__ import annotations

from agents.partition.dp import ContiguousDP
from agents.placement.baselines import SingleDevice
from tests.agents.placement.random_problems import cluster, pipeline
from tests.asking import planned

PLANNER = ContiguousDP(ideals=10_000, groups=16)


def test_equal_stages_on_equal_devices_fill_the_pipeline() -> None:
    problem = pipeline([1.0] * 4, 8, cluster([0, 0, 0, 0], 1000.0))
    result = planned(PLANNER, problem, 30.0)
    assert result.solution is not None
    assert len(set(result.solution.placement.device.tolist())) == 4
    assert result.solution.violations(problem) == []
    single = planned(SingleDevice(), problem, 1.0)
    assert result.value < 0.5 * single.value


def test_one_micro_batch_on_slow_links_stays_on_one_device() -> None:
    problem = pipeline([1.0] * 3, 1, cluster([0, 1], 1000.0))
    result = planned(PLANNER, problem, 30.0)
    single = planned(SingleDevice(), problem, 1.0)
    assert result.value <= single.value


def test_many_kinds_of_devices_come_in_a_fixed_order() -> None:
    speeds = [1.0, 1.5, 2.0, 3.0, 1.2, 1.7, 2.5]
    problem = pipeline([1.0] * 14, 8, cluster([0] * 7, 1e6), speeds)
    result = planned(PLANNER, problem, 30.0)
    assert result.solution is not None
    assert len(set(result.solution.placement.device.tolist())) >= 4
    single = planned(SingleDevice(), problem, 1.0)
    assert result.value < 0.6 * single.value


def test_a_budget_that_is_spent_at_once_still_gives_a_split_and_no_more() -> None:
    problem = pipeline([1.0] * 16, 8, cluster([0, 0, 0, 0], 1e6))
    result = planned(PLANNER, problem, 1e-9)
    assert result.solution is not None
    assert result.evaluations == 1
    single = planned(SingleDevice(), problem, 1.0)
    assert result.value < 0.5 * single.value
