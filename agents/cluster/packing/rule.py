"""What a packing rule is."""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np

from agents.cluster.packing.bins import Bins, Request, RequestClasses
from envs.cluster.nodes import Cluster
from envs.cluster.workload.requests import ResourceRequests


class Spot(NamedTuple):
    """Where a request goes."""

    node: int
    gpu: int  # slot of a request for one GPU; otherwise the lowest GPUs with nothing on them


class Packer(Protocol):
    """A rule at work on one cluster."""

    def choose(self, request: Request, rng: np.random.Generator) -> Spot | None:
        """Where `request` goes now; None: it fits nowhere."""


@runtime_checkable
class PackingRule(Protocol):
    """Which of the nodes and GPUs on which a request fits receives it."""

    @property
    def name(self) -> str:
        """Of the rule, in tables."""

    def packer(
        self, cluster: Cluster, bins: Bins, classes: RequestClasses, workload: ResourceRequests
    ) -> Packer:
        """A packer that watches `bins`, which others change, and serves `classes`.

        `workload` is what is known of the jobs that usually come.
        """
