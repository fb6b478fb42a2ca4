"""Dot product: the node whose free resources point least along the job's request.

As in the comparison of Weng et al., USENIX ATC 2023, section 6.1, after Tetris (Grandl et al.,
SIGCOMM 2014), whose rule takes the largest product: cores and GPUs over the most that any node has;
of the GPUs the one with the least left. Ties go to the lowest node, then GPU.
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
class DotProduct:
    """The smallest dot product over cores and GPUs."""

    name: str = "dot_product"

    def packer(
        self, cluster: Cluster, bins: Bins, classes: RequestClasses, workload: ResourceRequests
    ) -> DotProductPacker:
        """See `PackingRule.packer`."""
        return DotProductPacker(bins, largest_node(cluster))


@dataclass(frozen=True, eq=False)
class DotProductPacker:
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
    per_cpu = largest.per_cpu_milli**2 * request.cpu
    per_gpu = largest.per_gpu_milli**2 * request.gpus * request.milli
    for node in range(len(bins.cpu)):
        if not fits(bins, node, request):
            continue
        product = bins.cpu[node] * per_cpu + bins.left[node].sum() * per_gpu
        if product < least:
            best, least = node, product
    if best == NOWHERE:
        return best, NOWHERE
    return best, tightest_gpu(bins.left[best], request)
