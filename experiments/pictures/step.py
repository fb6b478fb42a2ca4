"""One step: its Gantt chart, its trace for Perfetto, and searches for a better plan over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from envs.arrays import FloatArray, IntArray
from envs.graphs.op_graph import Kind, Phase
from envs.hybrid.simulation import HybridStep
from envs.step.pipeline import Pipeline, PlayedPipeline, Work
from envs.step.problem import StepProblem
from envs.step.timeline import Timeline
from experiments.pictures.perfetto import Event, happened, process, thread
from experiments.pictures.style import (
    BLUE,
    GIVEN_UP,
    GREEN,
    LIMIT,
    MOST_NAMED,
    NOTE,
    ORANGE,
    OTHERS,
    PALETTE,
    PURPLE,
    SMALL,
    TEXT,
    frame,
    line,
    mixed_with_white,
    name_at_end,
    new_figure,
    titled,
)

PHASE_COLOURS = {Phase.FORWARD: BLUE, Phase.BACKWARD: ORANGE, Phase.OPTIMIZER: GREEN}
TRANSFER_COLOUR, SUM_COLOUR = PURPLE, PALETTE[6]
HIGHEST, LEAST_SCALE = 8.0, 0.55  # inches that rows are made lower to fit in, and how far at most
DEVICE_HEIGHT, PORT_HEIGHT = 0.86, 0.34
MERGE_GAP = 2e-4  # operators of one micro-batch closer than this share of the step are one bar
LABEL_WIDTH = 0.012  # a bar narrower than this share of the step carries no number
LIGHTEST = 0.62  # how far the first micro-batch is mixed with white


def draw_gantt(
    problem: StepProblem,
    timeline: Timeline,
    title: str,
    names: Mapping[int, str] | None = None,
    bound_s: float = 0.0,
) -> Figure:
    """Devices as rows, under them the ports that carry transfers as thin rows.

    Colour tells the phase, its depth the micro-batch (light: first, dark: last), the number in a
    bar the micro-batch too. At the right of each device: the share of the step it computes.
    With `names` only devices that these name are rows. A dotted line marks a lower bound.
    """
    graph, topology = problem.graph, problem.topology
    scale, unit = (1e3, "ms") if timeline.step_time < 10 else (1.0, "s")
    end = timeline.step_time * scale
    ports = _used_ports(problem, timeline)
    if names is None:
        names = {
            number: d.name if d.spec.name in d.name else f"{d.name}\n{d.spec.name}"
            for number, d in enumerate(topology.devices)
        }
    height = 0.62 * len(names) + 0.3 * len(ports)
    figure = new_figure(13, 1.6 + height * max(LEAST_SCALE, min(1.0, HIGHEST / height)))
    axes = figure.add_subplot()
    busy = timeline.busy_seconds(topology.num_devices) / max(timeline.step_time, 1e-30)
    micro_batch = np.maximum(graph.micro_batch, 0)
    sums = graph.kind == Kind.COLLECTIVE
    looks = [(colour, (graph.phase == p) & ~sums) for p, colour in PHASE_COLOURS.items()]
    for row, device in enumerate(names):
        mine = np.flatnonzero((timeline.device == device) & (timeline.op_finish > 0))
        mine = mine[np.argsort(timeline.op_start[mine], kind="stable")]
        for colour, which in [*looks, (SUM_COLOUR, sums)]:
            ops = mine[which[mine]]
            numbered = colour in {BLUE, ORANGE}
            start, finish, batch = _merge(
                timeline.op_start[ops] * scale,
                timeline.op_finish[ops] * scale,
                micro_batch[ops] * numbered,
                MERGE_GAP * end,
            )
            shades = _shades(colour, graph.num_micro_batches if numbered else 1)
            colours = [shades[b] for b in batch]
            _bars(axes, start, finish, row, DEVICE_HEIGHT, colours, edge="white")
            if numbered and graph.num_micro_batches > 1:
                _numbers(axes, start, finish, batch, row, LABEL_WIDTH * end)
        axes.text(end * 1.006, row, f"{busy[device]:.0%} busy", va="center", fontsize=SMALL)
    labels, positions = [*names.values()], [float(row) for row in range(len(names))]
    shades = _shades(TRANSFER_COLOUR, graph.num_micro_batches)
    for index, (name, start, finish, tensor) in enumerate(ports):
        at = len(names) - 0.3 + 0.46 * (index + 0.5)
        colours = [shades[micro_batch[graph.producer[t]]] for t in tensor]
        _bars(axes, start * scale, finish * scale, at, PORT_HEIGHT, colours)
        positions.append(at)
        labels.append(name)
    axes.set_yticks(positions, labels)
    axes.set_ylim(max(positions) + 0.5, -0.6)
    axes.set_xlim(0, end * 1.07)
    _frame_rows(axes, end, f"time since the start of the step ({unit})")
    if bound_s > 0:
        axes.axvline(bound_s * scale, **LIMIT)
    handles = _legend(graph.num_micro_batches, bool(ports))
    if sums.any():
        handles.insert(-1, Patch(color=SUM_COLOUR, label="sum of gradients"))
    return titled(figure, title, legend=len(handles), handles=handles)


def draw_stages(step: HybridStep, title: str) -> Figure:
    """A step of stages: replicas, each all its shards, and what sums gradients as rows."""
    devices, real = step.macro.topology.devices, step.problem.num_devices
    drawn = sorted({*range(real), *step.device.tolist()})
    names = {number: devices[number].name for number in drawn}
    for stage in step.plan.stages:
        for number in range(stage.replicas):
            first, *others = stage.replica(number)
            for shard in others:
                names.pop(shard, None)
            if others:
                names[first] = f"{devices[first].name} to\n{devices[others[-1]].name}"
    return draw_gantt(step.macro, step.timeline, title, names)


WORK_COLOURS = {Work.FORWARD: BLUE, Work.INPUT: ORANGE, Work.WEIGHT: GREEN, Work.BACKWARD: PURPLE}
WORK_NAMES = {
    Work.FORWARD: "forward", Work.INPUT: "input gradient", Work.WEIGHT: "weight gradient",
    Work.BACKWARD: "whole backward",
}  # fmt: skip


def draw_pipeline(played: PlayedPipeline, pipeline: Pipeline, title: str) -> Figure:
    """Ranks as rows; colour tells the work, its depth the rank's stage (light: a later one).

    The number in a bar is the micro-batch. At the right: the share of its span a rank computes.
    """
    end = played.makespan
    figure = new_figure(13, 1.8 + 0.5 * len(played.bars))
    axes = figure.add_subplot()
    for rank, bars in enumerate(played.bars):
        stages = [s for s, r in enumerate(pipeline.rank) if r == rank]
        start, finish = (np.array([bar[k] for bar in bars], dtype=np.float64) for k in (3, 4))
        paler = LIGHTEST / max(len(stages) - 1, 1)
        colours = [
            mixed_with_white(WORK_COLOURS[bar.work], paler * stages.index(bar.stage))
            for bar in bars
        ]
        _bars(axes, start, finish, rank, DEVICE_HEIGHT, colours, edge="white")
        for bar in bars:
            if bar.finish - bar.start >= LABEL_WIDTH * end:
                middle, dark = (bar.start + bar.finish) / 2, bar.stage == stages[0]
                _number(axes, middle, rank, bar.micro_batch, on_dark=dark)
        span = finish.max() - start.min()
        busy = (finish - start).sum() / span if span else 0.0
        axes.text(end * 1.006, rank, f"{busy:.1%} of its span", va="center", fontsize=SMALL)
    axes.set_yticks(range(len(played.bars)), [f"rank {rank}" for rank in range(len(played.bars))])
    axes.set_ylim(len(played.bars) - 0.5, -0.6)
    axes.set_xlim(0, end * 1.09)
    _frame_rows(axes, end, "time")
    used = {bar.work for row in played.bars for bar in row}
    handles = [Patch(color=WORK_COLOURS[w], label=WORK_NAMES[w]) for w in Work if w in used]
    if len(pipeline.rank) > len(played.bars):
        handles.append(Patch(color="none", label="paler: a later stage of the rank"))
    return titled(figure, title, legend=5, handles=handles)


def _used_ports(
    problem: StepProblem, timeline: Timeline
) -> list[tuple[str, FloatArray, FloatArray, IntArray]]:
    """(name, starts, finishes, tensors) of every port that carries a transfer; seconds.

    The two ends of a pipe, which hold the same transfers, are one row.
    """
    topology = problem.topology
    source, destination = timeline.transfer_source, timeline.transfer_destination
    lasts = timeline.transfer_finish > timeline.transfer_start
    found: list[tuple[str, FloatArray, FloatArray, IntArray]] = []
    for port, name in enumerate(topology.port_names):
        holds = (topology.send_port[source, destination] == port) | (
            topology.receive_port[source, destination] == port
        )
        mine = np.flatnonzero(holds & lasts)
        if len(mine):
            start, finish = timeline.transfer_start[mine], timeline.transfer_finish[mine]
            tensor = timeline.transfer_tensor[mine]
            pipe = name.removesuffix(" receive")
            if found and found[-1][0] == f"{pipe} send" and np.array_equal(found[-1][3], tensor):
                found[-1] = (pipe, start, finish, tensor)
            else:
                found.append((name, start, finish, tensor))
    return found


def _merge(
    start: FloatArray, finish: FloatArray, batch: IntArray, gap: float
) -> tuple[FloatArray, FloatArray, IntArray]:
    """Neighbours in time of one micro-batch as one bar; `start` ascends."""
    if not len(start):
        return start, finish, batch
    first = np.ones(len(start), dtype=bool)
    first[1:] = (batch[1:] != batch[:-1]) | (start[1:] - finish[:-1] > gap)
    bar = np.flatnonzero(first)
    return start[bar], np.maximum.reduceat(finish, bar), batch[bar]


def _bars(
    axes: Axes,
    start: FloatArray,
    finish: FloatArray,
    row: float,
    height: float,
    colours: Sequence[str],
    edge: str = "face",
) -> None:
    low, high = row - height / 2, row + height / 2
    corners = [
        [(a, low), (b, low), (b, high), (a, high)] for a, b in zip(start, finish, strict=True)
    ]
    axes.add_collection(
        PolyCollection(corners, facecolors=list(colours), edgecolors=edge, linewidths=0.3)
    )


def _numbers(
    axes: Axes, start: FloatArray, finish: FloatArray, batch: IntArray, row: float, width: float
) -> None:
    dark_from = int(batch.max(initial=0)) / 2
    for a, b, number in zip(start, finish, batch, strict=True):
        if b - a >= width:
            _number(axes, (a + b) / 2, row, number, on_dark=number >= dark_from)


def _number(axes: Axes, x: float, y: float, number: int, *, on_dark: bool) -> None:
    axes.text(
        x, y, str(number), ha="center", va="center", fontsize=7, fontweight="bold",
        color="white" if on_dark else "#222222",
    )  # fmt: skip


def _frame_rows(axes: Axes, end: float, label: str) -> None:
    """Rows over time, with a line at the end."""
    axes.axvline(end, color="black", linewidth=0.8)
    axes.set_xlabel(label)
    axes.tick_params(axis="y", length=0)
    frame(axes, "x", hidden=("top", "right", "left"))


def _shades(colour: str, count: int) -> list[str]:
    """One colour per micro-batch, light to dark."""
    if count <= 1:
        return [colour]
    return [mixed_with_white(colour, LIGHTEST * (1 - k / (count - 1))) for k in range(count)]


def _legend(micro_batches: int, transfers: bool) -> list[Patch]:
    handles = [Patch(color=PHASE_COLOURS[phase], label=phase.name.lower()) for phase in Phase]
    if transfers:
        handles.append(Patch(color=TRANSFER_COLOUR, label="transfer on a port"))
    if micro_batches > 1:
        note = f"number and shade: micro-batch 0 (light) to {micro_batches - 1} (dark)"
        handles.append(Patch(color="none", label=note))
    return handles


DEVICES, PORTS = 1, 2  # process ids


def trace_document(problem: StepProblem, timeline: Timeline) -> dict[str, object]:
    """Devices as the threads of one process, ports as those of a second; times in microseconds.

    A transfer stands on the thread of its send port and on that of its receive port.
    """
    topology = problem.topology
    devices = [f"{device.name} ({device.spec.name})" for device in topology.devices]
    events = [
        *_names(DEVICES, "devices", devices),
        *_names(PORTS, "ports", list(topology.port_names)),
        *_operators(problem, timeline),
        *_transfers(problem, timeline),
    ]
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _names(number: int, name: str, threads: list[str]) -> Iterator[Event]:
    yield process(number, name)
    for place, label in enumerate(threads):
        yield thread(number, place, label)
        order = {"ph": "M", "name": "thread_sort_index", "args": {"sort_index": place}}
        yield {**order, "pid": number, "tid": place}


def _operators(problem: StepProblem, timeline: Timeline) -> Iterator[Event]:
    graph = problem.graph
    for op, name in enumerate(graph.op_names):
        phase, place = Phase(graph.phase[op]).name.lower(), (DEVICES, int(timeline.device[op]))
        yield happened(
            name, phase, place, timeline.op_start[op], timeline.op_finish[op],
            micro_batch=int(graph.micro_batch[op]), kind=Kind(graph.kind[op]).name.lower(),
            flop=float(graph.flop[op]),
        )  # fmt: skip


def _transfers(problem: StepProblem, timeline: Timeline) -> Iterator[Event]:
    graph, topology = problem.graph, problem.topology
    for index, tensor in enumerate(timeline.transfer_tensor):
        ends = int(timeline.transfer_source[index]), int(timeline.transfer_destination[index])
        source, destination = (topology.devices[end].name for end in ends)
        name = f"{graph.op_names[graph.producer[tensor]]} -> {destination}"
        start, finish = timeline.transfer_start[index], timeline.transfer_finish[index]
        size = float(graph.tensor_bytes[tensor])
        for ports in (topology.send_port, topology.receive_port):
            yield happened(
                name, "transfer", (PORTS, int(ports[ends])), start, finish, bytes=size,
                source=source, destination=destination,
            )  # fmt: skip


BEST: Mapping[str, Any] = {"color": NOTE, "linestyle": (0, (6, 2, 1, 2)), "linewidth": 1.0}
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

    def at(self, seconds: float) -> float:
        """The best value after so many seconds, inf before the first."""
        return min((value for when, value in self.points if when <= seconds), default=np.inf)

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

    A curve begins with the first plan and ends with the search, with a mark at every better plan
    and a tick at its end. At most `MOST_NAMED` agents, those that do best, are named beside their
    curves; the others are grey. `value` names the vertical axis,
    which ends at `span` times the best value; curves that stay above are named above the panel.
    """
    looks = _looks(panels)
    columns = min(COLUMNS, max(1, len(panels)))
    rows = max(1, -(-len(panels) // columns))
    figure = new_figure(1.2 + 4.6 * columns, 1.5 + 3.3 * rows)
    for number, panel in enumerate(panels):
        axes = figure.add_subplot(rows, columns, number + 1)
        _draw(axes, panel, looks, span)
        if number % columns == 0:
            axes.set_ylabel(value)
        if number + columns >= len(panels):
            axes.set_xlabel("seconds of search")
    handles = [
        Line2D([], [], label="proved lower bound", **LIMIT),
        Line2D([], [], label="given up: no plan when the search ended", color=NOTE, **GIVEN_UP),
        Line2D([], [], label="end of a search", color=NOTE, marker="|", linestyle=""),
    ]
    grey = [name for name, look in looks.items() if look is OTHERS]
    if grey:
        handles.append(Line2D([], [], label=_shortened(f"others: {', '.join(grey)}"), **OTHERS))
    if any(panel.best_known < np.inf for panel in panels):
        handles.append(Line2D([], [], label="best known", **BEST))
    return titled(figure, title, legend=min(len(handles), 2 * columns), handles=handles)


def _looks(panels: Sequence[Panel]) -> dict[str, Mapping[str, Any]]:
    """Of every agent; those with the best mean rank over the panels have a colour."""
    ranks: dict[str, list[int]] = {}
    for panel in panels:
        order = sorted(panel.curves, key=lambda name: panel.curves[name].final)
        for rank, name in enumerate(order):
            ranks.setdefault(name, []).append(rank)
    best = sorted(ranks, key=lambda name: float(np.mean(ranks[name])))[:MOST_NAMED]
    names = list(dict.fromkeys(name for panel in panels for name in panel.curves))
    return {name: line(best.index(name)) if name in best else OTHERS for name in names}


def _draw(axes: Axes, panel: Panel, looks: Mapping[str, Mapping[str, Any]], span: float) -> None:
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
            axes.axhline(panel.lower_bound, **LIMIT)
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
        ends: dict[str, tuple[float, str]] = {}
        for name, curve in panel.curves.items():
            look = looks[name]
            if curve.points and curve.final <= top:
                _curve(axes, curve, end, look)
                if look is not OTHERS:
                    ends[name] = (curve.final, str(look["color"]))
            elif not curve.points:
                at = [max(curve.end, EARLIEST_S)]
                where = axes.get_xaxis_transform()
                axes.plot(at, [0.98], color=look["color"], transform=where, **GIVEN_UP)
        name_at_end(axes, ends)
        beyond = [f"{name} {value:.4g}" for name, value in finals.items() if top < value < np.inf]
        notes += [f"above: {', '.join(beyond)}"] if beyond else []
    nothing = [name for name, value in finals.items() if not np.isfinite(value)]
    notes += [f"no plan: {', '.join(nothing)}"] if nothing else []
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(FuncFormatter(_plain))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_title(f"{panel.title} ({panel.unit})", fontsize=TEXT, loc="left", pad=14)
    axes.text(
        0.0, 1.015, _shortened("; ".join(notes)), transform=axes.transAxes, fontsize=6.5,
        color=NOTE, va="bottom",
    )  # fmt: skip
    frame(axes)


def _curve(axes: Axes, curve: AnytimeCurve, end: float, look: Mapping[str, Any]) -> None:
    """Steps from the first plan to the end of the search, dots at better plans, a tick at the end.

    A faint line goes on to `end`: the plan is still there when others are still searching.
    """
    seconds = [max(at, EARLIEST_S) for at, _ in curve.points]
    values = [value for _, value in curve.points]
    last = max(curve.end, seconds[-1])
    axes.plot(
        [*seconds, last], [*values, values[-1]], drawstyle="steps-post", linewidth=1.7, **look
    )  # fmt: skip
    own = look["color"]
    axes.plot([last, max(end, last)], [values[-1]] * 2, color=own, linewidth=0.9, alpha=0.45)
    axes.plot(seconds, values, marker="o", markersize=3.5, linestyle="", color=own)
    axes.plot([last], values[-1:], marker="|", markersize=9, linestyle="", color=own)


def _plain(value: float, _: object) -> str:
    return f"{value:g}"


def _shortened(text: str) -> str:
    """At most 110 characters, which is what fits above a panel."""
    return text if len(text) <= 110 else f"{text[:107]}..."
