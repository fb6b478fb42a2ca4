"""Ratios with their intervals, condition by condition: a forest plot."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure

from experiments.cluster.generalise_statistics import CONFIDENCE, Interval
from experiments.pictures.generalise_picture import INK


def draw_forest(
    conditions: Sequence[str], ratios: Sequence[Interval], against: Sequence[str], title: str
) -> Figure:
    """Mean JCT of the checkpoints over that of the best overall baseline of each condition.

    Args:
        conditions: names, from above.
        ratios: of each.
        against: the baseline that it is about.
        title: of the picture.
    """
    count = len(conditions)
    figure = Figure(figsize=(9.0, 1.5 + 0.32 * count), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    rows = np.arange(count)[::-1]
    mean = np.array([ratio.mean for ratio in ratios])
    reach = np.array([[r.mean - r.low for r in ratios], [r.high - r.mean for r in ratios]])
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.errorbar(mean, rows, xerr=np.maximum(reach, 0.0), fmt="s", color=INK, ms=5, capsize=3)
    axes.set_yticks(rows, conditions)
    axes.set_ylim(-0.6, count - 0.4)
    axes.grid(axis="x", color="#e3e3e3", linewidth=0.6)
    axes.set_axisbelow(True)
    low, high = min(*(r.low for r in ratios), 1.0), max(*(r.high for r in ratios), 1.0)
    axes.set_xlim(low - 0.05 * (high - low) - 0.01, high + 0.05 * (high - low) + 0.01)
    for row, ratio, name in zip(rows, ratios, against, strict=True):
        told = f"{ratio.text()}  {name}"
        axes.annotate(
            told, (1.0, row), xycoords=("axes fraction", "data"), xytext=(8, 0),
            textcoords="offset points", va="center", fontsize=8, annotation_clip=False,
        )  # fmt: skip
    axes.set_xlabel(
        "mean job completion time / that of the baseline named on the right, the best overall "
        f"({CONFIDENCE:.0%} interval)",
        fontsize=9,
    )
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    return figure
