"""Pictures of clusters and traces show what is in the data."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose

from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster_state import RUN, Schedule
from envs.cluster.workload.summary import summarise
from envs.cluster.workload.trace import Trace
from experiments.pictures.cluster import (
    BARS,
    LANES,
    Bar,
    GanttWindow,
    assign_lanes,
    cluster_trace,
    draw_cluster_gantt,
    draw_cluster_usage,
    draw_jct_cdf,
    draw_trace_summary,
)
from experiments.pictures.style import in_words, unit_for
from tests.refusal import refusal

CLUSTER = Cluster.uniform(2, 2)


def three_jobs() -> Schedule:
    """Job 0 on both nodes, job 1 on one GPU in two runs, job 2 on the other GPU of node 1."""
    runs = np.array(
        [
            (0, 100, 0, 0, 2, 1000),
            (0, 100, 0, 1, 1, 1000),
            (0, 50, 1, 1, 1, 1000),
            (100, 200, 1, 0, 1, 1000),
            (100, 400, 2, 1, 1, 1000),
        ],
        RUN,
    )
    return Schedule(
        submit=np.array([0.0, 0.0, 60.0]),
        start=np.array([0.0, 0.0, 100.0]),
        finish=np.array([100.0, 200.0, 400.0]),
        work=np.array([100.0, 150.0, 300.0]),
        gpus=np.array([3.0, 1.0, 1.0]),
        held=np.array([100.0, 150.0, 300.0]),
        preemptions=np.array([0, 1, 0], np.int32),
        runs=runs,
    )


def test_gantt_draws_every_run_where_it_was() -> None:
    schedule = three_jobs()
    window = GanttWindow.readable(CLUSTER, schedule)
    assert window == GanttWindow(0.0, 400.0, (0, 1))
    axes = draw_cluster_gantt(CLUSTER, schedule, window, "title").axes[0]
    minute = 60
    boxes = [path.get_extents() for path in axes.collections[0].get_paths()]
    assert_allclose(
        sorted((box.x0, box.x1, box.y0, box.y1) for box in boxes),
        [
            (0, 50 / minute, 4, 5), (0, 100 / minute, 0, 2), (0, 100 / minute, 3, 4),
            (100 / minute, 200 / minute, 0, 1), (100 / minute, 400 / minute, 3, 4),
        ],
    )  # fmt: skip


def test_the_trace_has_every_run_on_each_of_its_gpus() -> None:
    """(node, GPU, job, from, to) in seconds, and whether it was stopped."""
    schedule = three_jobs()
    trace = cluster_trace(CLUSTER, schedule, GanttWindow.readable(CLUSTER, schedule))
    found = {
        (e["pid"], e["tid"], e["name"], e["ts"] / 1e6, (e["ts"] + e["dur"]) / 1e6,
         e["args"]["stopped_before_its_end"])
        for e in trace["traceEvents"] if e["ph"] == "X"
    }  # fmt: skip
    assert found == {
        (0, 0, "job 0", 0, 100, False), (0, 1, "job 0", 0, 100, False),
        (1, 0, "job 0", 0, 100, False), (1, 1, "job 1", 0, 50, True),
        (0, 0, "job 1", 100, 200, False), (1, 0, "job 2", 100, 400, False),
    }  # fmt: skip
    short = cluster_trace(CLUSTER, schedule, GanttWindow(40.0, 60.0, (1,)))
    lengths = [e["dur"] / 1e6 for e in short["traceEvents"] if e["ph"] == "X"]
    assert sorted(lengths) == [10.0, 20.0]


def test_a_readable_window_has_few_lanes_and_few_bars() -> None:
    cluster, count = Cluster.uniform(50, 8), 3 * BARS
    runs = np.zeros(count, RUN)
    runs["start"], runs["end"] = np.arange(count) * 10, np.arange(count) * 10 + 5
    runs["gpus"], runs["milli"] = 1, 1000
    schedule = replace(three_jobs(), runs=runs)
    window = GanttWindow.readable(cluster, schedule)
    assert window.nodes == tuple(range(LANES // 8))
    assert window.end_s == BARS * 10
    assert GanttWindow.readable(Cluster.uniform(1, 5 * LANES), schedule).nodes == (0,)
    runs["node"] = 30
    assert GanttWindow.readable(cluster, schedule).nodes == tuple(range(30, 30 + LANES // 8))


def test_gantt_refuses_what_it_cannot_show() -> None:
    for runs, word in ((None, "log"), (np.zeros(0, RUN), "no job holds a GPU")):
        with refusal(word):
            GanttWindow.readable(CLUSTER, replace(three_jobs(), runs=runs))


def test_usage_shows_exact_means() -> None:
    used, queue = draw_cluster_usage({"some policy": three_jobs()}, 4, "title").axes
    busy, waiting = (np.asarray(axes.lines[0].get_ydata()) for axes in (used, queue))
    assert np.mean(busy) == pytest.approx(100 * (3 * 100 + 150 + 300) / (4 * 400))
    assert np.mean(waiting) * 400 == pytest.approx(50 + 40)


def test_one_job_and_thousands_of_policies_have_pictures() -> None:
    alone = summarise(Trace.of("t", [0], [5], [1]))
    draw_trace_summary(alone, "title").canvas.draw()
    jct = {f"policy {k}": np.array([k]) for k in range(1000)}
    axes = draw_jct_cdf(jct, "title").axes[0]
    axes.figure.canvas.draw()
    assert [np.asarray(line.get_xdata())[0] for line in axes.lines] == [1, *range(1, 1000)]


@pytest.mark.parametrize(
    ("seconds", "words", "unit"),
    [(0.5, "0.5 s", "s"), (90, "1.5 min", "s"), (7200, "2 h", "min"), (400000, "4.63 d", "d")],
)
def test_times_have_fitting_units(seconds: float, words: str, unit: str) -> None:
    assert in_words(seconds) == words
    assert unit_for(seconds).name == unit


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
    fractions = (runs["milli"] < 1000).any()
    for bar in bars:
        height[bar.run] += bar.high - bar.low
        assert 0 <= bar.low < bar.high <= gpus
        assert fractions or (bar.low.is_integer() and bar.high.is_integer())
    lasting = runs["end"] > runs["start"]
    assert_allclose(height, np.where(lasting, runs["gpus"] * runs["milli"] / 1000, 0))
    for index, one in enumerate(bars):
        for other in bars[:index]:
            a, b = runs[one.run], runs[other.run]
            together = a["start"] < b["end"] and b["start"] < a["end"]
            assert not together or one.high <= other.low or other.high <= one.low


def test_a_fraction_takes_the_fullest_gpu_with_room() -> None:
    runs = np.array([(0, 9, 0, 0, 1, 300), (1, 9, 1, 0, 1, 800), (2, 9, 2, 0, 1, 200)], RUN)
    assert assign_lanes(runs, 2) == [Bar(0, 0, 0.3), Bar(1, 1, 1.8), Bar(2, 1.8, 2)]


def test_more_than_there_is_is_refused() -> None:
    with pytest.raises(ValueError, match="more GPUs than the node has"):
        assign_lanes(np.array([(0, 9, 0, 0, 2, 1000), (1, 3, 1, 0, 1, 1000)], RUN), 2)
