"""Annealing, HEFT, random placements and the single device on pipelines worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from agents.placement.annealing import Annealing, propose
from agents.placement.heft import Heft
from agents.placement.random_placement import RandomPlacement
from agents.placement.single_device import SingleDevice
from tests.agents.placement.random_problems import cluster, pipeline


def test_the_single_device_is_the_fastest_that_fits() -> None:
    slow_is_large = pipeline([1.0, 1.0], 2, cluster([0, 0], [5.0, 100.0]), [4, 1])
    both_fit = pipeline([1.0, 1.0], 2, cluster([0, 0], [100.0, 100.0]), [4, 1])
    assert SingleDevice().plan(slow_is_large, 1.0).step_time == pytest.approx(12.2)
    assert SingleDevice().plan(both_fit, 1.0).step_time == pytest.approx(12.2 / 4)


def test_a_step_too_large_for_every_single_device_says_by_how_much() -> None:
    problem = pipeline([1.0, 1.0], 2, cluster([0, 0], [6.0, 5.0]), [1, 1])
    result = SingleDevice().plan(problem, 1.0)
    assert (result.status, result.plan) == ("infeasible", None)
    assert "does not fit: 'd0' has" in result.reason


def test_random_placements_differ_by_seed_and_more_samples_are_never_worse() -> None:
    problem = pipeline([1.0] * 6, 2, cluster([0, 0, 1], [100.0] * 3), [1, 1, 1])
    few = RandomPlacement(groups=6, samples=1, seed=0).plan(problem, 10.0)
    many = RandomPlacement(groups=6, samples=50, seed=0).plan(problem, 10.0)
    other = RandomPlacement(groups=6, samples=1, seed=1).plan(problem, 10.0)
    assert many.step_time <= few.step_time
    assert few.plan is not None
    assert other.plan is not None
    assert (few.plan.placement.device != other.plan.placement.device).any()


def test_heft_uses_the_second_device_for_the_second_micro_batch_stage() -> None:
    problem = pipeline([1.0, 1.0], 8, cluster([0, 0], [100.0] * 2), [1, 1])
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


def test_annealing_uses_its_whole_budget_and_records_improvements() -> None:
    problem = pipeline([1.0] * 6, 4, cluster([0, 0, 1], [100.0] * 3), [1, 1, 1])
    result = Annealing(groups=6, cycles=2, hot=0.1, cold=0.001, seed=0).plan(problem, 0.5)
    assert 0.5 <= result.seconds < 1.5
    assert result.evaluations > 100
    assert len(result.trajectory) > 1


def test_annealing_gives_way_when_activations_do_not_fit() -> None:
    ample = pipeline([1.0] * 6, 4, cluster([0, 0], [100.0, 100.0]), [3, 1])
    tight = pipeline([1.0] * 6, 4, cluster([0, 0], [14.0, 100.0]), [3, 1])
    search = Annealing(groups=6, cycles=2, hot=0.1, cold=0.001, seed=0)
    assert search.plan(tight, 10.0, 5000).plan is not None
    assert search.plan(tight, 10.0, 5000).step_time > search.plan(ample, 10.0, 5000).step_time


def test_moves_keep_groups_on_devices_that_are_allowed() -> None:
    random = np.random.default_rng(0)
    allowed = random.random((8, 4)) < 0.7
    allowed[:, 0] = True
    device = np.zeros(8, dtype=np.int64)
    reached = np.zeros((8, 4), dtype=bool)
    for _ in range(5000):
        candidate = device.copy()
        if propose(candidate, allowed, random):
            assert (candidate != device).any()
            device = candidate
            reached[np.arange(8), device] = True
    np.testing.assert_array_equal(reached, allowed)
