"""One look for all pictures: colours, sizes, frames, and the axis of time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter

PALETTE = (
    "#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#e377c2",
    "#7f7f7f", "#bcbd22",
)  # fmt: skip
BLUE, GREEN, PURPLE, ORANGE = PALETTE[1:5]
Dashes = tuple[float, Sequence[float]]
DASHES: tuple[Dashes, ...] = ((0, ()), (0, (5, 1.5)), (0, (1, 1)))  # the next as colours run out
PALE = "#a6cbe3"  # what lies behind: one seed of several, the middle half, the mean of an iteration
NOTE = "#555555"  # of remarks
GRID = "#e5e5e5"
IDLE = "#ededed"
LIMIT: dict[str, Any] = {"color": "black", "linestyle": ":", "linewidth": 1.2}  # a proved bound
LEVEL: dict[str, Any] = {"color": "black", "linestyle": "--", "linewidth": 1.0}  # what 1 stands for

SMALL, TEXT, TITLE = 8, 9, 11  # points: ticks and legends; axes; the picture


def new_figure(width: float, height: float) -> Figure:
    """An empty picture, in inches."""
    return Figure(figsize=(width, height), dpi=130, layout="constrained")


def line(number: int) -> dict[str, Any]:
    """Colour and dashes of the curve with this number."""
    dashes = DASHES[number // len(PALETTE) % len(DASHES)]
    return {"color": PALETTE[number % len(PALETTE)], "linestyle": dashes}


MOST_NAMED = 8  # lines of a picture that have a colour and a name; the rest is grey
OTHERS: dict[str, Any] = {"color": "#bdbdbd", "linestyle": "-", "zorder": 1.5}
GIVEN_UP: dict[str, Any] = {"marker": "x", "markersize": 6, "linestyle": "", "clip_on": False}


def name_at_end(axes: Axes, names: Mapping[str, tuple[float, str]]) -> None:
    """Write names to the right of the axes, each in its colour, at its height or just above it.

    Args:
        axes: whose limits are final.
        names: (height in data, colour) of each.
    """
    places = {
        name: float(axes.transAxes.inverted().transform(axes.transData.transform((1.0, at)))[1])
        for name, (at, _) in names.items()
    }
    for name, height in apart(places, NAME_HEIGHT).items():
        axes.annotate(
            name, (1.01, height), xycoords="axes fraction", va="center", fontsize=SMALL - 1,
            color=names[name][1], annotation_clip=False,
        )  # fmt: skip


def apart(places: Mapping[str, float], gap: float) -> dict[str, float]:
    """Heights at least `gap` apart, in the order of the places."""
    heights: dict[str, float] = {}
    previous = -np.inf
    for name in sorted(places, key=places.__getitem__):
        previous = heights[name] = max(places[name], previous + gap)
    return heights


NAME_HEIGHT = 0.052  # share of the axes between two names


def colour(number: int) -> str:
    return PALETTE[number % len(PALETTE)]


def mixed_with_white(of: str, share: float) -> str:
    """A colour, lighter."""
    own = np.array(to_rgb(of))
    return to_hex(tuple(own + (1.0 - own) * share))


def frame(
    axes: Axes,
    grid: Literal["both", "x", "y"] = "both",
    *,
    hidden: Sequence[str] = ("top", "right"),
) -> None:
    """Grid behind the data, small ticks, no spines where nothing is read."""
    axes.grid(axis=grid, color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    axes.tick_params(labelsize=SMALL)
    axes.xaxis.label.set_fontsize(TEXT)
    axes.yaxis.label.set_fontsize(TEXT)
    for side in hidden:
        axes.spines[side].set_visible(False)


def titled(figure: Figure, title: str, *, legend: int = 0, **options: Any) -> Figure:
    """Write the title, and below the picture a legend of `legend` columns where there are any."""
    if legend:
        place = {"loc": "outside lower center", "frameon": False, "fontsize": SMALL}
        figure.legend(**{**place, "ncols": legend, **options})
    figure.suptitle(title, fontsize=TITLE, x=0.01, ha="left")
    return figure


def note(axes: Axes, text: str) -> None:
    """A remark above the axes, on the right."""
    axes.set_title(text, fontsize=SMALL, loc="right", color=NOTE)


class TimeUnit(NamedTuple):
    """In which times are shown."""

    name: str
    short: str
    seconds: float


UNITS = (
    TimeUnit("days", "d", 86400.0), TimeUnit("h", "h", 3600.0), TimeUnit("min", "min", 60.0),
    TimeUnit("s", "s", 1.0),
)  # fmt: skip
LEAST = 3  # of a unit that an axis is to show


def unit_for(span_s: float) -> TimeUnit:
    """The largest unit of which `span_s` seconds hold a few."""
    for unit in UNITS:
        if span_s >= LEAST * unit.seconds:
            return unit
    return UNITS[-1]


def in_words(seconds: float) -> str:
    """A duration with its unit: "45 s", "2.5 h", "3 d"."""
    for unit in UNITS:
        if seconds >= unit.seconds:
            return f"{seconds / unit.seconds:.3g} {unit.short}"
    return f"{seconds:.3g} s"


def duration_ticks(low_s: float, high_s: float) -> list[float]:
    """Round durations from `low_s` to `high_s` seconds, for a logarithmic axis."""
    day = 86400
    steps = (0.1, 1, 10, 60, 600, 3600, 6 * 3600, day, 7 * day, 30 * day, 365 * day, 3650 * day)
    return [float(step) for step in steps if low_s <= step <= high_s]


def duration_axis(axes: Axes, low_s: float, high_s: float) -> None:
    """A logarithmic horizontal axis of seconds, each tick in its own unit."""
    axes.set_xscale("log")
    axes.set_xlim(low_s, high_s)
    axes.set_xticks(duration_ticks(low_s, high_s))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: in_words(float(value))))
    axes.minorticks_off()
