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
from itertools import pairwise
from typing import Annotated, NamedTuple

import numpy as np
from annotated_types import Ge, Gt, Le
from numpy.typing import NDArray

from agents.cluster.rules.bins import NOWHERE, Bins, Request, RequestClasses, fits, take_whole
from agents.cluster.rules.fractional import Spot
from envs.arrays import IntArray, sums_before
from envs.bounds import bounded
from envs.cluster.nodes import Cluster, ResourceRequests
from envs.cluster.workload.trace import WHOLE_GPU
from envs.compilation import compiled, compiled_inner
from envs.errors import InputError

ShareAboveZero = Annotated[float, Gt(0.0), Le(1.0)]
NEVER = np.int64(-1)  # version of a node on which nothing was found yet
MISFIT = np.iinfo(np.int64).max


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

    def chooser(
        self, cluster: Cluster, bins: Bins, classes: RequestClasses, workload: ResourceRequests
    ) -> LeastFragmentation:
        typical = typical_jobs(workload, cluster, self.typical_share)
        return LeastFragmentation(bins, typical, self.score_levels, len(classes))


class LeastFragmentation:
    """Remembers, for every class of requests and node, the cost found at the node's version."""

    def __init__(self, bins: Bins, typical: TypicalJobs, levels: int, classes: int) -> None:
        nodes = len(bins.cpu)
        self.bins, self.typical, self.levels = bins, typical, levels
        self._seen = np.full((classes, nodes), NEVER)
        self._cost = np.empty((classes, nodes), np.int64)
        self._gpu = np.empty((classes, nodes), np.int8)

    def choose(self, request: Request, rng: np.random.Generator) -> Spot | None:
        c = request.number
        seen, cost, gpu = self._seen[c], self._cost[c], self._gpu[c]
        node = _choose(self.bins, request, self.typical, self.levels, seen, cost, gpu)
        return None if node == NOWHERE else Spot(node, int(gpu[node]))


@compiled
def _choose(
    bins: Bins,
    request: Request,
    typical: TypicalJobs,
    levels: int,
    seen: NDArray[np.int64],
    cost: NDArray[np.int64],
    gpu: NDArray[np.int8],
) -> int:
    best, least = NOWHERE, MISFIT
    for node in range(len(bins.cpu)):
        if seen[node] != bins.version[node]:
            seen[node] = bins.version[node]
            cost[node], gpu[node] = cost_of(bins, node, request, typical, levels)
        if cost[node] < least:
            best, least = node, cost[node]
    return best


@compiled_inner
def cost_of(
    bins: Bins, node: int, request: Request, typical: TypicalJobs, levels: int
) -> tuple[int, int]:
    """The cost of the request on the node, at best, and the GPU; MISFIT where it does not fit.

    Without levels the increase in thousandths of a GPU times the number of typical jobs, with
    levels the steps by which the score misses the highest one.
    """
    if not fits(bins, node, request):
        return MISFIT, NOWHERE
    kind, cpu = bins.kind[node], bins.cpu[node] - request.cpu
    left = bins.left[node].copy()
    before = fragments(bins.cpu[node], left, kind, typical)
    if request.gpus != 1:
        take_whole(left, request.gpus)
        return _rounded(fragments(cpu, left, kind, typical) - before, typical, levels), NOWHERE
    least, best = MISFIT, NOWHERE
    for slot in range(len(left)):
        here = left[slot]
        if here < request.milli or _occurs(left, slot):
            continue
        left[slot] = here - request.milli
        cost = _rounded(fragments(cpu, left, kind, typical) - before, typical, levels)
        left[slot] = here
        if cost < least:
            least, best = cost, slot
    return least, best


@compiled_inner
def _rounded(rise: int, typical: TypicalJobs, levels: int) -> int:
    if levels == 0:
        return rise
    return levels - int(levels / (1.0 + np.exp(rise / (typical.jobs * WHOLE_GPU))))


@compiled_inner
def _occurs(left: NDArray[np.int32], slot: int) -> bool:
    """Whether a lower slot has exactly as much left."""
    return bool((left[:slot] == left[slot]).any())


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
        InputError: a workload without jobs.
    """
    if not len(workload):
        raise InputError("typical jobs of an empty workload", file=workload.name)
    with_gpu = workload.num_gpus > 0
    rows = np.stack(
        [
            workload.cpu_milli,
            np.where(with_gpu, workload.taken_milli, 0),
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
    start = sums_before(sizes).astype(np.int64)
    up_to = np.concatenate([np.cumsum(counts[a:b]) for a, b in pairwise(start)] or [counts])
    gpus, milli, types = (np.ascontiguousarray(column) for column in groups.T)
    cpu = np.ascontiguousarray(rows[:, 0])
    return TypicalJobs(gpus, milli, types, start, cpu, up_to.astype(np.int64), without_gpu, jobs)


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
