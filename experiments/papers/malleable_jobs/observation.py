"""What a queue sees: jobs that could take a unit, and the cluster; the builder owns the space."""

from __future__ import annotations

from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envs.arrays import IntArray
from envs.bounds import Count, bounded
from experiments.papers.malleable_jobs.episode import (
    CANDIDATE_WIDTH,
    CHOSEN,
    CLUSTER_WIDTH,
    END,
    AllocationEpisode,
)
from experiments.papers.malleable_jobs.problem import RESOURCES

AllocationGraph = dict[str, NDArray[Any]]
LOW, HIGH = -6.0, 8.0


@bounded
class AllocationObservation:
    """The first K candidates of a queue by the rule, and the end of the slot as the last row.

    | key | dtype, shape | padding |
    |---|---|---|
    | pair | float32 (K + 1, 23) | 0 |
    | node | float32 (1, 9), the cluster | none |
    | edge | float32 (K + 1, 1, 4): of each resource, what the unit takes / what is free | 0 |
    | action_mask | int8 (K + 1,) | 0 |

    *Count* of n is ln(1 + n); *worth* is in means of what the problem's jobs are worth at once;
    *log* is to the base of 10. Now, next and best are the level that a job has in this slot, the
    one it would have, and its highest, held from now on; all is cut off at -6 and 8.

    | pair | |
    |---|---|
    | 0, 1 | 1: what the rule does; 1: ends the slot |
    | 2, 3 | log of the rule's score, fraction that is left |
    | 4, 5; 6, 7 | count of workers now, next; dominant share of the cluster now, next |
    | 8, 9, 10, 11 | count of slots until the end: now, next, best; until the deadline |
    | 12 | slots until the end, next / until the deadline |
    | 13, 14, 15 | worth that is reached: now, next, best |
    | 16, 17 | log of worth next / (share x slots); of the worth / the share that the unit adds |
    | 18, 19 | speed of a worker, next / at the first level; count of slots since the arrival |
    | 20, 21, 22 | count of share x slots of the unit; 1: part work counts; worth lost by a slot |

    `node`: 1; free / all of each resource; time / all slots; count of the jobs that are here, of
    the shares that they ask for at least, of their shares x slots.
    """

    def __init__(
        self,
        candidates: Count = 16,  # jobs shown, and offered
    ) -> None:
        self.candidates = candidates
        self.space = spaces.Dict(
            {
                "pair": _box(candidates + 1, CANDIDATE_WIDTH),
                "node": _box(1, CLUSTER_WIDTH),
                "edge": _box(candidates + 1, 1, len(RESOURCES)),
                "action_mask": spaces.Box(0, 1, (candidates + 1,), np.int8),
            }
        )

    def of(
        self, episode: AllocationEpisode, queue: int, ended: bool = False
    ) -> tuple[AllocationGraph, IntArray]:
        """The observation, and the jobs of its rows."""
        jobs = np.zeros(0, np.int64) if ended else episode.candidates(queue, self.candidates)
        seen: AllocationGraph = {
            name: np.zeros(box.shape or (), box.dtype) for name, box in self.space.items()
        }
        count = len(jobs)
        if count:
            seen["pair"][:count] = episode.rows[jobs].clip(LOW, HIGH)
            taken = episode.takes[jobs] / np.maximum(episode.spare, 1e-9)
            seen["edge"][:count, 0] = taken.clip(LOW, HIGH)
            seen["action_mask"][:count] = 1
        takes = count > 0 and episode.score[jobs[0]] > 0.0
        seen["pair"][-1, END], seen["pair"][0 if takes else -1, CHOSEN] = 1.0, 1.0
        seen["node"][0] = np.clip(episode.cluster(), LOW, HIGH)
        seen["action_mask"][-1] = 1
        return seen, jobs


def _box(*shape: int) -> spaces.Box:
    return spaces.Box(LOW, HIGH, shape, np.float32)
