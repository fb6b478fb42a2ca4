"""Cluster and trace: use and queue over time, completion times, a trace at a glance, packing."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from envs.arrays import FloatArray
from envs.cluster.simulation.cluster_metrics import StepFunction, busy_gpus, pending_jobs
from envs.cluster.simulation.cluster_state import Schedule
from envs.cluster.workload.summary import QUANTILES, TraceSummary
from experiments.pictures.style import (
    BLUE,
    DASHES,
    LEVEL,
    LIMIT,
    MOST_NAMED,
    NOTE,
    ORANGE,
    OTHERS,
    PALE,
    SMALL,
    duration_axis,
    frame,
    in_words,
    line,
    new_figure,
    note,
    titled,
    unit_for,
)

COLUMNS = 600  # slices of time, each drawn at its mean


def draw_cluster_usage(schedules: Mapping[str, Schedule], num_gpus: int, title: str) -> Figure:
    """GPUs in use and jobs that wait, by policy; each slice of time at its exact mean.

    Args:
        schedules: by the name of the policy; of the same trace, with at least one job finished.
        num_gpus: of the cluster.
        title: of the picture.

    Raises:
        InputError: jobs were preempted and no log of the runs was kept.
    """
    figure = new_figure(11, 6.2)
    used, queue = figure.subplots(2, 1, sharex=True, height_ratios=(3, 2))
    start = min(float(schedule.submit.min()) for schedule in schedules.values())
    end = max(schedule.makespan for schedule in schedules.values())
    unit = unit_for(end - start)
    edges = np.linspace(start, end, COLUMNS + 1)
    for index, (name, schedule) in enumerate(schedules.items()):
        busy, waiting = busy_gpus(schedule), pending_jobs(schedule)
        whole = np.array([start]), np.array([schedule.makespan])
        share = float(busy.mean(*whole)[0]) / num_gpus
        mean = float(waiting.mean(*whole)[0])
        label = f"{name}: {share:.1%} of the GPUs used, {mean:.3g} jobs waiting on average"
        for axes, function, scale in ((used, busy, 100 / num_gpus), (queue, waiting, 1.0)):
            axes.stairs(
                _means(function, edges) * scale, (edges - start) / unit.seconds, baseline=None,
                linewidth=1.3, label=label, **line(index),
            )  # fmt: skip
    used.axhline(100, **LIMIT)
    used.set_ylim(0, 106)
    used.set_ylabel(f"GPUs in use (% of {num_gpus:,})")
    queue.set_ylim(0, max(1.0, queue.get_ylim()[1]))
    queue.set_ylabel("jobs waiting")
    queue.set_xlabel(f"time since the first submission ({unit.name})")
    queue.set_xlim(0, (end - start) / unit.seconds)
    for axes in (used, queue):
        frame(axes)
    note(used, f"means of {in_words((end - start) / COLUMNS)}")
    return titled(figure, title, legend=2, handles=used.get_legend_handles_labels()[0])


def _means(function: StepFunction, edges: FloatArray) -> FloatArray:
    return function.mean(edges[:-1], edges[1:])


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
    figure = new_figure(9, 5.2)
    axes = figure.add_subplot()
    order = sorted(jct_s, key=lambda name: float(np.mean(jct_s[name])))
    for index, name in enumerate(order):
        ascending = np.sort(np.maximum(jct_s[name], LEAST_S))
        share = np.arange(1, len(ascending) + 1) / len(ascending)
        kept = np.unique(np.linspace(0, len(ascending) - 1, POINTS).round().astype(np.int64))
        label = (
            f"{name}: mean {in_words(float(np.mean(jct_s[name])))}, "
            f"p99 {in_words(float(np.quantile(jct_s[name], QUANTILE)))}"
        )
        look = {**line(index), "linestyle": DASHES[index % 2]}  # on a like curve both are seen
        if index >= MOST_NAMED:
            label = "" if index > MOST_NAMED else f"{len(order) - MOST_NAMED} others, slower"
            look = OTHERS
        axes.plot(
            np.append(ascending[0], ascending[kept]), np.append(0.0, share[kept]),
            drawstyle="steps-post", label=label, linewidth=1.8, **look,
        )  # fmt: skip
    low = min(float(np.maximum(values, LEAST_S).min()) for values in jct_s.values())
    high = max(float(np.maximum(values, LEAST_S).max()) for values in jct_s.values())
    duration_axis(axes, low / 1.15, high * 1.15)
    axes.set_ylim(0, 1.01)
    axes.set_xlabel("job completion time")
    axes.set_ylabel("share of the jobs")
    frame(axes)
    return titled(figure, title, legend=2)


MEDIAN = QUANTILES.index(0.5)
BOX = (QUANTILES.index(0.25), QUANTILES.index(0.75))
WHISKERS = (QUANTILES.index(0.05), QUANTILES.index(0.95))
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
    figure = new_figure(13, 4.6)
    hours, gangs, durations = figure.subplots(1, 3, width_ratios=(1.15, 1, 1.15))
    _draw_hours(hours, summary)
    _draw_gangs(gangs, summary)
    _draw_durations(durations, summary)
    frame(hours, "y")
    frame(gangs, "x")
    frame(durations, "x")
    facts = (
        f"{summary.jobs:,} jobs in {in_words(summary.span_s)}; {summary.gpu_hours:,.0f} GPU-hours, "
        f"{summary.mean_concurrent_gpus:,.0f} GPUs busy on average; mean duration "
        f"{in_words(summary.mean_duration_s)}, p99 {in_words(float(summary.duration_s[TAIL]))}"
    )
    figure.text(0.01, 0.945, facts, fontsize=SMALL, color=NOTE, va="top")
    return titled(figure, f"{title}\n")


def _draw_hours(axes: Axes, summary: TraceSummary) -> None:
    share = 100 * summary.arrivals_by_hour / summary.jobs
    axes.bar(np.arange(24) + 0.5, share, width=0.86, color=BLUE)
    axes.axhline(100 / 24, label="even arrivals", **LEVEL)
    axes.set_xlim(0, 24)
    axes.set_xticks(range(0, 25, 4))
    axes.set_xlabel("hour of the day on the clock of the trace")
    axes.set_ylabel("share of the jobs submitted (%)")
    axes.set_ylim(0, float(share.max()) * 1.08)
    axes.legend(**LEGEND)


def _draw_gangs(axes: Axes, summary: TraceSummary) -> None:
    place = np.arange(len(summary.gangs))
    parts = ((BLUE, "jobs", -0.2), (ORANGE, "GPU-hours", 0.2))
    for colour, label, shift in parts:
        share = [
            gang.job_share if label == "jobs" else gang.gpu_hour_share for gang in summary.gangs
        ]
        bars = axes.barh(place + shift, 100 * np.array(share), 0.36, color=colour, label=label)
        axes.bar_label(bars, [_percent(part) for part in share], padding=2, fontsize=7)
    axes.set_yticks(place, [str(gang.num_gpus) for gang in summary.gangs])
    axes.set_ylim(len(place) - 0.4, -0.6)
    axes.set_xlim(0, 112)
    axes.set_xlabel("share (%)")
    axes.set_ylabel("GPUs of a job")
    axes.legend(**LEGEND)


def _draw_durations(axes: Axes, summary: TraceSummary) -> None:
    for place, gang in enumerate(summary.gangs):
        at = np.maximum(gang.duration_s, 1.0)
        axes.plot(at[list(WHISKERS)], [place] * 2, color=BLUE, linewidth=1.1)
        axes.barh(place, at[BOX[1]] - at[BOX[0]], 0.5, left=at[BOX[0]], color=PALE)
        axes.plot([at[MEDIAN]] * 2, [place - 0.25, place + 0.25], color=BLUE, linewidth=2)
        axes.plot(max(gang.mean_duration_s, 1.0), place, "D", color=ORANGE, markersize=4)
        axes.annotate(
            f"{gang.jobs:,}", (1.01, place), xycoords=("axes fraction", "data"), fontsize=7,
            va="center", color=NOTE, annotation_clip=False,
        )  # fmt: skip
    edge = np.array([gang.duration_s[list(WHISKERS)] for gang in summary.gangs])
    means = [gang.mean_duration_s for gang in summary.gangs]
    low = max(1.0, float(edge[:, 0].min())) / 1.3
    high = max(float(edge[:, 1].max()), *means, 2.0) * 1.3
    duration_axis(axes, low, high)
    axes.set_yticks(range(len(summary.gangs)), [str(gang.num_gpus) for gang in summary.gangs])
    axes.set_ylim(len(summary.gangs) - 0.4, -0.6)
    axes.set_xlabel("duration: 5, 25, 50, 75, 95 %; diamond: mean; right: jobs")
    axes.set_ylabel("GPUs of a job")


def _percent(share: float) -> str:
    return f"{100 * share:.1f}" if share >= SMALL_SHARE or share == 0 else "<0.1"


NEAR_FULL = 80.0  # percent of the GPUs from which the second panel shows the curves


def draw_packing(demand: FloatArray, curves: Mapping[str, FloatArray], title: str) -> Figure:
    """The whole curves on the left, where the rules part on the right.

    Args:
        demand: (P,) percent of the cluster's GPUs asked for so far.
        curves: by rule, (R, P) percent allocated in R runs; drawn are mean, least and most.
        title: of the figure.
    """
    figure = new_figure(11, 5.0)
    whole, near = figure.subplots(1, 2)
    for axes in (whole, near):
        axes.plot(demand, np.minimum(demand, 100.0), **LIMIT)
        for index, (rule, runs) in enumerate(curves.items()):
            mean, look = runs.mean(axis=0), line(index)
            axes.plot(demand, mean, linewidth=1.6, label=f"{rule}  {mean[-1]:.1f} %", **look)
            axes.fill_between(
                demand, runs.min(axis=0), runs.max(axis=0), color=look["color"], alpha=0.18
            )
        axes.set_xlabel("GPUs asked for so far (% of the cluster)")
        axes.set_ylabel("GPUs allocated (% of the cluster)")
        frame(axes)
    whole.set_xlim(0, demand[-1])
    whole.set_ylim(0, 101)
    if demand[-1] > NEAR_FULL:
        near.set_xlim(NEAR_FULL, demand[-1])
        near.set_ylim(NEAR_FULL, 100.5)
    near.legend(loc="lower right", framealpha=1.0, fontsize=SMALL)
    return titled(figure, title)
