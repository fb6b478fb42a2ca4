"""Memory for many observations, which schedulers' views are written straight into."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray

from agents.rllib.subject import Array, ArrayMemory
from envs.arrays import IntArray
from envs.cluster.environment.observation import Buffers, ClusterObservation
from models.durations.network import bins_of

STATE, MASK = "state_features", "action_mask"
BUFFERS: Mapping[str, int] = {"float32": 0, "int64": 1, "int8": 2}  # dtype -> position in `Buffers`
NO_JOB, NO_BIN = -1.0, -1


class ObservationMemory(ArrayMemory):
    """T x B observations of one kind, as arrays that a compiled builder fills row by row.

    Features, indices and flags of an observation lie side by side, each in their own dtype, so that
    an observation is written once, where a batch is later taken from; `arrays` are views of them.

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
        self.rows, table = rows, builder.table
        sizes = [len(buffer) for buffer in builder.buffers()]
        self.floats = np.zeros((times, rows, sizes[0]), np.float32)
        self.indices = np.zeros((times, rows, sizes[1]), np.int64)
        self.flags = np.zeros((times, rows, sizes[2]), np.int8)
        masks = np.zeros((times, rows, *(space[MASK].shape or ())), np.int8)
        self._written = (self.floats, self.indices, self.flags, masks)
        # the builder is asked to lay out the numbers of the entries
        numbers = Buffers(*map(np.arange, sizes))  # type: ignore[arg-type]
        self.arrays = {}
        for key, entries in builder.graph(numbers).items():
            memory: Array = self._written[BUFFERS[str(builder.space[key].dtype)]]
            first = int(entries.flat[0])
            views = memory[:, :, first : first + entries.size]
            self.arrays[key] = views.reshape(times, rows, *entries.shape)
        self.arrays[MASK] = masks
        if STATE in space.spaces:
            self.arrays[STATE] = np.zeros((times, rows, *(space[STATE].shape or ())), np.float32)
        # (T, B, W + M) seconds of `lane.remaining_seconds`
        self.remaining = np.zeros((times, rows, table.window + table.running), np.float32)

    def clear(self, time: int, rows: slice) -> None:
        """Make observations all zero, as builders take their memory."""
        for array in self._written:
            array[time, rows] = 0

    def row(self, time: int, row: int) -> tuple[Buffers, NDArray[np.int8]]:
        """The memory of one observation and of its (A,) mask."""
        floats, indices, flags, mask = (array[time, row] for array in self._written)
        return Buffers(floats, indices, flags), mask

    def move(self, source: int, target: int) -> None:
        super().move(source, target)
        self.remaining[target] = self.remaining[source]

    def labels(self, times: int) -> IntArray:
        """(times x B, W + M) bins of what the jobs shown still need."""
        left = torch.from_numpy(self.remaining[:times]).flatten(0, 1)
        bins: IntArray = bins_of(left).masked_fill(left == NO_JOB, NO_BIN).numpy()
        return bins
