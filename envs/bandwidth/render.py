"""Draw a step whose network is shared: what devices compute and pipes carry when."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.bandwidth.instance import BandwidthInstance
from envs.frame import new_frame, pixels
from envs.placement.render import COLORS
from envs.step.timeline import Timeline

FloatArray = NDArray[np.float64]

TRANSFER = "#aa3377"


def pipes_frame(
    instance: BandwidthInstance, timeline: Timeline, begun: FloatArray
) -> NDArray[np.uint8]:
    """(320, 640, 3) a row for each device and each pipe in use.

    Args:
        instance: what is drawn.
        timeline: the step so far, completed with uniform shares.
        begun: when the phases that have been decided began, and the first that has not; behind it
            the picture is pale.
    """
    problem = instance.problem
    topology, servers = problem.topology, problem.topology.num_servers
    figure = new_frame()
    axes = figure.add_subplot()
    duration = timeline.op_finish - timeline.op_start
    for phase, color in COLORS.items():
        for device in range(topology.num_devices):
            shown = (problem.graph.phase == phase) & (timeline.device == device) & (duration > 0)
            _bars(axes, timeline.op_start[shown], duration[shown], device, color)
    source, target = timeline.transfer_source, timeline.transfer_destination
    pipe = topology.server[source] * servers + topology.server[target]
    lasting = timeline.transfer_finish - timeline.transfer_start
    used = np.flatnonzero(instance.traffic.count.any(axis=0))
    names = [device.name for device in topology.devices]
    for row, number in enumerate(used, start=len(names)):
        names.append(f"server {number // servers} → {number % servers}")
        shown = (pipe == number) & (lasting > 0)
        _bars(axes, timeline.transfer_start[shown], lasting[shown], row, TRANSFER)
    axes.set_yticks(range(len(names)), names, fontsize=8)
    axes.set_ylim(len(names) - 0.5, -0.5)
    end = max(timeline.step_time, np.finfo(np.float64).tiny)
    axes.set_xlim(0.0, end)
    for begin in begun[1:]:
        axes.axvline(begin, color="black", linewidth=0.8, linestyle=":")
    axes.axvspan(begun[-1], end, color="white", alpha=0.65, zorder=3)
    axes.set_xlabel("seconds")
    uniform = instance.uniform.step_time
    axes.set_title(
        f"{problem.graph.name}: {timeline.step_time:.4g} s, uniform shares {uniform:.4g} s"
    )
    return pixels(figure)


def _bars(axes: Any, start: FloatArray, lasting: FloatArray, row: int, color: str) -> None:
    axes.broken_barh(
        np.stack([start, lasting], axis=1).tolist(),
        (row - 0.35, 0.7),
        color=color,
        edgecolor="white",
        linewidth=0.3,
    )
