"""Event by event through one step of several replicas that share links and reduce gradients."""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Gt
from numpy.typing import NDArray

from envs.bounds import bounded
from envs.errors import InputError
from envs.graphs.op_graph import NONE, OpGraph, Phase
from envs.network.collectives.schedule import Progress, Schedule
from envs.network.shared_links import SharedLinks
from envs.step.problem import StepProblem
from envs.step.timeline import Timeline
from envs.units import MEBI

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


class Reduction:
    """One all-reduce under way."""

    def __init__(self, progress: Progress, before: Reduction | None) -> None:
        self.progress = progress
        self.before = before  # the bucket that must have ended
        self.after: Reduction | None = None
        self.missing = 0  # gradients, over all replicas
        self.updates: list[int] = []  # operators that wait, over all replicas
        self.ready = 0.0
        self.start = np.inf
        self.finish = np.inf


class ReplicatedStep:
    """The state of a step; `reduce` adds the all-reduces, then `play` plays it to its end.

    Operator i of replica r is operator r N + i here. The rules stand in
    `envs.step.data_parallel.DataParallelSimulator`.

    Args:
        problem: graph, durations and topology.
        devices: (R, N) device of every operator in each replica; no device is in two replicas.
        order: (N,) operators, first to last.

    Raises:
        InputError: the order is no topological permutation; a tensor takes time between two devices
            without bandwidth (tabulated times), or an operator cannot run where it is.
    """

    def __init__(self, problem: StepProblem, devices: IntArray, order: IntArray) -> None:
        graph = problem.graph
        self.problem = problem
        self.num_replicas, self.n = devices.shape
        self.device = devices.ravel().tolist()
        self.seconds = problem.op_seconds[np.arange(self.n), devices].ravel()
        _check(problem, devices, order, self.seconds)
        self.start, self.finish = np.zeros(devices.size), np.zeros(devices.size)
        fan_in = np.bincount(graph.edges[:, 1], minlength=self.n)
        self.waiting = np.tile(fan_in, self.num_replicas).tolist()  # inputs and buckets
        self.queue: list[list[int]] = [[] for _ in range(problem.topology.num_devices)]
        for replica in range(self.num_replicas):
            for op in (order[::-1] + replica * self.n).tolist():
                self.queue[self.device[op]].append(op)  # next one last
        self.busy = [False] * problem.topology.num_devices
        self.links = SharedLinks(problem.topology)
        self.reductions: list[Reduction] = []
        self._makes: dict[int, list[Reduction]] = {}  # operator -> buckets of its gradients
        self._last: dict[int, Reduction] = {}  # device of the plan -> its last bucket
        self._sent: list[tuple[Reduction | None, int]] = []  # per key: message or transfer
        self._moved: list[tuple[int, int, int, int]] = []  # replica, tensor, source, destination
        self._moved_start: list[float] = []
        self._moved_finish: list[float] = []
        self._arriving: list[list[int]] = []  # (transfers,) operators that wait for each
        self._running: list[tuple[float, int]] = []  # finish, operator
        self._outputs = _outputs(problem)

    def reduce(
        self,
        bucket: Bucket,
        gradients: Mapping[int, Gradient],
        schedule: Schedule,
        devices: Sequence[int],
    ) -> None:
        """Reduce a bucket by `schedule` over `devices`, behind those added before on its device.

        `gradients` has those of the bucket's parameters.

        Raises:
            InputError: `devices` does not name one for every rank.
        """
        before = self._last.get(bucket.device)
        reduction = Reduction(Progress(schedule, bucket.size, devices), before)
        if before is not None:
            before.after = reduction
        self._last[bucket.device] = reduction
        self.reductions.append(reduction)
        for first in range(0, self.num_replicas * self.n, self.n):
            for parameter in bucket.parameters:
                for update in gradients[parameter].updates:
                    reduction.updates.append(first + update)
                    self.waiting[first + update] += 1
                for maker in gradients[parameter].makers:
                    reduction.missing += 1
                    self._makes.setdefault(first + maker, []).append(reduction)

    def play(self) -> None:
        """Play the step to its end.

        Raises:
            InputError: an update that waits for its bucket holds up a gradient of the bucket.
        """
        for device in range(len(self.queue)):
            self._run_next(device)
        while True:
            computed = self._running[0][0] if self._running else np.inf
            now = min(computed, self.links.next_event())
            if now == np.inf:
                break
            for key in self.links.advance(now):
                reduction, number = self._sent[key]
                if reduction is None:
                    self._moved_finish[number] = now
                    self._release(self._arriving[number])
                else:
                    self._send_messages(reduction, reduction.progress.end(number, now))
            while self._running and self._running[0][0] <= now:
                self._end_operator(heapq.heappop(self._running)[1])
        for queue in self.queue:
            if queue:
                name = self.problem.graph.op_names[queue[-1] % self.n]
                raise InputError(f"{name!r} waits for what comes after it", field="order")

    def timelines(self) -> tuple[Timeline, ...]:
        """(R,) what happened in each replica, with the transfers between its own devices."""
        moved = np.array(self._moved, dtype=np.int64).reshape(-1, 4)
        times = np.array([self._moved_start, self._moved_finish])
        return tuple(self._timeline(r, moved, times) for r in range(self.num_replicas))

    def _run_next(self, device: int) -> None:
        queue = self.queue[device]
        if queue and not self.busy[device] and self.waiting[queue[-1]] == 0:
            op = queue.pop()
            self.busy[device] = True
            self.start[op] = self.links.now
            self.finish[op] = self.links.now + self.seconds[op]
            heapq.heappush(self._running, (float(self.finish[op]), op))

    def _release(self, ops: Sequence[int]) -> None:
        """One thing less to wait for, each."""
        for op in ops:
            self.waiting[op] -= 1
            if self.waiting[op] == 0:
                self._run_next(self.device[op])

    def _end_operator(self, op: int) -> None:
        device = self.device[op]
        self.busy[device] = False
        replica, own = divmod(op, self.n)
        for tensor, consumers in self._outputs[own]:
            arriving: dict[int, list[int]] = {}
            for consumer in consumers:
                reader = replica * self.n + consumer
                arriving.setdefault(self.device[reader], []).append(reader)
            for there, readers in arriving.items():
                self._move(replica, tensor, device, there, readers)
        for reduction in self._makes.get(op, ()):
            reduction.missing -= 1
            if reduction.missing == 0:
                reduction.ready = self.links.now
                self._start_reduction(reduction)
        self._run_next(device)

    def _move(
        self, replica: int, tensor: int, source: int, destination: int, readers: list[int]
    ) -> None:
        if source == destination:
            self._release(readers)
            return
        topology = self.problem.topology
        link = topology.link_class[source, destination]
        seconds = float(self.problem.transfer_seconds[tensor, link])
        self._moved.append((replica, tensor, source, destination))
        self._moved_start.append(self.links.now)
        self._moved_finish.append(self.links.now)
        self._arriving.append(readers)
        if seconds == 0.0:
            self._release(readers)
            return
        latency = float(topology.class_latency[link])
        size = 0.0
        if seconds > latency:
            size = (seconds - latency) * float(topology.class_bandwidth[link])
        self._sent.append((None, len(self._moved) - 1))
        self.links.send(len(self._sent) - 1, source, destination, size, min(seconds, latency))

    def _start_reduction(self, reduction: Reduction) -> None:
        before = reduction.before
        if reduction.missing or (before is not None and before.finish == np.inf):
            return
        reduction.start = self.links.now
        self._send_messages(reduction, reduction.progress.first())

    def _send_messages(self, reduction: Reduction, messages: Sequence[int]) -> None:
        progress = reduction.progress
        for message in messages:
            self._sent.append((reduction, message))
            self.links.send(len(self._sent) - 1, *progress.begin(message, self.links.now))
        if progress.left == 0:
            reduction.finish = self.links.now
            self._release(reduction.updates)
            if reduction.after is not None:
                self._start_reduction(reduction.after)

    def _timeline(self, replica: int, moved: IntArray, times: FloatArray) -> Timeline:
        own = slice(replica * self.n, (replica + 1) * self.n)
        rows = np.flatnonzero(moved[:, 0] == replica)
        device = np.array(self.device[own], dtype=np.int64)
        return Timeline.of(
            self.problem, device, self.start[own], self.finish[own], moved[rows, 1], moved[rows, 2],
            moved[rows, 3], times[0, rows], times[1, rows],
        )  # fmt: skip


