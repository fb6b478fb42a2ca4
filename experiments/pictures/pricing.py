"""Bars side by side: the worst ratios of the rules for a problem of prices, and others."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from envs.arrays import FloatArray
from experiments.pictures.style import colour, frame, new_figure, titled


def draw_bars(
    groups: Sequence[str],
    bars: Mapping[str, FloatArray],
    label: str,
    title: str,
    bottom: float = 0.0,
) -> Figure:
    """A group of bars for each name, on a logarithmic axis, from `bottom`."""
    figure = new_figure(9.0, 3.6)
    axes, width = figure.subplots(), 0.84 / len(bars)
    for number, (name, heights) in enumerate(bars.items()):
        places = np.arange(len(groups)) + (number - (len(bars) - 1) / 2.0) * width
        shown = heights - bottom
        axes.bar(places, shown, width, bottom=bottom, color=colour(number), label=name)
    axes.set_xticks(range(len(groups)), groups)
    axes.set_yscale("log")
    axes.set_ylabel(label)
    frame(axes, "y")
    return titled(figure, title, legend=len(bars))


def draw_ratios(rows: Sequence[Mapping[str, Any]], names: Sequence[str], title: str) -> Figure:
    """A group of bars for each case; no bar is a ratio without end, or one above 1,000."""
    ratios = {
        name.replace("_", " "): np.array(
            [row[name] if row[name] <= 1e3 else np.nan for row in rows]
        )
        for name in names
    }
    cases = [row["case"].replace(", ", "\n") for row in rows]
    figure = draw_bars(cases, ratios, "worst ratio", title, 1.0)
    axis = figure.axes[0].yaxis
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())
    return figure
