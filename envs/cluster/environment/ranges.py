"""Ranges that generators draw from."""

from __future__ import annotations

from collections.abc import Sequence

from envs.errors import InputError


def checked_range(field: str, bounds: Sequence[float]) -> tuple[float, float]:
    """A least and a most.

    Raises:
        InputError: there are not two numbers, or not 0 < least <= most.
    """
    if len(bounds) != 2 or not 0 < bounds[0] <= bounds[1]:
        raise InputError(f"{list(bounds)} is not a least and a most above 0", field=field)
    return float(bounds[0]), float(bounds[1])


def checked_whole_range(field: str, bounds: Sequence[int]) -> tuple[int, int]:
    """`checked_range` of whole numbers."""
    least, most = checked_range(field, bounds)
    return int(least), int(most)
