"""Coflows on a big switch: N ingress and N egress ports, nothing between them holds a flow back."""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from envs.errors import InputError

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class CoflowProblem:
    """n coflows of F flows; a coflow is done when the last of its flows is.

    Sizes and times are in the units of the file, rates in sizes per time: MB and ms in the
    coflow-benchmark trace, units and time units in Sincronia's.

    Raises:
        InputError: an array has the wrong shape, or a value out of its range.
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

    def __post_init__(self) -> None:
        n, flows = self.num_coflows, len(self.size)
        if self.ports < 1 or not 0.0 < self.rate < np.inf:
            raise InputError("a switch has at least one port and a positive rate", field="ports")
        if self.weight.shape != (n,) or self.flow_ptr.shape != (n + 1,):
            raise InputError(f"does not fit {n} coflows", field="flow_ptr")
        if (
            self.flow_ptr[0] != 0
            or self.flow_ptr[-1] != flows
            or np.any(np.diff(self.flow_ptr) < 0)
        ):
            raise InputError("is no row pointer of the flows", field="flow_ptr")
        for name, port in (("source", self.source), ("destination", self.destination)):
            if port.shape != (flows,) or np.any((port < 0) | (port >= self.ports)):
                raise InputError(f"is none of the {self.ports} ports", field=name)
        key = (self.coflow * self.ports + self.destination) * self.ports + self.source
        if np.any(np.diff(key) <= 0):
            raise InputError("do not ascend by coflow, destination and source", field="source")
        if not np.all((self.size > 0.0) & np.isfinite(self.size)):
            raise InputError("is not positive and finite", field="size")
        for name, value in (("arrival", self.arrival), ("weight", self.weight)):
            if not np.all((value >= 0.0) & np.isfinite(value)):
                raise InputError("is negative or not finite", field=name)

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
