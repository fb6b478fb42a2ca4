"""CMA-ES on functions whose least value is known."""

from __future__ import annotations

import numpy as np
import pytest

from agents.evolution import CmaEs
from envs.arrays import FloatArray


def ellipsoid(x: FloatArray) -> FloatArray:
    """Axes of lengths from 1 to 1,000, turned; 0 at 1, 1, ..."""
    n = x.shape[1]
    turned = np.linalg.qr(np.random.default_rng(3).normal(size=(n, n)))[0]
    found: FloatArray = ((x - 1.0) @ turned) ** 2 @ np.logspace(0, 3, n)
    return found


def rosenbrock(x: FloatArray) -> FloatArray:
    """0 at 1, 1, ..., at the end of a curved valley."""
    found: FloatArray = (100 * (x[:, 1:] - x[:, :-1] ** 2) ** 2 + (1 - x[:, :-1]) ** 2).sum(axis=1)
    return found


@pytest.mark.parametrize("cost", [ellipsoid, rosenbrock])
def test_it_finds_the_least_value_and_goes_on_where_it_was(cost: object) -> None:
    assert callable(cost)
    search, other = (CmaEs(np.zeros(6), 0.3) for _ in range(2))
    for generation in range(400):
        search.learn(cost(search.ask(np.random.default_rng(generation))))
        if generation == 20:
            other.load(search.state())
        elif generation > 20 and generation < 40:
            other.learn(cost(other.ask(np.random.default_rng(generation))))
            assert np.array_equal(other.mean, search.mean)
    assert cost(search.mean[None])[0] < 1e-10
    assert search.spread < 1e-3
