"""The packing curve: GPUs allocated against GPUs asked for, one line per rule."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from experiments.pictures.learning_curve import LINE_COLOURS

FloatArray = NDArray[np.float64]

NEAR_FULL = 80.0  # percent of the GPUs from which the second panel shows the curves


def draw_packing(demand: FloatArray, curves: Mapping[str, FloatArray], title: str) -> Figure:
    """The whole curves on the left, where the rules part on the right.

    Args:
        demand: (P,) percent of the cluster's GPUs asked for so far.
        curves: by rule, (R, P) percent allocated in R runs; drawn are mean, least and most.
        title: of the figure.
    """
    figure = Figure(figsize=(11, 5.0), dpi=130, layout="constrained")
    whole, near = figure.subplots(1, 2)
    for axes in (whole, near):
        axes.plot(demand, np.minimum(demand, 100.0), color="black", linewidth=1.0, linestyle=":")
        for index, (rule, runs) in enumerate(curves.items()):
            colour = LINE_COLOURS[index % len(LINE_COLOURS)]
            mean = runs.mean(axis=0)
            axes.plot(demand, mean, color=colour, linewidth=1.6, label=f"{rule}  {mean[-1]:.1f} %")
            axes.fill_between(demand, runs.min(axis=0), runs.max(axis=0), color=colour, alpha=0.18)
        axes.set_xlabel("GPUs asked for so far (% of the cluster)")
        axes.set_ylabel("GPUs allocated (% of the cluster)")
        axes.grid(color="#e5e5e5", linewidth=0.6)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
    whole.set_xlim(0, demand[-1])
    whole.set_ylim(0, 101)
    if demand[-1] > NEAR_FULL:
        near.set_xlim(NEAR_FULL, demand[-1])
        near.set_ylim(NEAR_FULL, 100.5)
    near.legend(loc="lower right", framealpha=1.0, fontsize=8)
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    return figure
