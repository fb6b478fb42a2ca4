"""What episodes are about: windows of a trace, random jobs, or always the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from envs.cluster.environment.instance import ClusterBounds, ClusterInstance
from envs.cluster.environment.offered_load import at_load, reference_gpus
from envs.cluster.environment.ranges import checked_range, checked_whole_range
from envs.cluster.nodes import Cluster
from envs.cluster.workload.slicing import at_most_gpus
from envs.cluster.workload.trace import Trace
from envs.errors import InputError


class ClusterGenerator(Protocol):
    """Yields the instance of each episode; its bounds shape the observation space."""

    bounds: ClusterBounds

    def __call__(self, rng: np.random.Generator) -> ClusterInstance:
        """An instance within the bounds; all randomness from `rng`."""


class FixedCluster:
    """The same jobs on the same cluster in every episode.

    Raises:
        InputError: there is no job.
    """

    def __init__(self, cluster: Cluster, trace: Trace) -> None:
        if len(trace) == 0:
            raise InputError("has no job", file=trace.name)
        self.bounds = ClusterBounds.of(cluster)
        self.instance = ClusterInstance(cluster, trace)

    def __call__(self, rng: np.random.Generator) -> ClusterInstance:
        """The instance."""
        return self.instance


class TraceWindows:
    """Consecutive jobs of a trace, from a random one on.

    Their submissions begin at 0. With a load, gaps between them are stretched by one factor, so
    that the GPU-seconds asked for come to that share of what the cluster has from the first
    submission to the last, each GPU counted by its speed; submissions are then rounded to seconds.

    Args:
        cluster: where they run; one of them at random in each episode where there are several.
        trace: the jobs.
        jobs: least and most jobs of an episode; a number between the two is drawn.
        load: least and most load; a number between the two is drawn. None: gaps stay as they are.
        max_gpus: jobs that ask for more are not part of any window; None: there are none such.
        speeds: of each GPU type, 1 = as in the trace; None: all GPUs count alike.

    Raises:
        InputError: a range is empty or below 1 job, the trace has too few jobs, or a GPU type has
            no speed.
    """

    def __init__(
        self,
        cluster: Cluster | Sequence[Cluster],
        trace: Trace,
        *,
        jobs: Sequence[int],
        load: Sequence[float] | None = None,
        max_gpus: int | None = None,
        speeds: Mapping[str, float] | None = None,
    ) -> None:
        self.clusters = (cluster,) if isinstance(cluster, Cluster) else tuple(cluster)
        if max_gpus is not None:
            trace = at_most_gpus(trace, max_gpus)
        self.jobs = checked_whole_range("jobs", jobs)
        self.load = None if load is None else checked_range("load", load)
        if len(trace) < self.jobs[1]:
            raise InputError(
                f"{len(trace)} jobs, {self.jobs[1]} are needed", file=trace.name, field="jobs"
            )
        self.trace = trace
        self._capacity = [reference_gpus(cluster, speeds) for cluster in self.clusters]
        self.bounds = ClusterBounds.of(*self.clusters)

    def __call__(self, rng: np.random.Generator) -> ClusterInstance:
        """A window."""
        chosen = int(rng.integers(len(self.clusters)))
        jobs = int(rng.integers(*self.jobs, endpoint=True))
        first = int(rng.integers(len(self.trace) - jobs, endpoint=True))
        window = self.trace.take(slice(first, first + jobs)).canonical()
        if self.load is not None:
            window = at_load(window, self._capacity[chosen], float(rng.uniform(*self.load)))
        return ClusterInstance(self.clusters[chosen], window)


class RandomJobs:
    """Fresh random jobs in every episode.

    Gaps between arrivals are exponential. A job asks for 2^k GPUs, with k geometric: each doubling
    has the chance 1/3, up to `max_gpus`. Durations are log-uniform.

    Args:
        cluster: where they run.
        jobs: least and most jobs of an episode.
        load: least and most load, as of `TraceWindows`.
        max_gpus: most GPUs of a job.
        duration_s: least and most seconds that a job takes alone.

    Raises:
        InputError: a range is empty or below 1.
    """

    def __init__(
        self,
        cluster: Cluster,
        *,
        jobs: Sequence[int],
        load: Sequence[float],
        max_gpus: int,
        duration_s: Sequence[int],
    ) -> None:
        self.cluster, self.bounds = cluster, ClusterBounds.of(cluster)
        self.jobs, self.load = checked_whole_range("jobs", jobs), checked_range("load", load)
        self.duration_s = checked_whole_range("duration_s", duration_s)
        if not 1 <= max_gpus <= cluster.num_gpus:
            raise InputError(f"{max_gpus} is not in 1..{cluster.num_gpus}", field="max_gpus")
        self.max_gpus = max_gpus

    def __call__(self, rng: np.random.Generator) -> ClusterInstance:
        """Random jobs."""
        jobs = int(rng.integers(*self.jobs, endpoint=True))
        gaps = rng.exponential(1e6, jobs)
        doublings = rng.geometric(2 / 3, jobs) - 1
        gpus = np.exp2(np.minimum(doublings, int(np.log2(self.max_gpus)))).astype(np.int32)
        least, most = np.log(self.duration_s)
        seconds = np.exp(rng.uniform(least, most, jobs))
        submit = np.cumsum(gaps) - gaps[0]
        trace = Trace.of("random jobs", submit.astype(np.int64), np.rint(seconds).astype(int), gpus)
        load = float(rng.uniform(*self.load))
        return ClusterInstance(self.cluster, at_load(trace, self.cluster.num_gpus, load))


def default_generator() -> RandomJobs:
    """64 random jobs on eight servers of four GPUs in two racks."""
    return RandomJobs(
        Cluster.uniform(8, 4, nodes_per_rack=4),
        jobs=(64, 64),
        load=(0.7, 1.3),
        max_gpus=16,
        duration_s=(60, 36_000),
    )
