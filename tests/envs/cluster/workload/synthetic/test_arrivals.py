"""None"""

from __future__ import annotations

from statistics import NormalDist

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.random import default_rng
from numpy.testing import assert_allclose, assert_array_equal

from envs.cluster.workload.synthetic.arrivals import (
    DAY_S,
    HOUR_S,
    WEEK_S,
    SessionShape,
    WeeklyClock,
    arrival_times,
    deal_sizes,
    fit_sessions,
    gap_scores,
    normal_scores,
)
from tests.refusal import refusal
from tests.strength import SEEDS, examples

WEEKDAYS = np.array([1.3, 1.3, 1.3, 1.3, 1.3, 0.25, 0.25])


def clock(seed: int) -> WeeklyClock:
    rng = default_rng(seed)
    daily, weekly = rng.uniform(0.1, 2, 24), rng.uniform(0.1, 2, 7)
    return WeeklyClock(daily / daily.mean(), weekly / weekly.mean())


@examples(30)
@given(
    st.integers(0, 50),
    st.lists(st.tuples(st.floats(0, 3 * DAY_S), st.booleans()), min_size=1, max_size=30),
    st.floats(0.01, 5),
)
def test_busy_gaps_are_busy_time_and_gaps_in_a_burst_are_time(
    seed: int, gaps: list[tuple[float, bool]], scale: float
) -> None:
    rates = clock(seed).rates
    gap, burst = (np.array(column) for column in zip(*gaps, strict=True))
    time = arrival_times(gap, burst, scale, rates)
    hours = np.arange(int(time[-1] // HOUR_S) + 2)
    inside = np.clip(time[:, None] - hours * HOUR_S, 0, HOUR_S)  # of each hour, before each arrival
    busy = inside @ rates[hours % 168]
    assert time[0] == 0
    passed = np.where(burst[1:], np.diff(time), np.diff(busy))
    assert_allclose(passed, gap[1:] * scale, rtol=1e-9, atol=1e-4)


def test_busy_time_is_the_sum_of_the_rates_of_the_seconds_before() -> None:
    shape = clock(7)
    seconds = np.array([0, 1, 3599, 3600, 5000, DAY_S - 1, 3 * DAY_S + 17, WEEK_S, WEEK_S + 4000])
    rate = shape.rates[np.arange(seconds[-1]) // HOUR_S % 168]
    wanted = np.concatenate([[0.0], np.cumsum(rate)])[seconds]
    assert_allclose(shape.busy_time(seconds), wanted, rtol=1e-9)
    assert shape.busy_time(np.array([WEEK_S]))[0] == pytest.approx(WEEK_S)


def poisson(daily: np.ndarray, weekly: np.ndarray, weeks: int, seed: int) -> np.ndarray:
    rng = default_rng(seed)
    rate = np.tile(np.outer(weekly, daily).ravel(), weeks)
    count = rng.poisson(rate * 4)
    seconds = np.repeat(np.arange(len(rate)) * HOUR_S, count)
    return np.sort(seconds + rng.integers(HOUR_S, size=len(seconds)))


def test_a_shape_that_is_there_is_found() -> None:
    daily = 1 + 0.8 * np.sin(np.arange(24) / 24 * 2 * np.pi)
    found = WeeklyClock.fit(poisson(daily, WEEKDAYS, 12, 3))
    assert_allclose(found.daily, daily, atol=0.15)
    assert_allclose(found.weekly, WEEKDAYS / WEEKDAYS.mean(), atol=0.1)


def flat(arrivals: np.ndarray) -> tuple[bool, bool]:
    """Whether the fitted clock has no shape of the day, and none of the week."""
    found = WeeklyClock.fit(arrivals)
    return found.daily.std() == 0, found.weekly.std() == 0


def test_where_there_is_none_the_clock_is_flat_and_bursts_make_none() -> None:
    # of 80; a shape by chance once in a hundred
    assert sum(sum(flat(poisson(np.ones(24), np.ones(7), 6, seed))) for seed in range(40)) >= 75
    found = 0
    for seed in range(20):
        rng = default_rng(seed)
        burst = rng.integers(42 * DAY_S, size=60)
        seconds = burst[:, None] + rng.integers(1800, size=(60, 50))
        found += flat(np.sort(seconds.ravel()))[0]
    assert found >= 18


def test_few_arrivals_have_no_shape() -> None:
    daily = np.r_[np.full(12, 0.01), np.full(12, 1.99)]
    week, weeks = (poisson(daily, np.ones(7), number, 0) for number in (1, 8))
    for few in (week, weeks[::6]):
        assert len(few) < 1000
        assert flat(few)[0]
    assert not flat(weeks)[0]


def test_what_is_no_clock_is_refused() -> None:
    day, week = np.ones(24), np.ones(7)
    for daily, weekly in (
        (np.ones(23), week),
        (day * 2, week),
        (np.r_[0.0, np.full(23, 24 / 23)], week),
        (day, np.ones(8)),
    ):
        with refusal():
            WeeklyClock(daily, weekly)


def shape_of(length: list[float]) -> SessionShape:
    zero = (0.0,) * len(length)
    return SessionShape(length=length, gap_within=zero, gap_before=zero)


@examples(60)
@given(
    st.lists(st.tuples(st.integers(0, 40), st.floats(1, 30)), min_size=1, max_size=6),
    SEEDS,
)
def test_every_size_has_exactly_its_jobs(sizes: list[tuple[int, float]], seed: int) -> None:
    count, length = (list(column) for column in zip(*sizes, strict=True))
    assume(any(count))
    size, starts = deal_sizes(shape_of(length), np.array(count), default_rng(seed))
    assert_array_equal(np.bincount(size, minlength=len(count)), count)
    assert_array_equal(starts, np.r_[True, size[1:] != size[:-1]])


def test_sessions_are_as_long_as_asked_for_and_are_found_again() -> None:
    length = [8.0, 3.0, 1.5, 1.0]
    count = np.array([24_000, 6_000, 3_000, 1_000])
    size, _ = deal_sizes(shape_of(length), count, default_rng(1))
    found = fit_sessions(np.full(len(size) - 1, 0.5), size, 4)
    assert_allclose(found.length, length, rtol=0.1)
    for third in np.array_split(size, 3):  # the mix is the same from beginning to end
        share = np.bincount(third, minlength=4) / len(third)
        assert_allclose(share, count / count.sum(), atol=0.06)


def test_gaps_of_each_kind_are_found_again() -> None:
    rng = default_rng(2)
    asked = SessionShape(length=(5.0, 2.0), gap_within=(-0.5, 0.3), gap_before=(0.9, 1.2))
    size, starts = deal_sizes(asked, np.array([20_000, 4_000]), rng)
    mean = gap_scores(asked, size, starts)
    score = mean + np.sqrt(1 - mean.var()) * rng.standard_normal(len(size))
    ranks = (np.argsort(np.argsort(score[1:])) + 0.5) / (len(size) - 1)
    found = fit_sessions(ranks, size, 2)
    centred = float(mean.mean())  # scores of ranks have mean 0
    assert_allclose(found.gap_within, np.array(asked.gap_within) - centred, atol=0.08)
    assert_allclose(found.gap_before, np.array(asked.gap_before) - centred, atol=0.08)


def test_kinds_of_few_gaps_are_taken_as_all() -> None:
    size = np.r_[np.zeros(100, np.int64), 1, np.zeros(100, np.int64)]
    ranks = np.linspace(0.01, 0.99, 200)
    found = fit_sessions(ranks, size, 2)
    score = normal_scores(ranks)
    before = (score[99] + score[100]) / 2
    assert found.gap_before == pytest.approx([before, before])
    assert found.length == [100, 1]


def test_normal_scores_by_definition() -> None:
    ranks = np.array([0.5, 0.975, 0.025, 0.5])
    assert_allclose(normal_scores(ranks), [0, 1.959964, -1.959964, 0], atol=1e-6)
    assert normal_scores(np.array([0.3]))[0] == NormalDist().inv_cdf(0.3)
