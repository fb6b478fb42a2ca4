"""What is known of jobs at random instants, beside the work they then still need: to learn from."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from agents.cluster.policy import ClusterPolicy, Knowledge
from envs.cluster.duration_features import DurationFeatures, width
from envs.errors import InputError
from envs.hardware.cluster import Cluster
from envs.simulation.cluster import ClusterSimulator
from envs.simulation.cluster_state import PENDING, RUNNING
from envs.workload.rescaling import stretch
from envs.workload.slicing import at_most_gpus
from envs.workload.trace import Trace
from experiments.cluster_problem import ClusterProblem
from experiments.split_windows import Split, reference_load

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
TRIES = 100  # draws of a part before a window counts as one without parts


@dataclass
class SamplingConfig:
    """`sampling` in `conf/train_durations.yaml`."""

    windows: int
    exam_windows: int
    jobs: list[int]
    least_jobs: int
    nodes_per_type: list[int]
    load: list[float]
    instants: float
    jobs_at_once: int

    def __post_init__(self) -> None:
        where = "config key 'sampling."
        for key, least in (
            ("windows", 1), ("exam_windows", 1), ("least_jobs", 2), ("jobs_at_once", 1),
        ):  # fmt: skip
            if getattr(self, key) < least:
                raise InputError(f"{where}{key}': {getattr(self, key)} is below {least}")
        for key in ("jobs", "nodes_per_type", "load"):
            ends = getattr(self, key)
            if len(ends) != 2 or not 0 < ends[0] <= ends[1] < np.inf:
                raise InputError(f"{where}{key}': {ends} is not a least and a most above 0")
        if not 0.0 < self.instants < np.inf:
            raise InputError(f"{where}instants': {self.instants} is not positive and finite")


@dataclass(frozen=True, eq=False)
class Source:
    """One window of one trace of a split."""

    name: str  # of the trace
    jobs: Trace
    split: Split


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


class Recording:
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
        policy: ClusterPolicy,
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


def sources(splits: Sequence[Split], window: str, least_jobs: int) -> list[Source]:
    """A window of all traces of some splits, where it has enough jobs.

    Raises:
        InputError: a split has no such window, or nowhere are enough jobs.
    """
    found = []
    for split in splits:
        if window not in split.config.shares:
            known = ", ".join(split.config.shares)
            told = f"{window!r} is unknown in split {split.config.name} (known: {known})"
            raise InputError(f"config key 'window': {told}")
        for name, part in split.traces.items():
            jobs = part.windows[window].trace
            if len(jobs) >= least_jobs:
                found.append(Source(name, jobs, split))
    if not found:
        told = f"no window {window!r} of the splits has {least_jobs} jobs"
        raise InputError(f"config key 'sampling.least_jobs': {told}")
    return found


def drawn_part(
    found: Sequence[Source], config: SamplingConfig, rng: np.random.Generator
) -> tuple[str, ClusterProblem]:
    """Consecutive jobs of a random trace on a random cluster, and the name of the trace.

    Raises:
        InputError: parts are too small, or all of their jobs are submitted at once.
    """
    for _ in range(TRIES):
        source = found[int(rng.integers(len(found)))]
        chosen, split = source.split.config, source.split
        nodes = int(rng.integers(config.nodes_per_type[0], config.nodes_per_type[1] + 1))
        cluster = Cluster.uniform(
            nodes * len(chosen.gpu_types),
            chosen.gpus_per_node,
            nodes_per_rack=chosen.nodes_per_rack,
            gpu_types=chosen.gpu_types,
        )
        jobs = at_most_gpus(source.jobs, nodes * chosen.gpus_per_node)
        count = min(int(rng.integers(config.jobs[0], config.jobs[1] + 1)), len(jobs))
        first = int(rng.integers(len(jobs) - count + 1))
        load = float(rng.uniform(config.load[0], config.load[1]))
        part = jobs.take(slice(first, first + count)).canonical()
        if count < config.least_jobs or part.span_s == 0:
            continue
        part = stretch(part, reference_load(part, cluster, split.rates) / load)
        return source.name, ClusterProblem(cluster, part, split.rates, split.overheads, None)
    told = f"{TRIES} parts in a row have fewer jobs, or none after another"
    raise InputError(f"config key 'sampling.least_jobs': {told}")


def replayed(
    found: Sequence[Source],
    config: SamplingConfig,
    policy: ClusterPolicy,
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
        name, problem = drawn_part(found, config, rng)
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
