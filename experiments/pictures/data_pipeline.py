"""Seconds of a batch in every stage of a pipeline, part by part."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from experiments.pictures.style import TEXT, colour, frame, new_figure, titled


def draw_stages(
    stages: Sequence[str], seconds: Mapping[str, NDArray[np.float64]], title: str
) -> Figure:
    """A group of bars for each stage; the highest bar of a colour is what a batch takes."""
    figure = new_figure(9.0, 3.6)
    axes, width = figure.subplots(), 0.84 / len(seconds)
    for number, (name, own) in enumerate(seconds.items()):
        places = np.arange(len(stages)) + (number - (len(seconds) - 1) / 2.0) * width
        axes.bar(places, 1e3 * own, width, color=colour(number), label=name)
    axes.set_xticks(range(len(stages)), stages)
    axes.set_yscale("log")
    axes.set_ylabel("ms of a batch", fontsize=TEXT)
    frame(axes, "y")
    return titled(figure, title, legend=len(seconds))
