"""Pictures of clusters and traces show what is in the data."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from numpy.testing import assert_allclose
from PIL import Image

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
from experiments.pictures.style import duration_ticks, in_words, unit_for
from experiments.run.artifacts import write_figure
from experiments.run.provenance import Provenance
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


def boxes(axes: Axes, collection: int) -> list[tuple[float, float, float, float]]:
    """(left, right, low, high) of the bars in one of the collections of an axes."""
    found = [one for one in axes.collections if isinstance(one, PolyCollection)][collection]
    extents = [path.get_extents() for path in found.get_paths()]
    return sorted((box.x0, box.x1, box.y0, box.y1) for box in extents)


def texts(figure: Figure) -> list[str]:
    return [text.get_text() for legend in figure.legends for text in legend.get_texts()]


def test_gantt_draws_every_run_where_it_was() -> None:
    schedule = three_jobs()
    window = GanttWindow.readable(CLUSTER, schedule)
    assert window == GanttWindow(0.0, 400.0, (0, 1))
    axes = draw_cluster_gantt(CLUSTER, schedule, window, "title").axes[0]
    assert [label.get_text() for label in axes.get_yticklabels()] == ["node 0", "node 1"]
    minute = 60
    assert_allclose(
        boxes(axes, 0),
        [
            (0, 50 / minute, 4, 5), (0, 100 / minute, 0, 2), (0, 100 / minute, 3, 4),
            (100 / minute, 200 / minute, 0, 1), (100 / minute, 400 / minute, 3, 4),
        ],
    )  # fmt: skip
    (cut,) = boxes(axes, 1)  # job 1 was preempted on node 1 at 50 s
    assert cut[1] == pytest.approx(50 / minute)
    assert cut[2:] == (4, 5)


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


def test_gantt_draws_only_the_window() -> None:
    window = GanttWindow(80.0, 120.0, (1,))
    axes = draw_cluster_gantt(CLUSTER, three_jobs(), window, "title").axes[0]
    assert_allclose(boxes(axes, 0), [(80, 100, 0, 1), (100, 120, 0, 1)])
    assert axes.get_xlim() == (80, 120)
    assert axes.get_title(loc="right") == "1 of 2 nodes, 40 s of 6.67 min"


def test_a_readable_window_has_few_lanes_and_few_bars() -> None:
    cluster = Cluster.uniform(50, 8)
    count = 3 * BARS
    runs = np.zeros(count, RUN)
    runs["start"], runs["end"] = np.arange(count) * 10, np.arange(count) * 10 + 5
    runs["job"], runs["gpus"], runs["milli"] = np.arange(count), 1, 1000
    columns = [np.arange(count) * 10.0] * 2
    schedule = Schedule(
        *columns,
        finish=columns[0] + 5,
        work=np.full(count, 5.0),
        gpus=np.ones(count),
        held=np.full(count, 5.0),
        preemptions=np.zeros(count, np.int32),
        runs=runs,
    )
    window = GanttWindow.readable(cluster, schedule)
    assert window.nodes == tuple(range(LANES // 8))
    assert window.end_s == BARS * 10
    assert GanttWindow.readable(Cluster.uniform(1, 5 * LANES), schedule).nodes == (0,)
    runs["node"] = 30
    assert GanttWindow.readable(cluster, schedule).nodes == tuple(range(30, 30 + LANES // 8))


def test_gantt_refuses_what_it_cannot_show() -> None:
    schedule = three_jobs()
    blind = Schedule(**{**vars(schedule), "runs": None})
    with refusal("log"):
        GanttWindow.readable(CLUSTER, blind)
    idle = Schedule(**{**vars(schedule), "runs": np.zeros(0, RUN)})
    with refusal("no job holds a GPU"):
        GanttWindow.readable(CLUSTER, idle)


def test_usage_shows_exact_means() -> None:
    figure = draw_cluster_usage({"some policy": three_jobs()}, 4, "title")
    used, queue = figure.axes
    values, edges, _ = used.patches[0].get_data()
    assert float((values * np.diff(edges)).sum() / edges[-1]) == pytest.approx(
        100 * (3 * 100 + 150 + 300) / (4 * 400)
    )
    waiting, edges, _ = queue.patches[0].get_data()
    assert float((waiting * np.diff(edges)).sum()) * 60 == pytest.approx(50 + 40)
    assert texts(figure) == ["some policy: 46.9% of the GPUs used, 0.225 jobs waiting on average"]
    assert queue.get_xlabel() == "time since the first submission (min)"


def test_pictures_are_written_with_their_provenance(tmp_path: Path) -> None:
    schedule = three_jobs()
    figures = {
        "gantt": draw_cluster_gantt(
            CLUSTER, schedule, GanttWindow.readable(CLUSTER, schedule), "title"
        ),
        "usage": draw_cluster_usage({"a": schedule, "b": schedule}, 4, "title"),
        "cdf": draw_jct_cdf({"a": schedule.jct}, "title"),
        "trace": draw_trace_summary(summarise(Trace.of("t", [0, 9], [5, 5], [1, 2])), "title"),
    }
    for name, figure in figures.items():
        write_figure(tmp_path / f"{name}.png", figure, Provenance(seed=7))
        with Image.open(tmp_path / f"{name}.png") as image:
            image.verify()
            assert "seed=7" in image.info["Comment"]


@pytest.mark.parametrize(
    ("seconds", "words", "unit"),
    [(0.5, "0.5 s", "s"), (90, "1.5 min", "s"), (7200, "2 h", "min"), (400000, "4.63 d", "days")],
)
def test_times_have_fitting_units(seconds: float, words: str, unit: str) -> None:
    assert in_words(seconds) == words
    assert unit_for(seconds).name == unit


def test_ticks_lie_inside_the_axis() -> None:
    assert duration_ticks(50, 4000) == [60, 600, 3600]


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
    assert_allclose(height, np.where(lasting, runs["gpus"] * runs["milli"] / 1000, 0))
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
