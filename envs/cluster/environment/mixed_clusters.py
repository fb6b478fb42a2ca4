"""Episodes about several traces on several clusters, small clusters and little load first."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Gt, Le

from envs.bounds import bounded
from envs.cluster.environment.generator import checked_range, random_window, reference_gpus
from envs.cluster.environment.instance import ClusterBounds, ClusterInstance
from envs.cluster.nodes import Cluster
from envs.cluster.workload.slicing import at_most_gpus
from envs.cluster.workload.trace import Trace
from envs.errors import InputError

Load = tuple[float, float]
Part = Annotated[float, Gt(0.0), Le(1.0)]


@dataclass(frozen=True)
class Stage:
    """What is drawn at some progress."""

    load: Load  # least and most
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
        self._first_load, self._load = (
            np.array(checked_range("first_load", first_load)),
            np.array(checked_range("load", load)),
        )
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
class MixedClusters:
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
        clusters = (clusters,) if isinstance(clusters, Cluster) else tuple(clusters)
        traces = (traces,) if isinstance(traces, Trace) else tuple(traces)
        if not clusters:
            raise InputError("no cluster", field="clusters")
        if not traces:
            raise InputError("no trace", field="traces")
        self.clusters = tuple(sorted(clusters, key=lambda cluster: cluster.num_gpus))
        self.bounds = ClusterBounds.of(*self.clusters)
        self.stages, self.jobs_per_gpu = stages, checked_range("jobs_per_gpu", jobs_per_gpu)
        self._capacity = [reference_gpus(cluster, speeds) for cluster in self.clusters]
        self._traces = []
        for cluster in self.clusters:
            most = self._jobs(cluster)[1]
            parts = [at_most_gpus(trace, int(max_share * cluster.num_gpus)) for trace in traces]
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
        load = self.stages.stage(self.progress).load
        chosen = int(rng.integers(self._admitted(self.progress)))
        cluster, parts = self.clusters[chosen], self._traces[chosen]
        trace = parts[int(rng.integers(len(parts)))]
        window = random_window(trace, self._jobs(cluster), load, self._capacity[chosen], rng)
        return ClusterInstance(cluster, window)

    def _admitted(self, progress: float) -> int:
        """How many clusters, from the smallest on, a stage admits."""
        most = self.stages.stage(progress).gpus
        return sum(cluster.num_gpus <= most for cluster in self.clusters)

    def _jobs(self, cluster: Cluster) -> tuple[int, int]:
        """Least and most jobs of an episode on `cluster`."""
        least, most = self.jobs_per_gpu
        return max(1, round(least * cluster.num_gpus)), max(1, round(most * cluster.num_gpus))