def _outputs(problem: StepProblem) -> list[list[tuple[int, list[int]]]]:
    """(N,) the tensors of each operator, each with its consumers."""
    graph = problem.graph
    found: list[list[tuple[int, list[int]]]] = [[] for _ in range(graph.num_operators)]
    for tensor, producer in enumerate(graph.producer.tolist()):
        consumers = graph.consumer[graph.consumer_ptr[tensor] : graph.consumer_ptr[tensor + 1]]
        found[producer].append((tensor, consumers.tolist()))
    return found


def _check(problem: StepProblem, devices: IntArray, order: IntArray, seconds: FloatArray) -> None:
    graph, topology = problem.graph, problem.topology
    n = graph.num_operators
    if not np.array_equal(np.sort(order), np.arange(n)):
        raise InputError(f"is not a permutation of the {n} operators", field="order")
    position = np.empty(n, dtype=np.int64)
    position[order] = np.arange(n)
    edges = graph.edges
    for u, v, _ in edges[position[edges[:, 0]] >= position[edges[:, 1]]]:
        raise InputError(
            f"{graph.op_names[v]!r} stands before its input {graph.op_names[u]!r}", field="order"
        )
    for op in np.flatnonzero(np.isinf(seconds)):
        raise InputError(
            f"cannot run on {topology.devices[devices.ravel()[op]].name!r}",
            file=f"graph {graph.name}",
            record=graph.op_names[op % n],
        )
    home = devices[:, graph.producer[edges[:, 2]]]
    link = topology.link_class[home, devices[:, edges[:, 1]]]
    moved = problem.transfer_seconds[edges[:, 2], link] > topology.class_latency[link]
    for wrong in np.unique(link[moved & ~np.isfinite(topology.class_bandwidth[link])]):
        raise InputError(
            f"link class {topology.class_names[wrong]!r} has no bandwidth to share",
            file=f"topology {topology.name}",
        )


