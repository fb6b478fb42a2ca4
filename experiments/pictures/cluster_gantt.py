"""A Gantt chart of a cluster: which job runs on which GPUs when.

The log of a schedule says how many GPUs of a node a run held, not which: bars take the lowest.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster_metrics import pending_jobs
from envs.cluster.simulation.cluster_state import Schedule
from envs.cluster.workload.trace import WHOLE_GPU
from envs.errors import InputError
from experiments.pictures.perfetto import Event, happened, process, thread
from experiments.pictures.style import (
    IDLE,
    PALE,
    PALETTE,
    frame,
    in_words,
    mixed_with_white,
    new_figure,
    note,
    titled,
    unit_for,
)


@dataclass(frozen=True)
class Bar:
    """A run on some of the height of a node, counted in GPUs from 0."""

    run: int  # its number in the log
    low: float
    high: float


def assign_lanes(runs: NDArray[np.void], gpus: int) -> list[Bar]:
    """Bars of the runs of one node; no two overlap, and their height is what the run held.

    A run takes the lowest free GPUs, a fraction the fullest GPU that has room for it; where the
    room is in pieces, so is the bar.

    Args:
        runs: `cluster_state.RUN` of one node.
        gpus: of the node.

    Raises:
        ValueError: the runs hold more than there is.
    """
    free = [[(0, WHOLE_GPU)] for _ in range(gpus)]  # of each GPU: gaps, from bottom to top
    ends: list[tuple[float, int]] = []  # of runs that hold something
    held: dict[int, list[tuple[int, int, int]]] = {}  # (GPU, from, to) of each of them
    bars: list[Bar] = []
    for run in np.lexsort((runs["job"], runs["start"])):
        start, end = float(runs[run]["start"]), float(runs[run]["end"])
        for ended in [number for at, number in ends if at <= start]:
            for gpu, low, high in held.pop(ended):
                free[gpu] = _joined([*free[gpu], (low, high)])
        ends = [(at, number) for at, number in ends if at > start]
        if end <= start:
            continue
        need = int(runs[run]["gpus"]) * int(runs[run]["milli"])
        pieces = _take(free, need)
        held[int(run)] = pieces
        ends.append((end, int(run)))
        bars += _merged(int(run), pieces)
    return bars


def _take(free: list[list[tuple[int, int]]], need: int) -> list[tuple[int, int, int]]:
    whole = [gpu for gpu, gaps in enumerate(free) if gaps == [(0, WHOLE_GPU)]]
    pieces: list[tuple[int, int, int]] = []
    if need % WHOLE_GPU == 0 and len(whole) >= need // WHOLE_GPU:
        pieces = [(gpu, 0, WHOLE_GPU) for gpu in whole[: need // WHOLE_GPU]]
    elif need < WHOLE_GPU:
        room = [
            (high - low, gpu, low)
            for gpu, gaps in enumerate(free)
            for low, high in gaps
            if high - low >= need
        ]
        if room:
            _, gpu, low = min(room)
            pieces = [(gpu, low, low + need)]
    if not pieces:
        for gpu, gaps in enumerate(free):
            for low, high in gaps:
                part = min(need - sum(b - a for _, a, b in pieces), high - low)
                if part > 0:
                    pieces.append((gpu, low, low + part))
    if sum(high - low for _, low, high in pieces) < need:
        raise ValueError("the runs hold more GPUs than the node has")
    for gpu, low, high in pieces:
        free[gpu] = [
            gap
            for a, b in free[gpu]
            for gap in (((a, low), (high, b)) if a <= low < b else ((a, b),))
            if gap[0] < gap[1]
        ]
    return pieces


def _joined(gaps: list[tuple[int, int]]) -> list[tuple[int, int]]:
    joined: list[tuple[int, int]] = []
    for low, high in sorted(gaps):
        if joined and joined[-1][1] == low:
            joined[-1] = (joined[-1][0], high)
        else:
            joined.append((low, high))
    return joined


def _merged(run: int, pieces: list[tuple[int, int, int]]) -> list[Bar]:
    """Pieces that touch as one bar."""
    spans = _joined([(gpu * WHOLE_GPU + low, gpu * WHOLE_GPU + high) for gpu, low, high in pieces])
    return [Bar(run, low / WHOLE_GPU, high / WHOLE_GPU) for low, high in spans]


JOB_COLOURS = tuple(mixed_with_white(own, 0.3) for own in PALETTE)  # a number is to be read on it
LANES, BARS = 96, 400  # that a picture stays readable with
LANE_HEIGHT, LEAST_HEIGHT, MOST_HEIGHT = 0.13, 3.2, 11.0  # inches
LABEL_WIDTH, LABEL_HEIGHT = 0.022, 0.11  # share of the width, inches: what a number needs
COLUMNS = 600  # slices of time of the queue


@dataclass(frozen=True)
class GanttWindow:
    """The part of a schedule that is drawn: seconds since the trace's second 0, nodes by number."""

    start_s: float
    end_s: float
    nodes: tuple[int, ...]

    @classmethod
    def readable(cls, cluster: Cluster, schedule: Schedule) -> GanttWindow:
        """Nodes of up to `LANES` GPUs, from the first run until `BARS` have begun there.

        At least one node, whatever its size; the first is the first on which a GPU is ever used.

        Raises:
            InputError: no log of the runs was kept, or no job of it holds a GPU.
        """
        runs = _log(schedule)
        runs = runs[runs["gpus"] > 0]
        if not len(runs):
            raise InputError("no job holds a GPU: there is nothing to draw")
        first = int(runs["node"].min())
        lanes = np.cumsum(cluster.gpus[first:])
        count = max(1, int(np.searchsorted(lanes, LANES, side="right")))
        nodes = tuple(range(first, first + count))
        shown = runs[np.isin(runs["node"], nodes)]
        starts = np.sort(shown["start"])
        end = starts[BARS] if len(starts) > BARS else shown["end"].max()
        return cls(float(starts[0]), float(end), nodes)


