"""Interactive figures for plotly.js; what all have in common is the template of `page.SCRIPT`."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from html import escape
from itertools import pairwise
from typing import Any, TypeGuard

import numpy as np
import polars as pl

from experiments.pictures.style import BLUE, GREEN, ORANGE, PALETTE, PURPLE, mixed_with_white
from experiments.reporting.measures import is_number
from experiments.reporting.run_folder import RunFolder
from experiments.reporting.sheets import Job, Sheet
from experiments.study.statistics import half_width

MOST_ROWS, MOST_LINES, MOST_POINTS, MOST_BARS = 40, 8, 500, 6000
ROW, FRAME = 38, 96  # pixels of a row of a ranking; of a figure around its rows
LANE, THIN_LANE, LEAST_LANES = 24, 9, 8  # pixels of a device or GPU in a Gantt chart; of few, many
NAMED_LANES = 24  # up to which every lane has its name, beyond its node's
WIDE = 20.0  # times between the least and the largest value from which an axis is logarithmic
MERGE = 5e-4  # share of the time below which neighbours of one kind in a Gantt chart are one bar
MARGIN = 0.06  # of an axis, at both ends
DIGITS = 7  # significant, of what is drawn
LINE = "%{x:,.4g}: %{y:.5g}<extra>%{fullData.name}</extra>"  # beside the mouse
PHASES = {
    "forward": BLUE, "backward": ORANGE, "optimizer": GREEN, "transfer": PURPLE,
}  # fmt: skip

LIGHTER = {own: mixed_with_white(own, 0.3) for own in PALETTE}
IN_THE_DARK = {**LIGHTER, "#ffffff": "#0d1117"}  # on a dark page


@dataclass(frozen=True)
class Figure:
    """One figure; `title` stands above it where no heading does, `note` says what is not drawn."""

    title: str
    drawn: Any  # plotly's
    note: str = ""


def ranking(sheet: Sheet) -> Figure | None:
    """The first measure of a sheet, the best on top, each row named on its own line."""
    from plotly import graph_objects as go

    measure, levels = sheet.kind.measures[0], dict(sheet.kind.level)
    known = [entry for entry in sheet.entries if math.isfinite(entry.found[measure.key].mean)]
    if len(known) < 2:
        return None
    shown = known[:MOST_ROWS]
    found = [entry.found[measure.key] for entry in shown]
    if sheet.kind.bound:
        bound = max(entry.found[sheet.kind.bound].mean for entry in shown)
        levels |= {"proved lower bound": bound} if math.isfinite(bound) else {}
    mean = np.array([x.mean for x in found])
    ends = np.array([(x.low, x.high) for x in found]).T
    low, high = np.where(np.isfinite(ends).all(axis=0), ends, mean)
    least, most = (f([*mean, *levels.values()]) for f in (min, max))
    room = max(most - least, 0.02 * abs(most))  # an interval may be wider than all there is to see
    floor = least - room if least < 0 else max(least - room, 0.0)  # no time is negative
    beyond = low.min() < floor or high.max() > most + room
    least, most = max(min(least, low.min()), floor), min(max(most, high.max()), most + room)
    logarithmic = least > 0 and most > WIDE * least
    names = [entry.names[0] for entry in shown]
    points = go.Scatter(
        mode="markers", x=mean, y=np.arange(len(mean)), marker={"color": BLUE, "size": 10},
        error_x={"array": high - mean, "arrayminus": mean - low, "color": BLUE},
        text=[escape(" / ".join(entry.names)) for entry in shown],
        hovertemplate="%{text}<br>%{x}<extra></extra>",
    )  # fmt: skip
    figure = _figure(points, height=FRAME + ROW * len(mean), x=measure.label, y="")
    place = np.log10 if logarithmic else float
    edges = [place(least), place(most)]
    margin = MARGIN * (edges[1] - edges[0]) or MARGIN * abs(most) or 1.0
    figure.update_xaxes(range=[edges[0] - margin, edges[1] + margin])
    if logarithmic:
        figure.update_xaxes(type="log", dtick=1)
    figure.update_yaxes(showticklabels=False, range=[len(mean) - 0.4, -0.8], tickvals=points.y)
    for row, (entry, name) in enumerate(zip(shown, names, strict=True)):
        run = f" [{entry.job.number}]" if names.count(name) > 1 else ""
        short = escape(name if len(name) <= 34 else f"{name[:33]}…")
        text = f"<b>{short}</b>{run}  {measure.text(found[row])}"
        figure.add_annotation(
            text=text, xref="paper", x=0, y=row, xanchor="left", yanchor="bottom", yshift=6
        )
    for name, value in levels.items():  # named on the side where there is more room
        side = "left" if place(value) <= sum(edges) / 2 else "right"
        text = f"{escape(name)} {value:,.4g}"
        figure.add_vline(value)
        figure.add_annotation(
            text=text, x=place(value), yref="paper", y=1, yanchor="bottom", xanchor=side
        )
    figure.update_layout(margin_t=26 if levels else 8, showlegend=False)
    note = ""
    if len(known) > len(shown):
        note = f"The best {len(shown)} of {len(known)} are drawn; the table has all. "
    if beyond:
        note += "Intervals that end at the edge go on beyond it."
    return Figure("", figure, note.strip())


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
        for name in list(columns)[1:2]:
            yield from _curves(job, {name: (name, BLUE)}, name, 1.0, {})


def _curves(
    job: Job,
    series: Mapping[str, tuple[str, str]],
    label: str,
    scale: float,
    levels: Mapping[str, float],
) -> Iterator[Figure]:
    steps = "charts/global_step"
    over = steps if steps in job.first.metrics else next(iter(job.first.metrics), "")
    figure = _figure(height=420, x="steps" if over == steps else over, y=label)
    for name, (column, colour) in series.items():
        lines = [line for run in job.runs if (line := _line(run, over, column, scale))]
        curve: dict[str, Any] = {"name": escape(name), "line": {"color": colour, "width": 2.3}}
        if len(lines) > 1:
            silent = {"showlegend": False, "hoverinfo": "skip", "mode": "lines"}
            pale = {"color": mixed_with_white(colour, 0.45), "width": 1}
            for line in lines:
                figure.add_scatter(x=list(line), y=list(line.values()), line=pale, **silent)
            shared = sorted(set(lines[0]).intersection(*lines[1:]))
            mean = np.array([math.fsum(line[x] for line in lines) / len(lines) for x in shared])
            half = np.array([half_width([line[x] for line in lines]) for x in shared])
            figure.add_scatter(
                x=[*shared, *shared[::-1]], y=[*(mean + half), *(mean - half)[::-1]],
                fill="toself", fillcolor=colour, opacity=0.18, line_width=0, **silent,
            )  # fmt: skip
            lines = [dict(zip(shared, mean, strict=True))]
            curve["name"] += f", mean of {len(job.runs)} seeds"
        for line in lines:
            mode = "lines+markers" if len(line) <= 30 else "lines"
            points = {"x": list(line), "y": list(line.values()), "mode": mode}
            figure.add_scatter(**points, hovertemplate=LINE, **curve)
    if not figure.data:
        return
    for name, value in levels.items():
        text = f"{escape(name)} {value:,.4g}"
        figure.add_hline(value, annotation={"text": text, "bgcolor": "rgba(0,0,0,0)"})
    yield Figure(f"Training: {label}", figure)


def anytime(job: Job) -> Figure | None:
    """The best value so far over the seconds of search, of every planner in the first run."""
    from plotly import express as px

    result = job.first.result
    rows = result.get("methods")
    several = isinstance(rows, list)
    found = {}
    for row in rows if isinstance(rows, list) else [{**result, "method": result.get("agent")}]:
        trajectory = row.get("trajectory") if isinstance(row, Mapping) else None
        if isinstance(trajectory, list) and len(trajectory) > 1:
            points = [
                (float(pair[0]), float(pair[1]) * (1e3 if several else 1.0))
                for pair in trajectory
                if isinstance(pair, list) and len(pair) == 2 and all(map(_is_number, pair))
            ]
            if points:
                found[escape(str(row["method"]))] = points
    if not found or (len(found) == 1 and job.first.metrics):
        return None  # the curve of its training tells the same
    best = sorted(found, key=lambda name: min(y for _, y in found[name]))[:MOST_LINES]
    rows = [(name, *point) for name in best for point in found[name]]
    frame = pl.DataFrame(rows, ["planner", "x", "y"], orient="row")
    drawn = px.line(
        frame, "x", "y", color="planner", line_shape="hv", color_discrete_sequence=PALETTE
    )
    label = "step time (ms)" if several else "objective"
    figure = _figure(*drawn.data, height=400, x="seconds of search", y=label)
    figure.update_traces(hovertemplate=LINE, mode="lines+markers").update_xaxes(rangemode="tozero")
    left_out = len(found) - len(best)
    note = f"The {MOST_LINES} best are drawn; {left_out} more have a curve." if left_out else ""
    return Figure("The best so far over the search", figure, note)


def gantt(run: RunFolder) -> Figure | None:
    """What happened when, of a trace in Chrome's format: devices, ports, or the GPUs of nodes."""
    from plotly import express as px

    lanes, bars = _bars_of(run.timeline)
    if not bars:
        return None
    frame = pl.DataFrame(bars[:MOST_BARS], ["kind", "row", "start", "end", "label"], orient="row")
    span = max(bar[3] for bar in bars) - min(0.0, *(bar[2] for bar in bars))
    units = {"d": 86400.0, "h": 3600.0, "s": 1.0}
    unit = next((name for name, seconds in units.items() if span > 3 * seconds), "ms")
    seconds = units.get(unit, 1e-3)
    phases = {bar[0] for bar in bars} <= set(PHASES)
    start, lasts = pl.col("start") / seconds, (pl.col("end") - pl.col("start")) / seconds
    drawn = px.bar(
        frame.with_columns(start.round_sig_figs(DIGITS), lasts=lasts.round_sig_figs(DIGITS)),
        "lasts", "row", "kind", base="start", custom_data=["label"], orientation="h",
        color_discrete_sequence=list(LIGHTER.values()),
        color_discrete_map=PHASES if phases else {},
    )  # fmt: skip
    many = len(lanes) > NAMED_LANES and len({process for process, _ in lanes}) > 1
    height = 110 + (THIN_LANE if many else LANE) * max(len(lanes), LEAST_LANES)
    figure = _figure(*drawn.data, height=height, x=f"time since the start ({unit})", y="")
    hover = f"%{{customdata[0]}}<br>from %{{base:.6g}} for %{{x:.6g}} {unit}<extra></extra>"
    figure.update_traces(
        width=0.8 if phases else 1.0, marker_line_width=0, hovertemplate=hover, showlegend=phases
    )
    figure.update_xaxes(rangemode="tozero")
    middles: dict[str, list[int]] = {}  # rows of every process, by the name before a comma
    first = {process: name for (process, _), name in reversed(lanes.items())}
    for row, ((process, _), name) in enumerate(lanes.items()):
        middles.setdefault(first[process].partition(",")[0] if many else name, []).append(row)
    short = [name if len(name) <= 24 else f"{name[:12]}…{name[-12:]}" for name in middles]
    figure.update_yaxes(
        tickvals=[sum(own) / len(own) for own in middles.values()], ticktext=short,
        range=[len(lanes) - 0.4, -0.6], showgrid=False, tickfont_size=11,
    )  # fmt: skip
    for row, (this, after) in enumerate(pairwise(lanes)):
        if this[0] != after[0]:
            figure.add_hline(row + 0.5, line={"color": "#ffffff", "dash": "solid"})
    figure.update_layout(barmode="overlay", bargap=0)
    left_out = len(bars) - MOST_BARS
    note = f"{left_out:,} further bars are not drawn." if left_out > 0 else ""
    if not phases:
        note = f"A job has one colour; there are {len(PALETTE)} of them. {note}".strip()
    return Figure(f"What ran when, seed {run.origin.get('seed')}", figure, note)