@bounded
@dataclass(frozen=True)
class BucketRule:
    """A bucket is closed as soon as it holds `size` bytes or more; the first one `first` bytes.

    A size of inf makes one bucket of everything, which nothing overlaps.
    """

    first: Annotated[float, Gt(0.0)]  # bytes
    size: Annotated[float, Gt(0.0)]  # bytes


PYTORCH = BucketRule(first=1 * MEBI, size=25 * MEBI)  # DistributedDataParallel, as it comes
ONE_BUCKET = BucketRule(first=np.inf, size=np.inf)


@dataclass(frozen=True)
class Bucket:
    """Parameters of one device whose gradients are reduced together."""

    device: int  # of the plan
    parameters: tuple[int, ...]  # in the order their gradients are ready
    size: float  # bytes of their gradients


@dataclass(frozen=True)
class Gradient:
    """What makes a parameter's gradient and what reads it."""

    makers: tuple[int, ...]  # operators that are no updates and feed one of the updates, ascending
    updates: tuple[int, ...]  # operators, ascending


def gradients(graph: OpGraph) -> dict[int, Gradient]:
    """The gradient of each trained parameter: of each one that has gradient bytes.

    A parameter's update is its owner; where that is no optimizer's operator, all those of its
    co-location group. What they read from other operators is the gradient: in a captured graph the
    sum that the last micro-batch leaves.

    Raises:
        InputError: a trained parameter has no update, or none that reads a gradient.
    """
    edges = graph.edges
    update = graph.phase == Phase.OPTIMIZER
    makers: dict[int, set[int]] = {int(op): set() for op in np.flatnonzero(update)}
    for producer, consumer, _ in edges[update[edges[:, 1]] & ~update[edges[:, 0]]]:
        makers[int(consumer)].add(int(producer))
    in_group: dict[int, list[int]] = {}
    for op in makers:
        in_group.setdefault(int(graph.colocation[op]), []).append(op)
    in_group.pop(NONE, None)
    found = {}
    for parameter in np.flatnonzero(graph.gradient_bytes > 0):
        owner = int(graph.parameter_owner[parameter])
        updates = [owner] if update[owner] else in_group.get(int(graph.colocation[owner]), [])
        made = sorted(set().union(*(makers[op] for op in updates)))
        if not made:
            raise InputError(
                "has a gradient that no update reads",
                file=f"graph {graph.name}",
                record=graph.parameter_names[parameter],
            )
        found[int(parameter)] = Gradient(tuple(made), tuple(updates))
    return found


