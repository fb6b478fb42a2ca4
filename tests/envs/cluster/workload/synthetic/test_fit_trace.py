"""A generated trace is like the trace it was fitted to."""

from __future__ import annotations

from dataclasses import astuple, replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from published_traces import ITP, PHILLY, published
from scipy.stats import rankdata, spearmanr
from shipped_workloads import shipped

from envs.cluster.workload.synthetic.arrivals import EPOCH_S, WeeklyClock
from envs.cluster.workload.synthetic.fit import (
    LEAST_OF_SIZE,
    _groups,
    _memory,
    agreement,
    fit,
    kolmogorov_smirnov,
)
from envs.cluster.workload.synthetic.generate import _latent, generate
from envs.cluster.workload.synthetic.parameters import Memory
from envs.cluster.workload.trace import Trace
from tests.refusal import refusal

SEEDS = range(5)
SHIPPED = {"cluster04": "itp", PHILLY: PHILLY}  # traces whose parameters are shipped


def work_burstiness(trace: Trace) -> float:
    """Standard deviation over mean of the GPU-seconds submitted in each hour."""
    work = np.bincount((trace.submit_s - trace.submit_s[0]) // 3600, weights=trace.gpu_seconds)
    return float(work.std() / work.mean())


@pytest.mark.slow
@pytest.mark.parametrize("name", [*ITP, PHILLY])
def test_traces_are_like_the_published_one_and_parameters_those_shipped(
    data: Path, name: str
) -> None:
    real, origin_s = published(data, name), EPOCH_S if name == PHILLY else 0
    parameters = fit(real, name=SHIPPED.get(name, name), origin_s=origin_s)
    if name in SHIPPED:
        fitted, parameters = parameters, shipped(SHIPPED[name])
        assert fitted.document() == parameters.document()
    for seed in SEEDS:
        synthetic = generate(parameters, len(real), seed)
        found = agreement(real, synthetic)
        assert max(found.duration_ks, found.interarrival_ks) <= 0.1
        assert found.gang_share <= 0.02
        assert found.gang_duration_ks <= 0.15
        assert 0.7 <= found.load_ratio <= 1.45
        if name in SHIPPED:
            assert max(found.duration_ks, found.interarrival_ks, found.gang_duration_ks) <= 0.03
            assert found.load_ratio == pytest.approx(1, abs=0.1)
            assert np.ptp(found.same_gang) <= 0.02
            assert work_burstiness(real) / work_burstiness(synthetic) == pytest.approx(1, abs=0.3)
            assert np.ptp(found.gap_memory) <= 0.1
            assert np.ptp(found.duration_memory) <= 0.2


def test_another_number_of_jobs_has_the_same_statistics(data: Path) -> None:
    real = published(data, "cluster04")
    parameters = shipped("itp")
    for jobs in (1000, 100_000):
        found = agreement(real, generate(parameters, jobs, 0))
        assert max(found.duration_ks, found.interarrival_ks) <= 0.1
        assert found.gang_share <= 0.02


def test_what_was_generated_is_found_again() -> None:
    parameters = shipped("philly")
    again = fit(generate(parameters, 60_000, 8), name="philly", origin_s=0)
    assert again.gang_sizes == parameters.gang_sizes
    assert_allclose(again.gang_shares, parameters.gang_shares, atol=1e-4)
    assert_allclose(again.clock.daily, parameters.clock.daily, atol=0.7)
    assert again.burst_share == pytest.approx(parameters.burst_share, abs=0.02)
    assert again.gap_memory.strength == pytest.approx(parameters.gap_memory.strength, abs=0.07)


@pytest.mark.parametrize(("strength", "persistence"), [(0.0, 0.5), (0.4, 0.9), (0.9, 0.99)])
def test_memory_is_found_again(strength: float, persistence: float) -> None:
    jobs = 60_000
    memory = Memory(strength=strength, persistence=persistence)
    latent = _latent(memory, np.zeros(jobs, np.bool_), np.random.default_rng(0))
    found = _memory(rankdata(latent) / jobs, np.ones(jobs, np.int64))
    assert found.strength == pytest.approx(strength, abs=0.03)
    if strength:
        assert found.persistence == pytest.approx(persistence, abs=0.1 * (1 - persistence) + 0.003)


def test_gang_sizes_of_few_jobs_share_their_durations() -> None:
    many, few = LEAST_OF_SIZE, LEAST_OF_SIZE // 2
    for count, groups in (
        ([many, many, many], [[1], [2], [4]]),
        ([many, few, few], [[1], [2, 4]]),
        ([many, 1, many], [[1, 2], [4]]),
        ([1, many, 1], [[1, 2, 4]]),
        ([1, 1], [[1, 2]]),
    ):
        assert _groups([1, 2, 4][: len(count)], count) == groups


def test_what_cannot_be_fitted_is_refused() -> None:
    whole = Trace.of("t", range(90), [5] * 90, [1] * 90)
    few, at_once = whole.take(slice(10), "few"), replace(whole, submit_s=np.full(90, 7))
    shared = replace(whole, gpu_milli=np.r_[np.full(89, 1000), 500].astype(np.int32))
    for trace, word in ((few, "few"), (at_once, "at once"), (shared, "gpu_milli")):
        with refusal(word):
            fit(trace, name="x", origin_s=0)


def test_a_trace_without_variety_is_fitted() -> None:
    steady = Trace.of("steady", np.arange(200) * 30, [600] * 200, [4] * 200)
    trace = generate(fit(steady, name="steady", origin_s=0), 200, 0)
    assert list(trace) == list(steady)


def test_seconds_since_1970_fall_on_the_right_day(data: Path) -> None:
    real = published(data, PHILLY)  # begins on Monday, 4 September 2017, at 10:30:41
    first = (int(real.submit_s[0]) + EPOCH_S) % (7 * 86400)
    assert first == 10 * 3600 + 30 * 60 + 41
    weekly = WeeklyClock.fit(real.submit_s + EPOCH_S).weekly
    assert set(np.argsort(weekly)[:2]) == {5, 6}  # Saturday and Sunday


samples = st.lists(st.integers(0, 30), min_size=1, max_size=60)


@given(samples, samples)
def test_kolmogorov_smirnov_by_its_definition(first: list[int], second: list[int]) -> None:
    shares = [[np.mean(np.array(some) <= x) for x in range(31)] for some in (first, second)]
    found = kolmogorov_smirnov(np.array(first), np.array(second))
    assert found == pytest.approx(np.abs(np.subtract(*shares)).max())


def test_a_trace_agrees_with_itself() -> None:
    rng = np.random.default_rng(0)
    submit_s = np.sort(rng.integers(9999, size=300))
    trace = Trace.of("t", submit_s, rng.integers(1, 99, 300), rng.integers(1, 5, 300))
    found = agreement(trace, trace)
    assert astuple(found)[:5] == (0, 0, 0, 0, 1)
    wanted = spearmanr(trace.duration_s[1:], trace.duration_s[:-1]).statistic
    assert found.duration_memory[0] == pytest.approx(wanted, abs=0.01)


def test_differences_by_hand() -> None:
    real = Trace.of("real", [0, 10, 20, 30], [1, 1, 5, 5], [1, 1, 2, 2])
    other = Trace.of("other", [0, 10, 20, 50], [1, 1, 1, 5], [1, 1, 1, 4])
    found = agreement(real, other)
    # two of four jobs had 2 GPUs, now none: their durations are missing
    assert astuple(found)[:5] == pytest.approx((0.25, 1 / 3, 0.5, 0.5, (23 / 50) / (22 / 30)))
    assert found.same_gang == pytest.approx((2 / 3, 2 / 3))
