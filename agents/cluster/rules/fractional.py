"""On which node and GPU a request for whole GPUs or a part of one goes: rules without memory.

As in the comparison of Weng et al., USENIX ATC 2023, section 6.1. Ties go to the lowest node, then
GPU. A rule sees `Bins`, whoever changes them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np

from agents.cluster.rules.bins import (
    NOWHERE,
    Bins,
    Capacity,
    Request,
    RequestClasses,
    fits,
    fitting_nodes,
    largest_node,
    tightest_gpu,
)
from envs.cluster.nodes import Cluster, ResourceRequests
from envs.cluster.workload.trace import WHOLE_GPU
from envs.compilation import compiled, compiled_inner

ON_USED_NODE = WHOLE_GPU  # ranks below it are what is left on a GPU in use
ON_IDLE_NODE = WHOLE_GPU + 1  # plus the node's GPUs


class Spot(NamedTuple):
    """Where a request goes."""

    node: int
    gpu: int  # slot of a request for one GPU; otherwise the lowest GPUs with nothing on them


class Chooser(Protocol):
    """A rule at work on one cluster."""

    def choose(self, request: Request, rng: np.random.Generator) -> Spot | None:
        """Where `request` goes now; None: it fits nowhere."""


@runtime_checkable
class FractionalRule(Protocol):
    """Which of the nodes and GPUs on which a request fits receives it."""

    @property
    def name(self) -> str:
        """Of the rule, in tables."""

    def chooser(
        self, cluster: Cluster, bins: Bins, classes: RequestClasses, workload: ResourceRequests
    ) -> Chooser:
        """A chooser that watches `bins`, which others change, and serves `classes`.

        `workload` is what is known of the jobs that usually come.
        """


class _LeastLeft:
    """The node with the least weighted sum of free cores and GPUs, the tightest GPU there.

    What the request itself takes is the same on every node, so it does not matter here.
    """

    packs: ClassVar[bool] = False  # by what is left of the GPU, or how much there is of the node

    def weights(self, most: Capacity, request: Request) -> tuple[float, float]:
        """Of a thousandth of a core and of a GPU."""
        return 0.0, 0.0

    def chooser(
        self, cluster: Cluster, bins: Bins, classes: RequestClasses, workload: ResourceRequests
    ) -> Chooser:
        return _Least(self, bins, largest_node(cluster))


@dataclass(frozen=True)
class FirstFit(_LeastLeft):
    """The lowest node on which the job fits, and the tightest GPU there."""

    name: str = "first_fit"


@dataclass(frozen=True)
class BestFit(_LeastLeft):
    """The node on which the least is left, cores and GPUs over the most that any node has."""

    name: str = "best_fit"

    def weights(self, most: Capacity, request: Request) -> tuple[float, float]:
        return most


@dataclass(frozen=True)
class DotProduct(_LeastLeft):
    """The node whose free resources point least along the job's request.

    After Tetris (Grandl et al., SIGCOMM 2014), whose rule takes the largest product: cores and GPUs
    over the most that any node has.
    """

    name: str = "dot_product"

    def weights(self, most: Capacity, request: Request) -> tuple[float, float]:
        asked = request.gpus * request.milli
        return most.per_cpu_milli**2 * request.cpu, most.per_gpu_milli**2 * asked


@dataclass(frozen=True)
class GpuPacking(_LeastLeft):
    """The tightest GPU in use, else a free one of a node in use, else the smallest idle node."""

    name: str = "gpu_packing"
    packs = True


@dataclass(frozen=True, eq=False)
class _Least:
    """See `_LeastLeft`."""

    rule: _LeastLeft
    bins: Bins
    most: Capacity

    def choose(self, request: Request, rng: np.random.Generator) -> Spot | None:
        weights = self.rule.weights(self.most, request)
        node, gpu = _least(self.bins, request, *weights, self.rule.packs)
        return None if node == NOWHERE else Spot(node, gpu)


@compiled
def _least(
    bins: Bins, request: Request, per_cpu: float, per_gpu: float, packs: bool
) -> tuple[int, int]:
    best, least, chosen = NOWHERE, np.inf, NOWHERE
    for node in range(len(bins.cpu)):
        if not fits(bins, node, request):
            continue
        gpu = tightest_gpu(bins.left[node], request)
        left = bins.cpu[node] * per_cpu + bins.left[node].sum() * per_gpu
        if packs:
            left = float(_rank(bins, node, gpu))
        if left < least:
            best, least, chosen = node, left, gpu
    return best, chosen


@compiled_inner
def _rank(bins: Bins, node: int, gpu: int) -> int:
    """0..999 for a GPU in use, then a free GPU of a node in use, then idle nodes by their GPUs."""
    if gpu == NOWHERE:
        return 0
    if bins.left[node].sum() == bins.gpus[node] * WHOLE_GPU:
        return int(ON_IDLE_NODE + bins.gpus[node])
    left = int(bins.left[node, gpu])
    return left if left < WHOLE_GPU else ON_USED_NODE


@dataclass(frozen=True)
class RandomFit:
    """Any node on which the job fits, any GPU there, with equal chances."""

    name: str = "random_fit"

    def chooser(
        self, cluster: Cluster, bins: Bins, classes: RequestClasses, workload: ResourceRequests
    ) -> AnyFit:
        return AnyFit(bins)


@dataclass(frozen=True, eq=False)
class AnyFit:
    """See `RandomFit`."""

    bins: Bins

    def choose(self, request: Request, rng: np.random.Generator) -> Spot | None:
        nodes = fitting_nodes(self.bins, request)
        if not len(nodes):
            return None
        node = int(nodes[rng.integers(len(nodes))])
        if request.gpus != 1:
            return Spot(node, NOWHERE)
        gpus = np.flatnonzero(self.bins.left[node] >= request.milli)
        return Spot(node, int(gpus[rng.integers(len(gpus))]))
