"""Comparisons: ratios to a baseline with their intervals, window by window or by condition."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from envs.arrays import FloatArray, IntArray
from experiments.pictures.style import (
    BLUE,
    GRID,
    LEVEL,
    NOTE,
    ORANGE,
    SMALL,
    colour,
    frame,
    new_figure,
    titled,
)
from experiments.study.statistics import CONFIDENCE, Interval, half_width


def _begun(
    names: Sequence[str], width: float, least: float, each: float
) -> tuple[Figure, Axes, IntArray]:
    """A picture with a row for each name, and where the rows are; a line where ratios are 1."""
    figure = new_figure(width, least + each * len(names))
    axes = figure.add_subplot()
    rows = np.arange(len(names))[::-1]
    axes.axvline(1.0, **LEVEL)
    axes.set_yticks(rows, names)
    axes.set_ylim(-0.6, len(names) - 0.4)
    return figure, axes, rows


def _draw_intervals(
    axes: Axes, ratios: Sequence[Interval], rows: Sequence[float] | IntArray, **look: Any
) -> None:
    mean = np.array([ratio.mean for ratio in ratios])
    reach = np.array([[r.mean - r.low for r in ratios], [r.high - r.mean for r in ratios]])
    axes.errorbar(mean, rows, xerr=np.maximum(reach, 0.0), **look)


def _labelled(figure: Figure, label: str, title: str, legend: int = 0) -> Figure:
    (axes,) = figure.axes
    axes.set_xlabel(f"mean job completion time / that of {label}")
    frame(axes, "x")
    return titled(figure, title, legend=legend)


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
    figure, axes, rows = _begun(windows, 8.5, 1.6, 0.3)
    axes.hlines(rows, bound, 1.0, color=GRID, linewidth=5.0)
    axes.plot(bound, rows, "|", color=NOTE, markersize=11, label="proved lower bound")
    axes.plot(overall, rows, "o", mfc="none", color=ORANGE, label=f"{overall_name}, best overall")
    if learned is not None:
        mean = learned.mean(axis=1)
        seeds = learned.shape[1]
        if seeds > 1:
            half = [half_width(row) for row in learned]
            axes.errorbar(mean, rows, xerr=half, fmt="none", ecolor=BLUE, capsize=3)
        axes.plot(mean, rows, "o", color=BLUE, label=f"checkpoint, mean of {seeds}")
    shown = [bound, overall, np.ones(1), *([] if learned is None else [learned.ravel()])]
    found = np.concatenate(shown)
    found = found[np.isfinite(found)]
    margin = 0.06 * max(float(np.ptp(found)), 0.02)
    axes.set_xlim(found.min() - margin, found.max() + margin)  # where the differences are
    return _labelled(figure, "the window's best baseline", title, 3)


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
    figure, axes, rows = _begun(conditions, 9.0, 1.5, 0.32)
    _draw_intervals(axes, ratios, rows, fmt="s", color=BLUE, ms=5, capsize=3)
    low, high = min(*(r.low for r in ratios), 1.0), max(*(r.high for r in ratios), 1.0)
    axes.set_xlim(low - 0.05 * (high - low) - 0.01, high + 0.05 * (high - low) + 0.01)
    for row, ratio, name in zip(rows, ratios, against, strict=True):
        message = f"{ratio.text()}  {name}"
        axes.annotate(
            message, (1.0, row), xycoords=("axes fraction", "data"), xytext=(8, 0),
            textcoords="offset points", va="center", fontsize=SMALL, annotation_clip=False,
        )  # fmt: skip
    label = f"the baseline named on the right, the best overall ({CONFIDENCE:.0%} interval)"
    return _labelled(figure, label, title)


def draw_headroom(regimes: Mapping[str, Mapping[str, Interval]], bound: str, title: str) -> Figure:
    """Mean JCT over that of the best baseline, by regime and column.

    Args:
        regimes: from above, by column.
        bound: the column that no schedule is below.
        title: of the picture.
    """
    columns = list(dict.fromkeys(x for found in regimes.values() for x in found if x != bound))
    figure, axes, places = _begun([*regimes], 9.0, 1.7, 0.55)
    shifts = np.linspace(0.32, -0.32, len(columns))
    proved = np.array([found[bound].mean for found in regimes.values()])
    axes.hlines(places, proved, 1.0, color=GRID, linewidth=30.0)
    axes.plot(proved, places, "|", color=NOTE, ms=11, label="proved bound")
    for number, (column, shift) in enumerate(zip(columns, shifts, strict=True)):
        rows = [
            (place + shift, found[column])
            for place, found in zip(places, regimes.values(), strict=True)
            if column in found
        ]
        _draw_intervals(
            axes, [ratio for _, ratio in rows], [at for at, _ in rows], fmt="o", ms=4, capsize=2,
            elinewidth=0.9, color=colour(number), label=column.replace("_", " "),
        )  # fmt: skip
    axes.set_xlim(proved.min() - 0.05, None)
    return _labelled(figure, f"the best baseline ({CONFIDENCE:.0%} interval)", title, 4)
