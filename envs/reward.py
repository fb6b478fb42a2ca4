"""What the rewards of all environments have in common."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

import numpy as np

from envs.arrays import FloatArray
from envs.errors import InputError


class WeightedTerms:
    """Named terms, each with a weight.

    Args:
        weights: weight of each term; terms left out have weight 0. Without it, `usual`, or 1 each.

    Raises:
        InputError: a weight for a term that does not exist.
    """

    known: ClassVar[tuple[str, ...]]
    usual: ClassVar[Mapping[str, float] | None] = None

    def __init__(self, weights: Mapping[str, float] | None = None) -> None:
        if weights is None:
            weights = self.usual or dict.fromkeys(self.known, 1.0)
        for name in weights:
            if name not in self.known:
                message = f"unknown reward term (known: {', '.join(self.known)})"
                raise InputError(message, field=name)
        self.weights = {name: float(weights.get(name, 0.0)) for name in self.known}

    def weighted(self, values: Mapping[str, float]) -> dict[str, float]:
        """The weighted terms; the reward is their sum."""
        return {name: self.weights[name] * value for name, value in values.items()}


def memory_overflow(peak: FloatArray, capacity: FloatArray) -> float | None:
    """Sum over devices of bytes of `peak` (D,) above capacity / capacity; None: all fits."""
    if (peak <= capacity).all():
        return None
    return float(np.maximum(peak / np.maximum(capacity, 1.0) - 1.0, 0.0).sum())


def memory_violation(overflow: float | None) -> float:
    """-(1 + overflow); 0 where all fits."""
    return 0.0 if overflow is None else -(1.0 + overflow)
