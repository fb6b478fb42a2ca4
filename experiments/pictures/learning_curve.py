"""The learning curve: step time found against time spent, beside what the planners found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

LINE_COLOURS = (
    "#1b9e77", "#d95f02", "#7570b3", "#e7298a", "#66a61e", "#a6761d", "#666666",
)  # fmt: skip
BOUND = "proved lower bound"
ABOVE_START = 1.1  # baselines slower than this times the curve's start are named, not drawn
CLOSE = 0.035  # labels nearer than this share of the axis are moved apart


@dataclass(frozen=True)
class Curve:
    """One training run.

    Args:
        seconds: (I,) wall time at the end of each iteration.
        mean: (I,) mean step time of the iteration's episodes, seconds.
        best: (I,) best step time found so far, seconds.
    """

    seconds: Sequence[float]
    mean: Sequence[float]
    best: Sequence[float]


def draw_learning_curve(
    curve: Curve, baselines: Mapping[str, float], lower_bound: float, title: str
) -> Figure:
    """The curve over wall time; every baseline and the proved bound as a horizontal line."""
    figure = Figure(figsize=(10, 5.6), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    seconds = np.asarray(curve.seconds, dtype=np.float64)
    mean = np.asarray(curve.mean, dtype=np.float64) * 1e3
    best = np.asarray(curve.best, dtype=np.float64) * 1e3
    axes.plot(seconds, mean, color="#9ecae1", linewidth=1.5, label="PPO, mean of an iteration")
    axes.step(seconds, best, where="post", color="#08519c", linewidth=2.2, label="PPO, best so far")
    lines = {name: value * 1e3 for name, value in baselines.items() if np.isfinite(value)}
    low, high = _limits(lower_bound * 1e3, best, mean, list(lines.values()))
    shown = {name: value for name, value in lines.items() if value <= high}
    colours = dict(zip(shown, _cycle(len(shown)), strict=True)) | {BOUND: "black"}
    for name, value in shown.items():
        axes.axhline(value, color=colours[name], linewidth=1.1, linestyle="--")
    axes.axhline(lower_bound * 1e3, color="black", linewidth=1.2, linestyle=":")
    labels = {**shown, BOUND: lower_bound * 1e3}
    heights = _spread(list(labels.values()), CLOSE * (high - low))
    for (name, value), height in zip(labels.items(), heights, strict=True):
        axes.annotate(
            f"{name}  {value:.1f}",
            (1.01, height),
            xycoords=("axes fraction", "data"),
            va="center",
            fontsize=8,
            color=colours[name],
            annotation_clip=False,
        )
    beyond = [f"{name} {value:.1f} ms" for name, value in lines.items() if value > high]
    if beyond:
        axes.set_title(f"above the axis: {', '.join(beyond)}", fontsize=8, loc="right")
    axes.set_ylim(low, high)
    axes.set_xlim(0, max(float(seconds.max(initial=0.0)), 1.0))
    axes.set_xlabel("wall time of training (s)")
    axes.set_ylabel("step time (ms)")
    axes.grid(color="#e5e5e5", linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    axes.legend(handles=axes.lines[:2], loc="upper right", framealpha=1.0, fontsize=8)
    figure.suptitle(title, fontsize=11, x=0.01, ha="left")
    return figure


def _limits(
    bound: float, best: FloatArray, mean: FloatArray, baselines: list[float]
) -> tuple[float, float]:
    """From just under the bound to just over the curve's start; far worse baselines lie beyond."""
    curve = np.concatenate([best, mean])
    curve = curve[np.isfinite(curve)]
    floor = min([bound, *baselines, *curve])
    start = float(np.quantile(curve, 0.98)) if len(curve) else min(baselines, default=floor)
    top = max([start, *(value for value in baselines if value <= ABOVE_START * start)])
    margin = 0.05 * max(top - floor, 0.01 * top)
    return floor - margin, top + margin


def _spread(values: list[float], gap: float) -> list[float]:
    """Heights at least `gap` apart, in the order of the values."""
    heights = [0.0] * len(values)
    previous = -np.inf
    for index in sorted(range(len(values)), key=values.__getitem__):
        previous = max(values[index], previous + gap)
        heights[index] = previous
    return heights


def _cycle(count: int) -> list[str]:
    return [LINE_COLOURS[index % len(LINE_COLOURS)] for index in range(count)]
