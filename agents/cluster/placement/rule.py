"""A placement rule around a compiled function."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from agents.cluster.placement.eligible import IntArray, Record, Records, whole_gpus
from agents.cluster.policy import Share
from envs.cluster.simulation.cluster import ClusterSimulator

Kernel = Callable[[Records, Record, NDArray[np.uint64], IntArray, IntArray], int]


class KernelRule:
    """Subclasses name the compiled function and its number."""

    name: str
    code: int
    kernel: ClassVar[Kernel]
    draws: ClassVar[bool] = False  # whether it needs random numbers

    def place(
        self, simulator: ClusterSimulator, job: int, rng: np.random.Generator
    ) -> Sequence[Share] | None:
        """The shares of `job` on the GPUs that are free now; None: it does not fit.

        Raises:
            InputError: the job asks for a fraction of a GPU.
        """
        whole_gpus(simulator, job)
        state = simulator.state
        nodes, gpus = np.zeros((2, len(state.nodes)), np.int64)
        random = np.zeros(1, np.uint64)
        if self.draws:
            random[0] = rng.integers(2**64, dtype=np.uint64)
        count = type(self).kernel(state.nodes, state.jobs[job], random, nodes, gpus)
        return [(int(nodes[i]), int(gpus[i])) for i in range(count)] or None
