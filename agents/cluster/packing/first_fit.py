"""First fit: the lowest node on which the job fits, and the tightest GPU there."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit

from agents.cluster.packing.bins import NOWHERE, Bins, Request, RequestClasses, fits, tightest_gpu
from agents.cluster.packing.rule import Spot
from envs.cluster.nodes import Cluster
from envs.cluster.workload.requests import ResourceRequests


@dataclass(frozen=True)
class FirstFit:
    """First fit in the order of the nodes."""

    name: str = "first_fit"

    def packer(
        self, cluster: Cluster, bins: Bins, classes: RequestClasses, workload: ResourceRequests
    ) -> FirstFitPacker:
        """See `PackingRule.packer`."""
        return FirstFitPacker(bins)


@dataclass(frozen=True, eq=False)
class FirstFitPacker:
    """Walks from the lowest node."""

    bins: Bins

    def choose(self, request: Request, rng: np.random.Generator) -> Spot | None:
        """See `Packer.choose`; needs no chance."""
        node = _first(self.bins, request)
        return None if node == NOWHERE else Spot(node, tightest_gpu(self.bins.left[node], request))


@njit(cache=True)
def _first(bins: Bins, request: Request) -> int:
    for node in range(len(bins.cpu)):
        if fits(bins, node, request):
            return node
    return NOWHERE