Bar = tuple[str, int, float, float, str]  # kind, row, from when to when in seconds, label


def _bars_of(trace: Mapping[str, Any]) -> tuple[dict[tuple[int, int], str], list[Bar]]:
    """Names of the rows by (process, thread), and bars in the order in which they begin."""
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
        kind, name = event.get("ph"), escape(str(given.get("name")))
        if kind == "M" and event.get("name") == "thread_name":
            lanes[place] = name
        elif kind == "M" and event.get("name") == "process_name":
            processes[place[0]] = name
        elif kind == "X" and _is_number(event.get("ts")) and _is_number(event.get("dur")):
            start, lasts = event["ts"] * 1e-6, event["dur"] * 1e-6
            part = f", micro-batch {given['micro_batch']}" if "micro_batch" in given else ""
            kind = str(event.get("cat"))
            label = f"{kind}{part}" if kind in PHASES and part else str(event.get("name"))
            if lasts > 0:
                spans.append((place, start, start + lasts, escape(kind), escape(label)))
    used = {place for place, *_ in spans}
    order = [place for place in lanes if place in used]
    order += sorted(used - set(order))
    names = {p: lanes.get(p, f"{processes.get(p[0], p[0])} {p[1]}") for p in order}
    row = {place: number for number, place in enumerate(order)}
    length = max((end for _, _, end, _, _ in spans), default=0.0)
    bars: list[Bar] = []
    last: dict[tuple[int, int], int] = {}
    for place, start, end, kind, label in sorted(spans, key=lambda span: span[1]):
        number = last.get(place)
        before = None if number is None else bars[number]
        alike = before is not None and (before[0], before[4]) == (kind, label)
        if (
            number is not None
            and before is not None
            and alike
            and start - before[3] <= MERGE * length
        ):
            bars[number] = (kind, row[place], before[2], max(before[3], end), label)
        else:
            last[place] = len(bars)
            bars.append((kind, row[place], start, end, label))
    return names, bars


def _line(run: RunFolder, over: str, column: str, scale: float) -> dict[float, float]:
    """Points of a column; at most `MOST_POINTS` of them, evenly, the last always."""
    pairs = [
        (x, y * scale)
        for x, y in zip(run.metrics.get(over, ()), run.metrics.get(column, ()), strict=False)
        if math.isfinite(x) and math.isfinite(y)
    ]
    step = max(1, math.ceil(len(pairs) / MOST_POINTS))
    return dict([*pairs[::step], *pairs[-1:]])


def _figure(*data: Any, height: int, x: str, y: str) -> Any:
    from plotly import graph_objects as go

    figure = go.Figure(data).update_layout(template=None, height=height)
    return figure.update_xaxes(title_text=escape(x)).update_yaxes(title_text=escape(y))


def _is_number(value: object) -> TypeGuard[float]:
    return is_number(value) and math.isfinite(value)