def draw_cluster_gantt(
    cluster: Cluster, schedule: Schedule, window: GanttWindow, title: str
) -> Figure:
    """Nodes as bands of GPUs, jobs as bars of one colour each, below them the jobs that wait.

    The number in a bar is that of the job in the trace, from 0; runs stopped early end in black.

    Raises:
        InputError: no log of the runs was kept, the window is empty or has a node too many.
    """
    runs = _log(schedule)
    if window.end_s <= window.start_s or not window.nodes:
        raise InputError("is empty", field="window")
    if max(window.nodes) >= cluster.num_nodes or min(window.nodes) < 0:
        raise InputError(f"the cluster has {cluster.num_nodes} nodes", field="window.nodes")
    lanes = int(cluster.gpus[list(window.nodes)].sum()) + len(window.nodes) - 1
    height = min(max(LANE_HEIGHT * lanes, LEAST_HEIGHT), MOST_HEIGHT)
    figure = new_figure(13, height + 2.2)
    chart, queue = figure.subplots(2, 1, sharex=True, height_ratios=(height, 1.1))
    unit = unit_for(window.end_s - window.start_s)
    inch = height / (lanes + 1)
    base, marks, labels = 0.0, [], []
    for node in window.nodes:
        gpus = int(cluster.gpus[node])
        here = runs[(runs["node"] == node) & (runs["gpus"] > 0)]
        bars = assign_lanes(here, gpus)
        _draw_node(chart, schedule, here, bars, base, window, unit.seconds, inch)
        chart.axhspan(base, base + gpus, color=IDLE, zorder=0)
        marks.append(base + gpus / 2)
        labels.append(f"node {node}" if gpus * inch > LABEL_HEIGHT else "")
        base += gpus + 1
    chart.set_yticks(marks, labels)
    chart.set_ylim(base - 0.5, -0.5)
    chart.tick_params(axis="y", length=0)
    note(chart, _shown(cluster, window) + _part(schedule, window))
    edges = np.linspace(window.start_s, window.end_s, COLUMNS + 1)
    waiting = pending_jobs(schedule).mean(edges[:-1], edges[1:])
    queue.stairs(waiting, edges / unit.seconds, fill=True, color=PALE)
    queue.set_ylim(0, max(1.0, float(waiting.max()) * 1.1))
    queue.set_ylabel("jobs waiting")
    queue.set_xlim(window.start_s / unit.seconds, window.end_s / unit.seconds)
    queue.set_xlabel(f"time since the trace's second 0 ({unit.name})")
    for axes in (chart, queue):
        frame(axes, "x", hidden=("top", "right", "left"))
    handles = [
        Patch(color="none", label="colour and number: the job"),
        Patch(color=IDLE, label="idle GPUs"),
        Patch(color="black", label="stopped before its end"),
    ]
    return titled(figure, title, legend=3, handles=handles)


