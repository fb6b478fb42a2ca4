"""Clusters of racks of different GPU types."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from envs.cluster.nodes import UNLIMITED, Cluster
from envs.errors import InputError


def cluster_of_racks(
    racks: Mapping[str, int], *, nodes_per_rack: int, gpus_per_node: int
) -> Cluster:
    """Equal racks, each of one GPU type.

    Args:
        racks: how many of each type, in the order of the GPU types; 0: the type has a number, but
            no rack.
        nodes_per_rack: nodes of each rack.
        gpus_per_node: GPUs of each node.

    Raises:
        InputError: a number is below 1, or there is no rack.
    """
    sizes = {"nodes_per_rack": nodes_per_rack, "gpus_per_node": gpus_per_node}
    for field, value in sizes.items():
        if value < 1:
            raise InputError(f"{value} is below 1", field=field)
    for name, number in racks.items():
        if number < 0:
            raise InputError(f"{number} is below 0", field=f"racks.{name}")
    in_all = sum(racks.values())
    if in_all < 1:
        raise InputError("no rack", field="racks")
    nodes = in_all * nodes_per_rack
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
