from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import spearmanr

from envs.cluster.workload.synthetic.fit import agreement, kolmogorov_smirnov
from envs.cluster.workload.trace import Trace

samples = st.lists(st.integers(0, 30), min_size=1, max_size=60)


@given(samples, samples)
def test_kolmogorov_smirnov_by_its_definition(first: list[int], second: list[int]) -> None:
    below = [
        sum(v <= x for v in first) / len(first) - sum(v <= x for v in second) / len(second)
        for x in range(31)
    ]
    found = kolmogorov_smirnov(np.array(first), np.array(second))
    assert found == pytest.approx(max(abs(distance) for distance in below))


def test_a_trace_agrees_with_itself() -> None:
    rng = np.random.default_rng(0)
    trace = Trace.of(
        "t",
        np.sort(rng.integers(9999, size=300)),
        rng.integers(1, 99, 300),
        rng.integers(1, 5, 300),
    )
    found = agreement(trace, trace)
    distances = (
        found.duration_ks, found.interarrival_ks, found.gang_share, found.gang_duration_ks
    )  # fmt: skip
    assert distances == (0, 0, 0, 0)
    assert found.load_ratio == 1
    wanted = spearmanr(trace.duration_s[1:], trace.duration_s[:-1]).statistic
    assert found.duration_memory[0] == pytest.approx(wanted, abs=0.01)


def test_differences_by_hand() -> None:
    real = Trace.of("real", [0, 10, 20, 30], [1, 1, 5, 5], [1, 1, 2, 2])
    other = Trace.of("other", [0, 10, 20, 50], [1, 1, 1, 5], [1, 1, 1, 4])
    found = agreement(real, other)
    assert found.duration_ks == 0.25
    assert found.interarrival_ks == pytest.approx(1 / 3)
    assert found.gang_share == 0.5  # two of four jobs had 2 GPUs, now none
    assert found.gang_duration_ks == 0.5  # the jobs of size 2 are missing
    assert found.same_gang == (pytest.approx(2 / 3), pytest.approx(2 / 3))
    assert found.load_ratio == pytest.approx((23 / 50) / (22 / 30))
