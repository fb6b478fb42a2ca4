"""A cluster over time: the share of its GPUs in use, and the length of its queue."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from envs.cluster.simulation.cluster_usage import busy_gpus, pending_jobs
from envs.cluster.simulation.schedule import Schedule
from envs.cluster.simulation.step_function import StepFunction
from experiments.pictures.anytime import COLOURS, STYLES
from experiments.pictures.time_axis import in_words, unit_for

FloatArray = NDArray[np.float64]

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
    figure = Figure(figsize=(11, 6.2), dpi=130, layout="constrained")
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
        colour, style = COLOURS[index % len(COLOURS)], STYLES[index // len(COLOURS) % len(STYLES)]
        label = f"{name}: {share:.1%} of the GPUs used, {mean:.3g} jobs waiting on average"
        for axes, function, scale in ((used, busy, 100 / num_gpus), (queue, waiting, 1.0)):
            axes.stairs(
                _means(function, edges) * scale, (edges - start) / unit.seconds, baseline=None,
                color=colour, linestyle=style, linewidth=1.3, label=label,
            )  # fmt: skip
    used.axhline(100, color="black", linewidth=0.9, linestyle=":")
    used.set_ylim(0, 106)
    used.set_ylabel(f"GPUs in use (% of {num_gpus:,})")
    queue.set_ylim(0, max(1.0, queue.get_ylim()[1]))
    queue.set_ylabel("jobs waiting")
    queue.set_xlabel(f"time since the first submission ({unit.name})")
    queue.set_xlim(0, (end - start) / unit.seconds)
    for axes in (used, queue):
        _frame(axes)
    handles, labels = used.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, frameon=False, fontsize=8.5)
    slice_s = in_words((end - start) / COLUMNS)
    used.set_title(f"means of {slice_s}", fontsize=8, loc="right", color="#555555")
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    return figure


def _means(function: StepFunction, edges: FloatArray) -> FloatArray:
    return function.mean(edges[:-1], edges[1:])


def _frame(axes: Axes) -> None:
    axes.grid(color="#e5e5e5", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
