"""A placed and ordered step as a function of the rates of the pipes between its servers.

The step is that of `envs.step.kernel.play` on `envs.step.allocated.allocated_problem`.
With the plan fixed every resource serves its users in a fixed sequence, so the step is a fixed
acyclic graph of operators and transfers, and only the transfers through pipes have weights that
depend on the rates. Its longest path is compiled.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from envs.arrays import FloatArray, IntArray, sums_before
from envs.compilation import compiled
from envs.errors import InputError
from envs.network.pipes import check_bandwidth, pipe_of_pairs
from envs.step.plans import Plan
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator

NOTHING = -1
PATH_ROUNDING = 1e-11  # relative; covers the sums along a path of a hundred thousand nodes
_ROUNDING = 1e-9  # relative; what a transfer may be faster than its latency by


@dataclass(frozen=True, eq=False)
class Path:
    """The longest path of a step: `seconds` = `constant` + sum of `volume` times slowness.

    For any other slowness x (J,) the same path takes `constant + volume @ x`, and no step is
    shorter than any of its paths.
    """

    seconds: float
    constant: float  # seconds: operators, latencies, transfers inside servers
    volume: FloatArray  # (J,) bytes through each crossing


class PipedStep:
    """The step of `plan` when its transfers between servers go through pipes.

    A *crossing* is what transfers through the same pipe with the same slowest link beside it have
    in common: one that gets B bytes/s of its pipe and no more than `inner` bytes/s elsewhere has a
    *slowness* of max(1 / B, 1 / inner) seconds per byte, which is convex in B. A plan fixes the
    sequence of every device, pipe and port, hence an acyclic graph of operators and transfers
    whose longest path is the step. The step is therefore convex in the rates, and does not grow
    with any of them.

    Attributes:
        pipe: (J,) source server * S + destination server of each crossing.
        inner: (J,) bytes/s.
        volume: (S * S,) bytes through each pipe. They are those that rates act on: (seconds on the
            link class - its latency) * its bandwidth.
        transfers: (S * S,) those through each pipe that take time.

    Raises:
        InputError: there is no bandwidth between some servers, or a tensor takes less than the
            latency of its way.
    """

    def __init__(self, problem: StepProblem, plan: Plan) -> None:
        graph, topology = problem.graph, problem.topology
        _check(problem)
        self.network = topology.network
        self.num_servers = topology.num_servers
        apart, pipe = pipe_of_pairs(topology)
        keys = np.stack([pipe[apart], self.network.inner_bandwidth[apart]], axis=1)
        known, which = np.unique(keys, axis=0, return_inverse=True)
        crossing = np.full(apart.shape, NOTHING)
        crossing[apart] = which.ravel()
        self.pipe: IntArray = known[:, 0].astype(np.int64)
        self.inner: FloatArray = known[:, 1].copy()
        device, order = plan.placement.device, plan.order
        played = StepSimulator(problem).run(device, order)
        tensor, source, target = (
            played.transfer_tensor, played.transfer_source, played.transfer_destination
        )  # fmt: skip
        seconds = problem.transfer_seconds[tensor, topology.link_class[source, target]]
        timed = seconds > 0.0
        tensor, source, target = tensor[timed], source[timed], target[timed]  # (M,) as they go
        kind, through = topology.link_class[source, target], crossing[source, target]
        piped, latency = through != NOTHING, topology.class_latency[kind]
        width = np.where(piped, topology.class_bandwidth[kind], 0.0)
        moved = np.maximum(seconds[timed] - latency, 0.0) * width
        passed, pipes = self.pipe[through[piped]], self.num_servers**2
        self.volume = np.asarray(np.bincount(passed, moved[piped], pipes), np.float64)
        self.transfers: IntArray = np.bincount(passed, minlength=pipes)
        # Operators by position, behind each its transfers, behind all the end of the step.
        position = np.argsort(order)
        producer = position[graph.producer[tensor]]
        sent = producer + 1 + np.arange(len(producer))
        run = np.arange(len(order)) + np.searchsorted(producer, np.arange(len(order)))
        self._fixed = np.zeros(len(run) + len(sent) + 1)
        self._fixed[run] = problem.op_seconds[order, device[order]]
        self._fixed[sent] = np.where(piped, latency, seconds[timed])
        self._moved = np.zeros(len(self._fixed))
        self._moved[sent] = moved
        self._through = np.full(len(self._fixed), NOTHING)
        self._through[sent] = through
        # What each waits for. Of what ends at the same time the first is on the path.
        maker, consumer, used = graph.edges[
            np.lexsort((graph.edges[:, 2], position[graph.edges[:, 0]]))
        ].T
        carrier = np.full((graph.num_tensors, topology.num_devices), NOTHING)
        carrier[tensor, target] = sent
        brought = carrier[used, device[consumer]]
        ports = np.stack(
            [np.where(piped, topology.num_ports + 2 * pipe[source, target] + side, own)
             for side, own in enumerate((topology.send_port[source, target],
                                         topology.receive_port[source, target]))], axis=1
        ).ravel()  # fmt: skip
        waits = [
            (run[position[consumer]], np.where(brought == NOTHING, run[position[maker]], brought)),
            _queue(run, device[order]),
            (sent, run[producer]),
            _queue(np.repeat(sent, 2), ports),
            (np.full(len(run), len(self._fixed) - 1), run),
        ]
        later, before = (np.concatenate(side) for side in zip(*waits, strict=True))
        self._before = before[np.argsort(later, kind="stable")]
        self._ptr = sums_before(np.bincount(later, minlength=len(self._fixed)))

    @property
    def num_crossings(self) -> int:
        return len(self.pipe)

    def slowness(self, pipes: FloatArray) -> FloatArray:
        """(J,) seconds per byte at the rates `pipes` (S, S) in bytes/s; inf at rate 0."""
        with np.errstate(divide="ignore"):
            found: FloatArray = 1.0 / np.minimum(pipes.ravel()[self.pipe], self.inner)
        return found

    def longest_path(self, slowness: FloatArray) -> Path:
        """The longest path at `slowness` (J,), none negative."""
        slow = np.append(slowness, 0.0)[self._through]
        with np.errstate(invalid="ignore"):
            weight = np.where(slow == np.inf, np.inf, self._fixed + self._moved * slow)
        seconds, path = _longest_path(weight, self._ptr, self._before)
        volume = np.zeros(self.num_crossings + 1)
        np.add.at(volume, self._through[path], self._moved[path])
        return Path(seconds, float(np.cumsum(self._fixed[path])[-1]), volume[:-1])


def _queue(node: IntArray, resource: IntArray) -> tuple[IntArray, IntArray]:
    """Those that wait for the one before at their resource, and that one."""
    order = np.argsort(resource, kind="stable")
    same = resource[order[1:]] == resource[order[:-1]]
    return node[order[1:][same]], node[order[:-1][same]]


@compiled
def _longest_path(weight: FloatArray, ptr: IntArray, before: IntArray) -> tuple[float, IntArray]:
    """Seconds until the last node ends, and the nodes of a longest path from there back.

    Node x begins when all of `before[ptr[x]:ptr[x + 1]]`, which have smaller numbers, have ended.
    """
    end = np.zeros(len(weight))
    cause = np.full(len(weight), NOTHING)
    for node in range(len(weight)):
        for k in range(ptr[node], ptr[node + 1]):
            if end[before[k]] > end[node]:
                end[node], cause[node] = end[before[k]], before[k]
        end[node] += weight[node]
    path = np.empty(len(weight), np.int64)
    node, length = len(weight) - 1, 0
    while node != NOTHING:
        path[length] = node
        node, length = cause[node], length + 1
    return end[-1], path[:length]


def _check(problem: StepProblem) -> None:
    topology = problem.topology
    check_bandwidth(topology)
    apart, _ = pipe_of_pairs(topology)
    for kind in np.unique(topology.link_class[apart]):
        name = topology.class_names[kind]
        seconds = problem.transfer_seconds[:, kind]
        floor = topology.class_latency[kind] * (1.0 - _ROUNDING)
        short = np.flatnonzero((seconds > 0.0) & (seconds < floor))
        if len(short):
            raise InputError(
                f"tensor {short[0]} takes {seconds[short[0]]:.6g} s on link class {name!r}, "
                f"whose latency alone is {topology.class_latency[kind]:.6g} s",
                file=f"graph {problem.graph.name}",
            )
