"""Quantities that jump and hold: GPUs in use, jobs in a queue."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class StepFunction:
    """0 before the first of its times; from each of them on a value, until the next."""

    time: FloatArray  # (K,) seconds, rising
    value: FloatArray  # (K,)

    @classmethod
    def of_changes(cls, time: FloatArray, change: FloatArray) -> StepFunction:
        """The sum of all changes so far; those of one instant count together.

        Args:
            time: (C,) seconds, in any order.
            change: (C,).
        """
        order = np.argsort(time, kind="stable")
        instants, first = np.unique(time[order], return_index=True)
        if not len(instants):
            return cls(instants, instants)
        step = np.add.reduceat(change[order], first)
        kept = step != 0
        return cls(instants[kept], np.cumsum(step[kept]))

    def at(self, time: FloatArray) -> FloatArray:
        """The value at each time; at a jump the new one."""
        index = np.searchsorted(self.time, time, side="right")
        return np.asarray(np.concatenate([[0.0], self.value])[index])

    def integral(self, time: FloatArray) -> FloatArray:
        """The area from the beginning to each time."""
        if not len(self.time):
            return np.zeros(np.shape(time))
        area = np.concatenate([[0.0], np.cumsum(self.value[:-1] * np.diff(self.time))])
        index = np.maximum(np.searchsorted(self.time, time, side="right") - 1, 0)
        since = np.maximum(time - self.time[index], 0.0)
        return np.asarray(area[index] + self.value[index] * since)

    def mean(self, start: FloatArray, end: FloatArray) -> FloatArray:
        """The mean from each start to its end, which is later."""
        return np.asarray((self.integral(end) - self.integral(start)) / (end - start))
