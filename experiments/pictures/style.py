"""One look for all pictures, and what they consist of: curves, bars, rows of intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import cycle
from typing import Any, Literal, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import LogLocator, NullFormatter
from numpy.typing import ArrayLike

from experiments.run.statistics import Interval

PALETTE = (
    "#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#e377c2",
    "#7f7f7f", "#bcbd22",
)  # fmt: skip
BLUE, GREEN, PURPLE, ORANGE = PALETTE[1:5]
DASHES = ("-", (0, (5, 1.5)), (0, (1, 1)))  # the next as colours run out
PALE = "#a6cbe3"  # what lies behind: one seed of several, the middle half, the mean of an iteration
NOTE = "#555555"  # of remarks
GRID = "#e5e5e5"
IDLE = "#ededed"
LIMIT: dict[str, Any] = {"color": "black", "linestyle": ":", "linewidth": 1.2}  # a proved bound
LEVEL: dict[str, Any] = {"color": "black", "linestyle": "--", "linewidth": 1.0}  # what 1 stands for

SMALL, TEXT, TITLE = 8, 9, 11  # points: ticks and legends; axes; the picture


def picture(
    title: str,
    width: float,
    height: float,
    rows: int = 1,
    columns: int = 1,
    grid: Sequence[str] = ("both",),
    **layout: Any,
) -> tuple[Figure, list[Axes]]:
    """A figure, in inches, and its panels, each with its grid: "both", "x" or "y"."""
    figure = Figure(figsize=(width, height), dpi=130, layout="constrained")
    figure.suptitle(title, fontsize=TITLE, x=0.01, ha="left")
    panels: list[Axes] = figure.subplots(rows, columns, squeeze=False, **layout).ravel().tolist()
    for axes, lines in zip(panels, cycle(grid), strict=False):
        axes.grid(axis=lines, color=GRID, linewidth=0.6)  # type: ignore[arg-type]
        axes.set_axisbelow(True)
        axes.tick_params(labelsize=SMALL)
        axes.xaxis.label.set_fontsize(TEXT)
        axes.yaxis.label.set_fontsize(TEXT)
        axes.spines[["top", "right"]].set_visible(False)
    return figure, panels


def legend(
    figure: Figure,
    columns: int,
    colours: Mapping[str, str] | None = None,
    place: Literal["outside lower center", "outside right upper"] = "outside lower center",
) -> Figure:
    """Outside the panels: what colours stand for, or all that the panels name, each name once.

    In as many columns, or in those that the figure has room for.
    """
    labelled = (axes.get_legend_handles_labels() for axes in figure.axes)
    named = {name: one for found, names in labelled for one, name in zip(found, names, strict=True)}
    if colours is not None:
        named = {name: Patch(color=shade) for name, shade in colours.items()}
    column = SMALL * (0.6 * max(map(len, named), default=1) + 4)  # points: a letter, and the line
    fitting = max(int(72 * figure.get_figwidth() / column), 1)
    figure.legend(
        [*named.values()], [*named], loc=place, ncols=min(columns, fitting), frameon=False,
        fontsize=SMALL,
    )  # fmt: skip
    return figure


def colour(number: int) -> str:
    return PALETTE[number % len(PALETTE)]


@cache
def mixed_with_white(of: str, share: float) -> str:
    """A colour, lighter."""
    own = np.array(to_rgb(of))
    return to_hex(tuple(own + (1.0 - own) * share))


Series = Mapping[str, tuple[ArrayLike, ...]]  # by name: x and y, and the ends of a band around y


def curves(axes: Axes, series: Series, first: int = 0, **look: Any) -> None:
    """A curve for each name, in the next colour, with a band where its ends are given."""
    for number, (name, (x, y, *ends)) in enumerate(series.items(), first):
        dashes = DASHES[number // len(PALETTE) % len(DASHES)]
        own = {"linewidth": 1.3, "color": colour(number), "linestyle": dashes, **look}
        axes.plot(x, y, label=name, **own)
        if ends:
            axes.fill_between(x, *ends, color=own["color"], alpha=0.2, linewidth=0)  # type: ignore[arg-type]


@dataclass(frozen=True)
class Panel:
    """Curves over the same axes.

    Args:
        series: the curves; those of one name have one place in the order of all panels.
        axes: what is set of the axes: labels, limits, scales.
        remark: above them.
        level: of a dashed line.
    """

    series: Series
    axes: Mapping[str, Any]
    remark: str = ""
    level: float | None = None


def draw_curves(
    title: str,
    panels: Sequence[Panel],
    width: float,
    height: float,
    columns: int = 1,
    *,
    sharey: bool = False,
    bold: str = "",
    **look: Any,
) -> Figure:
    """Panels of curves, `columns` side by side, with one legend below; one may stand out."""
    rows = len(panels) // columns
    figure, places = picture(title, width, height, rows, columns, sharex="col", sharey=sharey)
    order = list(dict.fromkeys(name for panel in panels for name in panel.series))
    for axes, panel in zip(places, panels, strict=True):
        for name, one in panel.series.items():
            own = {**look, "linewidth": 2.6} if name == bold else look
            curves(axes, {name: one}, order.index(name), **own)
        if panel.level is not None:
            axes.axhline(panel.level, **LEVEL)
        axes.set(**panel.axes)
        note(axes, panel.remark)
    return legend(figure, min(len(order), 5))


def bars(
    axes: Axes,
    groups: Sequence[str],
    series: Mapping[str, ArrayLike],
    *,
    across: bool = False,
    base: float = 0.0,
) -> None:
    """A group of bars for each of `groups`, a colour for each name; `across`: rows from above."""
    places, width = np.arange(len(groups)), 0.84 / len(series)
    for number, (name, values) in enumerate(series.items()):
        at = places + (number - (len(series) - 1) / 2) * width
        draw = axes.barh if across else axes.bar
        draw(at, np.asarray(values) - base, width, base, color=colour(number), label=name)
    if across:
        axes.set_yticks(places, groups)
        axes.invert_yaxis()
    else:
        axes.set_xticks(places, groups)


def draw_bars(
    groups: Sequence[str],
    series: Mapping[str, ArrayLike],
    label: str,
    title: str,
    *,
    base: float = 0.0,
) -> Figure:
    """Groups of bars that begin at `base`, on a logarithmic axis; no bar stands for NaN."""
    figure, (axes,) = picture(title, 9.0, 3.6, grid="y")
    bars(axes, groups, series, base=base)
    axes.set(yscale="log", ylabel=label)
    axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axes.yaxis.set_major_formatter("{x:g}")
    axes.yaxis.set_minor_formatter(NullFormatter())
    return legend(figure, len(series))


def draw_rows(
    rows: Sequence[str],
    series: Mapping[str, Sequence[Interval | float]],
    label: str,
    title: str,
) -> Figure:
    """Rows of means with their intervals, around a dashed line at 1.

    Args:
        rows: names, from above.
        series: by name, one for each row, some without an interval; nothing is drawn for NaN.
        label: of the axis.
        title: of the picture.
    """
    height = max(0.3, 0.11 * len(series)) * len(rows)
    figure, (axes,) = picture(title, 9.0, 1.6 + height, grid="x")
    places = np.arange(len(rows))
    axes.axvline(1.0, **LEVEL)
    for number, (name, found) in enumerate(series.items()):
        values = [(x.mean, x.low, x.high) if isinstance(x, Interval) else (x,) * 3 for x in found]
        mean, low, high = np.array(values).T
        axes.errorbar(
            mean, places + (number - (len(series) - 1) / 2) * 0.8 / len(series),
            xerr=np.maximum([mean - low, high - mean], 0.0), fmt="o", markersize=5, capsize=3,
            color=colour(number), label=name,
        )  # fmt: skip
    axes.set_yticks(places, rows)
    axes.set(ylim=(len(rows) - 0.4, -0.6), xlabel=label)
    return legend(figure, 4)


def note(axes: Axes, text: str) -> None:
    """A remark above the axes, on the right."""
    axes.set_title(text, fontsize=SMALL, loc="right", color=NOTE)


class TimeUnit(NamedTuple):
    """In which times are shown."""

    name: str
    seconds: float


DAY = 86400.0
UNITS = TimeUnit("d", DAY), TimeUnit("h", 3600.0), TimeUnit("min", 60.0), TimeUnit("s", 1.0)
LEAST = 3  # of a unit that an axis is to show


def unit_for(span_s: float, least: float = LEAST) -> TimeUnit:
    """The largest unit of which `span_s` seconds hold a few."""
    return next((unit for unit in UNITS if span_s >= least * unit.seconds), UNITS[-1])


def in_words(seconds: float) -> str:
    """A duration with its unit: "45 s", "2.5 h", "3 d"."""
    unit = unit_for(seconds, 1)
    return f"{seconds / unit.seconds:.3g} {unit.name}"


DURATIONS = (0.1, 1, 10, 60, 600, 3600, DAY / 4, DAY, 7 * DAY, 30 * DAY, 365 * DAY, 3650 * DAY)


def duration_axis(axes: Axes, low_s: float, high_s: float) -> None:
    """A logarithmic axis of seconds with round durations as ticks, each in its own unit."""
    axes.set_xscale("log")
    axes.set_xticks(DURATIONS, [in_words(one) for one in DURATIONS])
    axes.minorticks_off()
    axes.set_xlim(low_s, high_s)
