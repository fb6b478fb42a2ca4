"""2D-LAS with the arithmetic of Tiresias' published simulator."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agents.cluster.attained_service import AttainedService, FloatArray
from agents.cluster.loops.las_2d_tiresias import las_2d_tiresias


class LAS2DTiresias(AttainedService):
    """The queues of `las_2d`, looked at at other times.

    A running job is looked at again (limit - executed seconds) // GPUs seconds from each event: it
    takes a limit of GPU-seconds for one of seconds, and then divides by the GPUs. A gang is demoted
    at the first event after it has reached the limit, which may be late, and one queue at a time.
    """

    name = "las_2d_tiresias"
    loop = staticmethod(las_2d_tiresias)
    published = True

    def lower(self, level: int, service: float) -> int:
        """The next queue if the limit is reached."""
        reached = level < len(self.limits) and service >= self.limits[level]
        return level + 1 if reached else level

    def until_limit(
        self, limit: NDArray[np.int64], executed: FloatArray, gpus: FloatArray
    ) -> FloatArray:
        """The published expression."""
        seconds: FloatArray = np.floor((limit - executed) / gpus)
        return seconds
