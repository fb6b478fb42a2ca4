"""A Gantt chart of one simulated step: what each device and each port does when."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Patch
from numpy.typing import NDArray

from envs.graphs.op_graph import Phase
from envs.step.problem import StepProblem
from envs.step.timeline import Timeline

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
Colour = tuple[float, float, float]

PHASE_COLOURS = {
    Phase.FORWARD: "#2166ac",
    Phase.BACKWARD: "#c65102",
    Phase.OPTIMIZER: "#2f7d32",
}
TRANSFER_COLOUR = "#6a3d9a"
DEVICE_HEIGHT, PORT_HEIGHT = 0.86, 0.34
MERGE_GAP = 2e-4  # operators of one micro-batch closer than this share of the step are one bar
LABEL_WIDTH = 0.012  # a bar narrower than this share of the step carries no number
LIGHTEST = 0.62  # how far the first micro-batch is mixed with white


def draw_gantt(problem: StepProblem, timeline: Timeline, title: str) -> Figure:
    """Devices as rows, under them the ports that carry transfers as thin rows.

    Colour tells the phase, its depth the micro-batch (light: first, dark: last), the number in a
    bar the micro-batch too. At the right of each device: the share of the step it computes.
    """
    graph, topology = problem.graph, problem.topology
    scale, unit = (1e3, "ms") if timeline.step_time < 10 else (1.0, "s")
    end = timeline.step_time * scale
    ports = _used_ports(problem, timeline)
    height = 1.6 + 0.62 * topology.num_devices + 0.3 * len(ports)
    figure = Figure(figsize=(13, height), dpi=130, layout="constrained")
    axes = figure.add_subplot()
    rows = [float(device) for device in range(topology.num_devices)]
    busy = timeline.busy_seconds(topology.num_devices) / max(timeline.step_time, 1e-30)
    micro_batch = np.where(graph.phase == Phase.OPTIMIZER, 0, np.maximum(graph.micro_batch, 0))
    for device in range(topology.num_devices):
        mine = np.flatnonzero((timeline.device == device) & (timeline.op_finish > 0))
        mine = mine[np.argsort(timeline.op_start[mine], kind="stable")]
        for phase in Phase:
            ops = mine[graph.phase[mine] == phase]
            start, finish, batch = _merge(
                timeline.op_start[ops] * scale,
                timeline.op_finish[ops] * scale,
                micro_batch[ops],
                MERGE_GAP * end,
            )
            shades = _shades(PHASE_COLOURS[phase], graph.num_micro_batches, phase)
            colours = [shades[b] for b in batch]
            _bars(axes, start, finish, rows[device], DEVICE_HEIGHT, colours, edge="white")
            if phase != Phase.OPTIMIZER and graph.num_micro_batches > 1:
                _numbers(axes, start, finish, batch, rows[device], LABEL_WIDTH * end)
        axes.text(end * 1.006, rows[device], f"{busy[device]:.0%} busy", va="center", fontsize=8)
    labels = [
        d.name if d.spec.name in d.name else f"{d.name}\n{d.spec.name}" for d in topology.devices
    ]
    positions = [*rows]
    shades = _shades(TRANSFER_COLOUR, graph.num_micro_batches, Phase.FORWARD)
    for index, (name, start, finish, tensor) in enumerate(ports):
        row = topology.num_devices - 0.3 + 0.46 * (index + 0.5)
        colours = [shades[micro_batch[graph.producer[t]]] for t in tensor]
        _bars(axes, start * scale, finish * scale, row, PORT_HEIGHT, colours)
        positions.append(row)
        labels.append(name)
    _frame(axes, end, unit, positions, labels, title)
    figure.legend(handles=_legend(graph.num_micro_batches, bool(ports)), loc="outside lower center",
                  ncols=5, frameon=False, fontsize=8)  # fmt: skip
    return figure


def _frame(
    axes: Axes, end: float, unit: str, positions: list[float], labels: list[str], title: str
) -> None:
    axes.set_yticks(positions, labels, fontsize=8)
    axes.set_ylim(max(positions) + 0.5, -0.6)
    axes.set_xlim(0, end * 1.07)
    axes.axvline(end, color="black", linewidth=0.8)
    axes.set_xlabel(f"time since the start of the step ({unit})")
    axes.set_title(title, fontsize=11, loc="left")
    axes.tick_params(axis="y", length=0)
    axes.grid(axis="x", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    for side in ("top", "right", "left"):
        axes.spines[side].set_visible(False)


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
    colours: Sequence[Colour],
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
            colour = "white" if number >= dark_from else "#222222"
            axes.text((a + b) / 2, row, str(number), ha="center", va="center", fontsize=7,
                      color=colour, fontweight="bold")  # fmt: skip


def _shades(colour: str, count: int, phase: Phase) -> list[Colour]:
    """One colour per micro-batch, light to dark."""
    if phase == Phase.OPTIMIZER or count == 1:
        return [to_rgb(colour)] * max(count, 1)
    base = np.array(to_rgb(colour))
    mixed = [base + (1 - base) * LIGHTEST * (1 - k / (count - 1)) for k in range(count)]
    return [(float(r), float(g), float(b)) for r, g, b in mixed]


def _legend(micro_batches: int, transfers: bool) -> list[Patch]:
    handles = [Patch(color=PHASE_COLOURS[phase], label=phase.name.lower()) for phase in Phase]
    if transfers:
        handles.append(Patch(color=TRANSFER_COLOUR, label="transfer on a port"))
    if micro_batches > 1:
        note = f"number and shade: micro-batch 0 (light) to {micro_batches - 1} (dark)"
        handles.append(Patch(color="none", label=note))
    return handles
