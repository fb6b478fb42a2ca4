"""Ratios to the best baseline, window by window."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy import stats

from experiments.cluster.generalise_statistics import CONFIDENCE

FloatArray = NDArray[np.float64]

INK, FLOOR, OTHER = "#1f5fa8", "#9a9a9a", "#c2681c"


def draw_ratios(
    windows: Sequence[str],
    bound: FloatArray,
    overall: FloatArray,
    overall_name: str,
    learned: FloatArray | None,
    title: str,
) -> Figure:
    """Mean JCT over that of the best baseline of each window.

    Args:
        windows: names of the W windows.
        bound: (W,) of the proved lower bound.
        overall: (W,) of the baseline that is best overall.
        overall_name: its name.
        learned: (W, S) of the checkpoints of S seeds; their mean has an interval (Student's t)
            where there are several. None: there is no checkpoint.
        title: of the picture.
    """
    count = len(windows)
    figure = Figure(figsize=(8.5, 1.6 + 0.3 * count), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    rows = np.arange(count)[::-1]
    axes.axvline(1.0, color="black", linewidth=0.8)
    axes.hlines(rows, bound, 1.0, color="#e3e3e3", linewidth=5.0)
    axes.plot(bound, rows, "|", color=FLOOR, markersize=11, label="proved lower bound")
    axes.plot(overall, rows, "o", mfc="none", color=OTHER, label=f"{overall_name}, best overall")
    if learned is not None:
        mean = learned.mean(axis=1)
        seeds = learned.shape[1]
        if seeds > 1:
            quantile = stats.t.ppf(0.5 + CONFIDENCE / 2.0, seeds - 1)
            half = quantile * stats.sem(learned, axis=1)
            axes.errorbar(mean, rows, xerr=half, fmt="none", ecolor=INK, capsize=3)
        axes.plot(mean, rows, "o", color=INK, label=f"checkpoint, mean of {seeds}")
    axes.set_yticks(rows, windows)
    axes.set_xlim(left=0.0)
    axes.set_ylim(-0.6, count - 0.4)
    axes.set_xlabel("mean job completion time / that of the window's best baseline")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.legend(loc="outside lower center", ncols=3, frameon=False, fontsize=8.5)
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    return figure
