"""HEFT, random placements and the single device on pipelines worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from agents.placement.baselines import RandomPlacement, SingleDevice
from agents.placement.list_planners import Heft
from tests.agents.placement.random_problems import cluster, pipeline


def test_the_single_device_is_the_fastest_that_fits() -> None:
    slow_is_large = pipeline([1.0, 1.0], 2, cluster([0, 0], [5.0, 100.0]), [4, 1])
    both_fit = pipeline([1.0, 1.0], 2, cluster([0, 0]), [4, 1])
    assert SingleDevice().plan(slow_is_large, 1.0).step_time == pytest.approx(12.2)
    assert SingleDevice().plan(both_fit, 1.0).step_time == pytest.approx(12.2 / 4)


def test_a_step_too_large_for_every_single_device_says_by_how_much() -> None:
    problem = pipeline([1.0, 1.0], 2, cluster([0, 0], [6.0, 5.0]))
    result = SingleDevice().plan(problem, 1.0)
    assert (result.status, result.plan) == ("infeasible", None)
    assert "does not fit: 'd0' has" in result.reason


def test_random_placements_differ_by_seed_and_more_samples_are_never_worse() -> None:
    problem = pipeline([1.0] * 6, 2, cluster([0, 0, 1]))
    few = RandomPlacement(groups=6, samples=1, seed=0).plan(problem, 10.0)
    many = RandomPlacement(groups=6, samples=50, seed=0).plan(problem, 10.0)
    other = RandomPlacement(groups=6, samples=1, seed=1).plan(problem, 10.0)
    assert many.step_time <= few.step_time
    assert few.plan is not None
    assert other.plan is not None
    assert (few.plan.placement.device != other.plan.placement.device).any()


def test_heft_uses_the_second_device_for_the_second_micro_batch_stage() -> None:
    problem = pipeline([1.0, 1.0], 8, cluster([0, 0]))
    result = Heft(groups=(2,)).plan(problem, 10.0)
    single = SingleDevice().plan(problem, 10.0)
    assert result.step_time < 0.7 * single.step_time


def test_heft_leaves_a_full_device_alone() -> None:
    problem = pipeline([1.0] * 3, 1, cluster([0, 0], [6.0, 100.0]), [10, 1])
    result = Heft(groups=(3,)).plan(problem, 10.0)
    assert result.plan is not None
    state = np.bincount(
        result.plan.placement.device, weights=problem.graph.state_bytes, minlength=2
    )
    assert state[0] <= 6.0
