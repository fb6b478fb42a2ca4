"""Draw a simulated step beside the rates of the pipes."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.arrays import FloatArray
from envs.frame import new_frame, pixels
from envs.placement.viewer import draw_timeline
from envs.step.problem import StepProblem
from envs.step.timeline import Timeline
from envs.units import GIGA


def joint_frame(problem: StepProblem, timeline: Timeline, rate: FloatArray) -> NDArray[np.uint8]:
    """(320, 640, 3) a row of bars per device, transfers as grey lines, and the rates (S, S)."""
    figure = new_frame()
    axes, table = figure.subplots(1, 2, width_ratios=(3, 2))
    draw_timeline(axes, problem, timeline)
    axes.set_title(f"{timeline.step_time:.4g} s")
    _rates(table, rate)
    return pixels(figure)


def _rates(axes: Any, rate: FloatArray) -> None:
    """A heat map of (S, S) rates, with the figures in it while they are legible."""
    servers = len(rate)
    giga = rate.max() >= GIGA
    shown = np.where(np.eye(servers, dtype=bool), np.nan, rate / (GIGA if giga else 1.0))
    axes.imshow(shown, cmap="Blues", vmin=0.0)
    if servers <= 8:
        for source, target in zip(*np.nonzero(np.isfinite(shown)), strict=True):
            dark = shown[source, target] > 0.6 * np.nanmax(shown)
            axes.text(
                target, source, f"{shown[source, target]:.2g}", ha="center", va="center",
                fontsize=7, color="white" if dark else "black",
            )  # fmt: skip
    axes.set_xticks(range(servers))
    axes.set_yticks(range(servers))
    axes.set_xlabel("to server")
    axes.set_ylabel("from server")
    axes.set_title("GB/s" if giga else "bytes/s")
