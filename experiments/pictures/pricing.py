"""The worst ratios of the rules for a problem of prices, case by case."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullFormatter, StrMethodFormatter

from experiments.pictures.style import TEXT, colour, frame, new_figure, titled


def draw_ratios(rows: Sequence[Mapping[str, Any]], names: Sequence[str], title: str) -> Figure:
    """A group of bars for each case; no bar is a ratio without end, or one above 1,000."""
    figure = new_figure(9.0, 3.6)
    axes, width = figure.subplots(), 0.84 / len(names)
    for number, name in enumerate(names):
        ratios = np.array([row[name] if row[name] <= 1e3 else np.nan for row in rows])
        places = np.arange(len(rows)) + (number - (len(names) - 1) / 2.0) * width
        label = name.replace("_", " ")
        axes.bar(places, ratios - 1.0, width, bottom=1.0, color=colour(number), label=label)
    axes.set_xticks(range(len(rows)), [row["case"].replace(", ", "\n") for row in rows])
    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.yaxis.set_minor_formatter(NullFormatter())
    axes.set_ylabel("worst ratio", fontsize=TEXT)
    frame(axes, "y")
    return titled(figure, title, legend=len(names))
