"""Memory for many observations, which schedulers' views are written straight into."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from agents.rllib.subject import Array
from envs.arrays import IntArray
from envs.cluster.environment.observation import Buffers, ClusterObservation
from models.durations.network import bins_of

STATE, MASK = "state_features", "action_mask"
BUFFERS: Mapping[str, int] = {"float32": 0, "int64": 1, "int8": 2}  # dtype -> position in `Buffers`
NO_JOB, NO_BIN = -1.0, -1


class Segment(NamedTuple):
    """Where an array of the observation lies in its buffer."""

    buffer: int
    first: int
    last: int
    shape: tuple[int, ...]


class ObservationMemory:
    """T x B observations of one kind, as arrays that a compiled builder fills row by row.

    Features, indices and flags of an observation lie side by side, each in their own dtype, so that
    an observation is written once, where a batch is later taken from.

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
        table, sizes = builder.table, [len(buffer) for buffer in builder.buffers()]
        self.segments = _segments(builder)
        self.floats = np.zeros((times, rows, sizes[0]), np.float32)
        self.indices = np.zeros((times, rows, sizes[1]), np.int64)
        self.flags = np.zeros((times, rows, sizes[2]), np.int8)
        self.masks = np.zeros((times, rows, _size(space, MASK)), np.int8)
        state = _size(space, STATE) if STATE in space.spaces else 0
        self.state = np.zeros((times, rows, state), np.float32) if state else None
        # (T, B, W + M) seconds of `lane.remaining_seconds`
        self.remaining = np.zeros((times, rows, table.window + table.running), np.float32)
        arrays = (self.floats, self.indices, self.flags, self.masks, self.state)
        self._seen: list[Array] = [array for array in arrays if array is not None]

    def clear(self, time: int, rows: slice) -> None:
        """Make observations all zero, as builders take their memory."""
        for array in self._seen[:4]:
            array[time, rows] = 0

    def row(self, time: int, row: int) -> tuple[Buffers, NDArray[np.int8]]:
        """The memory of one observation and of its (A,) mask."""
        floats, indices, flags, mask = (array[time, row] for array in self._seen[:4])
        return Buffers(floats, indices, flags), mask

    def one(self, time: int, row: int, names: tuple[str, ...]) -> dict[str, Array]:
        """Some of the builder's arrays in one observation; no copies."""
        found = {}
        for name in names:
            segment = self.segments[name]
            piece = self._seen[segment.buffer][time, row, segment.first : segment.last]
            found[name] = piece.reshape(segment.shape)
        return found

    def move(self, source: int, target: int) -> None:
        for array in (*self._seen, self.remaining):
            array[target] = array[source]

    def at(self, time: int, rows: IntArray) -> dict[str, Tensor]:
        batch = self._named([torch.from_numpy(array[time]) for array in self._seen])
        if len(rows) == self.masks.shape[1]:  # all, without a copy
            return batch
        numbers = torch.from_numpy(rows)
        return {key: piece.index_select(0, numbers) for key, piece in batch.items()}

    def observations(self, times: int) -> dict[str, Array]:
        flat = [torch.from_numpy(array[:times]).flatten(0, 1) for array in self._seen]
        return {key: piece.numpy() for key, piece in self._named(flat).items()}

    def labels(self, times: int) -> IntArray:
        """(times x B, W + M) bins of what the jobs shown still need."""
        left = torch.from_numpy(self.remaining[:times]).flatten(0, 1)
        bins: IntArray = bins_of(left).masked_fill(left == NO_JOB, NO_BIN).numpy()
        return bins

    def _named(self, tensors: list[Tensor]) -> dict[str, Tensor]:
        """Views of the (n, ...) pieces of an observation, by name."""
        batch = {
            key: tensors[segment.buffer][:, segment.first : segment.last].unflatten(
                1, segment.shape
            )
            for key, segment in self.segments.items()
        }
        batch[MASK] = tensors[3]
        if self.state is not None:
            batch[STATE] = tensors[4]
        return batch


def _segments(builder: ClusterObservation) -> dict[str, Segment]:
    """Where the builder's arrays lie: it is asked to lay out the numbers of the entries."""
    numbers = Buffers(*(np.arange(len(buffer)) for buffer in builder.buffers()))  # type: ignore[arg-type]
    found = {}
    for key, array in builder.graph(numbers).items():
        box = builder.space[key]
        first = int(array.flat[0])
        found[key] = Segment(BUFFERS[str(box.dtype)], first, first + array.size, array.shape)
    return found


def _size(space: spaces.Dict, key: str) -> int:
    shape = space[key].shape
    assert shape is not None
    return int(np.prod(shape))
