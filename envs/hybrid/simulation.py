"""One step of a hybrid plan, played by the simulator of training steps.

What a replica does in an action is an operator, what it passes on is a tensor, and a bucket of
gradients that is summed is an operator on a stream of its own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise

import numpy as np

from envs.arrays import FloatArray, IntArray
from envs.cost import link_transfer_seconds
from envs.graphs.op_graph import NONE, Kind, OpGraph, Phase
from envs.hardware.devices import Device
from envs.hardware.topology import Topology
from envs.hybrid.plan import LETTERS, HybridPlan, HybridProblem, Stage, peak_memory
from envs.hybrid.timing import (
    StageSeconds,
    all_reduce_seconds,
    cut_seconds,
    layer_seconds,
    moves,
    stage_seconds,
)
from envs.step.pipeline import Bar, Pipeline, PlayedPipeline, Work, play
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator
from envs.step.timeline import Timeline
from envs.units import MEBI

BUCKET_BYTES = 25 * MEBI  # of gradients that are summed together: PyTorch's default


@dataclass(frozen=True, eq=False)
class HybridStep:
    """What happened in one step of `plan`.

    `macro` is the step as operators on the devices of the problem and, behind those, the streams
    on which gradients are summed.
    """

    problem: HybridProblem
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


def simulate(problem: HybridProblem, plan: HybridPlan) -> HybridStep:
    """One step of a plan whose stages are those of the problem (`plan.violations`).

    Every rank runs its list in order. A replica starts an action when it is free and its part of
    the micro-batch has come; replicas do not wait for each other. Parts travel under the rules of
    `envs.step.step.StepSimulator`: a port carries one transfer at a time, in the order in which
    they would become ready if there were enough ports.

    When a stage runs its last backward pass (or gradient of weights), its gradients become ready
    layer by layer, from the last one to the first. They are summed over the replicas
    (`all_reduce_seconds`), a bucket of at least `BUCKET_BYTES` after the other, beside what the
    devices compute. Stages whose replicas share servers take turns. Weights are updated when all
    that a stage sums is summed, at the end of its rank's list.
    """
    step = _MacroStep(problem, plan)
    return HybridStep(problem, plan, step.problem(), np.array(step.device, dtype=np.int64))


def pipeline_of(problem: HybridProblem, plan: HybridPlan) -> Pipeline:
    """The plan as a pipeline of its slowest replicas, without ports and without what is summed."""
    seconds = [stage_seconds(problem, stage) for stage in plan.stages]

    def slowest(columns: Iterable[FloatArray]) -> tuple[float, ...]:
        return tuple(float(column.max()) for column in columns)

    return Pipeline(
        plan.rank,
        plan.micro_batches,
        slowest(s.forward for s in seconds),
        slowest(s.input_gradient for s in seconds),
        slowest(s.weight_gradient for s in seconds),
        tuple(cut_seconds(problem, a, b) for a, b in pairwise(plan.stages)),
        (tuple(range(len(plan.stages))),),
    )


def streams(problem: HybridProblem, stages: Sequence[Stage]) -> list[int]:
    """(S,) the stream on which each stage sums gradients: one for stages that share a server."""
    server = problem.topology.server
    holds = [
        set(server[list(stage.devices)].tolist()) if stage.replicas > 1 else set()
        for stage in stages
    ]
    stream = list(range(len(stages)))
    for a in range(len(stages)):
        for b in range(a):
            if holds[a] & holds[b]:
                joined = stream[b]
                stream = [joined if s == stream[a] else s for s in stream]
    return [sorted(set(stream)).index(s) for s in stream]


class _MacroStep:
    """Collects the operators of a step in a topological order."""

    def __init__(self, problem: HybridProblem, plan: HybridPlan) -> None:
        self.hybrid, self.plan = problem, plan
        self.device: list[int] = []
        self._names: list[str] = []
        self._facts: list[tuple[Kind, Phase, int, float]] = []  # kind, phase, micro-batch, seconds
        self._tensors: list[tuple[int, int, float]] = []  # producer, consumer, bytes
        self._seconds = [stage_seconds(problem, stage) for stage in plan.stages]
        self._parts = [moves(a, b) for a, b in pairwise(plan.stages)]
        self._stream = streams(problem, plan.stages)
        self._last: dict[tuple[str, int, int], dict[int, int]] = {}  # what passes on -> operators
        self._summed: dict[int, int] = {}  # stage -> its last all-reduce
        played = play(pipeline_of(problem, plan), plan.orders)
        closing = _closing_actions(played)
        for bar in _in_order(played, len(plan.stages)):
            self._act(bar, (bar.stage, bar.micro_batch, bar.work) in closing)
        for number, stage in enumerate(plan.stages):
            self._update(number, stage)

    def problem(self) -> StepProblem:
        """The operators, as a problem of the simulator."""
        count, devices = len(self._names), self.hybrid.num_devices
        topology = _with_streams(self.hybrid.topology, max(self._stream) + 1)
        seconds = np.full((count, topology.num_devices), np.inf)
        kind, phase, batch, own = zip(*self._facts, strict=True)
        seconds[np.arange(count), self.device] = own
        tensors = np.array(self._tensors, dtype=np.float64).reshape(-1, 3)
        tensors = tensors[np.argsort(tensors[:, 0], kind="stable")]
        zeros = np.zeros(count)
        graph = OpGraph(
            name=self.hybrid.name,
            op_names=tuple(self._names),
            kind=np.array(kind, dtype=np.int64),
            phase=np.array(phase, dtype=np.int64),
            micro_batch=np.array(batch, dtype=np.int64),
            replica=np.zeros(count, dtype=np.int64),
            flop=zeros,
            bytes_read=zeros,
            bytes_written=zeros,
            op_dtype=np.zeros(count, dtype=np.int64),
            colocation=np.full(count, NONE),
            mirror=np.full(count, NONE),
            tensor_bytes=tensors[:, 2].copy(),
            tensor_dtype=np.zeros(len(tensors), dtype=np.int64),
            producer=tensors[:, 0].astype(np.int64),
            consumer_ptr=np.arange(len(tensors) + 1),
            consumer=tensors[:, 1].astype(np.int64),
            parameter_names=(),
            parameter_bytes=np.zeros(0),
            gradient_bytes=np.zeros(0),
            optimizer_bytes=np.zeros(0),
            parameter_owner=np.zeros(0, dtype=np.int64),
        )
        capacity = np.concatenate(
            [self.hybrid.capacity, np.full(topology.num_devices - devices, np.inf)]
        )
        transfers = link_transfer_seconds(graph, topology)
        return StepProblem(graph, topology, seconds, transfers, capacity)

    def _act(self, bar: Bar, closing: bool) -> None:
        """What every replica does in an action; `closing`: its stage's gradients are whole then."""
        work, number, batch = bar.work, bar.stage, bar.micro_batch
        stage = self.plan.stages[number]
        phase = Phase.FORWARD if work is Work.FORWARD else Phase.BACKWARD
        pieces = [_of_work(self._seconds[number], work)]
        buckets: list[float] = []
        if closing and stage.replicas > 1:
            pieces, buckets = self._pieces(work, stage)
        first: dict[int, int] = {}
        last: dict[int, int] = {}
        for piece, seconds in enumerate(pieces):
            for replica in np.argsort(seconds, kind="stable").tolist():  # who is ready first, sends
                name = f"{number}{LETTERS[work]}{batch}.{replica}" + (f".{piece}" if piece else "")
                op = self._add(name, phase, batch, float(seconds[replica]), stage, replica)
                first.setdefault(replica, op)
                last[replica] = op
            if buckets:
                self._sum(number, stage, piece, buckets[piece], list(last.values()))
        if work is Work.FORWARD:
            self._pass_on("F", number, number - 1, batch, first, last)
        elif work is not Work.WEIGHT:
            self._pass_on("B", number, number + 1, batch, first, last)

    def _pieces(self, work: Work, stage: Stage) -> tuple[list[FloatArray], list[float]]:
        """Seconds (R,) until each bucket is whole, and the bytes of the buckets."""
        layers = slice(stage.first, stage.end)
        seconds = _of_work(layer_seconds(self.hybrid, stage, layers), work)  # (layers, R)
        row = self.hybrid.sharding.degrees.index(stage.shards)
        sizes = (self.hybrid.gradient_bytes * self.hybrid.sharding.state[row])[layers]
        pieces, buckets = [np.zeros(stage.replicas)], [0.0]
        for layer in reversed(range(stage.end - stage.first)):
            if buckets[-1] >= BUCKET_BYTES and sizes[layer] > 0:
                pieces.append(np.zeros(stage.replicas))
                buckets.append(0.0)
            pieces[-1] = pieces[-1] + seconds[layer]
            buckets[-1] += float(sizes[layer])
        return pieces, buckets

    def _sum(self, number: int, stage: Stage, bucket: int, nbytes: float, after: list[int]) -> None:
        """An all-reduce on the stage's stream, when all replicas have their gradients."""
        seconds = all_reduce_seconds(self.hybrid, stage, nbytes)
        op = len(self._names)
        self._names.append(f"{number}.sum.{bucket}")
        self._facts.append((Kind.COLLECTIVE, Phase.BACKWARD, NONE, seconds))
        self.device.append(self.hybrid.num_devices + self._stream[number])
        self._tensors += [(maker, op, 0.0) for maker in after]
        self._summed[number] = op

    def _update(self, number: int, stage: Stage) -> None:
        row = self.hybrid.sharding.degrees.index(stage.shards)
        share = self.hybrid.sharding.state[row, stage.first : stage.end, None]
        column = (self.hybrid.update[stage.first : stage.end] * share).sum(axis=0)
        if number not in self._summed and not column.any():
            return
        for replica in range(stage.replicas):
            seconds = float(column[list(stage.replica(replica))].max())
            name = f"{number}.update.{replica}"
            op = self._add(name, Phase.OPTIMIZER, NONE, seconds, stage, replica)
            if number in self._summed:
                self._tensors.append((self._summed[number], op, 0.0))

    def _add(
        self, name: str, phase: Phase, batch: int, seconds: float, stage: Stage, replica: int
    ) -> int:
        self._names.append(name)
        self._facts.append((Kind.FUSED, phase, batch, seconds))
        self.device.append(stage.replica(replica)[0])
        return len(self._names) - 1

    def _pass_on(
        self,
        way: str,
        number: int,
        neighbour: int,
        batch: int,
        first: dict[int, int],
        last: dict[int, int],
    ) -> None:
        """Let the first operators wait for the neighbour's parts of the micro-batch."""
        self._last[way, number, batch] = last
        before = self._last.get((way, neighbour, batch))
        if before is None:
            return
        cut = min(number, neighbour)
        nbytes = float(self.hybrid.cut_bytes[self.plan.stages[cut].end])
        lower, upper = (before, first) if way == "F" else (first, before)
        for below, above, share in self._parts[cut]:
            pair = lower[below], upper[above]
            sender, receiver = pair if way == "F" else pair[::-1]
            self._tensors.append((sender, receiver, share * nbytes))


def _of_work(seconds: StageSeconds, work: Work) -> FloatArray:
    if work is Work.BACKWARD:
        return seconds.input_gradient + seconds.weight_gradient
    return seconds[int(work)]


def _closing_actions(played: PlayedPipeline) -> set[tuple[int, int, Work]]:
    """(stage, micro-batch, work) of every stage's last backward pass or gradient of weights."""
    last: dict[int, Bar] = {}
    for row in played.bars:
        last |= {bar.stage: bar for bar in row if bar.work in {Work.BACKWARD, Work.WEIGHT}}
    return {(bar.stage, bar.micro_batch, bar.work) for bar in last.values()}


def _in_order(played: PlayedPipeline, stages: int) -> list[Bar]:
    """All actions by when they end, what is waited for first among equals."""

    def depth(bar: Bar) -> int:
        if bar.work is Work.FORWARD:
            return 2 * bar.stage
        return 4 * stages - 2 * bar.stage + (bar.work is Work.WEIGHT)

    bars = [bar for row in played.bars for bar in row]
    return sorted(bars, key=lambda bar: (bar.finish, bar.start, depth(bar)))


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
