"""The search for weights: downhill on functions whose valley is known."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.typing import NDArray

from agents.cluster.migrating.weight_search import WeightSearch, WeightSearchConfig

CONFIG = WeightSearchConfig(
    rounds=100, pairs=8, spread=0.3, memory=80, fade=0.98, prior=4.0, step=0.1, limit=5.0
)
VALLEY = np.array([0.8, -0.5, 0.0, 0.3])


def valley(weights: NDArray[np.float64], rng: np.random.Generator) -> NDArray[np.float64]:
    """Noisy heights; weights that are shifted either way share no noise."""
    heights = ((weights - VALLEY) ** 2).sum(axis=-1)
    found: NDArray[np.float64] = heights + 0.05 * rng.normal(size=heights.shape)
    return found


def searched(config: WeightSearchConfig, seed: int) -> WeightSearch:
    rng = np.random.default_rng(seed)
    search = WeightSearch(config, np.zeros(4))
    for _ in range(config.rounds):
        offsets = search.offsets(rng)
        above, below = (valley(search.weights + side * offsets, rng) for side in (1.0, -1.0))
        search.learn(offsets, above, below)
    return search


@pytest.mark.parametrize("seed", range(3))
def test_goes_down_into_the_valley(seed: int) -> None:
    np.testing.assert_allclose(searched(CONFIG, seed).weights, VALLEY, atol=0.05)


def test_the_slope_is_that_of_a_ridge_regression() -> None:
    rng = np.random.default_rng(0)
    search = WeightSearch(replace(CONFIG, memory=12, step=1e-9), np.zeros(4))
    offsets, above, below = [], [], []
    for _ in range(3):
        offsets.append(search.offsets(rng))
        above.append(rng.normal(size=8))
        below.append(rng.normal(size=8))
        search.learn(offsets[-1], above[-1], below[-1])
    last = np.concatenate(offsets)[-12:]
    halves = (np.concatenate(above) - np.concatenate(below))[-12:] / 2.0
    root = np.sqrt(0.98 ** np.arange(12)[::-1])[:, None]
    prior = np.sqrt(4.0) * 0.3 * np.eye(4)
    wanted, *_ = np.linalg.lstsq(
        np.concatenate([root * last, prior]),
        np.concatenate([root[:, 0] * halves, np.zeros(4)]),
        rcond=None,
    )
    np.testing.assert_allclose(search.slope(), wanted, rtol=1e-9)


def test_one_wild_pair_counts_as_the_limit() -> None:
    offsets = np.ones((1, 2))
    wild, tame = (WeightSearch(replace(CONFIG, pairs=1, limit=0.5), np.zeros(2)) for _ in range(2))
    wild.learn(offsets, np.array([1000.0]), np.array([0.0]))
    tame.learn(offsets, np.array([1.0]), np.array([0.0]))
    np.testing.assert_array_equal(wild.weights, tame.weights)
    assert (tame.weights < 0.0).all()
