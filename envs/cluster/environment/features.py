"""How numbers become features, compiled."""

from __future__ import annotations

from math import log

from numba import njit

LOW, HIGH = -1.0, 4.0


@njit(cache=True, inline="always")
def bounded(value: float) -> float:
    """The feature inside its bounds."""
    return min(max(value, LOW), HIGH)


@njit(cache=True, inline="always")
def count(number: float) -> float:
    """ln(1 + number) / 4."""
    return min(log(1.0 + number) / 4.0, HIGH)


@njit(cache=True, inline="always")
def minutes(seconds: float) -> float:
    """ln(1 + seconds / 60) / 4; what is not finite = above all."""
    return min(log(1.0 + max(seconds, 0.0) / 60.0) / 4.0, HIGH)
