from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.cluster.simulation.cluster_state import RUN
from experiments.pictures.gpu_lanes import Bar, assign_lanes

requests = st.lists(
    st.tuples(
        st.integers(0, 30), st.integers(0, 12), st.integers(1, 4),
        st.sampled_from([1000, 1000, 500, 300, 250]),
    ),
    max_size=30,
)  # fmt: skip


def admitted(asked: list[tuple[int, int, int, int]], gpus: int) -> np.ndarray:
    """Those of the runs (start, length, GPUs, thousandths) that the node has room for."""
    kept: list[tuple[int, int, int, int, int, int]] = []
    for job, (start, length, wanted, milli) in enumerate(sorted(asked)):
        run = (start, start + length, job, 0, wanted if milli == 1000 else 1, milli)
        held = sum(k[4] * k[5] for k in kept if k[1] > start)
        if held + run[4] * run[5] <= 1000 * gpus:
            kept.append(run)
    return np.array(kept, RUN)


@given(requests, st.integers(1, 5))
def test_bars_are_as_high_as_what_was_held_and_never_overlap(
    asked: list[tuple[int, int, int, int]], gpus: int
) -> None:
    runs = admitted(asked, gpus)
    bars = assign_lanes(runs, gpus)
    height = np.zeros(len(runs))
    for bar in bars:
        height[bar.run] += bar.high - bar.low
        assert 0 <= bar.low < bar.high <= gpus
    lasting = runs["end"] > runs["start"]
    np.testing.assert_allclose(height, np.where(lasting, runs["gpus"] * runs["milli"] / 1000, 0))
    for index, one in enumerate(bars):
        for other in bars[:index]:
            a, b = runs[one.run], runs[other.run]
            together = a["start"] < b["end"] and b["start"] < a["end"]
            assert not together or one.high <= other.low or other.high <= one.low


@given(requests, st.integers(1, 5))
def test_whole_gpus_are_drawn_as_whole_gpus(
    asked: list[tuple[int, int, int, int]], gpus: int
) -> None:
    runs = admitted([(start, length, count, 1000) for start, length, count, _ in asked], gpus)
    for bar in assign_lanes(runs, gpus):
        assert bar.low == int(bar.low)
        assert bar.high == int(bar.high)


def test_a_fraction_takes_the_fullest_gpu_with_room() -> None:
    runs = np.array([(0, 9, 0, 0, 1, 300), (1, 9, 1, 0, 1, 800), (2, 9, 2, 0, 1, 200)], RUN)
    assert assign_lanes(runs, 2) == [Bar(0, 0, 0.3), Bar(1, 1, 1.8), Bar(2, 1.8, 2)]


def test_more_than_there_is_is_refused() -> None:
    with pytest.raises(ValueError, match="more GPUs than the node has"):
        assign_lanes(np.array([(0, 9, 0, 0, 2, 1000), (1, 3, 1, 0, 1, 1000)], RUN), 2)
