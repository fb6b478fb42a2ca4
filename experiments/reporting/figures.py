"""Interactive figures for plotly.js; what all have in common is the template of `page.js`."""

from __future__ import annotations

import math
from collections.abc import Mapping
from html import escape
from itertools import islice, pairwise
from typing import Any, NamedTuple, TypeGuard

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
LONG_NAME = 34  # characters
WIDE = 20.0  # times between the least and the largest value from which an axis is logarithmic
MERGE = 5e-4  # share of the time below which neighbours of one kind in a Gantt chart are one bar
MARGIN = 0.06  # of an axis, at both ends
STEPS = "charts/global_step"  # of the metrics
DIGITS = 7  # significant, of what is drawn
LINE = "%{x:,.4g}: %{y:.5g}<extra>%{fullData.name}</extra>"  # beside the mouse
PHASES = {
    "forward": BLUE, "backward": ORANGE, "optimizer": GREEN, "transfer": PURPLE,
}  # fmt: skip
UNITS = {"d": 86400.0, "h": 3600.0, "s": 1.0, "ms": 1e-3}  # seconds

LIGHTER = {own: mixed_with_white(own, 0.3) for own in PALETTE}
IN_THE_DARK = {**LIGHTER, "#ffffff": "#0d1117"}  # on a dark page


class Figure(NamedTuple):
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
    mean, low, high = np.array([(x.mean, x.low, x.high) for x in found]).T
    low, high = np.where(np.isfinite(low + high), [low, high], mean)
    least, most = (f([*mean, *levels.values()]) for f in (min, max))
    room = max(most - least, 0.02 * abs(most))  # an interval may be wider than all there is to see
    floor = least - room if least < 0 else max(least - room, 0.0)  # no time is negative
    beyond = low.min() < floor or high.max() > most + room
    least, most = max(min(least, low.min()), floor), min(max(most, high.max()), most + room)
    logarithmic = least > 0 and most > WIDE * least
    names, rows = [entry.names[0] for entry in shown], np.arange(len(shown))
    points = go.Scatter(
        mode="markers", x=mean, y=rows, marker={"color": BLUE, "size": 10},
        error_x={"array": high - mean, "arrayminus": mean - low, "color": BLUE},
        text=[escape(" / ".join(entry.names)) for entry in shown],
        hovertemplate="%{text}<br>%{x}<extra></extra>",
    )  # fmt: skip
    figure = _figure(points, height=FRAME + ROW * len(shown), x=measure.label, y="")
    ends = np.log10([least, most]) if logarithmic else np.array([least, most])
    margin = MARGIN * np.ptp(ends) or MARGIN * abs(most) or 1.0
    axis = {"type": "log", "dtick": 1} if logarithmic else {}
    figure.update_xaxes(range=[ends[0] - margin, ends[1] + margin], **axis)
    figure.update_yaxes(showticklabels=False, range=[len(rows) - 0.4, -0.8], tickvals=rows)
    for row, (entry, name) in enumerate(zip(shown, names, strict=True)):
        run = f" [{entry.job.number}]" if names.count(name) > 1 else ""
        short = escape(name if len(name) <= LONG_NAME else f"{name[: LONG_NAME - 1]}…")
        figure.add_annotation(
            text=f"<b>{short}</b>{run}  {measure.text(found[row])}", xref="paper", x=0, y=row,
            xanchor="left", yanchor="bottom", yshift=6,
        )  # fmt: skip
    for name, value in levels.items():  # named on the side where there is more room
        place = np.log10(value) if logarithmic else value
        side = "left" if place <= ends.mean() else "right"
        words = {"text": f"{escape(name)} {value:,.4g}", "textangle": 0, "xanchor": side}
        figure.add_vline(value, label={**words, "textposition": "end", "yanchor": "bottom"})
    figure.update_layout(margin_t=26 if levels else 8, showlegend=False)
    note = ""
    if len(known) > len(shown):
        note = f"The best {len(shown)} of {len(known)} are drawn; the table has all. "
    if beyond:
        note += "Intervals that end at the edge go on beyond it."
    return Figure("", figure, note.strip())


