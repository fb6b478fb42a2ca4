"""The cases of a trace: its distinct pairs of profile and gang size."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envs.cluster.interference.rates import ONE_NODE, ONE_RACK, SEVERAL_RACKS
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace
from envs.errors import InputError

IntArray = NDArray[np.int64]


@dataclass(frozen=True)
class Cases:
    """P pairs that occur, in ascending order of profile, then gang size."""

    profile: IntArray  # (P,)
    gpus: IntArray  # (P,) gang size
    of_job: NDArray[np.int32]  # (J,) case of every job

    @classmethod
    def of(cls, trace: Trace, profile: IntArray) -> Cases:
        """The cases of jobs with these profiles, (J,)."""
        largest = int(trace.num_gpus.max(initial=0)) + 1
        codes, of_job = np.unique(profile * largest + trace.num_gpus, return_inverse=True)
        return cls(codes // largest, codes % largest, of_job.astype(np.int32))

    def tightest_spread(self, cluster: Cluster) -> IntArray:
        """(P,) ONE_NODE, ONE_RACK or SEVERAL_RACKS: the least spread a job can have."""
        rack = np.zeros(cluster.num_racks, np.int64)
        np.add.at(rack, cluster.rack, cluster.gpus)
        spread = np.where(self.gpus <= rack.max(), ONE_RACK, SEVERAL_RACKS)
        return np.where(self.gpus <= cluster.gpus.max(), ONE_NODE, spread).astype(np.int64)

    def fewest_nodes(self, cluster: Cluster) -> IntArray:
        """(P,) nodes that a job needs at least; at least 1."""
        room = np.cumsum(np.sort(cluster.gpus)[::-1])
        return np.searchsorted(room, self.gpus).astype(np.int64).clip(max=len(room) - 1) + 1

    def require_speed(self, trace: Trace, cluster: Cluster, speed: NDArray[np.float64]) -> None:
        """Check that every job runs on every GPU type on which it may be placed.

        Args:
            trace: the jobs.
            cluster: its GPU types.
            speed: (P, T); 0 where a case does not run.

        Raises:
            InputError: naming the first job that does not run on a type it permits.
        """
        masks = cluster.type_masks(trace.gpu_type.names)[trace.gpu_type.codes]
        permitted = masks[:, None] >> np.arange(len(cluster.gpu_types)) & 1 == 1
        wrong = permitted & (speed[self.of_job] <= 0.0)
        if wrong.any():
            job, kind = (int(index[0]) for index in np.nonzero(wrong))
            raise InputError(
                f"the job's model does not run on GPU type {cluster.gpu_types[kind]!r}",
                file=trace.name,
                record=str(trace.job_id[job]),
                field="gpu_type",
            )
