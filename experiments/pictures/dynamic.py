"""Changing workers: the time of batches, what was spent, and the queues of one seed."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure

from agents.hybrid.lyapunov import Played
from envs.hybrid.batch_time import COSTS
from experiments.pictures.style import LEVEL, colour, frame, new_figure, titled


def draw_dynamic(played: Mapping[str, Played], title: str) -> Figure:
    """Three panels over the slots, a line per policy: time, rent so far, the queue of rent."""
    figure = new_figure(9.0, 7.0)
    panels = figure.subplots(3, sharex=True)
    rent = COSTS.index("rent")
    for number, (name, own) in enumerate(played.items()):
        slots = np.arange(1, len(own.batches) + 1)
        so_far = np.cumsum(own.spent[:, rent]) / slots
        for axes, values in zip(panels, (own.seconds, so_far, own.queue[:, rent]), strict=True):
            label = name.replace("_", " ") if axes is panels[0] else None
            axes.step(slots, values, where="mid", color=colour(number), linewidth=1.1, label=label)
    panels[0].set_yscale("log")
    panels[1].axhline(1.0, **LEVEL)
    names = ("batch time, s", "mean rent so far / budget", "queue of rent, budgets")
    for axes, name in zip(panels, names, strict=True):
        axes.set_ylabel(name)
        frame(axes)
    panels[2].set_yscale("symlog")
    panels[2].set_ylim(bottom=0.0)
    panels[2].set_xlabel("slot")
    return titled(figure, title, legend=len(played))