def learning_curve(job: Job) -> Figure | None:
    """What a training has logged, over its steps: every seed, and their mean."""
    logged, label, scale = job.first.metrics, "step time (ms)", 1e3
    levels: Mapping[str, float] = {}
    series = {
        "best so far": "charts/best_objective", "mean of an iteration": "charts/step_time_s_mean",
    }  # fmt: skip
    if logged.keys() >= set(series.values()):
        bound = job.first.result.get("lower_bound_s")
        levels = {"proved lower bound": bound * 1e3} if _is_number(bound) else {}
    elif any(map(math.isfinite, logged.get("exam/score", ()))):
        label, scale, levels = "mean JCT / reference's", 1.0, {"reference": 1.0}
        series = {"exams": "exam/score"}
    else:
        label, scale = next(islice(logged, 1, None), ""), 1.0
        series = {label: label}
    over = STEPS if STEPS in logged else next(iter(logged), "")
    figure = _figure(height=420, x="steps" if over == STEPS else over, y=label)
    for colour, (name, column) in zip((BLUE, PALETTE[0]), series.items(), strict=False):
        lines = [line for run in job.runs if (line := _line(run, over, column, scale))]
        named = escape(name)
        if len(lines) > 1:
            silent = {"showlegend": False, "hoverinfo": "skip", "mode": "lines"}
            pale = {"color": mixed_with_white(colour, 0.45), "width": 1}
            for line in lines:
                figure.add_scatter(x=list(line), y=list(line.values()), line=pale, **silent)
            shared = sorted(set(lines[0]).intersection(*lines[1:]))
            values = np.array([[line[x] for x in shared] for line in lines])
            mean, half = values.mean(axis=0), np.array([half_width(own) for own in values.T])
            figure.add_scatter(
                x=[*shared, *shared[::-1]], y=[*(mean + half), *(mean - half)[::-1]],
                fill="toself", fillcolor=colour, opacity=0.18, line_width=0, **silent,
            )  # fmt: skip
            lines = [dict(zip(shared, mean, strict=True))]
            named += f", mean of {len(job.runs)} seeds"
        for line in lines:
            figure.add_scatter(
                x=list(line), y=list(line.values()), name=named, hovertemplate=LINE,
                mode="lines+markers" if len(line) <= 30 else "lines",
                line={"color": colour, "width": 2.3},
            )  # fmt: skip
    for name, value in levels.items():
        text = f"{escape(name)} {value:,.4g}"
        figure.add_hline(value, annotation={"text": text, "bgcolor": "rgba(0,0,0,0)"})
    return Figure(f"Training: {label}", figure) if figure.data else None


def _line(run: RunFolder, over: str, column: str, scale: float) -> dict[float, float]:
    """Points of a column; at most `MOST_POINTS` of them, evenly, the last always."""
    pairs = [
        (x, y * scale)
        for x, y in zip(run.metrics.get(over, ()), run.metrics.get(column, ()), strict=False)
        if math.isfinite(x) and math.isfinite(y)
    ]
    step = max(1, math.ceil(len(pairs) / MOST_POINTS))
    return dict([*pairs[::step], *pairs[-1:]])


def anytime(job: Job) -> Figure | None:
    """The best value so far over the seconds of search, of every planner in the first run."""
    from plotly import express as px

    result, label, scale, found = job.first.result, "step time (ms)", 1e3, []
    rows: Any = result.get("methods")
    if not isinstance(rows, list):
        rows, label, scale = [{**result, "method": result.get("agent")}], "objective", 1.0
    for row in rows:
        trajectory = row.get("trajectory") if isinstance(row, Mapping) else None
        if isinstance(trajectory, list) and len(trajectory) > 1:
            found += [
                (escape(str(row["method"])), float(pair[0]), float(pair[1]) * scale)
                for pair in trajectory
                if isinstance(pair, list) and len(pair) == 2 and all(map(_is_number, pair))
            ]
    points = pl.DataFrame(found, ["planner", "x", "y"], orient="row")
    best = points.group_by("planner", maintain_order=True).min().sort("y")["planner"].to_list()
    if not best or (len(best) == 1 and job.first.metrics):
        return None  # the curve of its training tells the same
    drawn = px.line(
        points.filter(pl.col("planner").is_in(best[:MOST_LINES])), "x", "y", color="planner",
        line_shape="hv", color_discrete_sequence=PALETTE, category_orders={"planner": best},
    )  # fmt: skip
    figure = _figure(*drawn.data, height=400, x="seconds of search", y=label)
    figure.update_traces(hovertemplate=LINE, mode="lines+markers").update_xaxes(rangemode="tozero")
    left_out = len(best) - MOST_LINES
    note = f"The {MOST_LINES} best are drawn; {left_out} more have a curve." if left_out > 0 else ""
    return Figure("The best so far over the search", figure, note)


