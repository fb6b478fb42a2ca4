"""Which action a trained policy takes: the same in evaluations, exported folders and replays."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def greedy_action(logits: NDArray[np.float32], window: int, groups: int, by_job: bool) -> int:
    """To wait if that has a probability of 0.5; else the most probable other action.

    Args:
        logits: (A,) of `envs.cluster.environment.actions.ClusterActions`, very low where the mask
            forbids.
        window: W.
        groups: G.
        by_job: whether the probability of a start is its job's, summed over server groups; the job
            then starts on its most probable group.
    """
    weights = np.exp(logits - logits.max())
    if weights[-1] >= weights[:-1].sum():
        return len(logits) - 1
    if not by_job:
        return int(logits[:-1].argmax())
    starts = weights[: window * groups].reshape(window, groups)
    jobs, others = starts.sum(axis=1), weights[window * groups : -1]
    job = int(jobs.argmax())
    if jobs[job] >= others.max(initial=0.0):
        return job * groups + int(starts[job].argmax())
    return window * groups + int(others.argmax())
