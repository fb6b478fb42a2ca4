"""Cluster and trace: use and queue over time, completion times, a trace, which GPUs a job holds.

The log of a schedule says how many GPUs of a node a run held, not which: bars take the lowest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from envs.arrays import BoolArray, FloatArray
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster_metrics import busy_gpus, pending_jobs
from envs.cluster.simulation.cluster_state import Schedule
from envs.cluster.workload.summary import QUANTILES, TraceSummary
from envs.cluster.workload.trace import WHOLE_GPU
from envs.errors import InputError
from experiments.pictures.gantt import (
    Event,
    draw_spans,
    happened,
    label_rows,
    process,
    thread,
)
from experiments.pictures.style import (
    BLUE,
    DASHES,
    IDLE,
    LEVEL,
    LIMIT,
    MOST_NAMED,
    NOTE,
    ORANGE,
    OTHERS,
    PALE,
    PALETTE,
    SMALL,
    bars,
    duration_axis,
    in_words,
    legend_below,
    legend_of,
    line,
    mixed_with_white,
    note,
    picture,
    unit_for,
    write_beside,
)

SLICES = 600  # of time, each drawn at its mean


def draw_cluster_usage(schedules: Mapping[str, Schedule], num_gpus: int, title: str) -> Figure:
    """GPUs in use and jobs that wait, by policy; each slice of time at its exact mean.

    Args:
        schedules: by the name of the policy; of the same trace, with at least one job finished.
        num_gpus: of the cluster.
        title: of the picture.

    Raises:
        InputError: jobs were preempted and no log of the runs was kept.
    """
    figure, panels = picture(title, 11, 6.2, 2, sharex=True, height_ratios=(3, 2))
    start = min(float(schedule.submit.min()) for schedule in schedules.values())
    end = max(schedule.makespan for schedule in schedules.values())
    unit = unit_for(end - start)
    edges = np.linspace(start, end, SLICES + 1)
    for index, (name, schedule) in enumerate(schedules.items()):
        functions = busy_gpus(schedule), pending_jobs(schedule)
        whole = np.array([start]), np.array([schedule.makespan])
        share, waiting = (float(function.mean(*whole)[0]) for function in functions)
        label = f"{name}: {share / num_gpus:.1%} of the GPUs used, "
        label += f"{waiting:.3g} jobs waiting on average"
        for axes, function, scale in zip(panels, functions, (100 / num_gpus, 1.0), strict=True):
            axes.stairs(
                function.mean(edges[:-1], edges[1:]) * scale, (edges - start) / unit.seconds,
                baseline=None, linewidth=1.3, label=label, **line(index),
            )  # fmt: skip
    used, queue = panels
    used.axhline(100, **LIMIT)
    used.set(ylim=(0, 106), ylabel=f"GPUs in use (% of {num_gpus:,})")
    queue.set(ylim=(0, max(1.0, queue.get_ylim()[1])), ylabel="jobs waiting")
    queue.set_xlabel(f"time since the first submission ({unit.name})")
    queue.set_xlim(0, (end - start) / unit.seconds)
    note(used, f"means of {in_words((end - start) / SLICES)}")
    return legend_below(figure, 2)


POINTS = 2000  # of a curve at most, evenly in the share of jobs
LEAST_S = 1.0  # where the axis begins at the earliest
QUANTILE = 0.99


def draw_jct_cdf(jct_s: Mapping[str, FloatArray], title: str) -> Figure:
    """Share of the jobs completed within a time, over that time; means and p99 in the legend.

    The `MOST_NAMED` with the least means are named, the others are grey.

    Args:
        jct_s: by the name of the policy, the JCT of every job that finished, at least one, in
            seconds.
        title: of the picture.
    """
    figure, (axes,) = picture(title, 9, 5.2)
    means = {name: float(np.mean(jct)) for name, jct in jct_s.items()}
    for index, name in enumerate(sorted(means, key=means.__getitem__)):
        ascending = np.sort(np.maximum(jct_s[name], LEAST_S))
        share = np.arange(1, len(ascending) + 1) / len(ascending)
        kept = np.unique(np.linspace(0, len(ascending) - 1, POINTS).round().astype(np.int64))
        p99 = in_words(float(np.quantile(jct_s[name], QUANTILE)))
        label = f"{name}: mean {in_words(means[name])}, p99 {p99}"
        look = {**line(index), "linestyle": DASHES[index % 2]}  # on a like curve both are seen
        if index >= MOST_NAMED:
            label, look = f"{len(means) - MOST_NAMED} others, slower", OTHERS
        axes.plot(
            np.append(ascending[0], ascending[kept]), np.append(0.0, share[kept]),
            drawstyle="steps-post", label=label, linewidth=1.8, **look,
        )  # fmt: skip
    every = np.maximum(np.concatenate([*jct_s.values()]), LEAST_S)
    duration_axis(axes, every.min() / 1.15, every.max() * 1.15)
    axes.set(ylim=(0, 1.01), xlabel="job completion time", ylabel="share of the jobs")
    return legend_below(figure, 2)


FIVE = [QUANTILES.index(share) for share in (0.05, 0.25, 0.5, 0.75, 0.95)]
TAIL = QUANTILES.index(0.99)
LEGEND: Mapping[str, Any] = {  # above the axes, on the right
    "loc": "lower right",
    "bbox_to_anchor": (1.0, 1.0),
    "ncols": 2,
    "fontsize": SMALL,
    "frameon": False,
}
SMALL_SHARE = 0.001  # below this a share is written as "<0.1"


def draw_trace_summary(summary: TraceSummary, title: str) -> Figure:
    """Arrivals by hour of the day; jobs and GPU-hours by gang size; durations by gang size.

    Raises:
        ValueError: the trace has no jobs.
    """
    if summary.jobs == 0:
        raise ValueError("a trace without jobs has nothing to show")
    figure, (hours, gangs, durations) = picture(
        f"{title}\n", 13, 4.6, 1, 3, ("y", "x", "x"), width_ratios=(1.15, 1, 1.15)
    )
    facts = (
        f"{summary.jobs:,} jobs in {in_words(summary.span_s)}; {summary.gpu_hours:,.0f} GPU-hours, "
        f"{summary.mean_concurrent_gpus:,.0f} GPUs busy on average; mean duration "
        f"{in_words(summary.mean_duration_s)}, p99 {in_words(float(summary.duration_s[TAIL]))}"
    )
    figure.text(0.01, 0.945, facts, fontsize=SMALL, color=NOTE, va="top")
    share = 100 * summary.arrivals_by_hour / summary.jobs
    hours.bar(np.arange(24) + 0.5, share, width=0.86, color=BLUE)
    hours.axhline(100 / 24, label="even arrivals", **LEVEL)
    hours.set(xlim=(0, 24), xticks=range(0, 25, 4), ylim=(0, float(share.max()) * 1.08))
    hours.set_xlabel("hour of the day on the clock of the trace")
    hours.set_ylabel("share of the jobs submitted (%)")
    hours.legend(**LEGEND)
    sizes = [str(gang.num_gpus) for gang in summary.gangs]
    shares = {
        "jobs": np.array([gang.job_share for gang in summary.gangs]),
        "GPU-hours": np.array([gang.gpu_hour_share for gang in summary.gangs]),
    }
    bars(gangs, sizes, {name: 100 * own for name, own in shares.items()}, across=True)
    for drawn, own in zip(gangs.containers, shares.values(), strict=True):
        gangs.bar_label(drawn, [_percent(part) for part in own], padding=2, fontsize=7)  # type: ignore[arg-type]
    gangs.set(xlim=(0, 112), xlabel="share (%)", ylabel="GPUs of a job")
    gangs.legend(**LEGEND)
    at = np.maximum([gang.duration_s[FIVE] for gang in summary.gangs], 1.0)
    means = np.maximum([gang.mean_duration_s for gang in summary.gangs], 1.0)
    low, quarter, median, three_quarters, high = at.T
    places = np.arange(len(at))
    durations.hlines(places, low, high, color=BLUE, linewidth=1.1, zorder=1)
    durations.barh(places, three_quarters - quarter, 0.5, quarter, color=PALE)
    durations.vlines(median, places - 0.25, places + 0.25, color=BLUE, linewidth=2)
    durations.plot(means, places, "D", color=ORANGE, markersize=4)
    for place, gang in enumerate(summary.gangs):
        write_beside(durations, place, f"{gang.jobs:,}", NOTE)
    durations.set_yticks(places, sizes)
    durations.set(ylim=(len(sizes) - 0.4, -0.6), ylabel="GPUs of a job")
    durations.set_xlabel("duration: 5, 25, 50, 75, 95 %; diamond: mean; right: jobs")
    duration_axis(durations, low.min() / 1.3, max(high.max(), means.max(), 2.0) * 1.3)
    return figure


def _percent(share: float) -> str:
    return f"{100 * share:.1f}" if share >= SMALL_SHARE or share == 0 else "<0.1"


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
    held_until = np.full((gpus, WHOLE_GPU), -np.inf)  # of each thousandth of each GPU
    bars_: list[Bar] = []
    for number in np.lexsort((runs["job"], runs["start"])):
        run = runs[number]
        if run["end"] <= run["start"]:
            continue
        need = int(run["gpus"]) * int(run["milli"])
        parts = np.flatnonzero(_room(held_until <= run["start"], need))[:need]
        if len(parts) < need:
            raise ValueError("the runs hold more GPUs than the node has")
        held_until.flat[parts] = run["end"]
        for piece in np.split(parts, np.flatnonzero(np.diff(parts) > 1) + 1):
            low, high = piece[0] / WHOLE_GPU, (piece[-1] + 1) / WHOLE_GPU
            bars_.append(Bar(int(number), float(low), float(high)))
    return bars_


def _room(free: BoolArray, need: int) -> BoolArray:
    """Which of the free thousandths (GPUs, 1000) a run may take."""
    whole: BoolArray = np.all(free, axis=1)
    if need % WHOLE_GPU == 0 and WHOLE_GPU * whole.sum() >= need:
        return free & whole[:, None]
    edges = np.diff(np.pad(free, ((0, 0), (1, 1))).astype(np.int8))
    (gpu, low), (_, high) = np.nonzero(edges == 1), np.nonzero(edges == -1)
    sizes = np.where(high - low >= need, high - low, 2 * WHOLE_GPU)
    if need >= WHOLE_GPU or sizes.min(initial=2 * WHOLE_GPU) > WHOLE_GPU:
        return free
    best = int(sizes.argmin())
    room = np.zeros_like(free)
    room[gpu[best], low[best] : high[best]] = True
    return room


JOB_COLOURS = tuple(mixed_with_white(own, 0.3) for own in PALETTE)  # a number is to be read on it
LANES, BARS = 96, 400  # that a picture stays readable with
LANE_HEIGHT, LEAST_HEIGHT, MOST_HEIGHT = 0.13, 3.2, 11.0  # inches
LABEL_HEIGHT = 0.11  # inches that a number needs


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
        InputError: no log of the runs was kept.
    """
    nodes, width = list(window.nodes), window.end_s - window.start_s
    gpus = cluster.gpus[nodes]
    bases = np.cumsum(gpus + 1) - gpus - 1  # where the bands of the nodes begin, a GPU apart
    lanes = int((gpus + 1).sum())
    height = min(max(LANE_HEIGHT * lanes, LEAST_HEIGHT), MOST_HEIGHT)
    least, unit = LABEL_HEIGHT * lanes / height, unit_for(width)
    figure, (chart, queue) = picture(
        title, 13, height + 2.2, 2, grid="x", sharex=True, height_ratios=(height, 1.1)
    )
    shown = _shown(cluster, schedule, window)
    start, end = shown["start"] / unit.seconds, shown["end"] / unit.seconds
    low, high = (bases[shown["place"]] + shown[edge] for edge in ("low", "high"))
    jobs, whole = shown["job"], width / unit.seconds
    draw_spans(
        chart, start, end, low, high, [JOB_COLOURS[job % len(JOB_COLOURS)] for job in jobs],
        np.where(high - low >= least, jobs.astype(str), "").tolist(), whole,
        edgecolors="white", zorder=2,
    )  # fmt: skip
    cut = shown["stopped"] & (shown["end"] < window.end_s)
    begin, black = np.maximum(start, end - 0.0012 * whole), ["black"] * int(cut.sum())
    draw_spans(chart, begin[cut], end[cut], low[cut], high[cut], black, zorder=3)
    for base, top in zip(bases, bases + gpus, strict=True):
        chart.axhspan(base, top, color=IDLE, zorder=0)
    names = [f"node {node}" if gpus[k] > least else "" for k, node in enumerate(nodes)]
    label_rows(chart, (bases + gpus / 2).tolist(), names, lanes - 0.5)
    count, lasting = cluster.num_nodes, schedule.makespan - float(schedule.submit.min())
    every = f"all {count} nodes" if count > 1 else "one node"
    part = f", {in_words(width)} of {in_words(lasting)}" if window.end_s < schedule.makespan else ""
    note(chart, (every if len(nodes) == count else f"{len(nodes)} of {count} nodes") + part)
    edges = np.linspace(window.start_s, window.end_s, SLICES + 1)
    waiting = pending_jobs(schedule).mean(edges[:-1], edges[1:])
    queue.stairs(waiting, edges / unit.seconds, fill=True, color=PALE)
    queue.set(ylim=(0, max(1.0, float(waiting.max()) * 1.1)), ylabel="jobs waiting")
    queue.set_xlim(window.start_s / unit.seconds, window.end_s / unit.seconds)
    queue.set_xlabel(f"time since the trace's second 0 ({unit.name})")
    looks = {"colour and number: the job": "none", "idle GPUs": IDLE}
    return legend_of(figure, {**looks, "stopped before its end": "black"})


