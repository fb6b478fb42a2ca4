"""Clusters of equal racks, each of one GPU type."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from envs.cluster.nodes import UNLIMITED, Cluster


def cluster_of_racks(
    racks: Mapping[str, int], *, nodes_per_rack: int, gpus_per_node: int
) -> Cluster:
    """So many racks of each type; with 0 the type has a number, but no rack."""
    nodes = sum(racks.values()) * nodes_per_rack
    types = np.repeat(np.arange(len(racks)), [n * nodes_per_rack for n in racks.values()])
    mix = "+".join(f"{number} {name}" for name, number in racks.items() if number)
    return Cluster(
        name=f"{mix} racks of {nodes_per_rack}x{gpus_per_node}",
        gpus=np.full(nodes, gpus_per_node, np.int32),
        rack=(np.arange(nodes) // nodes_per_rack).astype(np.int32),
        gpu_type=types.astype(np.int32),
        gpu_types=tuple(racks),
        cpu_milli=np.full(nodes, UNLIMITED, np.int64),
        memory_mib=np.full(nodes, UNLIMITED, np.int64),
    )
