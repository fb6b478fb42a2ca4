"""Interactive figures as data for plotly.js; colours with an @ are those of the reader's theme."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any, TypeGuard

from experiments.pictures.style import BLUE, GREEN, ORANGE, PALETTE, PURPLE, mixed_with_white
from experiments.reporting.measures import is_number
from experiments.reporting.run_folder import RunFolder
from experiments.reporting.sheets import Job, Sheet
from experiments.run.statistics import half_width

INK, GRID, PAGE = "@ink", "@grid", "@page"
MOST_ROWS, MOST_LINES, MOST_POINTS, MOST_BARS = 40, 8, 500, 6000
ROW, FRAME = 38, 96  # pixels of a row of a ranking; of a figure around its rows
LANE, THIN_LANE, LEAST_LANES = 24, 9, 8  # pixels of a device or GPU in a Gantt chart; of few, many
NAMED_LANES = 24  # up to which every lane has its name, beyond its node's
WIDE = 20.0  # times between the least and the largest value from which an axis is logarithmic
MERGE = 5e-4  # share of the time below which neighbours of one kind in a Gantt chart are one bar
PHASES = {
    "forward": BLUE, "backward": ORANGE, "optimizer": GREEN, "transfer": PURPLE,
}  # fmt: skip

IN_THE_DARK = {own: mixed_with_white(own, 0.3) for own in PALETTE}  # on a dark page

Spec = dict[str, Any]


@dataclass(frozen=True)
class Figure:
    """One figure; `title` stands above it where no heading does, `note` says what is not drawn."""

    title: str
    data: Sequence[Spec]
    layout: Spec
    height: int
    note: str = ""


def ranking(sheet: Sheet) -> Figure | None:
    """The first measure of a sheet, the best on top, each row named on its own line."""
    measure = sheet.kind.measures[0]
    known = [
        (entry, entry.found[measure.key])
        for entry in sheet.entries
        if math.isfinite(entry.found[measure.key].mean)
    ]
    if len(known) < 2:
        return None
    shown = known[:MOST_ROWS]
    levels = dict(sheet.kind.level)
    if sheet.kind.bound:
        bounds = [entry.found[sheet.kind.bound].mean for entry, _ in shown]
        if bounds and all(math.isfinite(bound) for bound in bounds):
            levels["proved lower bound"] = max(bounds)
    means = [found.mean for _, found in shown]
    least, most = min([*means, *levels.values()]), max([*means, *levels.values()])
    room = max(most - least, 0.02 * abs(most))  # an interval may be wider than all there is to see
    floor = least - room if least < 0 else max(least - room, 0.0)  # no time is negative
    low, high = (
        min([least, *(found.low for _, found in shown if found.low < least)]),
        max([most, *(found.high for _, found in shown if found.high > most)]),
    )
    beyond = low < floor or high > most + room
    least, most = max(low, floor), min(high, most + room)
    logarithmic = least > 0 and most > WIDE * least
    rows = list(range(len(shown)))
    reach = [
        (0.0, 0.0)
        if not math.isfinite(found.low + found.high)
        else (found.mean - found.low, found.high - found.mean)
        for _, found in shown
    ]
    names = [entry.names[0] for entry, _ in shown]
    labels = []
    for row, (entry, found) in enumerate(shown):
        job = entry.job if names.count(names[row]) > 1 else None
        labels.append(_label(names[row], measure.text(found), row, job))
    points = {
        "type": "scatter", "mode": "markers", "x": means, "y": rows,
        "marker": {"color": BLUE, "size": 10},
        "error_x": {
            "type": "data", "symmetric": False, "array": [up for _, up in reach],
            "arrayminus": [down for down, _ in reach], "color": BLUE, "thickness": 1.6, "width": 4,
        },
        "text": [escape(" / ".join(entry.names)) for entry, _ in shown],
        "hovertemplate": "%{text}<br>%{x}<extra></extra>",
    }  # fmt: skip
    axis = {"title": {"text": escape(measure.label)}, "gridcolor": GRID, "zeroline": False}
    axis |= _range(least, most, logarithmic)
    middle = math.sqrt(least * most) if logarithmic else (least + most) / 2
    labels += [_level_name(name, value, middle, logarithmic) for name, value in levels.items()]
    layout = _layout(showlegend=False, annotations=labels)
    layout["xaxis"] = axis
    layout["yaxis"] = {
        "tickvals": rows, "showticklabels": False, "gridcolor": GRID, "zeroline": False,
        "range": [len(rows) - 0.4, -0.8], "fixedrange": True,
    }  # fmt: skip
    layout["shapes"] = [_level(value) for value in levels.values()]
    layout["margin"] |= {"t": 26 if levels else 8}
    note = ""
    if len(known) > len(shown):
        note = f"The best {len(shown)} of {len(known)} are drawn; the table has all. "
    if beyond:
        note += "Intervals that end at the edge go on beyond it."
    return Figure("", [points], layout, FRAME + ROW * len(rows), note.strip())


def learning_curves(job: Job) -> Iterator[Figure]:
    """What a training has logged, over its steps: every seed, and their mean."""
    columns = job.first.metrics
    if "charts/step_time_s_mean" in columns and "charts/best_objective" in columns:
        bound = job.first.result.get("lower_bound_s")
        level = {"proved lower bound": bound * 1e3} if _is_number(bound) else {}
        series = {
            "best so far": ("charts/best_objective", BLUE),
            "mean of an iteration": ("charts/step_time_s_mean", PALETTE[0]),
        }
        yield from _curves(job, series, "step time (ms)", 1e3, level)
    elif any(math.isfinite(score) for score in columns.get("exam/score", ())):
        series = {"exams": ("exam/score", BLUE)}
        yield from _curves(job, series, "mean JCT / reference's", 1.0, {"reference": 1.0})
    else:
        for name in list(columns)[1:]:
            yield from _curves(job, {name: (name, BLUE)}, name, 1.0, {})
            break


def _curves(
    job: Job,
    series: Mapping[str, tuple[str, str]],
    label: str,
    scale: float,
    levels: Mapping[str, float],
) -> Iterator[Figure]:
    steps = "charts/global_step"
    over = steps if steps in job.first.metrics else next(iter(job.first.metrics), "")
    data: list[Spec] = []
    for name, (column, colour) in series.items():
        lines = [line for run in job.runs if (line := _line(run, over, column, scale))]
        if len(lines) > 1:
            pale = mixed_with_white(colour, 0.45)
            for points in lines:
                data.append(_trace("one seed", points, pale, 1.0, showlegend=False, hover=False))
            shared = sorted(set(lines[0]).intersection(*lines[1:]))
            mean = {x: math.fsum(line[x] for line in lines) / len(lines) for x in shared}
            half = {x: half_width([line[x] for line in lines]) for x in shared}
            data.append(_band(shared, mean, half, colour))
            data.append(_trace(f"{name}, mean of {len(lines)} seeds", mean, colour, 2.4))
        elif lines:
            data.append(_trace(name, lines[0], colour, 2.2))
    if not data:
        return
    layout = _layout(annotations=[_height_name(name, value) for name, value in levels.items()])
    layout["xaxis"] = _axis("steps" if over == steps else over)
    layout["yaxis"] = _axis(label)
    layout["shapes"] = [_level(value, vertical=False) for value in levels.values()]
    yield Figure(f"Training: {label}", data, layout, 420)


def anytime(job: Job) -> Figure | None:
    """The best value so far over the seconds of search, of every planner in the first run."""
    result = job.first.result
    rows = result.get("methods")
    if isinstance(rows, list):
        named = [(str(row.get("method")), row) for row in rows if isinstance(row, Mapping)]
    else:
        named = [(str(result.get("agent")), result)]
    label, scale = ("step time (ms)", 1e3) if isinstance(rows, list) else ("objective", 1.0)
    found = []
    for name, row in named:
        trajectory = row.get("trajectory")
        if isinstance(trajectory, list) and len(trajectory) > 1:
            points = {
                float(pair[0]): float(pair[1]) * scale
                for pair in trajectory
                if isinstance(pair, list) and len(pair) == 2 and all(map(_is_number, pair))
            }
            if points:
                found.append((name, points))
    if len(found) == 1 and job.first.metrics:
        return None  # the curve of its training tells the same
    found.sort(key=lambda pair: min(pair[1].values()))
    data = [
        _trace(name, points, PALETTE[number], 2.0, steps=True)
        for number, (name, points) in enumerate(found[:MOST_LINES])
    ]
    if not data:
        return None
    layout = _layout()
    layout["xaxis"] = _axis("seconds of search") | {"rangemode": "tozero"}
    layout["yaxis"] = _axis(label)
    left_out = len(found) - len(data)
    note = f"The {MOST_LINES} best are drawn; {left_out} more have a curve." if left_out else ""
    return Figure("The best so far over the search", data, layout, 400, note)


@dataclass
class Bar:
    """A bar of a Gantt chart: what it is of, on which row, from when to when (seconds)."""

    kind: str
    row: float
    start: float
    end: float
    label: str
    number: int = 1  # of events in it


def gantt(run: RunFolder) -> Figure | None:
    """What happened when, of a trace in Chrome's format: devices, ports, or the GPUs of nodes."""
    lanes, bars, left_out = _bars_of(run.timeline)
    if not bars:
        return None
    span = max(bar.end for bar in bars) - min(0.0, *(bar.start for bar in bars))
    unit, seconds = next(
        (pair for pair in (("d", 86400.0), ("h", 3600.0), ("s", 1.0)) if span > 3 * pair[1]),
        ("ms", 1e-3),
    )
    kinds = dict.fromkeys(bar.kind for bar in bars)
    phases = set(kinds) <= set(PHASES)
    data = []
    for number, kind in enumerate(kinds):
        own = [bar for bar in bars if bar.kind == kind]
        colour = PHASES[kind] if phases else mixed_with_white(PALETTE[number % len(PALETTE)], 0.3)
        data.append(
            {
                "type": "bar", "orientation": "h", "name": escape(kind), "showlegend": phases,
                "base": [_rounded(bar.start / seconds) for bar in own],
                "x": [_rounded((bar.end - bar.start) / seconds) for bar in own],
                "y": [bar.row for bar in own],
                "width": [0.8 if phases else 1.0] * len(own),
                "marker": {"color": colour, "line": {"width": 0}},
                "text": [escape(bar.label) for bar in own], "textposition": "none",
                "hovertemplate": f"%{{text}}<br>from %{{base:.6g}} for %{{x:.6g}} {unit}"
                "<extra></extra>",
            }
        )  # fmt: skip
    layout = _layout(barmode="overlay", bargap=0)
    layout["xaxis"] = _axis(f"time since the start ({unit})") | {"rangemode": "tozero"}
    many = len(lanes) > NAMED_LANES and len({process for process, _ in lanes}) > 1
    names = (
        _groups(lanes) if many else {name: float(row) for row, name in enumerate(lanes.values())}
    )
    layout["yaxis"] = {
        "tickvals": list(names.values()),
        "ticktext": [_middle(name) for name in names],
        "range": [len(lanes) - 0.4, -0.6], "automargin": True, "tickfont": {"size": 11},
        "showgrid": False, "zeroline": False,
    }  # fmt: skip
    ends = [row for row, (this, after) in enumerate(pairwise(lanes)) if this[0] != after[0]]
    layout["shapes"] = [
        _level(row + 0.5, vertical=False, colour=PAGE, dash="solid") for row in ends
    ]
    note = f"{left_out:,} further bars are not drawn." if left_out else ""
    if not phases:
        note = f"A job has one colour; there are {len(PALETTE)} of them. {note}".strip()
    height = 110 + (THIN_LANE if many else LANE) * max(len(lanes), LEAST_LANES)
    return Figure(f"What ran when, seed {run.origin.get('seed')}", data, layout, height, note)


