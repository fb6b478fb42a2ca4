"""`ClusterInstance`: what an episode is about, and the most that the instances of a kind have."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from envs.bounds import Count, bounded
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace
from envs.errors import InputError


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
        return cls(
            servers=max(cluster.num_nodes for cluster in clusters),
            racks=max(len(np.unique(cluster.rack)) for cluster in clusters),
            rack_servers=max(int(np.bincount(cluster.rack).max()) for cluster in clusters),
            gpus=max(int(cluster.gpus.max()) for cluster in clusters),
            gpu_types=max(len(cluster.gpu_types) for cluster in clusters),
        )

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
        for name, size in (
            ("servers", len(nodes)),
            ("racks", len(np.unique(cluster.rack[nodes]))),
            ("gpus", int(cluster.gpus[nodes].max(initial=0))),
            ("gpu_types", len(cluster.gpu_types)),
        ):
            if size > getattr(self, name):
                raise InputError(
                    f"{size} needed, the observation has {getattr(self, name)}",
                    file=f"cluster {cluster.name}",
                    field=name,
                )