def cluster_trace(
    cluster: Cluster, schedule: Schedule, window: GanttWindow
) -> dict[str, list[dict[str, Any]]]:
    """The same bars for Perfetto: nodes as processes, GPUs as their threads; times in microseconds.

    A job on several GPUs, or on a part of one, stands on each that it touches.
    """
    runs = _log(schedule)
    events: list[Event] = []
    for node in window.nodes:
        name, gpus = f"node {node}", int(cluster.gpus[node])
        events.append(process(node, name))
        events += [thread(node, gpu, f"{name}, GPU {gpu}") for gpu in range(gpus)]
        here = runs[(runs["node"] == node) & (runs["gpus"] > 0)]
        for bar in assign_lanes(here, gpus):
            run = here[bar.run]
            start = max(float(run["start"]), window.start_s)
            end = min(float(run["end"]), window.end_s)
            job = int(run["job"])
            stopped = bool(run["end"] != schedule.finish[job])
            kind = f"job {job % len(JOB_COLOURS)}"
            told = {"job": job, "stopped_before_its_end": stopped}
            for gpu in range(int(bar.low), int(np.ceil(bar.high))) if end > start else ():
                events.append(happened(f"job {job}", kind, (node, gpu), start, end, **told))
    return {"traceEvents": events}


def _draw_node(
    axes: Axes,
    schedule: Schedule,
    runs: NDArray[np.void],
    bars: list[Bar],
    base: float,
    window: GanttWindow,
    scale: float,
    inch: float,
) -> None:
    """Bars of one node; `inch` is the height of a GPU."""
    boxes, colours, cuts = [], [], []
    width = window.end_s - window.start_s
    for bar in bars:
        run = runs[bar.run]
        job = int(run["job"])
        start = max(float(run["start"]), window.start_s)
        end = min(float(run["end"]), window.end_s)
        if end <= start:
            continue
        low, high = base + bar.low, base + bar.high
        boxes.append(_box(start / scale, end / scale, low, high))
        colours.append(JOB_COLOURS[job % len(JOB_COLOURS)])
        if run["end"] != schedule.finish[job] and run["end"] <= window.end_s:
            cuts.append(_box(max(start, end - 0.0012 * width) / scale, end / scale, low, high))
        wide = (end - start) / width >= LABEL_WIDTH * (len(str(job)) / 3 + 0.3)
        if wide and (high - low) * inch >= LABEL_HEIGHT:
            axes.text(
                (start + end) / 2 / scale, (low + high) / 2, str(job), ha="center", va="center",
                fontsize=6.5, color="#111111", clip_on=True,
            )  # fmt: skip
    axes.add_collection(
        PolyCollection(boxes, facecolors=colours, edgecolors="white", linewidths=0.35, zorder=2)
    )
    axes.add_collection(PolyCollection(cuts, facecolors="black", edgecolors="none", zorder=3))


def _box(left: float, right: float, low: float, high: float) -> list[tuple[float, float]]:
    return [(left, low), (right, low), (right, high), (left, high)]


def _shown(cluster: Cluster, window: GanttWindow) -> str:
    if len(window.nodes) == cluster.num_nodes:
        return f"all {cluster.num_nodes} nodes" if cluster.num_nodes > 1 else "one node"
    return f"{len(window.nodes)} of {cluster.num_nodes} nodes"


def _part(schedule: Schedule, window: GanttWindow) -> str:
    """What part of the time is drawn, where it is not all of it."""
    whole = schedule.makespan - float(schedule.submit.min())
    drawn = window.end_s - window.start_s
    return f", {in_words(drawn)} of {in_words(whole)}" if window.end_s < schedule.makespan else ""


def _log(schedule: Schedule) -> NDArray[np.void]:
    if schedule.runs is None:
        raise InputError("a Gantt chart needs a log of the runs, and none was kept")
    return schedule.runs
