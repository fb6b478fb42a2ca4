"""`ClusterInstance`: what an episode is about, and the most that the instances of a kind have."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from envs.bounds import Count, bounded
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace
from envs.errors import InputError
from envs.parallel_env import Terms
from envs.reward import WeightedTerms
from envs.spaces import check_sizes


@dataclass(frozen=True, eq=False)
class ClusterInstance:
    """The jobs of one episode and the cluster they come to."""

    cluster: Cluster
    trace: Trace
    incidents: NDArray[np.void] | None = None  # `cluster_state.INCIDENT`, by time; None: none


@bounded
@dataclass(frozen=True)
class ClusterBounds:
    """The most that a cluster, or the part of one that a scheduler owns, has."""

    servers: Count  # N
    racks: Count  # R
    rack_servers: Count  # of one rack
    gpus: Count  # of one server
    gpu_types: Count  # T

    @classmethod
    def of(cls, *clusters: Cluster) -> ClusterBounds:
        """The least bounds that hold for all of `clusters`."""
        return cls(*map(max, zip(*map(_sizes, clusters), strict=True)))

    def part(self, schedulers: int) -> ClusterBounds:
        """The bounds of each scheduler's part of the racks.

        Raises:
            InputError: there are fewer racks than schedulers.
        """
        if self.racks < schedulers:
            raise InputError(f"{self.racks} racks for {schedulers} schedulers", field="schedulers")
        racks = -(-self.racks // schedulers)
        servers = min(self.servers, racks * self.rack_servers)
        return replace(self, racks=racks, servers=servers)

    def check_fits(self, cluster: Cluster, nodes: NDArray[np.integer]) -> None:
        """Raise where `nodes` of `cluster` exceed the bounds.

        Raises:
            InputError: naming the bound that is too small.
        """
        servers, racks, _, gpus, types = _sizes(cluster, nodes)
        file = f"cluster {cluster.name}"
        check_sizes(self, file, servers=servers, racks=racks, gpus=gpus, gpu_types=types)


def _sizes(cluster: Cluster, nodes: NDArray[np.integer] | slice = slice(None)) -> tuple[int, ...]:
    """Servers, racks, servers of a rack, GPUs of a server and GPU types, at most."""
    gpus, racks = cluster.gpus[nodes], np.unique(cluster.rack[nodes], return_counts=True)[1]
    most = int(racks.max(initial=0)), int(gpus.max(initial=0))
    return len(gpus), len(racks), *most, len(cluster.gpu_types)


# Every term and its weight.
TERMS: Mapping[str, float] = MappingProxyType({
    "jct": 1.0, "gpu_jct": 0.0, "slowdown": 0.0, "queueing": 0.0, "utilisation": 0.0,
    "preemptions": 0.0, "forwards": 0.0, "not_allowed": 1.0,
})  # fmt: skip


class ClusterReward(WeightedTerms):
    """A weighted sum of named terms.

    | term        | value | sum over an episode |
    |-------------|-------|---------------------|
    | jct         | -integral of the number of unfinished jobs | -sum of the JCTs in seconds |
    | gpu_jct     | -integral of the GPUs that these ask for | -sum of JCT x GPUs |
    | slowdown    | -integral of the sum of 1 / work over these | -sum of JCT / work |
    | queueing    | -integral of the number of waiting jobs | -sum of the seconds in the queue |
    | utilisation | integral of the GPUs held / GPUs | seconds times mean utilisation |
    | preemptions | -preemptions by an action | |
    | forwards    | -jobs forwarded | |
    | not_allowed | -actions outside the mask | |

    A job's completion time (JCT) counts from its submission to its completion, so that the sum of
    all is the integral of the number of unfinished jobs over time.

    Args:
        weights: weight of each term; terms left out have weight 0.

    Raises:
        InputError: a weight for a term that does not exist.
    """

    def __init__(self, weights: Mapping[str, float] = TERMS) -> None:
        super().__init__(weights, TERMS)


class Credit(Protocol):
    """Shares the reward of a step out."""

    def __call__(self, own: Sequence[Terms]) -> Sequence[Terms]:
        """The terms each scheduler gets, from those of each one's own jobs, weighted."""


class TeamCredit:
    """Everybody gets the sum of all."""

    def __call__(self, own: Sequence[Terms]) -> Sequence[Terms]:
        """The terms of every scheduler."""
        total = {name: sum(terms[name] for terms in own) for name in own[0]}
        return [total] * len(own)


class OwnCredit:
    """Everybody gets that of the jobs in its own queue, on their way to it and on its servers."""

    def __call__(self, own: Sequence[Terms]) -> Sequence[Terms]:
        """The terms of every scheduler."""
        return own
