"""What passes between the devices of a partition, and how long it keeps each of them busy."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from envs.graphs.op_graph import NONE, FloatArray, IntArray, OpGraph
from envs.step.problem import StepProblem


@dataclass(frozen=True, eq=False)
class HostTraffic:
    """M messages in compressed sparse rows: what is sent once and received once per device.

    A message is a tensor. Only in a graph with a published table of link times, the tensors of one
    operator with the same times are one message: such a table gives an operator's output one time,
    whoever reads it and however much of it is read.

    `seconds[m, d]` is how long sending message m keeps device d busy, and how long receiving it
    does: the time of the slower direction of d's link with the host. Where no device is the host,
    it is that of d's slowest link with any other device.
    """

    tensor: IntArray  # (M,) the first tensor of each message
    producer: IntArray  # (M,) operator
    consumer_ptr: IntArray  # (M + 1,) row pointer into `consumer`
    consumer: IntArray  # (C,) operators, ascending and unique in each row
    seconds: FloatArray  # (M, D), the host's column is zero

    @classmethod
    def of(cls, step: StepProblem, host: int) -> HostTraffic:
        """The messages of `step` when device `host` (or NONE) is the host."""
        graph, count = step.graph, step.topology.num_devices
        message = _messages(graph)
        total = int(message.max(initial=NONE)) + 1
        first = np.full(total, graph.num_tensors, dtype=np.int64)
        np.minimum.at(first, message, np.arange(graph.num_tensors))
        used = np.unique(np.stack([message[graph.edges[:, 2]], graph.edges[:, 1]], axis=1), axis=0)
        link = step.topology.link_class
        seconds = np.zeros((total, count))
        for device in range(count):
            if device == host:
                continue
            ends = np.delete(np.arange(count), device) if host == NONE else np.array([host])
            classes = np.unique(np.concatenate([link[device, ends], link[ends, device]]))
            if len(classes):
                seconds[:, device] = step.transfer_seconds[first][:, classes].max(axis=1)
        return cls(
            tensor=first,
            producer=graph.producer[first],
            consumer_ptr=np.concatenate(
                [[0], np.cumsum(np.bincount(used[:, 0], minlength=total))]
            ).astype(np.int64),
            consumer=np.ascontiguousarray(used[:, 1]),
            seconds=seconds,
        )

    @property
    def num_messages(self) -> int:
        """M."""
        return len(self.producer)

    def uses(self) -> IntArray:
        """(C, 2) rows of message, consumer."""
        message = np.repeat(np.arange(self.num_messages), np.diff(self.consumer_ptr))
        return np.stack([message, self.consumer], axis=1)

    def busy_seconds(self, device: IntArray) -> FloatArray:
        """(D,) seconds each device sends and receives under placement `device` (N,)."""
        count = self.seconds.shape[1]
        uses = self.uses()
        source, target = device[self.producer[uses[:, 0]]], device[uses[:, 1]]
        leaves = source != target
        sent = np.unique(uses[leaves, 0])
        received = np.unique(uses[leaves, 0] * count + target[leaves])
        busy = np.zeros(count)
        for message, end in (
            (sent, device[self.producer[sent]]),
            (received // count, received % count),
        ):
            busy += np.bincount(end, weights=self.seconds[message, end], minlength=count)
        return busy


def _messages(graph: OpGraph) -> IntArray:
    """(T,) message of every tensor, numbered by the first of its tensors."""
    if not graph.link_classes:
        return np.arange(graph.num_tensors)
    known: dict[tuple[int, bytes], int] = {}
    rows = [row.tobytes() for row in graph.link_seconds]
    keys = zip(graph.producer.tolist(), rows, strict=True)
    return np.array([known.setdefault(key, len(known)) for key in keys], dtype=np.int64)
