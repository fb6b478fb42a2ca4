"""Placements near placements: where episodes begin that start from a solution."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def kicked(
    placement: NDArray[np.int64],
    able: NDArray[np.bool_],
    longest: int,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """`placement` (G,) with a run of 1 to `longest` consecutive groups on one random device.

    Groups of the run that the device cannot run, by `able` (G, D), stay where they are.
    """
    start = placement.copy()
    if longest > 0:
        first = int(rng.integers(len(start)))
        device = int(rng.integers(able.shape[1]))
        run = slice(first, first + int(rng.integers(1, longest + 1)))
        start[run] = np.where(able[run, device], device, start[run])
    return start


def exchanged(
    placement: NDArray[np.int64],
    able: NDArray[np.bool_],
    longest: int,
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """`placement` (G,) with two devices exchanged within a run of up to 2 x `longest` groups.

    Groups that the other device cannot run, by `able` (G, D), stay where they are. With one device
    nothing changes.
    """
    start = placement.copy()
    devices = able.shape[1]
    if longest > 0 and devices > 1:
        first = int(rng.integers(len(start)))
        run = slice(first, first + int(rng.integers(1, 2 * longest + 1)))
        one, other = rng.choice(devices, 2, replace=False)
        before = placement[run]
        start[run] = np.where((before == one) & able[run, other], other, start[run])
        start[run] = np.where((before == other) & able[run, one], one, start[run])
    return start


def crossed(
    placement: NDArray[np.int64],
    other: NDArray[np.int64],
    able: NDArray[np.bool_],
    rng: np.random.Generator,
) -> NDArray[np.int64]:
    """`placement` (G,) with a random run of groups where `other` (G,) has them, devices renamed.

    The devices are renamed at random half of the time: plans that differ in the names of equal
    devices alone are one. Groups that the device then meant cannot run, by `able` (G, D), stay.
    """
    groups, devices = able.shape
    names = rng.permutation(devices) if rng.random() < 0.5 else np.arange(devices)
    first = int(rng.integers(groups))
    run = np.arange(first, int(rng.integers(first, groups)) + 1)
    there = names[other[run]]
    start = placement.copy()
    start[run] = np.where(able[run, there], there, start[run])
    return start
