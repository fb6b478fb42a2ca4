"""GPU packing: GPUs in use first, then free GPUs of nodes in use, then the smallest idle node.

As in the comparison of Weng et al., USENIX ATC 2023, section 6.1. Of the GPUs in use the one with
the least left; ties go to the lowest node, then GPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from agents.cluster.packing.bins import NOWHERE, Bins, Request, RequestClasses, fits, tightest_gpu
from agents.cluster.packing.rule import Spot
from envs.cluster.nodes import Cluster
from envs.cluster.workload.requests import ResourceRequests
from envs.cluster.workload.trace import WHOLE_GPU

ON_USED_NODE = WHOLE_GPU  # ranks below it are what is left on a GPU in use
ON_IDLE_NODE = WHOLE_GPU + 1  # plus the node's GPUs


@dataclass(frozen=True)
class GpuPacking:
    """Packs GPUs, then nodes."""

    name: str = "gpu_packing"

    def packer(
        self, cluster: Cluster, bins: Bins, classes: RequestClasses, workload: ResourceRequests
    ) -> GpuPackingPacker:
        """See `PackingRule.packer`."""
        return GpuPackingPacker(bins)


@dataclass(frozen=True, eq=False)
class GpuPackingPacker:
    """Looks at every node, every time."""

    bins: Bins

    def choose(self, request: Request, rng: np.random.Generator) -> Spot | None:
        """See `Packer.choose`; needs no chance."""
        node, gpu = _choose(self.bins, request)
        return None if node == NOWHERE else Spot(node, gpu)


@njit(cache=True)
def _choose(bins: Bins, request: Request) -> tuple[int, int]:
    best, least, chosen = NOWHERE, np.iinfo(np.int64).max, NOWHERE
    for node in range(len(bins.cpu)):
        if not fits(bins, node, request):
            continue
        gpu = tightest_gpu(bins.left[node], request)
        rank = _rank(bins, node, gpu)
        if rank < least:
            best, least, chosen = node, rank, gpu
        if request.gpus == 0:
            break
    return best, chosen


@njit(cache=True)
def _rank(bins: Bins, node: int, gpu: int) -> int:
    """0..999 for a GPU in use, then a free GPU of a node in use, then idle nodes by their GPUs."""
    if gpu == NOWHERE:
        return 0
    if bins.left[node].sum() == bins.gpus[node] * WHOLE_GPU:
        return int(ON_IDLE_NODE + bins.gpus[node])
    left = int(bins.left[node, gpu])
    return left if left < WHOLE_GPU else ON_USED_NODE
