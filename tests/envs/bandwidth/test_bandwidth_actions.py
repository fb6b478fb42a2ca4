"""Actions become weights as the environment's docstring says."""

from __future__ import annotations

import numpy as np
import pytest

from envs.bandwidth.types import ContinuousWeights, WeightLevels
from tests.refusal import refusal


def test_levels_are_equal_factors_from_the_smallest_weight_to_the_largest() -> None:
    weights = WeightLevels(levels=21, octaves=5.0).weights(np.arange(21))
    assert weights[0] == pytest.approx(1 / 32)
    assert weights[10] == 1.0
    assert weights[-1] == pytest.approx(32)
    np.testing.assert_allclose(weights[1:] / weights[:-1], np.sqrt(2))


def test_the_two_kinds_of_action_agree() -> None:
    levels, continuous = WeightLevels(levels=5, octaves=2.0), ContinuousWeights(octaves=2.0)
    np.testing.assert_allclose(
        levels.weights(np.arange(5)), continuous.weights(np.linspace(-1, 1, 5))
    )


def test_a_channel_whose_weight_does_not_count_has_level_0_alone() -> None:
    mask = WeightLevels(levels=3).masks(np.array([True, False]))["action_mask"]
    assert mask.tolist() == [[1, 1, 1], [1, 0, 0]]
    assert ContinuousWeights().masks(np.array([True])) == {}


def test_bad_arguments_are_input_errors() -> None:
    with refusal("levels"):
        WeightLevels(levels=1)
    for octaves in (0.0, np.inf):
        with refusal("octaves"):
            ContinuousWeights(octaves=octaves)
    for action in ([0, 21], [-1, 0], [0.0, 3.5], [0.0, np.nan]):
        with refusal("level outside"):
            WeightLevels().weights(np.array(action))
    with refusal("outside -1"):
        ContinuousWeights().weights(np.array([0.0, np.nan]))
