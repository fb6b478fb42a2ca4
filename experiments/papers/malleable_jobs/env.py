"""`meshwright/Allocation-v0`: which job gets a worker more, slot by slot."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from envs.parallel_env import OneAgentEnv
from experiments.papers.malleable_jobs.episode import AllocationEpisode
from experiments.papers.malleable_jobs.observation import AllocationGraph, AllocationObservation
from experiments.papers.malleable_jobs.parallel_env import (
    TERMS,
    AllocationParallelEnv,
    Problems,
    default_generator,
)


class AllocationEnv(OneAgentEnv[AllocationGraph]):
    """Give workers to malleable jobs, slot by slot, one decision after another.

    `AllocationParallelEnv` with one queue: its docstring is the specification of description,
    reward, episode end and information. Actions are `Discrete(K + 1)`: give row k of the
    observation (`AllocationObservation`) its next unit; K ends the slot. Arguments are those of
    `AllocationParallelEnv` but for `queues`; `self.np_random` is the only source of randomness.

    ## Guarantees
    At least one action is always allowed; equal seeds give equal episodes; the optimum of
    `experiments.papers.malleable_jobs.generated.toy_problem` is proved by trying all plans.

    ## Source
    As of `AllocationParallelEnv`.

    ## Version History
    * v0: first version.
    """

    parallel: AllocationParallelEnv
    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        generator: Problems = default_generator,  # draws the problem of each episode
        *,
        # what is seen; null: as the problem needs
        observation: AllocationObservation = AllocationObservation(),
        weights: Mapping[str, float] = TERMS,  # weight of each term of the reward
        render_mode: str | None = None,  # rgb_array: pictures are drawn; null: none
    ) -> None:
        super().__init__(
            AllocationParallelEnv(
                generator,
                queues=1,
                observation=observation,
                weights=weights,
                render_mode=render_mode,
            )
        )

    @property
    def episode(self) -> AllocationEpisode:
        """The slots so far."""
        return self.parallel.episode
