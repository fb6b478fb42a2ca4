"""`Timeline`: everything that happened in one simulated step, and the memory it took."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from envs.arrays import FloatArray, IntArray
from envs.graphs.op_graph import OpGraph
from envs.step.order import OneFOneB
from envs.step.problem import StepProblem


def lifetimes(
    graph: OpGraph,
    num_devices: int,
    device: IntArray,  # (N,)
    op_start: FloatArray,  # (N,) seconds
    op_finish: FloatArray,  # (N,) seconds
    transfer_tensor: IntArray,  # (K,)
    transfer_destination: IntArray,  # (K,) device
    transfer_start: FloatArray,  # (K,) seconds
    transfer_finish: FloatArray,  # (K,) seconds
) -> tuple[IntArray, FloatArray, FloatArray, FloatArray]:
    """(T + K,) the device that holds each tensor and each received copy, from when, to when, bytes.

    A tensor lives on its producer's device from the producer's start until its producer, its
    consumers there and its departing transfers have ended; a received copy lives from the
    transfer's start until its consumers there have ended.
    """
    edges = graph.edges
    producer = graph.producer
    home = device[producer]
    last = op_finish[producer].copy()
    local = device[edges[:, 1]] == home[edges[:, 2]]
    np.maximum.at(last, edges[local, 2], op_finish[edges[local, 1]])
    np.maximum.at(last, transfer_tensor, transfer_finish)
    # a received copy is one (tensor, device) pair
    copy = transfer_tensor * num_devices + transfer_destination
    rank = np.argsort(copy)
    remote = edges[~local]
    row = rank[
        np.searchsorted(copy[rank], remote[:, 2] * num_devices + device[remote[:, 1]])
    ] if len(remote) else np.zeros(0, np.int64)  # fmt: skip
    copy_last = transfer_finish.copy()
    np.maximum.at(copy_last, row, op_finish[remote[:, 1]])
    return (
        np.concatenate([home, transfer_destination]),
        np.concatenate([op_start[producer], transfer_start]),
        np.concatenate([last, copy_last]),
        np.concatenate([graph.tensor_bytes, graph.tensor_bytes[transfer_tensor]]),
    )


def single_device_peak(graph: OpGraph) -> float:
    """Bytes of the whole step on one device, micro-batch after micro-batch."""
    device, start = np.zeros((2, graph.num_operators), dtype=np.int64)
    start[OneFOneB()(graph, device)] = np.arange(graph.num_operators)
    none, never = np.zeros(0, np.int64), np.zeros(0)
    begin = start.astype(np.float64)
    lives = lifetimes(graph, 1, device, begin, begin + 1, none, none, never, never)
    return float(peaks(graph, 1, device, lives)[0][0])


def peaks(
    graph: OpGraph,
    num_devices: int,
    device: IntArray,  # (N,)
    lives: tuple[IntArray, FloatArray, FloatArray, FloatArray],  # `lifetimes`
) -> tuple[FloatArray, FloatArray]:
    """(D,) bytes, and (D,) seconds of the instant at which each device first holds so many.

    Parameters, gradients and optimizer state stay for the whole step. At equal times memory is
    freed before it is taken.
    """
    holder, start, end, size = lives
    live = (size > 0) & (end > start)
    holder, start, end, size = holder[live], start[live], end[live], size[live]
    times = np.concatenate([end, start])  # frees first at equal times: the sort is stable
    change = np.concatenate([-size, size])
    where = np.concatenate([holder, holder])
    by_time = np.argsort(times, kind="stable")
    peak, instant = np.zeros((2, num_devices))
    np.add.at(peak, device, graph.state_bytes)
    for d in range(num_devices):
        mine = by_time[where[by_time] == d]
        if len(mine):
            held = np.cumsum(change[mine])
            fullest = int(held.argmax())
            peak[d] += max(0.0, float(held[fullest]))
            instant[d] = times[mine[fullest]]
    return peak, instant


@dataclass(frozen=True, eq=False)
class Timeline:
    """Starts and finishes in seconds from the beginning of the step."""

    device: IntArray  # (N,) where each operator ran
    op_start: FloatArray  # (N,)
    op_finish: FloatArray  # (N,)
    transfer_tensor: IntArray  # (K,)
    transfer_source: IntArray  # (K,) device
    transfer_destination: IntArray  # (K,) device
    transfer_start: FloatArray  # (K,)
    transfer_finish: FloatArray  # (K,)
    peak_memory: FloatArray  # (D,) bytes: resident state and the peak of live activations

    @classmethod
    def of(
        cls,
        problem: StepProblem,
        device: IntArray,  # (N,)
        op_start: FloatArray,  # (N,)
        op_finish: FloatArray,  # (N,)
        tensor: IntArray,  # (K,)
        source: IntArray,  # (K,) device
        destination: IntArray,  # (K,) device
        start: FloatArray,  # (K,)
        finish: FloatArray,  # (K,)
    ) -> Timeline:
        """What happened, with the peak memory that follows."""
        graph, devices = problem.graph, problem.topology.num_devices
        lives = lifetimes(
            graph, devices, device, op_start, op_finish, tensor, destination, start, finish
        )
        peak = peaks(graph, devices, device, lives)[0]
        return cls(device, op_start, op_finish, tensor, source, destination, start, finish, peak)

    @property
    def step_time(self) -> float:
        """Seconds until the last operator ends."""
        return float(self.op_finish.max(initial=0.0))

    @property
    def span(self) -> float:
        """Seconds from the first start to the last end on the device where that takes longest.

        The period of steps that follow each other without a barrier, where nothing else holds them
        up: "longest stage time" in Qi et al., "Zero bubble pipeline parallelism", ICLR 2024.
        """
        longest = 0.0
        for device in np.unique(self.device):
            here = self.device == device
            longest = max(longest, float(self.op_finish[here].max() - self.op_start[here].min()))
        return longest

    def busy_seconds(self, num_devices: int) -> FloatArray:
        """(D,) seconds each device computed."""
        busy = np.zeros(num_devices)
        np.add.at(busy, self.device, self.op_finish - self.op_start)
        return busy
