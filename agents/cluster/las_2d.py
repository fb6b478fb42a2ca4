"""2D-LAS: least attained service first, in queues."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agents.cluster.attained_service import AttainedService, FloatArray
from agents.cluster.loops.las_2d import las_2d


class LAS2D(AttainedService):
    """Discretised two-dimensional least attained service.

    A job is in the queue that its service belongs to, from the first whole second of its execution
    at which the limit is reached; the cluster is scheduled anew at that second.

    Reference: Gu et al., "Tiresias: A GPU Cluster Manager for Distributed Deep Learning", NSDI
    2019, section 4.2; without the promotion of jobs that starve.
    """

    name = "las_2d"
    loop = staticmethod(las_2d)
    published = False

    def lower(self, level: int, service: float) -> int:
        """The queue that the service belongs to."""
        return int(np.searchsorted(self.limits, service, side="right"))

    def until_limit(
        self, limit: NDArray[np.int64], executed: FloatArray, gpus: FloatArray
    ) -> FloatArray:
        """Whole seconds until the service reaches the limit."""
        seconds: FloatArray = np.ceil((limit - executed * gpus) / gpus)
        return seconds
