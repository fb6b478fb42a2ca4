"""One look for all pictures, and what they consist of: curves, bars, rows of intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import cache
from itertools import cycle
from typing import Any, NamedTuple

import numpy as np
from matplotlib.axes import Axes
from matplotlib.axis import Axis
from matplotlib.colors import to_hex, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter, StrMethodFormatter
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
OTHERS: dict[str, Any] = {"color": "#bdbdbd", "linestyle": "-", "zorder": 1.5}
GIVEN_UP: dict[str, Any] = {"marker": "x", "markersize": 6, "linestyle": "", "clip_on": False}

SMALL, TEXT, TITLE = 8, 9, 11  # points: ticks and legends; axes; the picture
MOST_NAMED = 8  # lines of a picture that have a colour and a name; the rest is grey


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


def legend_below(figure: Figure, columns: int, handles: Sequence[Any] = ()) -> Figure:
    """Below the picture: the handles, or all that its panels name, each name once."""
    labelled = (axes.get_legend_handles_labels() for axes in figure.axes)
    named = {name: one for found, names in labelled for one, name in zip(found, names, strict=True)}
    figure.legend(
        handles=handles or [*named.values()], loc="outside lower center", ncols=columns,
        frameon=False, fontsize=SMALL,
    )  # fmt: skip
    return figure


def legend_of(figure: Figure, colours: Mapping[str, str]) -> Figure:
    """Below the picture, what colours stand for."""
    patches = [Patch(color=shade, label=name) for name, shade in colours.items()]
    return legend_below(figure, len(patches), patches)


def colour(number: int) -> str:
    return PALETTE[number % len(PALETTE)]


def line(number: int) -> dict[str, Any]:
    """Colour and dashes of the curve with this number."""
    return {"color": colour(number), "linestyle": DASHES[number // len(PALETTE) % len(DASHES)]}


@cache
def mixed_with_white(of: str, share: float) -> str:
    """A colour, lighter."""
    own = np.array(to_rgb(of))
    return to_hex(tuple(own + (1.0 - own) * share))


Series = Mapping[str, tuple[ArrayLike, ...]]  # by name: x and y, and the ends of a band around y


def curves(axes: Axes, series: Series, **look: Any) -> None:
    """A curve for each name, in the next colour, with a band where its ends are given."""
    for number, (name, (x, y, *ends)) in enumerate(series.items()):
        own = {"linewidth": 1.3, **line(number), **look}
        axes.plot(x, y, label=name.replace("_", " "), **own)
        if ends:
            axes.fill_between(x, *ends, color=own["color"], alpha=0.2, linewidth=0)  # type: ignore[arg-type]


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
        look: dict[str, Any] = {"color": colour(number), "label": name.replace("_", " ")}
        (axes.barh if across else axes.bar)(at, np.asarray(values) - base, width, base, **look)
    axes.set(**{f"{'y' if across else 'x'}ticks": places})
    axes.set(**{f"{'y' if across else 'x'}ticklabels": groups})
    if across:
        axes.invert_yaxis()


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
    plain_log(axes.yaxis)
    return legend_below(figure, len(series))


def draw_rows(
    rows: Sequence[str],
    series: Mapping[str, Sequence[Interval | float]],
    label: str,
    title: str,
    *,
    bound: ArrayLike | None = None,
    level: float = 1.0,
    beside: Sequence[str] = (),
) -> Figure:
    """Rows of means with their intervals.

    Args:
        rows: names, from above.
        series: by name, one for each row, some without an interval; nothing is drawn for NaN.
        label: of the axis.
        title: of the picture.
        bound: for each row, what no value can be below.
        level: of the dashed line.
        beside: remarks at the right of the rows.
    """
    height = max(0.3, 0.11 * len(series))
    figure, (axes,) = picture(title, 9.0, 1.6 + height * len(rows), grid="x")
    places = np.arange(len(rows))
    axes.axvline(level, **LEVEL)
    if bound is not None:
        axes.hlines(places, bound, level, color=GRID, linewidth=48.0 * height)
        axes.plot(bound, places, "|", color=NOTE, markersize=11, label="proved lower bound")
    for number, (name, found) in enumerate(series.items()):
        values = [(x.mean, x.low, x.high) if isinstance(x, Interval) else (x,) * 3 for x in found]
        mean, low, high = np.array(values).T
        axes.errorbar(
            mean, places + (number - (len(series) - 1) / 2) * 0.8 / len(series),
            xerr=np.maximum([mean - low, high - mean], 0.0), fmt="o", markersize=5, capsize=3,
            color=colour(number) if len(series) > 1 else BLUE, label=name.replace("_", " "),
        )  # fmt: skip
    for place, remark in enumerate(beside):
        write_beside(axes, place, remark)
    axes.set_yticks(places, rows)
    axes.set(ylim=(len(rows) - 0.4, -0.6), xlabel=label)
    return legend_below(figure, 4) if len(series) > 1 or bound is not None else figure


def write_beside(axes: Axes, height: float, text: str, ink: str = "black") -> None:
    """Right of the axes, at a height of the data."""
    axes.annotate(
        text, (1.01, height), xycoords=("axes fraction", "data"), va="center", fontsize=SMALL,
        color=ink, annotation_clip=False,
    )  # fmt: skip


def name_at_end(axes: Axes, names: Mapping[str, tuple[float, str]], gap: float) -> None:
    """Write names right of the axes, whose limits are final, each at its height or just above it.

    Args:
        axes: of the curves.
        names: height in data and colour of each.
        gap: least share of the axes between two names.
    """
    into = axes.transData + axes.transAxes.inverted()
    places = {name: float(into.transform((1.0, at))[1]) for name, (at, _) in names.items()}
    previous = -np.inf
    for name in sorted(places, key=places.__getitem__):
        previous = max(places[name], previous + gap)
        write_beside(
            axes, float(into.inverted().transform((0.0, previous))[1]), name, names[name][1]
        )


def note(axes: Axes, text: str) -> None:
    """A remark above the axes, on the right."""
    axes.set_title(text, fontsize=SMALL, loc="right", color=NOTE)


def remarks(**lists: Sequence[str]) -> str:
    """What is not drawn: a heading and its names, for each list that is not empty."""
    found = {what.replace("_", " "): names for what, names in lists.items() if names}
    return "; ".join(f"{what}: {', '.join(names)}" for what, names in found.items())


def plain_log(axis: Axis) -> None:
    """Ticks of a logarithmic axis at 1, 2 and 5 times powers of ten, as plain numbers."""
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axis.set_minor_formatter(NullFormatter())


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
    return next((unit for unit in UNITS if span_s >= LEAST * unit.seconds), UNITS[-1])


def in_words(seconds: float) -> str:
    """A duration with its unit: "45 s", "2.5 h", "3 d"."""
    unit = next((unit for unit in UNITS if seconds >= unit.seconds), UNITS[-1])
    return f"{seconds / unit.seconds:.3g} {unit.short}"


def duration_ticks(low_s: float, high_s: float) -> list[float]:
    """Round durations from `low_s` to `high_s` seconds, for a logarithmic axis."""
    day = 86400
    steps = (0.1, 1, 10, 60, 600, 3600, 6 * 3600, day, 7 * day, 30 * day, 365 * day, 3650 * day)
    return [float(step) for step in steps if low_s <= step <= high_s]


def duration_axis(axes: Axes, low_s: float, high_s: float) -> None:
    """A logarithmic axis of seconds, each tick in its own unit."""
    axes.set(xscale="log", xlim=(low_s, high_s), xticks=duration_ticks(low_s, high_s))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: in_words(float(value))))
    axes.minorticks_off()