def gantt(run: RunFolder) -> Figure | None:
    """What happened when, of a trace in Chrome's format: devices, ports, or the GPUs of nodes."""
    from plotly import express as px

    lanes, bars = _bars_of(run.timeline)
    if not bars:
        return None
    span = max(bar["end"] for bar in bars) - min(0.0, *(bar["start"] for bar in bars))
    unit = next((name for name, seconds in UNITS.items() if span > 3 * seconds), "ms")
    phases = {bar["kind"] for bar in bars} <= set(PHASES)
    start, end = pl.col("start") / UNITS[unit], pl.col("end") / UNITS[unit]
    drawn = px.bar(
        pl.DataFrame(bars[:MOST_BARS]).with_columns(
            start.round_sig_figs(DIGITS), lasts=(end - start).round_sig_figs(DIGITS)
        ),
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
    named: dict[str, list[int]] = {}  # rows of every process, by the name before a comma
    first = {process: name for (process, _), name in reversed(lanes.items())}
    for row, ((process, _), name) in enumerate(lanes.items()):
        named.setdefault(first[process].partition(",")[0] if many else name, []).append(row)
    figure.update_yaxes(
        tickvals=[np.mean(rows) for rows in named.values()],
        ticktext=[name if len(name) <= 24 else f"{name[:12]}…{name[-12:]}" for name in named],
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
    return Figure(f"What ran when, seed {run.seed}", figure, note)


Lane = tuple[int, int]  # process, thread


def _bars_of(trace: Mapping[str, Any]) -> tuple[dict[Lane, str], list[dict[str, Any]]]:
    """Names of the rows by their lanes, and bars in the order in which they begin."""
    processes: dict[int, str] = {}
    named: dict[Lane, str] = {}
    spans: list[tuple[float, float, Lane, str, str]] = []  # start, end, lane, kind, label
    events = trace.get("traceEvents")
    for event in events if isinstance(events, list) else ():
        match event:
            case {"ph": "M", "name": "process_name", "pid": int(process), "args": {"name": name}}:
                processes[process] = escape(str(name))
            case {
                "ph": "M",
                "name": "thread_name",
                "pid": int(process),
                "tid": int(thread),
                "args": {"name": name},
            }:
                named[process, thread] = escape(str(name))
            case {"ph": "X", "pid": int(process), "tid": int(thread), "ts": start, "dur": lasts}:
                if not (_is_number(start) and _is_number(lasts) and lasts > 0):
                    continue
                kind, label = str(event.get("cat")), str(event.get("name"))
                match event:
                    case {"cat": phase, "args": {"micro_batch": part}} if phase in PHASES:
                        label = f"{kind}, micro-batch {part}"
                begin, end = start * 1e-6, start * 1e-6 + lasts * 1e-6
                spans.append((begin, end, (process, thread), escape(kind), escape(label)))
    used = {lane for _, _, lane, _, _ in spans}
    order = [lane for lane in named if lane in used] + sorted(used - set(named))
    rows = {lane: number for number, lane in enumerate(order)}
    gap = MERGE * max((end for _, end, *_ in spans), default=0.0)
    bars: list[dict[str, Any]] = []
    last: dict[Lane, dict[str, Any]] = {}
    for start, end, lane, kind, label in sorted(spans, key=lambda span: span[0]):
        own = {"kind": kind, "row": rows[lane], "start": start, "end": end, "label": label}
        before = last.get(lane)
        alike = before and (before["kind"], before["label"]) == (kind, label)
        if before and alike and start - before["end"] <= gap:
            before["end"] = max(before["end"], end)
        else:
            last[lane] = own
            bars.append(own)
    return {x: named.get(x, f"{processes.get(x[0], x[0])} {x[1]}") for x in order}, bars


def _figure(*data: Any, height: int, x: str, y: str) -> Any:
    from plotly import graph_objects as go

    figure = go.Figure(data).update_layout(template=None, height=height)
    return figure.update_xaxes(title_text=escape(x)).update_yaxes(title_text=escape(y))


def _is_number(value: object) -> TypeGuard[float]:
    return is_number(value) and math.isfinite(value)
