"""HEFT, random placements and the single device on pipelines worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from agents.placement.baselines import RandomPlacement, SingleDevice
from agents.placement.list_planners import Heft
from tests.agents.placement.random_problems import cluster, pipeline
from tests.asking import planned


def test_the_single_device_is_the_fastest_that_fits() -> None:
    slow_is_large = pipeline([1.0, 1.0], 2, cluster([0, 0], [5.0, 100.0]), [4, 1])
    both_fit = pipeline([1.0, 1.0], 2, cluster([0, 0]), [4, 1])
    assert planned(SingleDevice(), slow_is_large, 1.0).value == pytest.approx(12.2)
    assert planned(SingleDevice(), both_fit, 1.0).value == pytest.approx(12.2 / 4)


def test_a_step_too_large_for_every_single_device_says_by_how_much() -> None:
    problem = pipeline([1.0, 1.0], 2, cluster([0, 0], [6.0, 5.0]))
    result = planned(SingleDevice(), problem, 1.0)
    assert (result.status, result.solution) == ("infeasible", None)
    assert "does not fit: 'd0' has" in result.reason


def test_random_placements_differ_by_seed_and_more_samples_are_never_worse() -> None:
    problem = pipeline([1.0] * 6, 2, cluster([0, 0, 1]))
    few = planned(RandomPlacement(groups=6, samples=1, seed=0), problem, 10.0)
    many = planned(RandomPlacement(groups=6, samples=50, seed=0), problem, 10.0)
    other = planned(RandomPlacement(groups=6, samples=1, seed=1), problem, 10.0)
    assert many.value <= few.value
    assert few.solution is not None
    assert other.solution is not None
    assert (few.solution.placement.device != other.solution.placement.device).any()


def test_heft_uses_the_second_device_for_the_second_micro_batch_stage() -> None:
    problem = pipeline([1.0, 1.0], 8, cluster([0, 0]))
    result = planned(Heft(groups=(2,)), problem, 10.0)
    single = planned(SingleDevice(), problem, 10.0)
    assert result.value < 0.7 * single.value


def test_heft_leaves_a_full_device_alone() -> None:
    problem = pipeline([1.0] * 3, 1, cluster([0, 0], [6.0, 100.0]), [10, 1])
    result = planned(Heft(groups=(3,)), problem, 10.0)
    assert result.solution is not None
    state = np.bincount(
        result.solution.placement.device, weights=problem.graph.state_bytes, minlength=2
    )
    assert state[0] <= 6.0