def _groups(lanes: Mapping[tuple[int, int], str]) -> dict[str, float]:
    """The middle row of every process, by the part of its rows' names before a comma."""
    rows: dict[int, list[int]] = {}
    for row, (process, _) in enumerate(lanes):
        rows.setdefault(process, []).append(row)
    names = list(lanes.values())
    return {names[own[0]].partition(",")[0]: sum(own) / len(own) for own in rows.values()}


def _bars_of(trace: Mapping[str, Any]) -> tuple[dict[tuple[int, int], str], list[Bar], int]:
    """Names of the rows by (process, thread); bars; how many events there is no room for."""
    events = trace.get("traceEvents")
    processes: dict[int, str] = {}
    lanes: dict[tuple[int, int], str] = {}
    spans: list[tuple[tuple[int, int], float, float, str, str]] = []
    for event in events if isinstance(events, list) else ():
        if not isinstance(event, Mapping):
            continue
        place = (event.get("pid", 0), event.get("tid", 0))
        given = event.get("args")
        given = given if isinstance(given, Mapping) else {}
        if not all(isinstance(number, int) for number in place):
            continue
        if event.get("ph") == "M" and event.get("name") == "thread_name":
            lanes[place] = str(given.get("name"))
        elif event.get("ph") == "M" and event.get("name") == "process_name":
            processes[place[0]] = str(given.get("name"))
        elif (
            event.get("ph") == "X" and _is_number(event.get("ts")) and _is_number(event.get("dur"))
        ):
            start, lasts = event["ts"] * 1e-6, event["dur"] * 1e-6
            part = f", micro-batch {given['micro_batch']}" if "micro_batch" in given else ""
            kind = str(event.get("cat"))
            label = f"{kind}{part}" if kind in PHASES and part else str(event.get("name"))
            if lasts > 0:
                spans.append((place, start, start + lasts, kind, label))
    used = {place for place, *_ in spans}
    order = [place for place in lanes if place in used]
    order += sorted(used - set(order))
    names = {
        place: lanes.get(place, f"{processes.get(place[0], place[0])} {place[1]}")
        for place in order
    }
    row = {place: number for number, place in enumerate(order)}
    length = max((end for _, _, end, _, _ in spans), default=0.0)
    bars: list[Bar] = []
    last: dict[tuple[int, int], Bar] = {}
    for place, start, end, kind, label in sorted(spans, key=lambda span: span[1]):
        before = last.get(place)
        alike = before is not None and (before.kind, before.label) == (kind, label)
        if before is not None and alike and start - before.end <= MERGE * length:
            before.end, before.number = max(before.end, end), before.number + 1
        else:
            last[place] = Bar(kind, row[place], start, end, label)
            bars.append(last[place])
    return names, bars[:MOST_BARS], max(0, len(bars) - MOST_BARS)


