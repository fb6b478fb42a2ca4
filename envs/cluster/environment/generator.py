"""What episodes are about: windows of a trace, random jobs, or always the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

import numpy as np

from envs.cluster.environment.instance import ClusterBounds, ClusterInstance
from envs.cluster.nodes import UNLIMITED, Cluster
from envs.cluster.workload.slicing import at_most_gpus, stretch
from envs.cluster.workload.trace import Trace
from envs.errors import InputError


def checked_range(field: str, bounds: Sequence[float]) -> tuple[float, float]:
    """A least and a most.

    Raises:
        InputError: there are not two numbers, or not 0 < least <= most.
    """
    if len(bounds) != 2 or not 0 < bounds[0] <= bounds[1]:
        raise InputError(f"{list(bounds)} is not a least and a most above 0", field=field)
    return float(bounds[0]), float(bounds[1])


def checked_whole_range(field: str, bounds: Sequence[int]) -> tuple[int, int]:
    """`checked_range` of whole numbers."""
    least, most = checked_range(field, bounds)
    return int(least), int(most)


def reference_gpus(cluster: Cluster, speeds: Mapping[str, float] | None) -> float:
    """How many GPUs of the type on which the trace's durations hold the cluster is worth.

    Args:
        cluster: the GPUs.
        speeds: of each GPU type, 1 = as in the trace; None: all count as 1.

    Raises:
        InputError: a type of the cluster has no speed, or one that is not above 0.
    """
    if speeds is None:
        return float(cluster.num_gpus)
    by_type = np.zeros(len(cluster.gpu_types))
    for index, name in enumerate(cluster.gpu_types):
        if name not in speeds:
            raise InputError("has no speed", file=f"cluster {cluster.name}", field=f"speeds.{name}")
        if not 0 < speeds[name] < np.inf:
            raise InputError(f"{speeds[name]} is not above 0", field=f"speeds.{name}")
        by_type[index] = speeds[name]
    return float((cluster.gpus * by_type[cluster.gpu_type]).sum())


def at_load(trace: Trace, capacity: float, load: float) -> Trace:
    """`trace` from second 0, its gaps stretched to the offered load, rounded to seconds.

    Jobs that are submitted all at once, or ask for no GPU, stay so: they have no load to change.

    Args:
        trace: the jobs.
        capacity: GPUs, of the type on which the durations hold.
        load: GPU-seconds asked for / (capacity x seconds from the first to the last submission).
    """
    trace = trace.canonical()
    if trace.span_s == 0 or not trace.num_gpus.any():
        return trace
    return stretch(trace, float(trace.gpu_seconds.sum()) / (capacity * trace.span_s) / load)


def random_window(
    trace: Trace,
    jobs: tuple[int, int],
    load: tuple[float, float] | None,
    capacity: float,
    rng: np.random.Generator,
) -> Trace:
    """Consecutive jobs of a trace, between two numbers of them, at a load between two."""
    count = int(rng.integers(*jobs, endpoint=True))
    first = int(rng.integers(len(trace) - count, endpoint=True))
    window = trace.take(slice(first, first + count)).canonical()
    return window if load is None else at_load(window, capacity, float(rng.uniform(*load)))


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
        jobs: Sequence[int] = (128, 128),
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
        window = random_window(self.trace, self.jobs, self.load, self._capacity[chosen], rng)
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


SERVER_GPUS = (3, 2)
SUBMIT_S = (0, 1, 1, 1, 2, 4)
DURATION_S = (4, 1, 5, 6, 5, 1)
GPUS = (2, 3, 2, 3, 3, 3)
OPTIMUM_S = 35.0  # least sum of completion times without preemption, of all schedules
PREEMPTIVE_OPTIMUM_S = 33.0  # the same where jobs can be stopped and moved at whole seconds
SJF_S = 44.0  # the shortest that fits first, on the fullest server
FIFO_S = 54.0  # the first in the queue that fits, on the fullest server


def toy_cluster() -> tuple[Cluster, Trace]:
    """Six jobs on two servers of three and two GPUs, each in a rack of its own.

    Every job fits on one server, and at least on the larger one; no job is to run on both, which
    hold five GPUs together. It pays to wait: `SJF_S` and `FIFO_S` start whatever fits.
    """
    servers = len(SERVER_GPUS)
    cluster = Cluster(
        name="toy cluster",
        gpus=np.array(SERVER_GPUS, np.int32),
        rack=np.arange(servers, dtype=np.int32),
        gpu_type=np.zeros(servers, np.int32),
        gpu_types=("toy",),
        cpu_milli=np.full(servers, UNLIMITED),
        memory_mib=np.full(servers, UNLIMITED),
    )
    return cluster, Trace.of("toy jobs", SUBMIT_S, DURATION_S, GPUS)
