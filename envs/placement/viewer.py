"""Draw a simulated step: what every device computes when."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.arrays import FloatArray
from envs.frame import new_frame, pixels
from envs.graphs.op_graph import Phase
from envs.step.problem import StepProblem
from envs.step.timeline import Timeline

COLORS = {Phase.FORWARD: "#4477aa", Phase.BACKWARD: "#ee7733", Phase.OPTIMIZER: "#228833"}


def timeline_frame(problem: StepProblem, timeline: Timeline) -> NDArray[np.uint8]:
    """(320, 640, 3) one row of bars per device, coloured by phase; grey lines are transfers."""
    figure = new_frame()
    axes = figure.add_subplot()
    draw_timeline(axes, problem, timeline)
    axes.set_title(f"{problem.graph.name}: {timeline.step_time:.4g} s")
    return pixels(figure)


def draw_timeline(axes: Any, problem: StepProblem, timeline: Timeline) -> None:
    """Operators and transfers on `axes`, a row for each device."""
    draw_operators(axes, problem, timeline)
    axes.hlines(
        timeline.transfer_destination - 0.42,
        timeline.transfer_start,
        timeline.transfer_finish,
        color="#888888",
        linewidth=1.5,
    )
    label_rows(axes, problem.topology.device_names, timeline)


def draw_operators(axes: Any, problem: StepProblem, timeline: Timeline) -> None:
    """A bar for every operator in the row of its device."""
    duration = timeline.op_finish - timeline.op_start
    for phase, color in COLORS.items():
        for device in range(problem.topology.num_devices):
            shown = (problem.graph.phase == phase) & (timeline.device == device) & (duration > 0)
            draw_bars(axes, timeline.op_start[shown], duration[shown], device, color)


def draw_bars(axes: Any, start: FloatArray, lasting: FloatArray, row: int, color: str) -> None:
    """Bars from `start` (B,), `lasting` (B,) seconds."""
    axes.broken_barh(
        np.stack([start, lasting], axis=1).tolist(),
        (row - 0.35, 0.7),
        color=color,
        edgecolor="white",
        linewidth=0.3,
    )


def label_rows(axes: Any, names: list[str], timeline: Timeline, **style: Any) -> None:
    """Rows from the top over the seconds of the step."""
    axes.set_yticks(range(len(names)), names, **style)
    axes.set_ylim(len(names) - 0.5, -0.5)
    axes.set_xlim(0.0, max(timeline.step_time, np.finfo(np.float64).tiny))
    axes.set_xlabel("seconds")
