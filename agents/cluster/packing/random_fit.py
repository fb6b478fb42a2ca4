"""Random fit: any node on which the job fits, any GPU there, with equal chances."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agents.cluster.packing.bins import NOWHERE, Bins, Request, RequestClasses, fitting_nodes
from agents.cluster.packing.rule import Spot
from envs.cluster.nodes import Cluster
from envs.cluster.workload.requests import ResourceRequests


@dataclass(frozen=True)
class RandomFit:
    """The yardstick of every other rule."""

    name: str = "random_fit"

    def packer(
        self, cluster: Cluster, bins: Bins, classes: RequestClasses, workload: ResourceRequests
    ) -> RandomFitPacker:
        """See `PackingRule.packer`."""
        return RandomFitPacker(bins)


@dataclass(frozen=True, eq=False)
class RandomFitPacker:
    """Lists the nodes that fit, then the GPUs, and draws from both."""

    bins: Bins

    def choose(self, request: Request, rng: np.random.Generator) -> Spot | None:
        """See `Packer.choose`."""
        nodes = fitting_nodes(self.bins, request)
        if not len(nodes):
            return None
        node = int(nodes[rng.integers(len(nodes))])
        if request.gpus != 1:
            return Spot(node, NOWHERE)
        gpus = np.flatnonzero(self.bins.left[node] >= request.milli)
        return Spot(node, int(gpus[rng.integers(len(gpus))]))
