"""Bars over time: in a picture, and as a trace in Chrome's format, which Perfetto shows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from numpy.typing import ArrayLike

from envs.arrays import FloatArray
from envs.units import MICROSECOND
from experiments.pictures.style import SMALL

BRIGHTNESS = (0.299, 0.587, 0.114)  # of red, green and blue
LABEL_WIDTH = 0.006, 0.0065  # shares of the span that a number needs, and each of its digits


def draw_spans(
    axes: Axes,
    start: FloatArray,
    finish: FloatArray,
    low: ArrayLike,
    high: ArrayLike,
    colours: Sequence[str],
    numbers: Sequence[str] = (),
    span: float = 0.0,
    **look: Any,
) -> None:
    """A bar each from `start` to `finish` and `low` to `high`.

    `numbers` stand in the bars that are wide enough for them; `span` is the width of the picture.
    """
    left, right, under, over = np.broadcast_arrays(start, finish, low, high)
    corners = np.array([[left, right, right, left], [under, under, over, over]]).T
    look = {"edgecolors": "face", "linewidths": 0.3, **look}
    axes.add_collection(PolyCollection(list(corners), facecolors=list(colours), **look))
    for number, colour, ((x, y), _, (end, top), _) in zip(numbers, colours, corners, strict=False):
        if number and end - x >= span * (LABEL_WIDTH[0] + LABEL_WIDTH[1] * len(number)):
            axes.text(
                (x + end) / 2, (y + top) / 2, number, ha="center", va="center", fontsize=6.5,
                color="white" if np.dot(to_rgb(colour), BRIGHTNESS) < 0.5 else "#222222",
                fontweight="bold", clip_on=True,
            )  # fmt: skip


def label_rows(
    axes: Axes,
    places: Sequence[float],
    names: Sequence[str],
    lowest: float,
    ends: Sequence[str] = (),
) -> None:
    """Rows from above, without an axis beside them; what is said at the right of the first."""
    axes.set_yticks(places, names)
    axes.set_ylim(lowest, -0.6)
    axes.tick_params(axis="y", length=0)
    axes.spines["left"].set_visible(False)
    axes.spines["right"].set_visible(True)
    for place, text in zip(places, ends, strict=False):
        axes.annotate(
            text, (1.005, place), xycoords=("axes fraction", "data"), va="center", fontsize=SMALL
        )


Event = dict[str, object]  # times are in seconds where these are made


def process(number: int, name: str) -> Event:
    """What a process is called."""
    return {"ph": "M", "name": "process_name", "pid": number, "args": {"name": name}}


def thread(number: int, thread: int, name: str) -> Event:
    """What a thread of a process is called."""
    named = {"ph": "M", "name": "thread_name", "args": {"name": name}}
    return {**named, "pid": number, "tid": thread}


def happened(
    name: str, kind: str, place: tuple[int, int], start: float, end: float, /, **arguments: object
) -> Event:
    """What took its time on a thread of a process."""
    return {
        "ph": "X", "name": name, "cat": kind, "pid": place[0], "tid": place[1],
        "ts": float(start) / MICROSECOND, "dur": float(end - start) / MICROSECOND,
        "args": arguments,
    }  # fmt: skip
