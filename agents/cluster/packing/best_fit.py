"""Best fit: the node on which the least is left, cores and GPUs weighed alike.

As in the comparison of Weng et al., USENIX ATC 2023, section 6.1: the sum over resources of what is
left after the job, over the most that any node has, each with weight 1/2; of the GPUs the one with
the least left. Ties go to the lowest node, then GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from agents.cluster.packing.bins import NOWHERE, Bins, Request, RequestClasses, fits, tightest_gpu
from agents.cluster.packing.capacity import Capacity, largest_node
from agents.cluster.packing.rule import Spot
from envs.cluster.nodes import Cluster
from envs.cluster.workload.requests import ResourceRequests


@dataclass(frozen=True)
class BestFit:
    """Best fit over cores and GPUs."""

    name: str = "best_fit"

    def packer(
        self, cluster: Cluster, bins: Bins, classes: RequestClasses, workload: ResourceRequests
    ) -> BestFitPacker:
        """See `PackingRule.packer`."""
        return BestFitPacker(bins, largest_node(cluster))


@dataclass(frozen=True, eq=False)
class BestFitPacker:
    """Looks at every node, every time."""

    bins: Bins
    largest: Capacity

    def choose(self, request: Request, rng: np.random.Generator) -> Spot | None:
        """See `Packer.choose`; needs no chance."""
        node, gpu = _choose(self.bins, request, self.largest)
        return None if node == NOWHERE else Spot(node, gpu)


@njit(cache=True)
def _choose(bins: Bins, request: Request, largest: Capacity) -> tuple[int, int]:
    best, least = NOWHERE, np.inf
    for node in range(len(bins.cpu)):
        if not fits(bins, node, request):
            continue
        score = bins.left[node].sum() * largest.per_gpu_milli
        if largest.per_cpu_milli > 0.0:
            score += (bins.cpu[node] - request.cpu) * largest.per_cpu_milli
        if score < least:
            best, least = node, score
    if best == NOWHERE:
        return best, NOWHERE
    return best, tightest_gpu(bins.left[best], request)
