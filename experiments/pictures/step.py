"""One step: its Gantt chart, its trace for Perfetto, and searches for a better plan over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullFormatter, StrMethodFormatter

from envs.arrays import FloatArray, IntArray
from envs.graphs.op_graph import Kind, Phase
from envs.hybrid.simulation import HybridStep
from envs.step.pipeline import Pipeline, PlayedPipeline, Work
from envs.step.problem import StepProblem
from envs.step.timeline import Timeline
from experiments.pictures.gantt import (
    Event,
    draw_spans,
    happened,
    label_step,
    process,
    thread,
)
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
    TEXT,
    legend_below,
    legend_of,
    line,
    mixed_with_white,
    name_at_end,
    picture,
    plain_log,
    remarks,
)

SUM_COLOUR = PALETTE[6]
COLOURS = (BLUE, ORANGE, GREEN, SUM_COLOUR, PURPLE)  # of phases, then of these two:
SUM, TRANSFER = 3, 4
HIGHEST, LEAST_SCALE = 8.0, 0.55  # inches that rows are made lower to fit in, and how far at most
DEVICE_HEIGHT, PORT_HEIGHT = 0.43, 0.17  # halves
MERGE_GAP = 2e-4  # operators of one micro-batch closer than this share of the step are one bar
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
    graph, devices = problem.graph, problem.topology.devices
    scale, unit = (1e3, "ms") if timeline.step_time < 10 else (1.0, "s")
    end, many = timeline.step_time * scale, graph.num_micro_batches
    ports = _used_ports(problem, timeline)
    if names is None:
        names = {
            number: d.name if d.spec.name in d.name else f"{d.name}\n{d.spec.name}"
            for number, d in enumerate(devices)
        }
    height = 0.62 * len(names) + 0.3 * len(ports)
    height *= max(LEAST_SCALE, min(1.0, HIGHEST / height))
    figure, (axes,) = picture(title, 13, 1.6 + height, grid="x")

    def shade(look: int, batch: int) -> str:
        share = 1 - batch / (many - 1) if many > 1 and look not in (Phase.OPTIMIZER, SUM) else 0.0
        return mixed_with_white(COLOURS[look], LIGHTEST * share)

    row, batch = np.full(len(devices), -1), np.maximum(graph.micro_batch, 0)
    row[[*names]] = range(len(names))
    row = row[timeline.device]
    look = np.where(graph.kind == Kind.COLLECTIVE, SUM, graph.phase)
    numbered = look < Phase.OPTIMIZER
    drawn = np.flatnonzero((timeline.op_finish > 0) & (row >= 0))
    drawn = drawn[np.lexsort((timeline.op_start[drawn], look[drawn], row[drawn]))]
    kind = np.stack([row, look, batch * numbered])[:, drawn]
    start, finish = timeline.op_start[drawn] * scale, timeline.op_finish[drawn] * scale
    first = np.ones(len(drawn), dtype=bool)  # operators that begin a bar
    first[1:] = (kind[:, 1:] != kind[:, :-1]).any(axis=0)
    first[1:] |= start[1:] - finish[:-1] > MERGE_GAP * end
    if first.any():
        bar = np.flatnonzero(first)
        rows, looks, batches = kind[:, bar]
        draw_spans(
            axes, start[bar], np.maximum.reduceat(finish, bar), rows - DEVICE_HEIGHT,
            rows + DEVICE_HEIGHT, [shade(*one) for one in zip(looks, batches, strict=True)],
            [str(b) if many > 1 and k < Phase.OPTIMIZER else ""
             for k, b in zip(looks, batches, strict=True)], end, edgecolors="white",
        )  # fmt: skip
    places = [*range(len(names)), *(len(names) - 0.07 + 0.46 * np.arange(len(ports)))]
    for place, (_, begin, ends, tensor) in zip(places[len(names) :], ports, strict=True):
        colours = [shade(TRANSFER, batch[graph.producer[t]]) for t in tensor]
        low, high = place - PORT_HEIGHT, place + PORT_HEIGHT
        draw_spans(axes, begin * scale, ends * scale, low, high, colours)
    busy = timeline.busy_seconds(len(devices)) / max(timeline.step_time, 1e-30)
    shares = [f"{busy[device]:.0%} busy" for device in names]
    label_step(axes, places, [*names.values(), *(port for port, *_ in ports)], shares, end)
    if bound_s > 0:
        axes.axvline(bound_s * scale, **LIMIT)
    axes.set_xlabel(f"time since the start of the step ({unit})")
    what = {phase.name.lower(): COLOURS[phase] for phase in Phase}
    if ports:
        what["transfer on a port"] = PURPLE
    if SUM in look:
        what["sum of gradients"] = SUM_COLOUR
    if many > 1:
        what[f"number and shade: micro-batch 0 (light) to {many - 1} (dark)"] = "none"
    return legend_of(figure, what)


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
    ranks, end = range(len(played.bars)), played.makespan
    figure, (axes,) = picture(title, 13, 1.8 + 0.5 * len(ranks), grid="x")
    shares = []
    for rank, bars in enumerate(played.bars):
        stages = [s for s, r in enumerate(pipeline.rank) if r == rank]
        start, finish = (np.array([bar[k] for bar in bars], dtype=np.float64) for k in (3, 4))
        paler = LIGHTEST / max(len(stages) - 1, 1)
        colours = [
            mixed_with_white(WORK_COLOURS[bar.work], paler * stages.index(bar.stage))
            for bar in bars
        ]
        draw_spans(
            axes, start, finish, rank - DEVICE_HEIGHT, rank + DEVICE_HEIGHT, colours,
            [str(bar.micro_batch) for bar in bars], end, edgecolors="white",
        )  # fmt: skip
        span = finish.max() - start.min()
        shares.append(f"{(finish - start).sum() / span if span else 0.0:.1%} of its span")
    label_step(axes, [*ranks], [f"rank {rank}" for rank in ranks], shares, end)
    axes.set_xlabel("time")
    used = {bar.work for row in played.bars for bar in row}
    what = {WORK_NAMES[work]: WORK_COLOURS[work] for work in Work if work in used}
    if len(pipeline.rank) > len(ranks):
        what["paler: a later stage of the rank"] = "none"
    return legend_of(figure, what)


def _used_ports(
    problem: StepProblem, timeline: Timeline
) -> list[tuple[str, FloatArray, FloatArray, IntArray]]:
    """(name, starts, finishes, tensors) of every port that carries a transfer; seconds.

    The two ends of a pipe, which hold the same transfers, are one row.
    """
    topology, ends = problem.topology, (timeline.transfer_source, timeline.transfer_destination)
    lasts = timeline.transfer_finish > timeline.transfer_start
    found: list[tuple[str, FloatArray, FloatArray, IntArray]] = []
    for port, name in enumerate(topology.port_names):
        holds = (topology.send_port[ends] == port) | (topology.receive_port[ends] == port)
        mine = np.flatnonzero(holds & lasts)
        if len(mine):
            tensor, pipe = timeline.transfer_tensor[mine], name.removesuffix(" receive")
            if found and found[-1][0] == f"{pipe} send" and np.array_equal(found[-1][3], tensor):
                found.pop()
            else:
                pipe = name
            times = timeline.transfer_start[mine], timeline.transfer_finish[mine]
            found.append((pipe, *times, tensor))
    return found


DEVICES, PORTS = 1, 2  # process ids


def trace_document(problem: StepProblem, timeline: Timeline) -> dict[str, object]:
    """Devices as the threads of one process, ports as those of a second; times in microseconds.

    A transfer stands on the thread of its send port and on that of its receive port.
    """
    return {"traceEvents": list(_events(problem, timeline)), "displayTimeUnit": "ms"}


def _events(problem: StepProblem, timeline: Timeline) -> Iterator[Event]:
    graph, topology = problem.graph, problem.topology
    devices = [f"{device.name} ({device.spec.name})" for device in topology.devices]
    for number, name, threads in (
        (DEVICES, "devices", devices), (PORTS, "ports", topology.port_names),
    ):  # fmt: skip
        yield process(number, name)
        for place, label in enumerate(threads):
            yield thread(number, place, label)
            order = {"ph": "M", "name": "thread_sort_index", "args": {"sort_index": place}}
            yield {**order, "pid": number, "tid": place}
    for op, name in enumerate(graph.op_names):
        yield happened(
            name, Phase(graph.phase[op]).name.lower(), (DEVICES, int(timeline.device[op])),
            timeline.op_start[op], timeline.op_finish[op],
            micro_batch=int(graph.micro_batch[op]), kind=Kind(graph.kind[op]).name.lower(),
            flop=float(graph.flop[op]),
        )  # fmt: skip
    for index, tensor in enumerate(timeline.transfer_tensor):
        ends = int(timeline.transfer_source[index]), int(timeline.transfer_destination[index])
        source, destination = (topology.devices[end].name for end in ends)
        for ports in (topology.send_port, topology.receive_port):
            yield happened(
                f"{graph.op_names[graph.producer[tensor]]} -> {destination}", "transfer",
                (PORTS, int(ports[ends])), timeline.transfer_start[index],
                timeline.transfer_finish[index], bytes=float(graph.tensor_bytes[tensor]),
                source=source, destination=destination,
            )  # fmt: skip


BEST: dict[str, Any] = {"color": NOTE, "linestyle": (0, (6, 2, 1, 2)), "linewidth": 1.0}
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
    figure, places = picture(title, 1.2 + 4.6 * columns, 1.5 + 3.3 * rows, rows, columns)
    for axes in places[len(panels) :]:
        axes.remove()
    for number, (axes, panel) in enumerate(zip(places, panels, strict=False)):
        _draw(axes, panel, looks, span)
        axes.set_ylabel("" if number % columns else value)
        axes.set_xlabel("" if number + columns < len(panels) else "seconds of search")
    looks_of = {
        "proved lower bound": LIMIT,
        "given up: no plan when the search ended": {"color": NOTE, **GIVEN_UP},
        "end of a search": {"color": NOTE, "marker": "|", "linestyle": ""},
    }
    if grey := [name for name, look in looks.items() if look is OTHERS]:
        looks_of[_shortened(f"others: {', '.join(grey)}")] = OTHERS
    if any(panel.best_known < np.inf for panel in panels):
        looks_of["best known"] = BEST
    handles = [Line2D([], [], label=name, **look) for name, look in looks_of.items()]
    return legend_below(figure, min(len(handles), 2 * columns), handles)


def _looks(panels: Sequence[Panel]) -> dict[str, dict[str, Any]]:
    """Of every agent; those with the best mean rank over the panels have a colour."""
    ranks: dict[str, list[int]] = {}
    for panel in panels:
        order = sorted(panel.curves, key=lambda name: panel.curves[name].final)
        for rank, name in enumerate(order):
            ranks.setdefault(name, []).append(rank)
    best = sorted(ranks, key=lambda name: float(np.mean(ranks[name])))[:MOST_NAMED]
    names = list(dict.fromkeys(name for panel in panels for name in panel.curves))
    return {name: line(best.index(name)) if name in best else OTHERS for name in names}


def _draw(axes: Axes, panel: Panel, looks: Mapping[str, dict[str, Any]], span: float) -> None:
    finals = {name: curve.final for name, curve in panel.curves.items()}
    found = [value for value in finals.values() if np.isfinite(value)]
    low = best = min([*found, panel.best_known])
    end = max((curve.end for curve in panel.curves.values()), default=0.0)
    highest = max(found, default=best)
    if span == np.inf:
        highest = max((c.points[0][1] for c in panel.curves.values() if c.points), default=best)
    top = best + max(0.04 * best, 1.08 * min(highest - best, (span - 1) * best))
    bound = []
    if panel.lower_bound >= NEAR * best:
        low = panel.lower_bound
        axes.axhline(low, **LIMIT)
    elif panel.lower_bound > 0:
        bound = [f"{panel.lower_bound:.4g}"]
    if panel.best_known < np.inf:
        axes.axhline(panel.best_known, **BEST)
    if found and top / low > LOGARITHMIC:
        axes.set(yscale="log", ylim=(low * 0.9, top))
        plain_log(axes.yaxis)
    elif found:
        axes.set_ylim(low - 0.05 * (top - low), top)
    ends: dict[str, tuple[float, str]] = {}
    for name, curve in panel.curves.items():
        look = looks[name]
        if not curve.points:
            at, where = [max(curve.end, EARLIEST_S)], axes.get_xaxis_transform()
            axes.plot(at, [0.98], color=look["color"], transform=where, **GIVEN_UP)
        elif curve.final <= top:
            _curve(axes, curve, end, look)
            if look is not OTHERS:
                ends[name] = (curve.final, look["color"])
    name_at_end(axes, ends, 0.052)
    words = remarks(
        bound=bound,
        above=[f"{name} {value:.4g}" for name, value in finals.items() if top < value < np.inf],
        no_plan=[name for name, value in finals.items() if not np.isfinite(value)],
    )
    axes.set_xscale("log")
    axes.xaxis.set_major_formatter(StrMethodFormatter("{x:g}"))
    axes.xaxis.set_minor_formatter(NullFormatter())
    axes.set_title(f"{panel.title} ({panel.unit})", fontsize=TEXT, loc="left", pad=14)
    axes.text(
        0.0, 1.015, _shortened(words), transform=axes.transAxes, fontsize=6.5, color=NOTE,
        va="bottom",
    )  # fmt: skip


def _curve(axes: Axes, curve: AnytimeCurve, end: float, look: Mapping[str, Any]) -> None:
    """Steps from the first plan to the end of the search, dots at better plans, a tick at the end.

    A faint line goes on to `end`: the plan is still there when others are still searching.
    """
    seconds = [max(at, EARLIEST_S) for at, _ in curve.points]
    values = [value for _, value in curve.points]
    last, own = max(curve.end, seconds[-1]), look["color"]
    until = [*seconds, last], [*values, values[-1]]
    axes.plot(*until, drawstyle="steps-post", linewidth=1.7, **look)
    axes.plot([last, max(end, last)], [values[-1]] * 2, color=own, linewidth=0.9, alpha=0.45)
    axes.plot(seconds, values, "o", markersize=3.5, color=own)
    axes.plot([last], values[-1:], "|", markersize=9, color=own)


def _shortened(text: str) -> str:
    """At most 110 characters, which is what fits above a panel."""
    return text if len(text) <= 110 else f"{text[:107]}..."
