"""What nobody may see when deciding and training may learn to predict: the time jobs still need."""

from __future__ import annotations

import numpy as np
from numba import njit
from numpy.typing import NDArray

from envs.cluster.environment.episode import SchedulingEpisode
from envs.cluster.simulation.cluster_state import NONE, RUNNING

NO_JOB = -1.0


def remaining_seconds(episode: SchedulingEpisode, scheduler: int, out: NDArray[np.float32]) -> None:
    """Write the seconds of work left, on the reference GPU and alone, of the jobs shown.

    Args:
        episode: whose `scheduler` has just been observed.
        scheduler: its number.
        out: (W + M,) the window first, then the running jobs; `NO_JOB` where there is none.
    """
    state, book = episode.simulator.state, episode.book
    now = float(state.clock[0]["now"])
    _fill(state.jobs, now, book.window[scheduler], book.shown[scheduler], out)


@njit(cache=True)
def _fill(
    jobs: NDArray[np.void],
    now: float,
    window: NDArray[np.int32],
    shown: NDArray[np.int32],
    out: NDArray[np.float32],
) -> None:
    out[:] = NO_JOB
    for place in range(len(out)):
        job = window[place] if place < len(window) else shown[place - len(window)]
        if job == NONE:
            continue
        record = jobs[job]
        left = record.remaining
        progressing = max(record.settled, record.ready)
        if record.status == RUNNING and now > progressing:
            left = max(left - (now - progressing) * record.rate, 0.0)
        out[place] = left
