"""Draw a simulated step: what every device computes when."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envs.frame import new_frame, pixels
from envs.graphs.op_graph import Phase
from envs.step.problem import StepProblem
from envs.step.timeline import Timeline

COLORS = {Phase.FORWARD: "#4477aa", Phase.BACKWARD: "#ee7733", Phase.OPTIMIZER: "#228833"}


def timeline_frame(problem: StepProblem, timeline: Timeline) -> NDArray[np.uint8]:
    """(320, 640, 3) one row of bars per device, coloured by phase; grey lines are transfers."""
    figure = new_frame()
    axes = figure.add_subplot()
    duration = timeline.op_finish - timeline.op_start
    for phase, color in COLORS.items():
        for device in range(problem.topology.num_devices):
            shown = (problem.graph.phase == phase) & (timeline.device == device) & (duration > 0)
            bars = np.stack([timeline.op_start[shown], duration[shown]], axis=1)
            axes.broken_barh(
                bars.tolist(), (device - 0.35, 0.7), color=color, edgecolor="white", linewidth=0.3
            )
    axes.hlines(
        timeline.transfer_destination - 0.42,
        timeline.transfer_start,
        timeline.transfer_finish,
        color="#888888",
        linewidth=1.5,
    )
    axes.set_yticks(
        range(problem.topology.num_devices), [device.name for device in problem.topology.devices]
    )
    axes.set_ylim(problem.topology.num_devices - 0.5, -0.5)
    axes.set_xlim(0.0, max(timeline.step_time, np.finfo(np.float64).tiny))
    axes.set_xlabel("seconds")
    axes.set_title(f"{problem.graph.name}: {timeline.step_time:.4g} s")
    return pixels(figure)
