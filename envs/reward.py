"""What the rewards of all environments have in common."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from envs.arrays import FloatArray
from envs.errors import InputError


class WeightedTerms:
    """Named terms, each with a weight.

    Args:
        weights: weight of each term; terms left out have weight 0.
        known: the terms there are.

    Raises:
        InputError: a weight for a term that does not exist.
    """

    def __init__(self, weights: Mapping[str, float], known: Iterable[str]) -> None:
        for name in weights:
            if name not in known:
                message = f"unknown reward term (known: {', '.join(known)})"
                raise InputError(message, field=name)
        self.weights = {name: float(weights.get(name, 0.0)) for name in known}

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
