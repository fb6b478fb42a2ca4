"""Data-parallel training steps: replicas of a placed step that reduce their gradients."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envs.errors import InputError
from envs.graphs.op_graph import OpGraph
from envs.network.collectives.schedule import Collective, CollectiveRun, Operation
from envs.step.problem import StepProblem
from envs.step.replicated_step import (
    Bucket,
    BucketRule,
    Gradient,
    ReplicatedStep,
    gradient_buckets,
    gradients,
    updates_last,
)
from envs.step.timeline import Timeline

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class BucketTime:
    """One bucket's all-reduce, in seconds from the beginning of the step."""

    bucket: Bucket
    ready: float  # its last gradient is made, in the last replica
    start: float  # and the bucket before has ended
    finish: float
    messages: CollectiveRun  # from the beginning of the step

    @property
    def seconds(self) -> float:
        """How long the all-reduce took."""
        return self.finish - self.start


@dataclass(frozen=True, eq=False)
class DataParallelStep:
    """What happened in one step of all replicas."""

    timelines: tuple[Timeline, ...]  # (R,)
    buckets: tuple[BucketTime, ...]
    computing_time: float  # seconds of the same step if no gradients had to be reduced

    @property
    def step_time(self) -> float:
        """Seconds until the last operator of the last replica ends."""
        return max(timeline.step_time for timeline in self.timelines)

    @property
    def exposed_seconds(self) -> float:
        """Seconds by which reducing gradients prolongs the step."""
        return self.step_time - self.computing_time

    @property
    def synchronisation_seconds(self) -> float:
        """Seconds of all all-reduces of the device of the plan that has most of them."""
        total: dict[int, float] = {}
        for run in self.buckets:
            total[run.bucket.device] = total.get(run.bucket.device, 0.0) + run.seconds
        return max(total.values(), default=0.0)

    @property
    def exposed_share(self) -> float:
        """Exposed seconds over synchronisation seconds: 1 when nothing is hidden.

        It can be larger where the traffic of all-reduces slows that of the replicas. 0 where there
        is nothing to reduce.
        """
        total = self.synchronisation_seconds
        return self.exposed_seconds / total if total > 0 else 0.0


