"""What episodes are about: windows of traces, random jobs, or always the same."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Protocol, TypeVar

import numpy as np
from annotated_types import Gt, Le

from envs.bounds import bounded
from envs.cluster.environment.instance import ClusterBounds, ClusterInstance
from envs.cluster.nodes import Cluster
from envs.cluster.workload.slicing import at_most_gpus, stretch
from envs.cluster.workload.trace import Trace
from envs.errors import InputError

Number = TypeVar("Number", int, float)
Part = Annotated[float, Gt(0.0), Le(1.0)]


def checked_range(field: str, bounds: Sequence[Number]) -> tuple[Number, Number]:
    """A least and a most.

    Raises:
        InputError: there are not two numbers, or not 0 < least <= most.
    """
    if len(bounds) != 2 or not 0 < bounds[0] <= bounds[1]:
        raise InputError(f"{list(bounds)} is not a least and a most above 0", field=field)
    return bounds[0], bounds[1]


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
    for name in cluster.gpu_types:
        if name not in speeds:
            raise InputError("has no speed", file=f"cluster {cluster.name}", field=f"speeds.{name}")
        if not 0 < speeds[name] < np.inf:
            raise InputError(f"{speeds[name]} is not above 0", field=f"speeds.{name}")
    by_type = np.array([speeds[name] for name in cluster.gpu_types], np.float64)
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


class Windows:
    """Consecutive jobs of one of some traces, on one of some clusters.

    Args:
        clusters: one, or several.
        speeds: of each GPU type, 1 = as in the traces; None: all GPUs count alike.
    """

    def __init__(
        self, clusters: Cluster | Sequence[Cluster], speeds: Mapping[str, float] | None
    ) -> None:
        several = (clusters,) if isinstance(clusters, Cluster) else tuple(clusters)
        if not several:
            raise InputError("no cluster", field="clusters")
        self.clusters, self.bounds = several, ClusterBounds.of(*several)
        self._capacity = [reference_gpus(cluster, speeds) for cluster in several]

    def draw(
        self,
        traces: Sequence[Sequence[Trace]],
        jobs: Sequence[tuple[int, int]],
        load: tuple[float, float] | None,
        rng: np.random.Generator,
    ) -> ClusterInstance:
        """A window of one of the traces for one of the first clusters.

        Args:
            traces: for each cluster that may be drawn.
            jobs: least and most for each of them.
            load: least and most; None: gaps stay as they are.
            rng: the source of randomness.
        """
        chosen = int(rng.integers(len(traces)))
        trace = traces[chosen][int(rng.integers(len(traces[chosen])))]
        count = int(rng.integers(*jobs[chosen], endpoint=True))
        first = int(rng.integers(len(trace) - count, endpoint=True))
        window = trace.take(slice(first, first + count)).canonical()
        if load is not None:
            window = at_load(window, self._capacity[chosen], float(rng.uniform(*load)))
        return ClusterInstance(self.clusters[chosen], window)


class TraceWindows(Windows):
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
        super().__init__(cluster, speeds)
        self.trace = trace if max_gpus is None else at_most_gpus(trace, max_gpus)
        self.jobs = checked_range("jobs", jobs)
        self.load = None if load is None else checked_range("load", load)
        if len(self.trace) < self.jobs[1]:
            reason = f"{len(self.trace)} jobs, {self.jobs[1]} are needed"
            raise InputError(reason, file=trace.name, field="jobs")

    def __call__(self, rng: np.random.Generator) -> ClusterInstance:
        """A window."""
        several = len(self.clusters)
        return self.draw([[self.trace]] * several, [self.jobs] * several, self.load, rng)


@dataclass(frozen=True)
class Stage:
    """What is drawn at some progress."""

    load: tuple[float, float]  # least and most
    gpus: float  # most GPUs of a cluster


@bounded
class Curriculum:
    """Load and cluster size grow until some progress and then stay.

    The ends of the load's range change linearly in between, the GPUs of the largest cluster
    geometrically.

    Args:
        first_load: least and most load at progress 0.
        load: the same from `until` on.
        first_gpus: GPUs of the largest clusters at progress 0.
        gpus: the same from `until` on.
        until: progress, above 0 and at most 1.

    Raises:
        InputError: a range is empty or not above 0, or clusters would shrink.
    """

    def __init__(
        self,
        *,
        first_load: Sequence[float] = (0.5, 0.8),
        load: Sequence[float] = (0.7, 1.3),
        first_gpus: int = 64,
        gpus: int = 512,
        until: Part = 0.5,
    ) -> None:
        self._first_load = np.array(checked_range("first_load", first_load))
        self._load = np.array(checked_range("load", load))
        self._gpus = checked_range("first_gpus", (first_gpus, gpus))
        self._until = until

    def stage(self, progress: float) -> Stage:
        """The stage at `progress`.

        Raises:
            InputError: `progress` is not in 0..1.
        """
        if not 0 <= progress <= 1:
            raise InputError(f"{progress} is not in 0..1", field="progress")
        way = min(progress / self._until, 1.0)
        least, most = (self._first_load + way * (self._load - self._first_load)).tolist()
        first, last = self._gpus
        return Stage((least, most), last if way == 1.0 else first * (last / first) ** way)


@bounded
class MixedClusters(Windows):
    """Consecutive jobs of a random trace on a random cluster, at a random load.

    The bounds are those of all clusters, whatever the stage. An episode has a number of jobs in
    proportion to the GPUs of its cluster: with fewer, large clusters would never fill. Submissions
    begin at 0.

    Args:
        clusters: each is as likely as the others, among those that the stage admits.
        traces: each is as likely as the others, among those with enough jobs for the cluster.
        stages: load and size of the clusters by the progress of training.
        jobs_per_gpu: least and most jobs of an episode / GPUs of its cluster.
        max_share: jobs that ask for more than this share of a cluster's GPUs are not part of its
            windows, above 0 and at most 1.
        speeds: of each GPU type, 1 = as in the traces: the load is what is asked for / what the
            cluster is worth with them. None: all GPUs count alike.

    Attributes:
        bounds: of all clusters.
        progress: of training, from 0 to 1; 0 at first. Whoever trains sets it.

    Raises:
        InputError: there is no cluster or no trace, an argument is out of range, a stage admits no
            cluster at first or not all at last, or no trace has enough jobs for a cluster.
    """

    def __init__(
        self,
        clusters: Cluster | Sequence[Cluster],
        traces: Trace | Sequence[Trace],
        *,
        stages: Curriculum = Curriculum(),
        jobs_per_gpu: Sequence[float] = (2.0, 6.0),
        max_share: Part = 0.25,
        speeds: Mapping[str, float] | None = None,
    ) -> None:
        if not isinstance(clusters, Cluster):
            clusters = sorted(clusters, key=lambda cluster: cluster.num_gpus)
        super().__init__(clusters, speeds)
        traces = (traces,) if isinstance(traces, Trace) else tuple(traces)
        if not traces:
            raise InputError("no trace", field="traces")
        self.stages, self.jobs_per_gpu = stages, checked_range("jobs_per_gpu", jobs_per_gpu)
        self._jobs, self._traces = [], []
        for cluster in self.clusters:
            least, most = (max(1, round(n * cluster.num_gpus)) for n in self.jobs_per_gpu)
            parts = [at_most_gpus(trace, int(max_share * cluster.num_gpus)) for trace in traces]
            self._jobs.append((least, most))
            self._traces.append([part for part in parts if len(part) >= most])
            if not self._traces[-1]:
                longest = max(parts, key=len)
                raise InputError(
                    f"{len(longest)} jobs, {most} are needed for cluster {cluster.name}: lower it",
                    file=longest.name,
                    field="jobs_per_gpu",
                )
        if self._admitted(1.0) < len(self.clusters):
            raise InputError("the last stage leaves clusters out", field="stages")
        self.progress = 0.0

    @property
    def progress(self) -> float:
        """Of training, from 0 to 1."""
        return self._progress

    @progress.setter
    def progress(self, progress: float) -> None:
        if self._admitted(progress) < 1:
            raise InputError(f"no cluster is small enough at progress {progress}", field="stages")
        self._progress = progress

    def __call__(self, rng: np.random.Generator) -> ClusterInstance:
        """A window at the present stage."""
        traces = self._traces[: self._admitted(self.progress)]
        return self.draw(traces, self._jobs, self.stages.stage(self.progress).load, rng)

    def _admitted(self, progress: float) -> int:
        """How many clusters, from the smallest on, a stage admits."""
        most = self.stages.stage(progress).gpus
        return sum(cluster.num_gpus <= most for cluster in self.clusters)


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
        self.jobs, self.load = checked_range("jobs", jobs), checked_range("load", load)
        self.duration_s = checked_range("duration_s", duration_s)
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
    servers = Cluster.uniform(len(SERVER_GPUS), nodes_per_rack=1, gpu_types=("toy",))
    cluster = replace(servers, name="toy cluster", gpus=np.array(SERVER_GPUS, np.int32))
    return cluster, Trace.of("toy jobs", SUBMIT_S, DURATION_S, GPUS)
