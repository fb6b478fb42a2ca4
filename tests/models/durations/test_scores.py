"""Marginal distributions by counting, and scores of distributions that are known."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from models.durations.bins import BINS, upper_edges_s
from models.durations.scores import Marginal, Scores
from tests.strength import SEEDS, examples

EDGES = upper_edges_s()


def bin_of(seconds: float) -> int:
    return next((b for b, edge in enumerate(EDGES) if seconds <= edge), BINS - 1)


@examples(40)
@given(SEEDS, st.sampled_from([0.5, 10.0]))
def test_marginals_are_counts_of_the_jobs_that_took_longer(seed: int, smoothing: float) -> None:
    rng = np.random.default_rng(seed)
    durations = np.exp(rng.uniform(2.0, 16.0, 30)).astype(np.int64)
    gpus = rng.choice([1, 2], 30).astype(np.int32)
    done, asked = np.append(0.0, np.exp(rng.uniform(2.0, 17.0, 7))), rng.choice([1, 2, 4], 8)
    marginal = Marginal(durations, gpus, smoothing)
    everything, alike = marginal.given_done(done), marginal.given_gang(done, asked)
    for row, (passed, size) in enumerate(zip(done, asked, strict=True)):
        counts = np.zeros((2, BINS))
        for duration, gang in zip(durations, gpus, strict=True):
            if duration > passed:
                counts[0, bin_of(duration - passed)] += 1.0
                counts[1, bin_of(duration - passed)] += gang == size
        first = (counts[0] + smoothing / BINS) / (counts[0].sum() + smoothing)
        second = (counts[1] + smoothing * first) / (counts[1].sum() + smoothing)
        assert_allclose(everything[row], first)
        assert_allclose(alike[row], second)


def test_ranks_are_even_where_chances_are_true() -> None:
    """Work drawn from the very distribution, evenly inside each bin."""
    rng = np.random.default_rng(0)
    chance = rng.dirichlet(np.ones(BINS), 20_000)
    chance[:, -1] = 0.0
    chance /= chance.sum(axis=1, keepdims=True)
    drawn = (chance.cumsum(axis=1) < rng.random(20_000)[:, None]).sum(axis=1)
    lower = np.append(0.0, EDGES)[drawn]
    left = lower + (EDGES[drawn] - lower) * (1.0 - rng.random(20_000))
    scores = Scores.of("true", chance, left)
    for level in (0.2, 0.5, 0.8):
        assert scores.held(level) == pytest.approx(level, abs=0.015)
    assert_allclose(np.quantile(scores.rank, [0.1, 0.5, 0.9]), [0.1, 0.5, 0.9], atol=0.02)


def test_scores_by_hand() -> None:
    """Three quarters on the first bin, up to 30 s, and a quarter on the last."""
    chance = np.zeros((4, BINS))
    chance[:, 0], chance[:, -1] = 0.75, 0.25
    ratio = EDGES[-1] / EDGES[-2]
    left = np.array([15.0, 30.0, EDGES[-1] * (1.0 + ratio) / 2.0, EDGES[-1] * ratio * 9.0])
    scores = Scores.of("hand", chance, left)
    assert_allclose(scores.loss, -np.log([0.75, 0.75, 0.25, 0.25]))
    assert_allclose(scores.rank, [0.375, 0.75, 0.875, 1.0])
    assert scores.held(0.5) == 0.5
    assert_allclose(
        scores.by_part(np.array([5, 2, 2, 2])),
        [-np.log([0.75, 0.25, 0.25]).mean(), -np.log(0.75)],
    )
