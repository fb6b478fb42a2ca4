"""A baseline from environments that meet the same jobs: what befell all of them was not earned.

Mao et al., "Variance reduction for reinforcement learning in input-driven environments" (ICLR
2019): an advantage may be taken against anything that depends on the input to come, here the jobs.
The mean over other environments with the same jobs at the same time is one such baseline, as in
Decima (Mao et al., SIGCOMM 2019, section 5.3). One's own environment is left out of it, so that it
does not depend on one's own actions.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def without_shared(
    gains: FloatArray,
    now: FloatArray,
    episode: NDArray[np.int64],
    rows: int,
    alike: int,
) -> FloatArray:
    """(T, B) advantages less those of the others with the same jobs at the same time.

    Of another environment counts what it stood at in the last step up to that time, in the same
    episode; one that was not in that episode at that time is left out, and where none is left
    nothing is taken away.

    Args:
        gains: (T, B) advantages.
        now: (T, B) time of the episode at each step, ascending within an episode.
        episode: (T, B) its number.
        rows: agents of the environments with the same jobs, which stand side by side.
        alike: those environments; agent s of one and agent s of another are compared.
    """
    found = gains.copy()
    schedulers = rows // alike
    for first in range(0, gains.shape[1], rows):
        for scheduler in range(schedulers):
            columns = [first + scheduler + schedulers * place for place in range(alike)]
            for column in columns:
                total, count = np.zeros((2, len(gains)))
                for other in columns:
                    if other == column:
                        continue
                    level, there = _level(gains, now, episode, column, other)
                    total += np.where(there, level, 0.0)
                    count += there
                found[:, column] -= total / np.maximum(count, 1.0)
    return found


def _level(
    gains: FloatArray, now: FloatArray, episode: NDArray[np.int64], column: int, other: int
) -> tuple[FloatArray, NDArray[np.bool_]]:
    """(T,) where `other` stood at the times of `column`, and whether it is known."""
    level, there = np.zeros(len(gains)), np.zeros(len(gains), np.bool_)
    for number in np.intersect1d(episode[:, column], episode[:, other]):
        mine = np.flatnonzero(episode[:, column] == number)
        theirs = np.flatnonzero(episode[:, other] == number)
        times = now[theirs, other]
        place = np.searchsorted(times, now[mine, column], side="right") - 1
        known = (place >= 0) & (now[mine, column] <= times[-1])
        level[mine] = gains[theirs[np.maximum(place, 0)], other]
        there[mine] = known
    return level, there
