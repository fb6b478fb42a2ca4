"""Coflows on a big switch: N ingress and N egress ports, nothing between them holds a flow back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np

from envs.arrays import FloatArray, IntArray


@dataclass(frozen=True, eq=False)
class CoflowProblem:
    """n coflows of F flows; a coflow is done when the last of its flows is.

    Sizes and times are in the units of the file, rates in sizes per time: MB and ms in the
    coflow-benchmark trace, units and time units in Sincronia's. Flows ascend by coflow, destination
    and source.
    """

    ports: int  # N on each side
    rate: float  # of every port
    arrival: FloatArray  # (n,)
    weight: FloatArray  # (n,)
    flow_ptr: (
        IntArray  # (n + 1,) the flows of c: flow_ptr[c]:flow_ptr[c + 1], by (destination, source)
    )
    source: IntArray  # (F,) ingress port
    destination: IntArray  # (F,) egress port
    size: FloatArray  # (F,) positive

    @property
    def num_coflows(self) -> int:
        """Those without flows among them, which end when they arrive."""
        return len(self.arrival)

    @cached_property
    def coflow(self) -> IntArray:
        """(F,) the coflow of each flow."""
        return np.repeat(np.arange(self.num_coflows), np.diff(self.flow_ptr))

    @cached_property
    def loads(self) -> FloatArray:
        """(n, 2 N) the size of each coflow at each ingress, then each egress port."""
        n, ports = self.num_coflows, self.ports
        first = 2 * ports * self.coflow
        loads = np.zeros(2 * n * ports)
        np.add.at(loads, first + self.source, self.size)
        np.add.at(loads, first + ports + self.destination, self.size)
        return loads.reshape(n, 2 * ports)

    @cached_property
    def alone(self) -> FloatArray:
        """(n,) the time of each coflow if nothing else were sent: that of its busiest port."""
        found: FloatArray = self.loads.max(axis=1, initial=0.0) / self.rate
        return found

    @cached_property
    def width(self) -> IntArray:
        """(n,) the smaller of the numbers of its sources and destinations."""
        used = np.zeros((2, self.num_coflows, self.ports), dtype=np.bool_)
        used[0, self.coflow, self.source] = used[1, self.coflow, self.destination] = True
        found: IntArray = used.sum(axis=2).min(axis=0)
        return found

    @cached_property
    def longest(self) -> FloatArray:
        """(n,) the size of each coflow's largest flow."""
        found = np.zeros(self.num_coflows)
        np.maximum.at(found, self.coflow, self.size)
        return found

    def offline(self) -> CoflowProblem:
        """All coflows there at time 0."""
        return replace(self, arrival=np.zeros(self.num_coflows))


def coflow_problem(
    ports: int,
    rate: float,
    arrival: FloatArray,
    rows: list[tuple[IntArray, IntArray, FloatArray]],
    weight: FloatArray | None = None,
) -> CoflowProblem:
    """Of a row (sources, destinations, sizes) for each coflow.

    Several flows of a coflow between the same ports are one, of their sizes' sum; flows of size 0
    are dropped. A coflow's flows stand by destination, then by source.
    """
    kept = [_added(ports, *row) for row in rows]
    ptr = np.cumsum([0, *(len(size) for _, _, size in kept)])
    source, destination, size = (np.concatenate([*column]) for column in zip(*kept, strict=True))
    return CoflowProblem(
        ports, rate, arrival, np.ones(len(rows)) if weight is None else weight,
        ptr.astype(np.int64), source, destination, size,
    )  # fmt: skip


def _added(
    ports: int, source: IntArray, destination: IntArray, size: FloatArray
) -> tuple[IntArray, IntArray, FloatArray]:
    pair, own = np.unique(destination * ports + source, return_inverse=True)
    total = np.zeros(len(pair))
    np.add.at(total, own, size)
    there = total > 0.0
    return pair[there] % ports, pair[there] // ports, total[there]
