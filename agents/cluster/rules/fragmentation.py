"""Fragmentation gradient descent: each job goes where it adds the least fragmentation.

Weng et al., *Beware of Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient
Descent*, USENIX ATC 2023. Fragmentation (section 3) is how much of a node's free GPU capacity the
jobs that usually come cannot use. For a job m that cannot run on node n (too few GPUs with enough
left, too few cores, another GPU type, or no wish for a GPU), everything left on the GPUs of n is a
fragment; for one that can, what is left on the GPUs that are too small for it. F_n(M) is the mean
over the typical jobs M, weighted by how often they come. Memory plays no part in it.

In the authors' experiments a scheduler of Kubernetes compares whole scores from 0 to 100,
floor(100 / (1 + exp(increase in GPUs))), and takes the first node of the best ones; so do
`score_levels: 100` here. Without levels the increases themselves are compared. Ties go to the
lowest node, then GPU.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Annotated, ClassVar, NamedTuple

import numpy as np
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray

from agents.cluster.rules.bins import NOWHERE, Bins, Request, fits, take_gpus
from agents.cluster.rules.fractional import Costs
from envs.arrays import FloatArray, IntArray, sums_before
from envs.bounds import bounded
from envs.cluster.nodes import Cluster, ResourceRequests
from envs.cluster.workload.trace import WHOLE_GPU
from envs.compilation import compiled, compiled_inner
from envs.errors import InputError

ShareAboveZero = Annotated[float, Gt(0.0), Le(1.0)]
NEVER = np.int64(-1)  # version of a node on which nothing was found yet


@bounded
@dataclass(frozen=True)
class FragmentationGradientDescent:
    """FGD.

    Args:
        typical_share: part of the workload's jobs that the typical requests make up; 0.95 in the
            authors' experiments.
        score_levels: steps of the score; 100 in the authors' experiments, 0 for no rounding.
        name: of the rule.
    """

    typical_share: ShareAboveZero = 0.95
    score_levels: Annotated[int, Ge(0)] = 100
    name: str = "fgd"

    draws: ClassVar[bool] = False

    def costs(
        self, cluster: Cluster, bins: Bins, requests: int, workload: ResourceRequests
    ) -> Costs:
        """Those found of every request at a node's version are remembered."""
        typical = typical_jobs(workload, cluster, self.typical_share)
        shape = (requests, len(bins.cpu))
        found = Found(np.full(shape, NEVER), np.empty(shape), np.empty(shape, np.int8))
        return partial(least_rises, bins, typical, self.score_levels, found)


class Found(NamedTuple):
    """What C requests would cost on N nodes."""

    version: NDArray[np.int64]  # (C, N) of the node when that was worked out
    cost: FloatArray  # (C, N)
    gpu: NDArray[np.int8]  # (C, N)


@compiled
def least_rises(
    bins: Bins, typical: TypicalJobs, levels: int, found: Found, request: Request
) -> tuple[FloatArray, NDArray[np.int8]]:
    """See `Costs`; worked out anew on the nodes that have changed."""
    version, cost = found.version[request.number], found.cost[request.number]
    gpu = found.gpu[request.number]
    for node in range(len(bins.cpu)):
        if version[node] != bins.version[node]:
            version[node] = bins.version[node]
            cost[node], gpu[node] = cost_of(bins, node, request, typical, levels)
    return cost, gpu


@compiled_inner
def cost_of(
    bins: Bins, node: int, request: Request, typical: TypicalJobs, levels: int
) -> tuple[float, int]:
    """The cost of the request on the node, at best, and the GPU; inf where it does not fit.

    Without levels the increase in thousandths of a GPU times the number of typical jobs, with
    levels the steps by which the score misses the highest one.
    """
    least, best = np.inf, NOWHERE
    if not fits(bins, node, request):
        return least, best
    left, kind = bins.left[node], bins.kind[node]
    before, after = fragments(bins.cpu[node], left, kind, typical), left.copy()
    for slot in range(len(left) if request.gpus == 1 else 1):
        here = left[slot]
        if request.gpus == 1 and (here < request.milli or (left[:slot] == here).any()):
            continue  # too little, or as on a lower slot
        after[:] = left
        take_gpus(after, slot, request)
        rise = fragments(bins.cpu[node] - request.cpu, after, kind, typical) - before
        cost = float(rise)
        if levels > 0:
            cost = levels - np.floor(levels / (1.0 + np.exp(rise / (typical.jobs * WHOLE_GPU))))
        if cost < least:
            least, best = cost, slot
    return least, best if request.gpus == 1 else NOWHERE


class TypicalJobs(NamedTuple):
    """Typical jobs in K groups that differ in GPUs; within a group they differ in cores.

    Numbers are counts of jobs, so that fragments are whole numbers and equal ones are equal.
    """

    gpus: IntArray  # (K,) at least 1
    milli: IntArray  # (K,) thousandths of each GPU
    types: IntArray  # (K,) bit t: may run on GPU type t
    start: IntArray  # (K + 1,) the group's place in `cpu`
    cpu: IntArray  # (M,) thousandths of a core, ascending within a group
    before: IntArray  # (M + 1,) jobs with a place before this one
    without_gpu: int  # jobs
    jobs: int  # in all


def typical_jobs(workload: ResourceRequests, cluster: Cluster, share: float) -> TypicalJobs:
    """The most frequent requests for cores and GPUs that make up `share` of the workload's jobs.

    Of equally frequent ones the larger come first: by cores, by share of a GPU, by GPUs, by types.

    Raises:
        InputError: a workload without jobs.
    """
    if not len(workload):
        raise InputError("typical jobs of an empty workload", file=workload.name)
    gpus = workload.num_gpus.astype(np.int64)
    milli = np.where(gpus > 0, workload.taken_milli, 0)
    types, cpu = workload.permitted(cluster), workload.cpu_milli
    rows = np.stack([gpus, milli, types, cpu], axis=1)
    rows, counts = np.unique(rows, axis=0, return_counts=True)
    gpus, milli, types, cpu = rows.T
    by_frequency = np.lexsort((types, gpus, milli, cpu, counts))[::-1]
    before = np.cumsum(counts[by_frequency]) - counts[by_frequency]
    kept = np.sort(by_frequency[before < share * len(workload)])
    jobs, kept = int(counts[kept].sum()), kept[gpus[kept] > 0]
    groups, sizes = np.unique(rows[kept, :3], axis=0, return_counts=True)
    start, before = sums_before(sizes).astype(np.int64), sums_before(counts[kept])
    without_gpu = jobs - int(before[-1])
    gpus, milli, types = map(np.ascontiguousarray, groups.T)
    return TypicalJobs(gpus, milli, types, start, cpu[kept], before, without_gpu, jobs)


@compiled
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
        first, end = typical.start[k], typical.start[k + 1]
        jobs = typical.before[end] - typical.before[first]
        enough, small = 0, 0
        for each in left:
            if each >= typical.milli[k]:
                enough += 1
            else:
                small += each
        if enough < typical.gpus[k] or not typical.types[k] & kind:
            amount += jobs * total
            continue
        while end > first and typical.cpu[end - 1] > cpu:
            end -= 1
        able = typical.before[end] - typical.before[first]
        amount += able * small + (jobs - able) * total
    return amount