def cluster_trace(
    cluster: Cluster, schedule: Schedule, window: GanttWindow
) -> dict[str, list[dict[str, Any]]]:
    """The same bars for Perfetto: nodes as processes, GPUs as their threads; times in microseconds.

    A job on several GPUs, or on a part of one, stands on each that it touches.
    """
    events: list[Event] = []
    shown = _shown(cluster, schedule, window)
    for place, node in enumerate(window.nodes):
        name, gpus = f"node {node}", int(cluster.gpus[node])
        events.append(process(node, name))
        events += [thread(node, gpu, f"{name}, GPU {gpu}") for gpu in range(gpus)]
        for _, low, high, job, start, end, stopped in shown[shown["place"] == place].tolist():
            kind = f"job {job % len(JOB_COLOURS)}"
            told = {"job": job, "stopped_before_its_end": stopped}
            for gpu in range(int(low), int(np.ceil(high))):
                events.append(happened(f"job {job}", kind, (node, gpu), start, end, **told))
    return {"traceEvents": events}


SHOWN = [
    ("place", "i8"), ("low", "f8"), ("high", "f8"), ("job", "i8"), ("start", "f8"), ("end", "f8"),
    ("stopped", "?"),
]  # fmt: skip


def _shown(cluster: Cluster, schedule: Schedule, window: GanttWindow) -> NDArray[np.void]:
    """`SHOWN` of the bars in a window; `place` counts its nodes."""
    rows = []
    for place, node in enumerate(window.nodes):
        runs = _log(schedule)
        runs = runs[(runs["node"] == node) & (runs["gpus"] > 0)]
        for bar in assign_lanes(runs, int(cluster.gpus[node])):
            run = runs[bar.run]
            start, end = max(run["start"], window.start_s), min(run["end"], window.end_s)
            if end > start:
                stopped = run["end"] != schedule.finish[run["job"]]
                rows.append((place, bar.low, bar.high, run["job"], start, end, stopped))
    return np.array(rows, SHOWN)


def _log(schedule: Schedule) -> NDArray[np.void]:
    if schedule.runs is None:
        raise InputError("a Gantt chart needs a log of the runs, and none was kept")
    return schedule.runs