def _line(run: RunFolder, over: str, column: str, scale: float) -> dict[float, float]:
    """Points of a column; at most `MOST_POINTS` of them, evenly, the last always."""
    pairs = [
        (x, y * scale)
        for x, y in zip(run.metrics.get(over, ()), run.metrics.get(column, ()), strict=False)
        if math.isfinite(x) and math.isfinite(y)
    ]
    step = max(1, math.ceil(len(pairs) / MOST_POINTS))
    return dict([*pairs[::step], *pairs[-1:]])


def _trace(
    name: str,
    points: Mapping[float, float],
    colour: str,
    width: float,
    *,
    steps: bool = False,
    showlegend: bool = True,
    hover: bool = True,
) -> Spec:
    shape = {"shape": "hv"} if steps else {}
    few = len(points) <= 30
    return {
        "type": "scatter", "mode": "lines+markers" if few else "lines", "name": escape(name),
        "x": [_rounded(x) for x in points], "y": [_rounded(y) for y in points.values()],
        "line": {"color": colour, "width": width, **shape}, "marker": {"size": 5},
        "showlegend": showlegend,
        "hovertemplate": "%{x:,.4g}: %{y:.5g}<extra>" + escape(name) + "</extra>",
    } | ({} if hover else {"hoverinfo": "skip", "hovertemplate": None})  # fmt: skip


