"""A picture of how true predicted distributions are."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.figure import Figure

from experiments.learning.duration_scores import Scores
from experiments.pictures.anytime import COLOURS


def draw_reliability(
    scores: Sequence[Scores], by_trace: Mapping[str, Sequence[float]], title: str
) -> Figure:
    """Shares of jobs below predicted quantiles, and the cross entropy on every trace.

    Args:
        scores: methods.
        by_trace: mean loss of each of them, by the name of the trace.
        title: of the picture.
    """
    figure = Figure(figsize=(11.0, 5.2), dpi=130, layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.0, 1.3))
    asked = np.linspace(0.0, 1.0, 101)
    left.plot([0, 1], [0, 1], color="#888888", linewidth=0.8, zorder=0)
    height = 0.8 / len(scores)
    for index, method in enumerate(scores):
        shares = np.searchsorted(np.sort(method.rank), asked, side="right") / len(method.rank)
        left.plot(asked, shares, color=COLOURS[index], label=method.method)
        places = np.arange(len(by_trace)) + (index - (len(scores) - 1) / 2) * height
        losses = [row[index] for row in by_trace.values()]
        right.barh(places, losses, height, color=COLOURS[index], label=method.method)
    left.set(
        xlim=(0, 1), ylim=(0, 1), aspect="equal", xlabel="quantile that was predicted",
        ylabel="share of the jobs that needed no more",
    )  # fmt: skip
    left.legend(frameon=False, fontsize=8)
    right.set_yticks(range(len(by_trace)), list(by_trace))
    right.invert_yaxis()
    right.set(xlabel="cross entropy [nats]")
    right.grid(axis="x", color="#e5e5e5", linewidth=0.6)
    right.set_axisbelow(True)
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    return figure
