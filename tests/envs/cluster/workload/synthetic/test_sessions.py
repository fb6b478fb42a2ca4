from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.cluster.workload.synthetic.arrivals import (
    SessionShape,
    deal_sizes,
    fit_sessions,
    gap_scores,
    normal_scores,
)
from tests.strength import examples


def shape_of(length: list[float]) -> SessionShape:
    zero = (0.0,) * len(length)
    return SessionShape(tuple(length), zero, zero)


@examples(60)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.floats(1, 30)), min_size=1, max_size=6),
    st.integers(0, 2**32),
)
def test_every_size_has_exactly_its_jobs(sizes: list[tuple[int, float]], seed: int) -> None:
    count = np.array([jobs for jobs, _ in sizes])
    if count.sum() == 0:
        return
    shape = shape_of([length for _, length in sizes])
    size, starts = deal_sizes(shape, count, np.random.default_rng(seed))
    np.testing.assert_array_equal(np.bincount(size, minlength=len(count)), count)
    assert starts[0]
    np.testing.assert_array_equal(starts[1:], size[1:] != size[:-1])


def test_sessions_are_as_long_as_asked_for_and_are_found_again() -> None:
    length = [8.0, 3.0, 1.5, 1.0]
    count = np.array([24_000, 6_000, 3_000, 1_000])
    size, _ = deal_sizes(shape_of(length), count, np.random.default_rng(1))
    found = fit_sessions(np.full(len(size) - 1, 0.5), size, 4)
    np.testing.assert_allclose(found.length, length, rtol=0.1)
    third = len(size) // 3  # the mix is the same from beginning to end
    for part in (size[:third], size[third : 2 * third], size[2 * third :]):
        share = np.bincount(part, minlength=4) / len(part)
        np.testing.assert_allclose(share, count / count.sum(), atol=0.06)


def test_gaps_of_each_kind_are_found_again() -> None:
    rng = np.random.default_rng(2)
    asked = SessionShape((5.0, 2.0), (-0.5, 0.3), (0.9, 1.2))
    size, starts = deal_sizes(asked, np.array([20_000, 4_000]), rng)
    mean = gap_scores(asked, size, starts)
    score = mean + np.sqrt(1 - mean.var()) * rng.standard_normal(len(size))
    ranks = (np.argsort(np.argsort(score[1:])) + 0.5) / (len(size) - 1)
    found = fit_sessions(ranks, size, 2)
    centred = float(mean.mean())  # scores of ranks have mean 0
    np.testing.assert_allclose(found.gap_within, np.array(asked.gap_within) - centred, atol=0.08)
    np.testing.assert_allclose(found.gap_before, np.array(asked.gap_before) - centred, atol=0.08)


def test_kinds_of_few_gaps_are_taken_as_all() -> None:
    size = np.r_[np.zeros(100, np.int64), 1, np.zeros(100, np.int64)]
    ranks = np.linspace(0.01, 0.99, 200)
    found = fit_sessions(ranks, size, 2)
    score = normal_scores(ranks)
    before = (score[99] + score[100]) / 2
    assert found.gap_before == (pytest.approx(before), pytest.approx(before))
    assert found.length == (100, 1)


def test_normal_scores_by_definition() -> None:
    ranks = np.array([0.5, 0.975, 0.025, 0.5])
    np.testing.assert_allclose(normal_scores(ranks), [0, 1.959964, -1.959964, 0], atol=1e-6)
    assert normal_scores(np.array([0.3]))[0] == NormalDist().inv_cdf(0.3)