def _band(
    steps: Sequence[float], mean: Mapping[float, float], half: Mapping[float, float], colour: str
) -> Spec:
    """The interval of the mean, there and back."""
    upper = [_rounded(mean[x] + half[x]) for x in steps]
    lower = [_rounded(mean[x] - half[x]) for x in reversed(steps)]
    red, green, blue = (int(colour[place : place + 2], 16) for place in (1, 3, 5))
    return {
        "type": "scatter", "mode": "lines", "fill": "toself", "line": {"width": 0},
        "fillcolor": f"rgba({red},{green},{blue},0.18)", "x": [*steps, *reversed(steps)],
        "y": [*upper, *lower], "showlegend": False, "hoverinfo": "skip",
    }  # fmt: skip


def _layout(**more: Any) -> Spec:
    return {
        "paper_bgcolor": "rgba(0,0,0,0)", "plot_bgcolor": "rgba(0,0,0,0)",
        "font": {"color": INK, "size": 13, "family": "system-ui, sans-serif"},
        "margin": {"l": 12, "r": 16, "t": 12, "b": 46},
        "legend": {"orientation": "h", "x": 0, "y": -0.22, "yanchor": "top", "font": {"size": 12}},
        "hoverlabel": {"font": {"size": 12}}, "dragmode": False,
        **more,
    }  # fmt: skip


