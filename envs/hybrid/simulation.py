"""One step of a hybrid plan, played by the simulator of training steps.

What a replica does in an action is an operator, what it passes on is a tensor, and a bucket of
gradients that is summed is an operator on a stream of its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import networkx as nx
import numpy as np

from envs.arrays import FloatArray, IntArray
from envs.cost import link_transfer_seconds
from envs.graphs.op_graph import NONE, Kind, OpGraph, Phase
from envs.hardware.devices import Device
from envs.hardware.topology import Topology
from envs.hybrid.plan import LETTERS, HybridPlan, LayerRow, Stage, peak_memory
from envs.hybrid.timing import (
    StageSeconds,
    all_reduce_seconds,
    cut_seconds,
    layer_seconds,
    moves,
    stage_seconds,
)
from envs.step.pipeline import Bar, Pipeline, Work, play
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from envs.step.timeline import Timeline


@dataclass(frozen=True, eq=False)
class HybridStep:
    """What happened in one step of `plan`.

    `macro` is the step as operators on the devices of the problem and, behind those, the streams
    on which gradients are summed.
    """

    problem: LayerRow
    plan: HybridPlan
    macro: StepProblem
    device: IntArray  # (N,) of the operators of `macro`

    @cached_property
    def timeline(self) -> Timeline:
        """When every operator ran and every transfer was under way."""
        return StepSimulator(self.macro).run(self.device, np.arange(len(self.device)))

    @cached_property
    def step_time(self) -> float:
        """Seconds until the last replica has updated its last weights."""
        order = np.arange(len(self.device))
        return StepSimulator(self.macro).step_time(self.device, order)

    @cached_property
    def peak_memory(self) -> FloatArray:
        """(D,) bytes."""
        return peak_memory(self.problem, self.plan)


def simulate(problem: LayerRow, plan: HybridPlan) -> HybridStep:
    """One step of a plan whose stages are those of the problem (`plan.violations`).

    Every rank runs its list in order. A replica starts an action when it is free and its part of
    the micro-batch has come; replicas do not wait for each other. Parts travel under the rules of
    `envs.step.step.StepSimulator`: a port carries one transfer at a time, in the order in which
    they would become ready if there were enough ports.

    When a stage runs its last backward pass (or gradient of weights), its gradients become ready
    layer by layer, from the last one to the first. They are summed over the replicas
    (`all_reduce_seconds`), a bucket of at least `bucket_bytes` after the other, beside what the
    devices compute. Stages whose replicas share servers take turns. Weights are updated when all
    that a stage sums is summed, at the end of its rank's list.
    """
    step = _MacroStep(problem, plan)
    return HybridStep(problem, plan, step.problem(), np.array(step.device, dtype=np.int64))


def pipeline_of(problem: LayerRow, plan: HybridPlan) -> Pipeline:
    """The plan as a pipeline of its slowest replicas, without ports and without what is summed."""
    seconds = [map(float, map(np.max, stage_seconds(problem, stage))) for stage in plan.stages]
    forward, inputs, weights = zip(*seconds, strict=True)
    return Pipeline(
        plan.rank,
        plan.micro_batches,
        forward,
        inputs,
        weights,
        tuple(cut_seconds(problem, a, b) for a, b in pairwise(plan.stages)),
        (tuple(range(len(plan.stages))),),
    )


def streams(problem: LayerRow, stages: Sequence[Stage]) -> list[int]:
    """(S,) the stream on which each stage sums gradients: one for stages that share a server."""
    numbers, joined = range(len(stages)), nx.Graph()
    joined.add_nodes_from(numbers)
    for number, stage in enumerate(stages):
        if stage.replicas > 1:
            servers = problem.topology.server[list(stage.devices)]
            joined.add_edges_from((number, f"server {server}") for server in servers)
    parts = sorted(
        sorted(node for node in part if isinstance(node, int))
        for part in nx.connected_components(joined)
    )
    stream = {number: k for k, part in enumerate(parts) for number in part}
    return [stream[number] for number in numbers]


class _MacroStep:
    """Collects the operators of a step in a topological order."""

    def __init__(self, problem: LayerRow, plan: HybridPlan) -> None:
        self.hybrid, self.plan = problem, plan
        self.device: list[int] = []
        self._operators: list[tuple[str, Phase, int, float]] = []  # name ..., micro-batch, seconds
        self._tensors: list[tuple[int, int, float]] = []  # producer, consumer, bytes
        self._seconds = [stage_seconds(problem, stage) for stage in plan.stages]
        self._parts = [moves(a, b) for a, b in pairwise(plan.stages)]
        self._stream = streams(problem, plan.stages)
        # operators that pass on, by replica: of a way (forward or not), a stage and a micro-batch
        self._last: dict[tuple[bool, int, int], dict[int, int]] = {}
        self._summed: dict[int, int] = {}  # stage -> its last all-reduce
        played = play(pipeline_of(problem, plan), plan.orders)
        bars = [bar for row in played.bars for bar in row]
        whole = {Work.BACKWARD, Work.WEIGHT}
        closing = {bar.stage: bar for bar in bars if bar.work in whole}  # the last of each stage
        for bar in sorted(bars, key=self._place):
            self._act(bar, bar == closing[bar.stage])
        for number, stage in enumerate(plan.stages):
            self._update(number, stage)

    def problem(self) -> StepProblem:
        """The operators, as a problem of the simulator."""
        count, devices = len(self.device), self.hybrid.num_devices
        topology = _with_streams(self.hybrid.topology, max(self._stream) + 1)
        seconds = np.full((count, topology.num_devices), np.inf)
        names, phase, batch, own = zip(*self._operators, strict=True)
        seconds[np.arange(count), self.device] = own
        tensors = np.array(self._tensors, dtype=np.float64).reshape(-1, 3)
        tensors = tensors[np.argsort(tensors[:, 0], kind="stable")]
        zeros, none = np.zeros(count), np.full(count, NONE)
        graph = OpGraph(
            name=self.hybrid.name,
            op_names=names,
            kind=np.where(np.array(self.device) < devices, Kind.FUSED, Kind.COLLECTIVE),
            phase=np.array(phase, dtype=np.int64),
            micro_batch=np.array(batch, dtype=np.int64),
            replica=zeros.astype(np.int64),
            flop=zeros,
            bytes_read=zeros,
            bytes_written=zeros,
            op_dtype=zeros.astype(np.int64),
            colocation=none,
            mirror=none,
            tensor_bytes=tensors[:, 2].copy(),
            tensor_dtype=np.zeros(len(tensors), dtype=np.int64),
            producer=tensors[:, 0].astype(np.int64),
            consumer_ptr=np.arange(len(tensors) + 1),
            consumer=tensors[:, 1].astype(np.int64),
            parameter_names=(),
            parameter_bytes=zeros[:0],
            gradient_bytes=zeros[:0],
            optimizer_bytes=zeros[:0],
            parameter_owner=none[:0],
        )
        capacity = np.full(topology.num_devices, np.inf)
        capacity[:devices] = self.hybrid.capacity
        transfers = link_transfer_seconds(graph, topology)
        return StepProblem(graph, topology, seconds, transfers, capacity)

    def _place(self, bar: Bar) -> tuple[float, float, int]:
        """By when actions end, what is waited for first among equals."""
        depth = 2 * bar.stage
        if bar.work is not Work.FORWARD:
            depth = 4 * len(self.plan.stages) - depth + (bar.work is Work.WEIGHT)
        return bar.finish, bar.start, depth

    def _act(self, bar: Bar, closing: bool) -> None:
        """What every replica does in an action; `closing`: its stage's gradients are whole then."""
        work, number, batch = bar.work, bar.stage, bar.micro_batch
        stage, forward = self.plan.stages[number], work is Work.FORWARD
        phase = Phase.FORWARD if forward else Phase.BACKWARD
        pieces = [_of_work(self._seconds[number], work)]
        buckets: list[float] = []
        if closing and stage.replicas > 1:
            pieces, buckets = self._pieces(work, stage)
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for piece, seconds in enumerate(pieces):
            for replica in np.argsort(seconds, kind="stable").tolist():  # who is ready first, sends
                name = f"{number}{LETTERS[work]}{batch}.{replica}" + (f".{piece}" if piece else "")
                device = stage.replica(replica)[0]
                op = self._add(name, phase, batch, float(seconds[replica]), device)
                first.setdefault(replica, op)
                last[replica] = op
            if buckets:  # summed on the stage's stream, when all replicas have their gradients
                took = all_reduce_seconds(self.hybrid, stage, buckets[piece])
                stream = self.hybrid.num_devices + self._stream[number]
                op = self._add(f"{number}.sum.{piece}", phase, NONE, took, stream)
                self._tensors += [(maker, op, 0.0) for maker in last.values()]
                self._summed[number] = op
        if work is Work.WEIGHT:
            return
        # the first operators wait for the neighbour's parts of the micro-batch
        self._last[forward, number, batch] = last
        neighbour = number - 1 if forward else number + 1
        before = self._last.get((forward, neighbour, batch))
        if before is not None:
            cut = min(number, neighbour)
            nbytes = float(self.hybrid.cut_bytes[self.plan.stages[cut].end])
            for below, above, share in self._parts[cut]:
                source, reader = (below, above) if forward else (above, below)
                self._tensors.append((before[source], first[reader], share * nbytes))

    def _pieces(self, work: Work, stage: Stage) -> tuple[list[FloatArray], list[float]]:
        """Seconds (R,) until each bucket is whole, and the bytes of the buckets."""
        layers = slice(stage.first, stage.end)
        seconds = _of_work(layer_seconds(self.hybrid, stage, layers), work)  # (layers, R)
        sizes = self.hybrid.held[stage.shards].gradient_bytes[layers]
        pieces, buckets = [np.zeros(stage.replicas)], [0.0]
        for layer in reversed(range(stage.end - stage.first)):
            if buckets[-1] >= self.hybrid.bucket_bytes and sizes[layer] > 0:
                pieces.append(np.zeros(stage.replicas))
                buckets.append(0.0)
            pieces[-1] = pieces[-1] + seconds[layer]
            buckets[-1] += float(sizes[layer])
        return pieces, buckets

    def _update(self, number: int, stage: Stage) -> None:
        update = self.hybrid.held[stage.shards].update[stage.first : stage.end]
        column = update.sum(axis=0)
        if number not in self._summed and not column.any():
            return
        for replica in range(stage.replicas):
            seconds = float(column[list(stage.replica(replica))].max())
            name = f"{number}.update.{replica}"
            device = stage.replica(replica)[0]
            op = self._add(name, Phase.OPTIMIZER, NONE, seconds, device)
            if number in self._summed:
                self._tensors.append((self._summed[number], op, 0.0))

    def _add(self, name: str, phase: Phase, batch: int, seconds: float, device: int) -> int:
        self._operators.append((name, phase, batch, seconds))
        self.device.append(device)
        return len(self.device) - 1


def _of_work(seconds: StageSeconds, work: Work) -> FloatArray:
    if work is Work.BACKWARD:
        return seconds.input_gradient + seconds.weight_gradient
    return seconds[int(work)]


def _with_streams(topology: Topology, count: int) -> Topology:
    """The devices, and behind them `count` streams to which nothing has to be carried."""
    d = topology.num_devices
    names = [f"all-reduce {number}" for number in range(count)]
    spec, server = replace(topology.devices[0].spec, name="all-reduce"), topology.devices[0].server

    def wider(table: IntArray, value: int) -> IntArray:
        found = np.full((d + count, d + count), value, dtype=np.int64)
        found[:d, :d] = table
        np.fill_diagonal(found, table[0, 0])
        return found

    extra = len(topology.class_names)
    return replace(
        topology,
        devices=(*topology.devices, *(Device(name, spec, server) for name in names)),
        link_class=wider(topology.link_class, extra),
        class_names=(*topology.class_names, "beside"),
        class_latency=np.append(topology.class_latency, 0.0),
        class_bandwidth=np.append(topology.class_bandwidth, np.inf),
        send_port=wider(topology.send_port, 0),
        receive_port=wider(topology.receive_port, 0),
        fabric=None,
    )
