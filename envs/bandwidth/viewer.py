"""Draw a step whose network is shared: what devices compute and pipes carry when."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envs.arrays import FloatArray
from envs.bandwidth.types import BandwidthInstance
from envs.frame import new_frame, pixels
from envs.placement.viewer import draw_bars, draw_operators, label_rows
from envs.step.timeline import Timeline

TRANSFER = "#aa3377"


def pipes_frame(
    instance: BandwidthInstance, timeline: Timeline, begun: FloatArray
) -> NDArray[np.uint8]:
    """(320, 640, 3) a row for each device and each pipe in use.

    Args:
        timeline: the step so far, completed with uniform shares.
        begun: when the phases that have been decided began, and the first that has not; behind it
            the picture is pale.
    """
    problem = instance.problem
    topology, servers = problem.topology, problem.topology.num_servers
    figure = new_frame()
    axes = figure.add_subplot()
    draw_operators(axes, problem, timeline)
    source, target = timeline.transfer_source, timeline.transfer_destination
    pipe = topology.server[source] * servers + topology.server[target]
    lasting = timeline.transfer_finish - timeline.transfer_start
    used = np.flatnonzero(instance.traffic.count.any(axis=0))
    names = topology.device_names
    for row, number in enumerate(used, start=len(names)):
        names.append(f"server {number // servers} → {number % servers}")
        shown = (pipe == number) & (lasting > 0)
        draw_bars(axes, timeline.transfer_start[shown], lasting[shown], row, TRANSFER)
    label_rows(axes, names, timeline, fontsize=8)
    for begin in begun[1:]:
        axes.axvline(begin, color="black", linewidth=0.8, linestyle=":")
    axes.axvspan(begun[-1], axes.get_xlim()[1], color="white", alpha=0.65, zorder=3)
    uniform = instance.uniform.step_time
    axes.set_title(
        f"{problem.graph.name}: {timeline.step_time:.4g} s, uniform shares {uniform:.4g} s"
    )
    return pixels(figure)
