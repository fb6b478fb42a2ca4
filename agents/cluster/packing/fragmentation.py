"""How much of a node's free GPU capacity the jobs that usually come cannot use.

Weng et al., *Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
Descent*, USENIX ATC 2023, section 3. For a job m that cannot run on node n (too few GPUs with
enough left, too few cores, another GPU type, or no wish for a GPU), everything left on the GPUs of
n is a fragment; for one that can, what is left on the GPUs that are too small for it. F_n(M) is the
mean over the typical jobs M, weighted by how often they come. Memory plays no part in it.
"""

from __future__ import annotations

from itertools import pairwise
from typing import NamedTuple

import numpy as np
from numba import njit
from numpy.typing import NDArray

from envs.cluster.nodes import Cluster
from envs.cluster.workload.requests import ResourceRequests
from envs.errors import InputError

IntArray = NDArray[np.int64]


class TypicalJobs(NamedTuple):
    """Typical jobs in K groups that differ in GPUs; within a group they differ in cores.

    Numbers are counts of jobs, so that fragments are whole numbers and equal ones are equal.
    """

    gpus: IntArray  # (K,) at least 1
    milli: IntArray  # (K,) thousandths of each GPU
    types: IntArray  # (K,) bit t: may run on GPU type t
    start: IntArray  # (K + 1,) the group's place in `cpu` and `up_to`
    cpu: IntArray  # (M,) thousandths of a core, ascending within a group
    up_to: IntArray  # (M,) jobs of the group with at most so many cores
    without_gpu: int  # jobs
    jobs: int  # in all


def typical_jobs(workload: ResourceRequests, cluster: Cluster, share: float) -> TypicalJobs:
    """The most frequent requests for cores and GPUs that make up `share` of the workload's jobs.

    Of equally frequent ones the larger come first: by cores, by share of a GPU, by GPUs, by types.

    Raises:
        InputError: a share outside 0..1, or a workload without jobs.
    """
    if not 0 < share <= 1:
        raise InputError(f"{share} is not a share above 0", field="typical_share")
    if not len(workload):
        raise InputError("typical jobs of an empty workload", file=workload.name)
    with_gpu = workload.num_gpus > 0
    rows = np.stack(
        [
            workload.cpu_milli,
            np.where(with_gpu, workload.gpu_milli, 0).astype(np.int64),
            workload.num_gpus.astype(np.int64),
            workload.permitted(cluster),
        ],
        axis=1,
    )
    rows, counts = np.unique(rows, axis=0, return_counts=True)
    by_frequency = np.lexsort((*rows.T[::-1], counts))[::-1]
    before = np.cumsum(counts[by_frequency]) - counts[by_frequency]
    kept = by_frequency[before < share * len(workload)]
    return _grouped(rows[kept], counts[kept])


def _grouped(rows: IntArray, counts: IntArray) -> TypicalJobs:
    none = rows[:, 2] == 0
    without_gpu = int(counts[none].sum())
    jobs = int(counts.sum())
    rows, counts = rows[~none], counts[~none]
    order = np.lexsort((rows[:, 0], rows[:, 3], rows[:, 1], rows[:, 2]))
    rows, counts = rows[order], counts[order]
    groups, sizes = np.unique(rows[:, [2, 1, 3]], axis=0, return_counts=True)
    start = np.concatenate([[0], np.cumsum(sizes)]).astype(np.int64)
    up_to = np.concatenate([np.cumsum(counts[a:b]) for a, b in pairwise(start)] or [counts])
    gpus, milli, types = (np.ascontiguousarray(column) for column in groups.T)
    cpu = np.ascontiguousarray(rows[:, 0])
    return TypicalJobs(gpus, milli, types, start, cpu, up_to.astype(np.int64), without_gpu, jobs)


@njit(cache=True)
def fragments(cpu: int, left: NDArray[np.int32], kind: int, typical: TypicalJobs) -> int:
    """F_n(M) times the number of typical jobs, for a node with `cpu` and `left` (G,) left.

    In thousandths of a GPU; `kind` is the bit of the node's GPU type.
    """
    total = 0
    for each in left:
        total += each
    if total == 0:
        return 0
    amount = typical.without_gpu * total
    for k in range(len(typical.gpus)):
        first, last = typical.start[k], typical.start[k + 1] - 1
        jobs = typical.up_to[last]
        enough, small = 0, 0
        for each in left:
            if each >= typical.milli[k]:
                enough += 1
            else:
                small += each
        if enough < typical.gpus[k] or not typical.types[k] & kind:
            amount += jobs * total
            continue
        while last >= first and typical.cpu[last] > cpu:
            last -= 1
        able = typical.up_to[last] if last >= first else 0
        amount += able * small + (jobs - able) * total
    return amount
