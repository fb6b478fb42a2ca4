"""On which node and GPU a request for whole GPUs or a part of one goes: rules without memory.

As in the comparison of Weng et al., USENIX ATC 2023, section 6.1. Ties go to the lowest node, then
GPU. A rule sees `Bins`, whoever changes them.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from math import gcd
from typing import ClassVar, NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from agents.cluster.rules.bins import NOWHERE, Bins, Request, fits
from envs.arrays import FloatArray, IntArray
from envs.cluster.nodes import UNLIMITED, Cluster, ResourceRequests
from envs.cluster.workload.trace import WHOLE_GPU
from envs.compilation import compiled

# (N,) cost of a request on every node, inf where it does not fit, and the GPU it would get there
Costs = Callable[[Request], tuple[FloatArray, NDArray[np.integer]]]


class Spot(NamedTuple):
    """Where a request goes."""

    node: int
    gpu: int  # slot of a request for one GPU; otherwise the lowest GPUs with nothing on them


@runtime_checkable
class FractionalRule(Protocol):
    """A request goes to the node where it costs least, the lowest of equals."""

    draws: ClassVar[bool]  # whether it goes anywhere it fits, by chance, whatever it costs

    @property
    def name(self) -> str:
        """Of the rule, in tables."""

    def costs(
        self, cluster: Cluster, bins: Bins, requests: int, workload: ResourceRequests
    ) -> Costs:
        """What requests with numbers below `requests` cost in `bins`, which others change.

        `workload` is what is known of the jobs that usually come.
        """


def choose(
    rule: FractionalRule, costs: Costs, bins: Bins, request: Request, rng: np.random.Generator
) -> Spot | None:
    """Where `request` goes now; None: it fits nowhere."""
    cost, gpu = costs(request)
    nodes = np.flatnonzero(cost < np.inf)
    if not len(nodes):
        return None
    if not rule.draws:
        node = int(np.argmin(cost))
        return Spot(node, int(gpu[node]))
    node = int(rng.choice(nodes))
    if request.gpus != 1:
        return Spot(node, NOWHERE)
    return Spot(node, int(rng.choice(np.flatnonzero(bins.left[node] >= request.milli))))


ANY, LEAST_LEFT, LEAST_ALONG, IN_USE = range(4)  # what a node costs


class _Tightest:
    """A node is as dear as its free cores and GPUs are many, by the rule's measure.

    What the request itself takes is the same on every node, so it does not matter here. It gets the
    GPU with the least left that is enough, the lowest of equals; NOWHERE where it asks for none.
    """

    draws: ClassVar[bool] = False
    measure: ClassVar[int] = ANY

    def costs(
        self, cluster: Cluster, bins: Bins, requests: int, workload: ResourceRequests
    ) -> Costs:
        return partial(tightest_costs, bins, self.measure, *one_over_most(cluster))


@dataclass(frozen=True)
class FirstFit(_Tightest):
    """The lowest node on which the job fits, and the tightest GPU there."""

    name: str = "first_fit"


@dataclass(frozen=True)
class RandomFit(_Tightest):
    """Any node on which the job fits, any GPU there, with equal chances."""

    name: str = "random_fit"
    draws = True


@dataclass(frozen=True)
class BestFit(_Tightest):
    """The node on which the least is left, cores and GPUs over the most that any node has."""

    name: str = "best_fit"
    measure = LEAST_LEFT


@dataclass(frozen=True)
class DotProduct(_Tightest):
    """The node whose free resources point least along the job's request.

    After Tetris (Grandl et al., SIGCOMM 2014), whose rule takes the largest product: cores and GPUs
    over the most that any node has.
    """

    name: str = "dot_product"
    measure = LEAST_ALONG


@dataclass(frozen=True)
class GpuPacking(_Tightest):
    """The tightest GPU in use, else a free one of a node in use, else the smallest idle node."""

    name: str = "gpu_packing"
    measure = IN_USE


def one_over_most(cluster: Cluster) -> tuple[float, float]:
    """Weights of a thousandth of a core and of a GPU: one over the most that any node has.

    They are the smallest whole numbers in that proportion, so that sums weighed with them are exact
    and equal scores are seen to be equal; 0 for a resource that no node limits or has.
    """
    cpu, gpu = int(cluster.cpu_milli.max()), int(cluster.gpus.max()) * WHOLE_GPU
    if cpu in (0, UNLIMITED) or gpu == 0:
        return float(cpu not in (0, UNLIMITED)), float(gpu > 0)
    return float(gpu // gcd(cpu, gpu)), float(cpu // gcd(cpu, gpu))


@compiled
def tightest_costs(
    bins: Bins, measure: int, per_cpu: float, per_gpu: float, request: Request
) -> tuple[FloatArray, IntArray]:
    """See `_Tightest`."""
    cost, gpu = np.full(len(bins.cpu), np.inf), np.full(len(bins.cpu), NOWHERE)
    if measure == LEAST_ALONG:
        per_cpu = per_cpu**2 * request.cpu
        per_gpu = per_gpu**2 * (request.gpus * request.milli)
    for node in range(len(cost)):
        if not fits(bins, node, request):
            continue
        left, tightest, least = bins.left[node], NOWHERE, WHOLE_GPU + 1
        for slot in range(len(left) if request.gpus else 0):
            if request.milli <= left[slot] < least:
                tightest, least = slot, left[slot]
        gpu[node], free, cost[node] = tightest, left.sum(), 0.0
        if measure in (LEAST_LEFT, LEAST_ALONG):
            cost[node] = bins.cpu[node] * per_cpu + free * per_gpu
        elif measure == IN_USE and tightest != NOWHERE:
            idle = free == bins.gpus[node] * WHOLE_GPU
            cost[node] = WHOLE_GPU + bins.gpus[node] if idle else least
    return cost, gpu