class DataParallelSimulator:
    """Plays R replicas of a placed training step whose gradients are reduced bucket by bucket.

    Every replica runs the whole graph on devices of its own, each device in the order of the plan
    with its updates last (`updates_last`), and every operator as soon as its inputs have arrived.
    Micro-batches are summed inside the replica; gradients are reduced once, when the last
    micro-batch has left them (Li et al. 2020, section 3.2.4: `no_sync`).

    The parameters that the plan puts on one device are reduced among the copies of that device. A
    bucket's all-reduce starts when its last gradient is made in all replicas and the bucket before
    it on that device has ended. An update starts when the buckets of its parameters have ended and
    the updates before it have run: in the order of a captured graph the first layers' update comes
    first, whose bucket is the last, so that updates wait for all buckets as they do in PyTorch. In
    the order of `updates_by_bucket` they begin while later buckets are under way.
    All-reduces take no time on the devices: sums are made by what moves the data. Gradients live in
    their buckets and take no memory besides (`gradient_as_bucket_view`).

    The messages of all-reduces and the transfers between the devices of a replica share the
    physical links max-min fairly, over all paths of a pair, as in
    `envs.step.fair.FairSimulator`; one replica that reduces nothing is played as there.

    Example: BERT on four servers, a replica on each::

        simulator = DataParallelSimulator(problem, RingAllReduce(), PYTORCH)
        devices = np.repeat(np.arange(4)[:, None], problem.graph.num_operators, axis=1)
        step = simulator.run(devices, OneFOneB()(problem.graph, devices[0]))
        step.step_time, step.exposed_seconds

    A plan `device` (N,) on a few devices is replicated by `groups[:, device]`, where `groups`
    (R, D) names the device that stands for each one in each replica.

    Args:
        problem: graph, durations and the topology of all replicas together.
        collective: the all-reduce; its ranks are the replicas.
        rule: how gradients form buckets.
        servers: the devices of the collective's ranks beyond the replicas (parameter servers).

    Raises:
        InputError: the collective is no all-reduce, or the topology has no such server.
    """

    def __init__(
        self,
        problem: StepProblem,
        collective: Collective,
        rule: BucketRule,
        servers: Sequence[int] = (),
    ) -> None:
        for device in servers:
            if not 0 <= device < problem.topology.num_devices:
                raise InputError(
                    f"device {device} is none of {problem.topology.num_devices}", field="servers"
                )
        if collective.operation is not Operation.ALL_REDUCE:
            raise InputError(
                f"{collective.name} is a {collective.operation.value}, not an all-reduce",
                field="collective",
            )
        self.problem = problem
        self.collective = collective
        self.rule = rule
        self.servers = tuple(servers)

    def run(self, devices: IntArray, order: IntArray) -> DataParallelStep:
        """One step.

        Args:
            devices: (R, N) device of every operator in each replica.
            order: (N,) operators, first to last; updates are moved behind all others.

        Raises:
            InputError: two replicas share a device or are placed differently; the order is not
                topological; a gradient has no update, or is made or read on another device than its
                parameter's; an update feeds an operator that is none; the collective
                cannot serve R participants.
        """
        devices = np.ascontiguousarray(devices, dtype=np.int64)
        graph = self.problem.graph
        _check_replicas(devices, graph.num_operators, self.problem.topology.num_devices)
        order = updates_last(graph, np.asarray(order, dtype=np.int64))
        buckets = gradient_buckets(graph, devices[0], order, self.rule)
        schedule = self.collective.schedule(len(devices))
        found = gradients(graph)
        _check_gradients(graph, found, devices[0])
        with_buckets = ReplicatedStep(self.problem, devices, order)
        for bucket in buckets:
            owner = graph.parameter_owner[bucket.parameters[0]]
            with_buckets.reduce(bucket, found, schedule, [*devices[:, owner], *self.servers])
        with_buckets.play()
        alone = ReplicatedStep(self.problem, devices, order)
        alone.play()
        return DataParallelStep(
            timelines=with_buckets.timelines(),
            buckets=tuple(
                BucketTime(bucket, run.ready, run.start, run.finish, run.progress.run())
                for bucket, run in zip(buckets, with_buckets.reductions, strict=True)
            ),
            computing_time=max(timeline.step_time for timeline in alone.timelines()),
        )


def _check_replicas(devices: IntArray, operators: int, num_devices: int) -> None:
    if devices.ndim != 2 or devices.shape[1] != operators or not len(devices):
        raise InputError(
            f"has shape {devices.shape}, not replicas x {operators} operators", field="devices"
        )
    if devices.min() < 0 or devices.max() >= num_devices:
        raise InputError(f"names a device beyond the {num_devices}", field="devices")
    taken: dict[int, int] = {}  # device -> replica
    for replica, row in enumerate(devices):
        pairs = np.unique(np.stack([devices[0], row], axis=1), axis=0)
        for column, what in (
            (0, "two devices stand for device"),
            (1, "stands for two devices: device"),
        ):
            twice = np.flatnonzero(np.bincount(pairs[:, column]) > 1)
            if len(twice):
                raise InputError(f"{what} {twice[0]}", record=f"replica {replica}", field="devices")
        for device in pairs[:, 1].tolist():
            if taken.setdefault(device, replica) != replica:
                raise InputError(
                    f"device {device} is in replica {taken[device]} too",
                    record=f"replica {replica}",
                    field="devices",
                )


def _check_gradients(graph: OpGraph, found: Mapping[int, Gradient], device: IntArray) -> None:
    for parameter, gradient in found.items():
        home = device[graph.parameter_owner[parameter]]
        for op in (*gradient.makers, *gradient.updates):
            if device[op] != home:
                raise InputError(
                    f"its gradient is made or read by {graph.op_names[op]!r} on another device",
                    file=f"graph {graph.name}",
                    record=graph.parameter_names[parameter],
                )
