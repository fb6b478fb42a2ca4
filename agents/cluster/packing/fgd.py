"""Fragmentation gradient descent: each job goes where it adds the least fragmentation.

Weng et al., USENIX ATC 2023, section 4. In their experiments a scheduler of Kubernetes compares
whole scores from 0 to 100, floor(100 / (1 + exp(increase in GPUs))), and takes the first node of
the best ones; so do `score_levels: 100` here. Without levels the increases themselves are compared.
Ties go to the lowest node, then GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from agents.cluster.packing.bins import NOWHERE, Bins, Request, RequestClasses, fits, take_whole
from agents.cluster.packing.fragmentation import TypicalJobs, fragments, typical_jobs
from agents.cluster.packing.rule import Spot
from envs.cluster.nodes import Cluster
from envs.cluster.workload.requests import ResourceRequests
from envs.cluster.workload.trace import WHOLE_GPU
from envs.errors import InputError

NEVER = np.int64(-1)  # version of a node on which nothing was found yet
MISFIT = np.iinfo(np.int64).max


@dataclass(frozen=True)
class FragmentationGradientDescent:
    """FGD.

    Args:
        typical_share: part of the workload's jobs that the typical requests make up; 0.95 in the
            authors' experiments.
        score_levels: steps of the score; 100 in the authors' experiments, 0 for no rounding.
        name: of the rule.

    Raises:
        InputError: a negative number of levels.
    """

    typical_share: float
    score_levels: int
    name: str = "fgd"

    def __post_init__(self) -> None:
        if self.score_levels < 0:
            raise InputError(f"{self.score_levels} is negative", field="score_levels")

    def packer(
        self, cluster: Cluster, bins: Bins, classes: RequestClasses, workload: ResourceRequests
    ) -> FragmentationPacker:
        """See `PackingRule.packer`."""
        typical = typical_jobs(workload, cluster, self.typical_share)
        return FragmentationPacker(bins, typical, self.score_levels, len(classes))


class FragmentationPacker:
    """Remembers, for every class of requests and node, the cost found at the node's version."""

    def __init__(self, bins: Bins, typical: TypicalJobs, levels: int, classes: int) -> None:
        nodes = len(bins.cpu)
        self.bins, self.typical, self.levels = bins, typical, levels
        self._seen = np.full((classes, nodes), NEVER)
        self._cost = np.empty((classes, nodes), np.int64)
        self._gpu = np.empty((classes, nodes), np.int8)

    def choose(self, request: Request, rng: np.random.Generator) -> Spot | None:
        """See `Packer.choose`; needs no chance."""
        c = request.number
        seen, cost, gpu = self._seen[c], self._cost[c], self._gpu[c]
        node = _choose(self.bins, request, self.typical, self.levels, seen, cost, gpu)
        return None if node == NOWHERE else Spot(node, int(gpu[node]))


@njit(cache=True)
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


@njit(cache=True)
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


@njit(cache=True)
def _rounded(rise: int, typical: TypicalJobs, levels: int) -> int:
    if levels == 0:
        return rise
    return levels - int(levels / (1.0 + np.exp(rise / (typical.jobs * WHOLE_GPU))))


@njit(cache=True)
def _occurs(left: NDArray[np.int32], slot: int) -> bool:
    """Whether a lower slot has exactly as much left."""
    return bool((left[:slot] == left[slot]).any())
