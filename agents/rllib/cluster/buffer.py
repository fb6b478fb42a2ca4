"""A buffer of many observations, which schedulers' views are written straight into."""

from __future__ import annotations

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from agents.rllib.task import ObservationBuffer
from envs.arrays import IntArray
from envs.cluster.environment.observation import ClusterGraph, ClusterObservation
from models.durations.network import bins_of

STATE, MASK = "state_features", "action_mask"
NO_JOB, NO_BIN = -1.0, -1


class ClusterBuffer(ObservationBuffer):
    """T x B observations of one kind, as arrays that a compiled builder fills row by row.

    Args:
        builder: of the observations.
        space: of what an agent sees: the builder's arrays, `action_mask`, `state_features` if it
            is a part of it.
        times: T.
        rows: B.
    """

    def __init__(
        self, builder: ClusterObservation, space: spaces.Dict, times: int, rows: int
    ) -> None:
        super().__init__(space, times, rows)
        # (T, B, W + M) seconds of `scheduling.remaining_seconds`
        jobs = builder.table.window + builder.table.running
        self.remaining = np.zeros((times, rows, jobs), np.float32)

    def clear(self, time: int, rows: slice) -> None:
        """Make observations all zero, as builders take their memory."""
        for array in self.arrays.values():
            array[time, rows] = 0

    def row(self, time: int, row: int) -> tuple[ClusterGraph, NDArray[np.int8]]:
        """The memory of one observation and of its (A,) mask."""
        graph = {name: array[time, row] for name, array in self.arrays.items()}
        return graph, graph[MASK]

    def move(self, source: int, target: int) -> None:
        super().move(source, target)
        self.remaining[target] = self.remaining[source]

    def labels(self, times: int) -> IntArray:
        """(times, B, W + M) bins of what the jobs shown still need."""
        left = torch.from_numpy(self.remaining[:times])
        bins: IntArray = bins_of(left).masked_fill(left == NO_JOB, NO_BIN).numpy()
        return bins
