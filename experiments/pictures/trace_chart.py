"""A trace at a glance: when jobs come, how many GPUs they ask for, how long they run."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from envs.cluster.workload.summary import QUANTILES, TraceSummary
from experiments.pictures.time_axis import duration_formatter, duration_ticks, in_words

BLUE, ORANGE = "#2166ac", "#d95f02"
MEDIAN = QUANTILES.index(0.5)
BOX = (QUANTILES.index(0.25), QUANTILES.index(0.75))
WHISKERS = (QUANTILES.index(0.05), QUANTILES.index(0.95))
TAIL = QUANTILES.index(0.99)
LEGEND: Mapping[str, Any] = {  # above the axes, on the right
    "loc": "lower right", "bbox_to_anchor": (1.0, 1.0), "ncols": 2, "fontsize": 8, "frameon": False
}  # fmt: skip
SMALL_SHARE = 0.001  # below this a share is written as "<0.1"


def draw_trace_summary(summary: TraceSummary, title: str) -> Figure:
    """Arrivals by hour of the day; jobs and GPU-hours by gang size; durations by gang size.

    Raises:
        ValueError: the trace has no jobs.
    """
    if summary.jobs == 0:
        raise ValueError("a trace without jobs has nothing to show")
    figure = Figure(figsize=(13, 4.6), dpi=130, layout="constrained")
    hours, gangs, durations = figure.subplots(1, 3, width_ratios=(1.15, 1, 1.15))
    _draw_hours(hours, summary)
    _draw_gangs(gangs, summary)
    _draw_durations(durations, summary)
    for axes in (hours, gangs, durations):
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=8)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    facts = (
        f"{summary.jobs:,} jobs in {in_words(summary.span_s)}; {summary.gpu_hours:,.0f} GPU-hours, "
        f"{summary.mean_concurrent_gpus:,.0f} GPUs busy on average; mean duration "
        f"{in_words(summary.mean_duration_s)}, p99 {in_words(float(summary.duration_s[TAIL]))}"
    )
    figure.suptitle(f"{title}\n", fontsize=11, x=0.01, ha="left")
    figure.text(0.01, 0.945, facts, fontsize=8.5, color="#555555", va="top")
    return figure


def _draw_hours(axes: Axes, summary: TraceSummary) -> None:
    share = 100 * summary.arrivals_by_hour / summary.jobs
    axes.bar(np.arange(24) + 0.5, share, width=0.86, color=BLUE)
    axes.axhline(100 / 24, color="black", linewidth=0.9, linestyle=":", label="even arrivals")
    axes.set_xlim(0, 24)
    axes.set_xticks(range(0, 25, 4))
    axes.set_xlabel("hour of the day on the clock of the trace", fontsize=9)
    axes.set_ylabel("share of the jobs submitted (%)", fontsize=9)
    axes.set_ylim(0, float(share.max()) * 1.08)
    axes.grid(axis="y", color="#e5e5e5", linewidth=0.6)
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
    axes.set_xlabel("share (%)", fontsize=9)
    axes.set_ylabel("GPUs of a job", fontsize=9)
    axes.grid(axis="x", color="#e5e5e5", linewidth=0.6)
    axes.legend(**LEGEND)


def _draw_durations(axes: Axes, summary: TraceSummary) -> None:
    for place, gang in enumerate(summary.gangs):
        at = np.maximum(gang.duration_s, 1.0)
        axes.plot(at[list(WHISKERS)], [place] * 2, color=BLUE, linewidth=1.1)
        axes.barh(place, at[BOX[1]] - at[BOX[0]], 0.5, left=at[BOX[0]], color="#9ecae1")
        axes.plot([at[MEDIAN]] * 2, [place - 0.25, place + 0.25], color=BLUE, linewidth=2)
        axes.plot(max(gang.mean_duration_s, 1.0), place, "D", color=ORANGE, markersize=4)
        axes.annotate(
            f"{gang.jobs:,}", (1.01, place), xycoords=("axes fraction", "data"), fontsize=7,
            va="center", color="#555555", annotation_clip=False,
        )  # fmt: skip
    edge = np.array([gang.duration_s[list(WHISKERS)] for gang in summary.gangs])
    means = [gang.mean_duration_s for gang in summary.gangs]
    low = max(1.0, float(edge[:, 0].min())) / 1.3
    high = max(float(edge[:, 1].max()), *means, 2.0) * 1.3
    axes.set_xscale("log")
    axes.set_xlim(low, high)
    axes.set_xticks(duration_ticks(low, high))
    axes.xaxis.set_major_formatter(duration_formatter())
    axes.minorticks_off()
    axes.set_yticks(range(len(summary.gangs)), [str(gang.num_gpus) for gang in summary.gangs])
    axes.set_ylim(len(summary.gangs) - 0.4, -0.6)
    axes.set_xlabel("duration: 5, 25, 50, 75, 95 %; diamond: mean; right: jobs", fontsize=9)
    axes.set_ylabel("GPUs of a job", fontsize=9)
    axes.grid(axis="x", color="#e5e5e5", linewidth=0.6)


def _percent(share: float) -> str:
    return f"{100 * share:.1f}" if share >= SMALL_SHARE or share == 0 else "<0.1"
