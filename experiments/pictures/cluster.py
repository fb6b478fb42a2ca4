"""Cluster and trace: use and queue over time, completion times, a trace, which GPUs a job holds.

The log of a schedule says how many GPUs of a node a run held, not which: bars take the lowest.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from envs.arrays import FloatArray
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster_metrics import busy_gpus, pending_jobs
from envs.cluster.simulation.cluster_state import Schedule
from envs.cluster.workload.summary import QUANTILES, TraceSummary
from envs.cluster.workload.trace import WHOLE_GPU
from envs.errors import InputError
from experiments.pictures.gantt import Event, draw_spans, happened, label_rows, process, thread
from experiments.pictures.style import (
    BLUE,
    DASHES,
    IDLE,
    LEVEL,
    NOTE,
    ORANGE,
    PALE,
    PALETTE,
    SMALL,
    Panel,
    bars,
    curves,
    draw_curves,
    duration_axis,
    in_words,
    legend,
    mixed_with_white,
    note,
    picture,
    unit_for,
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
    start = min(float(schedule.submit.min()) for schedule in schedules.values())
    end = max(schedule.makespan for schedule in schedules.values())
    unit = unit_for(end - start)
    edges = np.linspace(start, end, SLICES + 1)
    used, queues = {}, {}
    for name, schedule in schedules.items():
        busy, waiting = busy_gpus(schedule), pending_jobs(schedule)
        whole = np.array([start]), np.array([schedule.makespan])
        share, mean = float(busy.mean(*whole)[0]) / num_gpus, float(waiting.mean(*whole)[0])
        label = f"{name}: {share:.1%} of the GPUs used, {mean:.3g} jobs waiting on average"
        times = (edges[:-1] - start) / unit.seconds
        used[label] = times, 100 / num_gpus * busy.mean(edges[:-1], edges[1:])
        queues[label] = times, waiting.mean(edges[:-1], edges[1:])
    label = f"time since the first submission ({unit.name})"
    least = {"ylim": (0, None), "ylabel": "jobs waiting", "xlabel": label}
    panels = [
        Panel(used, {"ylim": (0, 106), "ylabel": f"GPUs in use (% of {num_gpus:,})"},
              f"means of {in_words((end - start) / SLICES)}", 100),
        Panel(queues, {**least, "xlim": (0, (end - start) / unit.seconds)}),
    ]  # fmt: skip
    return draw_curves(title, panels, 11, 6.2, drawstyle="steps-post")


MOST_NAMED = 8  # policies that have a colour and a name; the others are grey
GREY = "#bdbdbd"
SHARES = np.linspace(0.0, 1.0, 2001)  # of the jobs, for which the curves have a point
LEAST_S = 1.0  # where the axis begins at the earliest


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
        p99 = in_words(float(np.quantile(jct_s[name], 0.99)))
        label = f"{name}: mean {in_words(means[name])}, p99 {p99}"
        look: dict[str, Any] = {"linestyle": DASHES[index % 2]}  # on a like curve both are seen
        if index >= MOST_NAMED:
            label = f"{len(means) - MOST_NAMED} others, slower"
            look = {"color": GREY, "zorder": 1.5, "linestyle": "-"}
        jct = np.quantile(np.maximum(jct_s[name], LEAST_S), SHARES, method="inverted_cdf")
        curves(axes, {label: (jct, SHARES)}, index, linewidth=1.8, **look)
    every = np.maximum(np.concatenate([*jct_s.values()]), LEAST_S)
    duration_axis(axes, every.min() / 1.15, every.max() * 1.15)
    axes.set(ylim=(0, 1.01), xlabel="job completion time", ylabel="share of the jobs")
    return legend(figure, 2)


FIVE = [QUANTILES.index(share) for share in (0.05, 0.25, 0.5, 0.75, 0.95)]
TAIL = QUANTILES.index(0.99)


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
    hours.axhline(100 / 24, **LEVEL)
    note(hours, "dashed: even arrivals")
    hours.set(xlim=(0, 24), xticks=range(0, 25, 4), ylabel="share of the jobs submitted (%)")
    hours.set_xlabel("hour of the day on the clock of the trace")
    sizes = [str(gang.num_gpus) for gang in summary.gangs]
    shares = {
        "jobs": [100 * gang.job_share for gang in summary.gangs],
        "GPU-hours": [100 * gang.gpu_hour_share for gang in summary.gangs],
    }
    bars(gangs, sizes, shares, across=True)
    for drawn in gangs.containers:
        gangs.bar_label(drawn, fmt="{:.3g}", padding=2, fontsize=7)  # type: ignore[arg-type]
    gangs.set(xlim=(0, 112), xlabel="share (%)", ylabel="GPUs of a job")
    names = "whislo", "q1", "med", "q3", "whishi"
    boxes = [
        {"mean": max(gang.mean_duration_s, 1.0), "label": f"{gang.num_gpus}  ({gang.jobs:,})",
         **dict(zip(names, np.maximum(gang.duration_s[FIVE], 1.0), strict=True))}
        for gang in summary.gangs
    ]  # fmt: skip
    durations.bxp(
        boxes, orientation="horizontal", showfliers=False, showmeans=True, patch_artist=True,
        boxprops={"facecolor": PALE, "edgecolor": PALE},
        medianprops={"color": BLUE, "linewidth": 2},
        meanprops={"marker": "D", "markerfacecolor": ORANGE, "markeredgecolor": ORANGE},
    )  # fmt: skip
    durations.invert_yaxis()
    durations.set(xlabel="duration: 5, 25, 50, 75, 95 %; diamond: mean")
    durations.set_ylabel("GPUs of a job (jobs)")
    ends = [end for box in boxes for end in (box["whislo"], box["whishi"], box["mean"])]
    duration_axis(durations, min(ends) / 1.3, max(*ends, 2.0) * 1.3)
    return legend(figure, 2)


class Bar(NamedTuple):
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
    parts = np.arange(held_until.size).reshape(held_until.shape)
    found: list[Bar] = []
    for number in np.lexsort((runs["job"], runs["start"])):
        run = runs[number]
        if run["end"] <= run["start"]:
            continue
        need = int(run["gpus"]) * int(run["milli"])
        free = held_until <= run["start"]
        room = free.sum(axis=1)
        # GPUs with enough room for the run, or all of a GPU, the fullest first; then the others
        order = np.argsort(room + WHOLE_GPU * (room < min(need, WHOLE_GPU)), kind="stable")
        taken = np.sort(parts[order][free[order]][:need])
        if len(taken) < need:
            raise ValueError("the runs hold more GPUs than the node has")
        held_until.flat[taken] = run["end"]
        for piece in np.split(taken, np.flatnonzero(np.diff(taken) > 1) + 1):
            low, high = float(piece[0]) / WHOLE_GPU, float(piece[-1] + 1) / WHOLE_GPU
            found.append(Bar(int(number), low, high))
    return found


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
    unit, height = unit_for(width), _height(cluster, window)
    figure, (chart, queue) = picture(
        title, 13, height + 2.2, 2, grid="x", sharex=True, height_ratios=(height, 1.1)
    )
    _draw_bars(chart, cluster, schedule, window)
    lasting = schedule.makespan - float(schedule.submit.min())
    part = f", {in_words(width)} of {in_words(lasting)}" if window.end_s < schedule.makespan else ""
    note(chart, f"{len(nodes)} of {cluster.num_nodes} nodes{part}")
    edges = np.linspace(window.start_s, window.end_s, SLICES + 1)
    waiting = pending_jobs(schedule).mean(edges[:-1], edges[1:])
    queue.stairs(waiting, edges / unit.seconds, fill=True, color=PALE)
    queue.set(ylim=(0, max(1.0, float(waiting.max()) * 1.1)), ylabel="jobs waiting")
    queue.set_xlim(window.start_s / unit.seconds, window.end_s / unit.seconds)
    queue.set_xlabel(f"time since the trace's second 0 ({unit.name})")
    return legend(figure, 3, LOOKS)


def draw_gantts(
    cluster: Cluster, schedules: Mapping[str, Schedule], window: GanttWindow, title: str
) -> Figure:
    """The bars of several schedules of one trace, one below the other.

    Raises:
        InputError: of one of them no log of the runs was kept.
    """
    unit, height = unit_for(window.end_s - window.start_s), _height(cluster, window)
    figure, charts = picture(
        title, 13, len(schedules) * height + 1.2, len(schedules), grid="x", sharex=True
    )
    for chart, (name, schedule) in zip(charts, schedules.items(), strict=True):
        _draw_bars(chart, cluster, schedule, window)
        note(chart, name)
    charts[-1].set_xlim(window.start_s / unit.seconds, window.end_s / unit.seconds)
    charts[-1].set_xlabel(f"time since the trace's second 0 ({unit.name})")
    return legend(figure, 3, LOOKS)


LOOKS = {"colour and number: the job": "none", "idle GPUs": IDLE, "stopped before its end": "black"}


def _height(cluster: Cluster, window: GanttWindow) -> float:
    """Of the bars, in inches."""
    lanes = int((cluster.gpus[[*window.nodes]] + 1).sum())
    return float(min(max(LANE_HEIGHT * lanes, LEAST_HEIGHT), MOST_HEIGHT))


def _draw_bars(chart: Any, cluster: Cluster, schedule: Schedule, window: GanttWindow) -> None:
    nodes, width = list(window.nodes), window.end_s - window.start_s
    gpus, unit = cluster.gpus[nodes], unit_for(width)
    bases = np.cumsum(gpus + 1) - gpus - 1  # where the bands of the nodes begin, a GPU apart
    lanes = int((gpus + 1).sum())
    least = LABEL_HEIGHT * lanes / _height(cluster, window)
    for base, top in zip(bases, bases + gpus, strict=True):
        chart.axhspan(base, top, color=IDLE, zorder=0)
    shown = _shown(cluster, schedule, window)
    start, end = shown["start"] / unit.seconds, shown["end"] / unit.seconds
    low, high = (bases[shown["place"]] + shown[edge] for edge in ("low", "high"))
    jobs, whole = shown["job"], width / unit.seconds
    draw_spans(
        chart, start, end, low, high, [JOB_COLOURS[job % len(JOB_COLOURS)] for job in jobs],
        np.where(high - low >= least, jobs.astype(str), "").tolist(), whole, edgecolors="white",
    )  # fmt: skip
    cut = shown["stopped"] & (shown["end"] < window.end_s)
    chart.vlines(end[cut], low[cut], high[cut], color="black", linewidth=1.2)
    names = [f"node {node}" if gpus[k] > least else "" for k, node in enumerate(nodes)]
    label_rows(chart, (bases + gpus / 2).tolist(), names, lanes - 0.5)


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
            figures = {"job": job, "stopped_before_its_end": stopped}
            for gpu in range(int(low), int(np.ceil(high))):
                events.append(happened(f"job {job}", kind, (node, gpu), start, end, **figures))
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
