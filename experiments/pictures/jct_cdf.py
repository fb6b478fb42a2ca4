"""How long jobs take under several policies: the distribution of their completion times."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from experiments.pictures.anytime import COLOURS, STYLES
from experiments.pictures.time_axis import duration_formatter, duration_ticks, in_words

FloatArray = NDArray[np.float64]

POINTS = 2000  # of a curve at most, evenly in the share of jobs
LEAST_S = 1.0  # where the axis begins at the earliest
QUANTILE = 0.99


def draw_jct_cdf(jct_s: Mapping[str, FloatArray], title: str) -> Figure:
    """Share of the jobs completed within a time, over that time; means and p99 in the legend.

    Args:
        jct_s: by the name of the policy, the JCT of every job that finished, at least one, in
            seconds.
        title: of the picture.
    """
    figure = Figure(figsize=(9, 5.2), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    order = sorted(jct_s, key=lambda name: float(np.mean(jct_s[name])))
    for index, name in enumerate(order):
        ascending = np.sort(np.maximum(jct_s[name], LEAST_S))
        share = np.arange(1, len(ascending) + 1) / len(ascending)
        kept = np.unique(np.linspace(0, len(ascending) - 1, POINTS).round().astype(np.int64))
        label = (
            f"{name}: mean {in_words(float(np.mean(jct_s[name])))}, "
            f"p99 {in_words(float(np.quantile(jct_s[name], QUANTILE)))}"
        )
        axes.plot(
            np.append(ascending[0], ascending[kept]), np.append(0.0, share[kept]),
            drawstyle="steps-post", label=label, linewidth=1.8,
            color=COLOURS[index % len(COLOURS)],
            linestyle=STYLES[index // len(COLOURS) % len(STYLES)],
        )  # fmt: skip
    low = min(float(np.maximum(values, LEAST_S).min()) for values in jct_s.values())
    high = max(float(np.maximum(values, LEAST_S).max()) for values in jct_s.values())
    axes.set_xscale("log")
    axes.set_xlim(low / 1.15, high * 1.15)
    axes.set_xticks(duration_ticks(low / 1.15, high * 1.15))
    axes.xaxis.set_major_formatter(duration_formatter())
    axes.minorticks_off()
    axes.set_ylim(0, 1.01)
    axes.set_xlabel("job completion time")
    axes.set_ylabel("share of the jobs")
    axes.grid(color="#e5e5e5", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.legend(loc="outside lower center", ncols=2, frameon=False, fontsize=8.5)
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    return figure
