"""Anytime curves: the best plan so far against the seconds of the search, and their picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

COLOURS = (
    "#d62728", "#1f77b4", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#e377c2",
    "#7f7f7f", "#bcbd22",
)  # fmt: skip
Style = tuple[float, Sequence[float]]
STYLES: tuple[Style, ...] = ((0, ()), (0, (5, 1.5)), (0, (1, 1)))  # the next as colours run out
BOUND: Mapping[str, Any] = {"color": "black", "linestyle": ":", "linewidth": 1.3}
BEST: Mapping[str, Any] = {"color": "#444444", "linestyle": (0, (6, 2, 1, 2)), "linewidth": 1.0}
EARLIEST_S = 1e-3  # where the axis of seconds begins at the earliest
COLUMNS = 3  # panels side by side
LOGARITHMIC = 4.0  # ratio of the ends of the axis of values from which it is logarithmic
NEAR = 0.6  # a bound below this part of the best value is named, not drawn
_SAME = 1e-9  # relative difference of two equal qualities


@dataclass(frozen=True)
class AnytimeCurve:
    """What one search had when.

    Args:
        points: (seconds since the start, best value so far), the values falling.
        end: seconds at which the search ended.
    """

    points: tuple[tuple[float, float], ...]
    end: float

    @property
    def final(self) -> float:
        """The best value, inf when nothing was found."""
        return self.points[-1][1] if self.points else np.inf

    @property
    def first(self) -> float:
        """The value of the first plan, 0 when nothing was found."""
        return self.points[0][1] if self.points else 0.0

    def scaled(self, factor: float) -> AnytimeCurve:
        """The same curve with every value times `factor`."""
        return AnytimeCurve(tuple((at, value * factor) for at, value in self.points), self.end)

    def time_to(self, quality: float) -> float:
        """Seconds until the value was `quality` or better, inf when it never was."""
        for seconds, value in self.points:
            if value <= quality * (1.0 + _SAME):
                return seconds
        return np.inf


@dataclass(frozen=True)
class Panel:
    """One problem: curves by the name of the agent; values are in `unit`."""

    title: str
    curves: Mapping[str, AnytimeCurve]
    lower_bound: float  # 0: none is known
    best_known: float  # by whomever; inf: not shown
    unit: str


def draw_anytime(panels: Sequence[Panel], title: str, value: str, span: float) -> Figure:
    """One panel per problem, seconds on a logarithmic axis; an agent looks the same in all.

    A curve begins with the first plan and ends with the search. `value` names the vertical axis,
    which ends at `span` times the best value; curves that stay above are named above the panel.
    """
    names = list(dict.fromkeys(name for panel in panels for name in panel.curves))
    columns = min(COLUMNS, max(1, len(panels)))
    rows = max(1, -(-len(panels) // columns))
    figure = Figure(figsize=(1.2 + 4.6 * columns, 1.5 + 3.3 * rows), dpi=130, layout="constrained")
    for number, panel in enumerate(panels):
        axes = figure.add_subplot(rows, columns, number + 1)
        _draw(axes, panel, names, span)
        if number % columns == 0:
            axes.set_ylabel(value, fontsize=9)
        if number + columns >= len(panels):
            axes.set_xlabel("seconds of search", fontsize=9)
    handles = []
    for name in names:
        colour, style = _look(names, name)
        handles.append(Line2D([], [], label=name, linewidth=2, color=colour, linestyle=style))
    handles.append(Line2D([], [], label="proved lower bound", **BOUND))
    if any(panel.best_known < np.inf for panel in panels):
        handles.append(Line2D([], [], label="best known", **BEST))
    figure.legend(
        handles=handles, loc="outside lower center", ncols=min(len(handles), 3 * columns),
        frameon=False, fontsize=9,
    )  # fmt: skip
    figure.suptitle(title, fontsize=12, x=0.01, ha="left", weight="bold")
    return figure


def _draw(axes: Axes, panel: Panel, names: Sequence[str], span: float) -> None:
    finals = {name: curve.final for name, curve in panel.curves.items()}
    found = [value for value in finals.values() if np.isfinite(value)]
    best = min([*found, panel.best_known])
    notes = []
    if found:
        highest = max(found) if span < np.inf else max(c.first for c in panel.curves.values())
        top = best + max(0.04 * best, 1.08 * min(highest - best, (span - 1) * best))
        low = best
        if panel.lower_bound >= NEAR * best:
            low = panel.lower_bound
            axes.axhline(panel.lower_bound, **BOUND)
        elif panel.lower_bound > 0:
            notes.append(f"bound {panel.lower_bound:.4g}")
        if panel.best_known < np.inf:
            axes.axhline(panel.best_known, **BEST)
        if top / low > LOGARITHMIC:
            axes.set_yscale("log")
            axes.yaxis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
            axes.yaxis.set_major_formatter(FuncFormatter(_plain))
            axes.yaxis.set_minor_formatter(NullFormatter())
            axes.set_ylim(low * 0.9, top)
        else:
            axes.set_ylim(low - 0.05 * (top - low), top)
        end = max(curve.end for curve in panel.curves.values())
        for name, curve in panel.curves.items():
            if curve.points and curve.final <= top:
                _line(axes, curve, end, *_look(names, name))
        beyond = [f"{name} {value:.4g}" for name, value in finals.items() if top < value < np.inf]
        notes += [f"above: {', '.join(beyond)}"] if beyond else []
    nothing = [name for name, value in finals.items() if not np.isfinite(value)]
    notes += [f"no plan: {', '.join(nothing)}"] if nothing else []
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(_plain))
    axes.set_title(f"{panel.title} ({panel.unit})", fontsize=9.5, loc="left", pad=14)
    axes.text(
        0.0, 1.015, _shortened("; ".join(notes)), transform=axes.transAxes, fontsize=6.5,
        color="#555555", va="bottom",
    )  # fmt: skip
    axes.tick_params(labelsize=8)
    axes.grid(color="#e5e5e5", linewidth=0.6)
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)


def _line(axes: Axes, curve: AnytimeCurve, end: float, colour: str, style: Style) -> None:
    """Steps from the first plan to the end of the search, a dot where the last plan was found.

    A faint line goes on to `end`: the plan is still there when others are still searching.
    """
    seconds = [max(at, EARLIEST_S) for at, _ in curve.points]
    values = [value for _, value in curve.points]
    last = max(curve.end, seconds[-1])
    axes.plot(
        [*seconds, last], [*values, values[-1]], drawstyle="steps-post", color=colour,
        linestyle=style, linewidth=1.7,
    )  # fmt: skip
    axes.plot([last, max(end, last)], [values[-1]] * 2, color=colour, linewidth=0.9, alpha=0.45)
    axes.plot(seconds[-1:], values[-1:], marker="o", markersize=4, linestyle="", color=colour)


def _look(names: Sequence[str], name: str) -> tuple[str, Style]:
    index = names.index(name)
    return COLOURS[index % len(COLOURS)], STYLES[index // len(COLOURS) % len(STYLES)]


def _plain(value: float, _: object) -> str:
    return f"{value:g}"


def _shortened(text: str) -> str:
    """At most 110 characters, which is what fits above a panel."""
    return text if len(text) <= 110 else f"{text[:107]}..."
