"""Optimus's hand-out of GPUs against all others."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.cluster.elastic import gainful_gpus
from tests.strength import examples


@examples(100)
@given(
    jobs=st.lists(
        st.tuples(st.integers(1, 10**6), st.sampled_from([1, 2, 4])), min_size=1, max_size=4
    ),
    more=st.integers(0, 8),
)
def test_the_sum_of_remaining_times_is_least(jobs: list[tuple[int, int]], more: int) -> None:
    service = np.array([float(s) for s, _ in jobs])
    gangs = np.array([g for _, g in jobs])
    gpus = len(jobs) + more
    given_out = gainful_gpus(service, gangs, gpus)
    assert given_out.sum() == min(gpus, gangs.sum())
    assert (given_out <= gangs).all()
    choices = product(*(range(1, g + 1) for g in gangs))
    best = min(float((service / np.array(w)).sum()) for w in choices if sum(w) <= gpus)
    assert float((service / given_out).sum()) == pytest.approx(best)


def test_few_gpus_go_to_those_that_came_first() -> None:
    assert gainful_gpus(np.array([9.0, 1.0, 5.0]), np.array([4, 4, 4]), 2).tolist() == [1, 1, 0]


def test_gain_by_hand() -> None:
    """100 and 30 GPU-seconds: 50, then 100 / 6 against 15, then 100 / 12 against 15."""
    assert gainful_gpus(np.array([100.0, 30.0]), np.array([8, 8]), 4).tolist() == [3, 1]
    assert gainful_gpus(np.array([100.0, 30.0]), np.array([8, 8]), 5).tolist() == [3, 2]
