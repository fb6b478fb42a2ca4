"""From an action to the weights of the channels; the action map owns the action space."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Protocol

import numpy as np
from annotated_types import Ge
from gymnasium import spaces
from numpy.typing import NDArray

from envs.arrays import BoolArray, FloatArray
from envs.bounds import Positive, bounded
from envs.errors import InputError

OCTAVES = 5.0  # weights from 2^-5 to 2^5
LEVELS = 21  # a factor of sqrt(2) from each to the next


class WeightActions(Protocol):
    """Reads one kind of action."""

    def space(self, channels: int) -> spaces.Space[Any]:
        """The actions for `channels` padded channels."""

    def weights(self, action: NDArray[Any]) -> FloatArray:
        """(C,) positive weight of every padded channel.

        Raises:
            InputError: the action is not in the space.
        """

    def mask_spaces(self, channels: int) -> Mapping[str, spaces.Space[Any]]:
        """What `masks` adds to the observation: key and space."""

    def masks(self, active: BoolArray) -> Mapping[str, NDArray[np.int8]]:
        """The masks where the weights of `active` (C,) channels count."""


@bounded
class ContinuousWeights:
    """`Box(-1, 1, (C,))`: action a is the weight 2^(octaves a). No action is forbidden.

    Args:
        octaves: of the largest weight over 1, and of 1 over the smallest.
    """

    def __init__(self, octaves: Positive = OCTAVES) -> None:
        self.octaves = float(octaves)

    def space(self, channels: int) -> spaces.Box:
        """(C,) float32."""
        return spaces.Box(-1.0, 1.0, (channels,), np.float32)

    def weights(self, action: NDArray[Any]) -> FloatArray:
        values = np.asarray(action, dtype=np.float64)
        if not (np.isfinite(values).all() and (np.abs(values) <= 1.0).all()):
            raise InputError("holds a value outside -1..1", field="action")
        return np.exp2(self.octaves * values)

    def mask_spaces(self, channels: int) -> Mapping[str, spaces.Space[Any]]:
        return {}

    def masks(self, active: BoolArray) -> Mapping[str, NDArray[np.int8]]:
        return {}


@bounded
class WeightLevels:
    """`MultiDiscrete((L,) * C)`: level l is the weight 2^(octaves (2 l / (L - 1) - 1)).

    `action_mask` (int8 (C, L)) allows every level to a channel whose weight counts and level 0
    alone to every other.

    Args:
        levels: L, from the smallest weight to the largest.
        octaves: of the largest weight over 1, and of 1 over the smallest.
    """

    def __init__(self, levels: Annotated[int, Ge(2)] = LEVELS, octaves: Positive = OCTAVES) -> None:
        self.levels, self.octaves = levels, float(octaves)

    def space(self, channels: int) -> spaces.MultiDiscrete:
        """(C,) levels, 0..L-1."""
        return spaces.MultiDiscrete(np.full(channels, self.levels))

    def weights(self, action: NDArray[Any]) -> FloatArray:
        level = np.asarray(action)
        if not ((level >= 0) & (level < self.levels) & (level == np.floor(level))).all():
            raise InputError(f"holds a level outside 0..{self.levels - 1}", field="action")
        return np.exp2(self.octaves * (2.0 * level / (self.levels - 1) - 1.0))

    def mask_spaces(self, channels: int) -> Mapping[str, spaces.Space[Any]]:
        """`action_mask` (C, L)."""
        return {"action_mask": spaces.Box(0, 1, (channels, self.levels), np.int8)}

    def masks(self, active: BoolArray) -> Mapping[str, NDArray[np.int8]]:
        """`action_mask` (C, L)."""
        mask = np.repeat(active[:, None], self.levels, axis=1).astype(np.int8)
        mask[:, 0] = 1
        return {"action_mask": mask}