def _axis(label: str) -> Spec:
    return {
        "title": {"text": escape(label), "standoff": 8}, "gridcolor": GRID, "linecolor": GRID,
        "zeroline": False, "automargin": True,
    }  # fmt: skip


def _range(least: float, most: float, logarithmic: bool) -> Spec:
    if logarithmic:
        low, high = math.log10(least), math.log10(most)
        margin = 0.06 * (high - low)
        return {"type": "log", "range": [low - margin, high + margin], "dtick": 1}
    margin = 0.06 * (most - least) or 0.06 * abs(most) or 1.0
    return {"range": [least - margin, most + margin]}


def _level(value: float, *, vertical: bool = True, colour: str = INK, dash: str = "dot") -> Spec:
    line = {"color": colour, "dash": dash, "width": 1.4}
    if vertical:
        return {
            "type": "line", "x0": value, "x1": value, "yref": "paper", "y0": 0, "y1": 1,
            "line": line,
        }  # fmt: skip
    return {
        "type": "line",
        "y0": value,
        "y1": value,
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "line": line,
    }


def _level_name(name: str, value: float, middle: float, logarithmic: bool) -> Spec:
    """The name on top of a vertical line, on the side where there is more room."""
    return {
        "text": f"{escape(name)} {value:,.4g}", "showarrow": False, "font": {"size": 12},
        "x": math.log10(value) if logarithmic else value, "yref": "paper", "y": 1,
        "yanchor": "bottom", "xanchor": "left" if value <= middle else "right",
    }  # fmt: skip


def _height_name(name: str, value: float) -> Spec:
    """The name at the right end of a horizontal line."""
    return {
        "text": f"{escape(name)} {value:,.4g}", "showarrow": False, "font": {"size": 12},
        "xref": "paper", "x": 1, "xanchor": "right", "y": value, "yanchor": "bottom",
    }  # fmt: skip


def _label(name: str, value: str, row: int, job: Job | None) -> Spec:
    """A name and its value above their row; the run as well where another has the same name."""
    run = f" [{job.number}]" if job is not None else ""
    return {
        "text": f"<b>{_short(name)}</b>{run}  {value}", "xref": "paper", "x": 0, "xanchor": "left",
        "y": row, "yanchor": "bottom", "yshift": 6, "showarrow": False, "align": "left",
        "font": {"size": 12}, "bgcolor": PAGE, "borderpad": 1,
    }  # fmt: skip


def _short(name: str, most: int = 34) -> str:
    return escape(name if len(name) <= most else f"{name[: most - 1]}…")


def _middle(name: str, most: int = 24) -> str:
    """Names that differ at their ends, cut in the middle."""
    half = most // 2
    return escape(name if len(name) <= most else f"{name[:half]}…{name[-half:]}")


def _rounded(value: float) -> float | None:
    return float(f"{value:.7g}") if math.isfinite(value) else None


def _is_number(value: object) -> TypeGuard[float]:
    return is_number(value) and math.isfinite(value)
