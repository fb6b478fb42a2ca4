"""What jobs ask of a node, without when: the input of a packing experiment."""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from envs.arrays import IntArray
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import WHOLE_GPU, Labels, Trace


@dataclass(frozen=True, eq=False)
class ResourceRequests:
    """J requests as columns, in the order of their source."""

    name: str
    job_id: NDArray[np.str_]  # (J,)
    num_gpus: NDArray[np.int32]  # (J,) 0 for jobs without GPU
    gpu_milli: NDArray[np.int32]  # (J,) thousandths of each GPU, 1..1000
    cpu_milli: IntArray  # (J,) thousandths of a processor core
    memory_mib: IntArray  # (J,) MiB of main memory
    gpu_type: Labels  # permitted GPU types, separated by "|"; unknown: all

    @classmethod
    def of(cls, trace: Trace) -> ResourceRequests:
        """What the jobs of `trace` ask for."""
        return cls(**{field.name: getattr(trace, field.name) for field in fields(cls)})

    def __len__(self) -> int:
        return len(self.job_id)

    @property
    def demand_milli(self) -> IntArray:
        """(J,) thousandths of a GPU, of all GPUs of a job together."""
        return self.num_gpus.astype(np.int64) * self.gpu_milli

    @property
    def taken_milli(self) -> IntArray:
        """(J,) thousandths of each GPU that nobody else gets where only single GPUs are shared."""
        return np.where(self.num_gpus == 1, self.gpu_milli, WHOLE_GPU).astype(np.int64)

    def permitted(self, cluster: Cluster) -> IntArray:
        """(J,) bit t is set where a job may run on GPU type t of `cluster`."""
        return cluster.type_masks(self.gpu_type.names)[self.gpu_type.codes]
