"""The worst ratios of the rules for a problem of prices, case by case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from experiments.pictures.style import TEXT, colour, frame, new_figure, titled


def draw_ratios(rows: Sequence[Mapping[str, Any]], names: Sequence[str], title: str) -> Figure:
    """A mark for every rule of `names` that a case has; without end: none."""
    figure = new_figure(9.0, 3.6)
    axes, shown = figure.subplots(), 0
    for number, name in enumerate(names):
        ratios = np.array([row.get(name, np.inf) for row in rows])
        if np.isfinite(ratios).any():
            places = np.flatnonzero(ratios < 1e6)
            axes.plot(places, ratios[places], "_", ms=16, mew=2.5, color=colour(number), label=name)
            shown += 1
    axes.set_xticks(range(len(rows)), [row["case"] for row in rows], fontsize=7)
    axes.set_yscale("log")
    axes.set_ylabel("worst ratio", fontsize=TEXT)
    frame(axes, "y")
    return titled(figure, title, legend=shown)
