"""Memory for many observations, which schedulers' views are written straight into."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from envs.cluster.environment.observation import Buffers, ClusterObservation

STATE, MASK = "state_features", "action_mask"
BUFFERS: Mapping[str, int] = {"float32": 0, "int64": 1, "int8": 2}  # dtype -> position in `Buffers`


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
        sizes = [len(buffer) for buffer in builder.buffers()]
        self.segments = _segments(builder)
        self.floats = np.zeros((times, rows, sizes[0]), np.float32)
        self.indices = np.zeros((times, rows, sizes[1]), np.int64)
        self.flags = np.zeros((times, rows, sizes[2]), np.int8)
        self.masks = np.zeros((times, rows, _size(space, MASK)), np.int8)
        state = _size(space, STATE) if STATE in space.spaces else 0
        self.state = np.zeros((times, rows, state), np.float32) if state else None
        self._arrays = [a for a in (*self._buffers(), self.masks, self.state) if a is not None]

    def clear(self, time: int, rows: slice) -> None:
        """Make observations all zero, as builders take their memory."""
        for array in (*self._buffers(), self.masks):
            array[time, rows] = 0

    def row(self, time: int, row: int) -> tuple[Buffers, NDArray[np.int8]]:
        """The memory of one observation and of its (A,) mask."""
        floats, indices, flags = (array[time, row] for array in self._buffers())
        return Buffers(floats, indices, flags), self.masks[time, row]

    def array(self, key: str, time: int, rows: slice) -> NDArray[Any]:
        """(n, ...) one of the builder's arrays in observations of one time; no copy."""
        segment = self.segments[key]
        piece = self._buffers()[segment.buffer][time, rows, segment.first : segment.last]
        return piece.reshape(len(piece), *segment.shape)

    def move(self, source: int, target: int) -> None:
        """Copy all observations of a time to another."""
        for array in self._arrays:
            array[target] = array[source]

    def at(self, time: int, rows: NDArray[np.int64]) -> dict[str, Tensor]:
        """(n, ...) observations of some rows at one time, as a policy takes them."""
        if len(rows) == self.masks.shape[1]:  # all, without a copy
            return self._batch([torch.from_numpy(array[time]) for array in self._arrays])
        return self.take(torch.from_numpy(rows + time * self.masks.shape[1]))

    def take(self, numbers: Tensor) -> dict[str, Tensor]:
        """(n, ...) the observations `numbers` (n,), counted as time x B + row; contiguous."""
        flat = [torch.from_numpy(array).flatten(0, 1) for array in self._arrays]
        return {key: piece.index_select(0, numbers) for key, piece in self._batch(flat).items()}

    def _buffers(self) -> tuple[NDArray[Any], ...]:
        return self.floats, self.indices, self.flags

    def _batch(self, tensors: list[Tensor]) -> dict[str, Tensor]:
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
