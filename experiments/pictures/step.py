"""One step: its Gantt chart, its trace for Perfetto, and searches for a better plan over time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from matplotlib.figure import Figure

from envs.arrays import FloatArray, IntArray
from envs.graphs.op_graph import Kind, Phase
from envs.hybrid.simulation import HybridStep
from envs.step.pipeline import Pipeline, PlayedPipeline, Work
from envs.step.problem import StepProblem
from envs.step.timeline import Timeline
from experiments.pictures.gantt import Event, draw_spans, happened, label_rows, process, thread
from experiments.pictures.style import (
    BLUE,
    GREEN,
    LIMIT,
    ORANGE,
    PALETTE,
    PURPLE,
    legend,
    mixed_with_white,
    picture,
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
    end, last = timeline.step_time * scale, max(graph.num_micro_batches - 1, 0)
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
        return mixed_with_white(COLOURS[look], LIGHTEST * (last - batch) / max(last, 1))

    row = np.full(len(devices), -1)
    row[[*names]] = range(len(names))
    look = np.where(graph.kind == Kind.COLLECTIVE, SUM, graph.phase)
    batch = np.where(look < Phase.OPTIMIZER, np.maximum(graph.micro_batch, 0), last)
    kind = np.stack([row[timeline.device], look, batch])
    drawn = np.flatnonzero((timeline.op_finish > 0) & (kind[0] >= 0))
    drawn = drawn[np.lexsort((timeline.op_start[drawn], *kind[1::-1, drawn]))]
    start, finish = timeline.op_start[drawn] * scale, timeline.op_finish[drawn] * scale
    gaps = start - np.concatenate([start[:1], finish[:-1]])
    others = (np.diff(kind[:, drawn], prepend=-1) != 0).any(axis=0)
    bar = np.flatnonzero(others | (gaps > MERGE_GAP * end))  # operators that begin one
    rows, looks, batches = kind[:, drawn[bar]]
    draw_spans(
        axes, start[bar], np.maximum.reduceat(finish, bar), rows - DEVICE_HEIGHT,
        rows + DEVICE_HEIGHT, [shade(*one) for one in zip(looks, batches, strict=True)],
        np.where(looks < Phase.OPTIMIZER, batches.astype(str), "").tolist() if last else (), end,
        edgecolors="white",
    )  # fmt: skip
    places = [*range(len(names)), *(len(names) - 0.07 + 0.46 * np.arange(len(ports)))]
    for place, (_, begin, ends, tensor) in zip(places[len(names) :], ports, strict=True):
        colours = [shade(TRANSFER, batch[graph.producer[t]]) for t in tensor]
        low, high = place - PORT_HEIGHT, place + PORT_HEIGHT
        draw_spans(axes, begin * scale, ends * scale, low, high, colours)
    busy = timeline.busy_seconds(len(devices)) / max(timeline.step_time, 1e-30)
    labels = [*names.values(), *(port for port, *_ in ports)]
    shares = [f"{busy[device]:.0%} busy" for device in names]
    label_rows(axes, places, labels, max(places) + 0.5, shares)
    axes.set(xlim=(0, end), xlabel=f"time since the start of the step ({unit})")
    if bound_s > 0:
        axes.axvline(bound_s * scale, **LIMIT)
    what = {phase.name.lower(): COLOURS[phase] for phase in Phase}
    if ports:
        what["transfer on a port"] = PURPLE
    if SUM in look:
        what["sum of gradients"] = SUM_COLOUR
    if last:
        what[f"number and shade: micro-batch 0 (light) to {last} (dark)"] = "none"
    return legend(figure, len(what), what)


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
    turn = [pipeline.rank[:stage].count(rank) for stage, rank in enumerate(pipeline.rank)]
    paler = LIGHTEST / max(*turn, 1)
    shares, used = [], set()
    for rank, bars in enumerate(played.bars):
        works, stages, batches, *times = zip(*bars, strict=True)
        start, finish = np.array(times)
        looks = zip(works, stages, strict=True)
        draw_spans(
            axes, start, finish, rank - DEVICE_HEIGHT, rank + DEVICE_HEIGHT,
            [mixed_with_white(WORK_COLOURS[work], paler * turn[stage]) for work, stage in looks],
            [str(batch) for batch in batches], end, edgecolors="white",
        )  # fmt: skip
        used |= {*works}
        span = finish.max() - start.min()
        shares.append(f"{(finish - start).sum() / span if span else 0.0:.1%} of its span")
    label_rows(axes, ranks, [f"rank {rank}" for rank in ranks], len(ranks) - 0.5, shares)
    axes.set(xlim=(0, end), xlabel="time")
    what = {WORK_NAMES[work]: WORK_COLOURS[work] for work in Work if work in used}
    if len(pipeline.rank) > len(ranks):
        what["paler: a later stage of the rank"] = "none"
    return legend(figure, len(what), what)


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
    places = {"devices": devices, "ports": topology.port_names}
    for number, (name, threads) in enumerate(places.items(), DEVICES):
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
