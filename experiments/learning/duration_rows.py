"""What is known of jobs at random instants, beside the work they then still need: to learn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
from numpy.typing import NDArray

from agents.cluster.policy import Knowledge, Scheduler
from envs.cluster.environment.duration_features import DurationFeatures, width
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import PENDING, RUNNING
from envs.errors import InputError
from experiments.cluster.sampled_windows import SampledWindows, Source, sampled_window

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


@dataclass
class SamplingConfig(SampledWindows):
    """`sampling` in `conf/train_durations.yaml`."""

    KEY: ClassVar[str] = "sampling"
    windows: int
    exam_windows: int
    instants: float
    jobs_at_once: int

    def __post_init__(self) -> None:
        super().__post_init__()
        where = "config key 'sampling."
        for key in ("windows", "exam_windows", "jobs_at_once"):
            if getattr(self, key) < 1:
                raise InputError(f"{where}{key}': {getattr(self, key)} is below 1")
        if not 0.0 < self.instants < np.inf:
            raise InputError(f"{where}instants': {self.instants} is not positive and finite")


@dataclass(frozen=True, eq=False)
class Rows:
    """A jobs at some instants of replays.

    Attributes:
        features: (A, width) of `DurationFeatures`.
        remaining_s: (A,) seconds of work left, on the GPU type of the trace.
        done_s: (A,) seconds of work done.
        gpus: (A,) that they ask for.
        part: (A,) replay, from 0.
        names: trace of each replay.
    """

    features: NDArray[np.float32]
    remaining_s: FloatArray
    done_s: FloatArray
    gpus: IntArray
    part: IntArray
    names: tuple[str, ...]


class Recording(Scheduler):
    """A policy, and what is known of jobs at the events at which it decides, some of them.

    Args:
        policy: decides.
        chance: of an event.
        most: jobs of an event.
        history: K of the rows.
        rng: draws events and jobs.
    """

    name = "recording"

    def __init__(
        self,
        policy: Scheduler,
        chance: float,
        most: int,
        history: int,
        rng: np.random.Generator,
    ) -> None:
        self.policy, self.chance, self.most = policy, chance, most
        self.history, self.rng = history, rng
        self.knows: Knowledge = policy.knows

    def reset(self, simulator: ClusterSimulator) -> None:
        """Nothing has been written down."""
        self.policy.reset(simulator)
        self._about = DurationFeatures(simulator, self.history)
        self.features = [np.zeros((0, width(self.history)), np.float32)]
        self.jobs: list[IntArray] = [np.zeros(0, np.int64)]
        self.remaining_s: list[FloatArray] = [np.zeros(0)]

    def decide(self, simulator: ClusterSimulator) -> None:
        """Write down, then let the policy decide."""
        if self.rng.random() < self.chance:
            simulator.settle()
            records = simulator.state.jobs
            there = (records["status"] == PENDING) | (records["status"] == RUNNING)
            jobs = self.rng.permutation(np.flatnonzero(there))[: self.most]
            self.features.append(self._about.rows(simulator.state, jobs))
            self.jobs.append(jobs)
            self.remaining_s.append(records["remaining"][jobs])
        self.policy.decide(simulator)

    def wake(self, simulator: ClusterSimulator) -> float:
        """When the policy wants to."""
        return self.policy.wake(simulator)


def replayed(
    found: Sequence[Source],
    config: SamplingConfig,
    policy: Scheduler,
    history: int,
    seeds: Sequence[Sequence[int]],
) -> Rows:
    """The rows of one random part for each of the seeds.

    Raises:
        InputError: there is no part, or the policy leaves jobs waiting for ever.
    """
    collected = []
    for number, seed in enumerate(seeds):
        rng = np.random.default_rng(seed)
        name, problem = sampled_window(found, config, rng)
        chance = min(config.instants / len(problem.trace), 1.0)
        recording = Recording(policy, chance, config.jobs_at_once, history, rng)
        problem.replay(recording)
        jobs, left = np.concatenate(recording.jobs), np.concatenate(recording.remaining_s)
        collected.append(
            Rows(
                features=np.concatenate(recording.features),
                remaining_s=left,
                done_s=problem.trace.duration_s[jobs] - left,
                gpus=problem.trace.num_gpus[jobs].astype(np.int64),
                part=np.full(len(jobs), number),
                names=(name,),
            )
        )
    together = {
        field: np.concatenate([getattr(rows, field) for rows in collected])
        for field in ("features", "remaining_s", "done_s", "gpus", "part")
    }
    return replace(collected[0], **together, names=tuple(r.names[0] for r in collected))
