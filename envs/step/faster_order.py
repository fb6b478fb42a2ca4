"""`FasterOrder`: a placement is played in the better of two orders."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from envs.step.arrays import Scratch, StepArrays
from envs.step.runtime_starts import runtime_starts
from envs.step.step import StepSimulator, step_time_in_order, use_order

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


class FasterOrder(StepSimulator):
    """As `StepSimulator`; a bare placement gets the faster of two orders.

    One is that of the order rule (1F1B by default). The other is the order in which a dynamic
    runtime that ranks ready operators by the first would start them (`envs.step.ready`):
    where the rule has a device wait for an input, such a runtime goes on with the next operator.
    """

    def order(self, device: IntArray) -> IntArray:
        """(N,) the faster order of placement `device` (N,)."""
        return self._faster(np.ascontiguousarray(device, dtype=np.int64))[1]

    def step_times(self, devices: IntArray, order: IntArray | None = None) -> FloatArray:
        """(B,) seconds of B placements `devices` (B, N), each in `order` or in its faster one."""
        if order is not None:
            return super().step_times(devices, order)
        devices = np.ascontiguousarray(devices, dtype=np.int64)
        return np.array([self._faster(device)[0] for device in devices])

    def _faster(self, device: IntArray) -> tuple[float, IntArray]:
        ranked = self.order_rule(self.problem.graph, device)
        order = np.empty(len(device), dtype=np.int64)
        seconds = _faster_order(self.arrays, self.scratch, self._num_ports, device, ranked, order)
        return seconds, order


@numba.njit(cache=True, nogil=True)
def _faster_order(
    arrays: StepArrays,
    work: Scratch,
    num_ports: int,
    device: IntArray,  # (N,)
    ranked: IntArray,  # (N,) the order of the rule
    order: IntArray,  # (N,) out
) -> float:
    """Seconds of placement `device` in the faster order, which is written to `order`."""
    n = len(device)
    for p in range(n):
        work.order[p] = ranked[p]
        order[p] = ranked[p]
    use_order(arrays, work)
    seconds: float = step_time_in_order(arrays, work, device)
    start = np.empty(n)
    runtime_starts(arrays, work, num_ports, device, start)
    by_start = ranked[np.argsort(start, kind="mergesort")]  # stable: equal starts as ranked
    for p in range(n):
        work.order[p] = by_start[p]
    use_order(arrays, work)
    other: float = step_time_in_order(arrays, work, device)
    if other < seconds:
        order[:] = by_start
        return other
    return seconds
