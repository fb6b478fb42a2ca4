"""What all schedulers of all environments did in so many steps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from agents.rllib.cluster.memory import ObservationMemory


@dataclass(frozen=True)
class EpisodeEnd:
    """What an episode of training came to."""

    mean_jct: float  # seconds, of the jobs that finished; nan without any
    jobs: int
    finished: int  # jobs
    decisions: int  # steps
    reward: float  # of all schedulers together


@dataclass(frozen=True, eq=False)
class Fragment:
    """T steps of B agents: S schedulers in each of B / S environments.

    Where an agent has no choice nobody is asked. In the first step all are, so that the critic
    learns what to expect of such states too: fragments end in them.

    Arrays belong to the runner and hold until it samples again.
    """

    memory: ObservationMemory  # T + 1 times; what the last step led to is the last
    remaining: NDArray[np.float32]  # (T, B, W + M) labels of `labels.remaining_seconds`
    decides: NDArray[np.bool_]  # (T, B) more than one action is allowed; all in the first step
    actions: NDArray[np.int64]  # (T, B) taken
    taught: NDArray[np.int64] | None  # (T, B) what the teacher would have done; None: not asked
    log_probabilities: NDArray[np.float32]  # (T, B) of the actions; 0 where there is no choice
    scores: NDArray[np.float64]  # (T, B) of the critic, before each decision
    after: NDArray[np.float64]  # (T, B) of the critic, after the last step and where cut
    rewards: NDArray[np.float64]  # (T, B)
    times: NDArray[np.float64]  # (T, B) that each step takes, in mean durations of the jobs
    terminated: NDArray[np.bool_]  # (T, B) the episode is over
    cut: NDArray[np.bool_]  # (T, B) the episode is truncated
    now: NDArray[np.float64]  # (T, B) time of the episode before each step, in the same
    episode: NDArray[np.int64]  # (T, B) number of the episode in its environment
    ended: Sequence[EpisodeEnd]

    @property
    def decisions(self) -> int:
        """T x B."""
        return self.actions.size