def gradient_buckets(
    graph: OpGraph, device: IntArray, order: IntArray, rule: BucketRule
) -> tuple[Bucket, ...]:
    """The buckets of placement `device` (N,) in `order` (N,): device after device, first to last.

    Gradients go into buckets in the order in which their device makes them, which is what PyTorch
    arrives at after the first step. Every device has buckets of its own.

    Raises:
        InputError: as `gradients`.
    """
    position = np.empty(len(order), dtype=np.int64)
    position[order] = np.arange(len(order))
    ready = {p: max(position[list(g.makers)]) for p, g in gradients(graph).items()}
    home = device[graph.parameter_owner]
    buckets = []
    for own in sorted({int(home[p]) for p in ready}):
        here: list[int] = []
        limit = rule.first
        for p in sorted((p for p in ready if home[p] == own), key=lambda p: (ready[p], p)):
            here.append(p)
            if graph.gradient_bytes[here].sum() >= limit:
                buckets.append(_bucket(graph, own, here))
                here, limit = [], rule.size
        if here:
            buckets.append(_bucket(graph, own, here))
    return tuple(buckets)


def updates_last(graph: OpGraph, order: IntArray) -> IntArray:
    """(N,) `order` with the optimizer's operators behind all others.

    Every device then runs its updates when its backward pass is over, as frameworks do; an update
    that waits for its bucket holds up no gradient.

    Raises:
        InputError: an operator that is no update reads what an update makes.
    """
    update = graph.phase == Phase.OPTIMIZER
    edges = graph.edges
    for producer, consumer, _ in edges[update[edges[:, 0]] & ~update[edges[:, 1]]]:
        raise InputError(
            f"feeds {graph.op_names[consumer]!r}, which is no update",
            file=f"graph {graph.name}",
            record=graph.op_names[producer],
        )
    return np.concatenate([order[~update[order]], order[update[order]]])


def updates_by_bucket(graph: OpGraph, order: IntArray, buckets: tuple[Bucket, ...]) -> IntArray:
    """(N,) `updates_last`, the updates in the order in which their buckets are reduced.

    An update then need not wait for the buckets behind its own.

    Raises:
        InputError: as `updates_last` and `gradients`.
    """
    number = np.zeros(graph.num_operators, dtype=np.int64)
    found = gradients(graph)
    for index, bucket in enumerate(buckets):
        for parameter in bucket.parameters:
            updates = list(found[parameter].updates)
            number[updates] = np.maximum(number[updates], index)
    last = updates_last(graph, order)
    first = int((graph.phase != Phase.OPTIMIZER).sum())
    last[first:] = last[first:][np.argsort(number[last[first:]], kind="stable")]
    return last


def _bucket(graph: OpGraph, device: int, parameters: list[int]) -> Bucket:
    return Bucket(device, tuple(parameters), float(graph.gradient_bytes[parameters].sum()))
