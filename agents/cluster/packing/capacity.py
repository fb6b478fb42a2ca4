"""The scale on which cores and GPUs are compared."""

from __future__ import annotations

from math import gcd
from typing import NamedTuple

from envs.cluster.nodes import UNLIMITED, Cluster
from envs.cluster.workload.trace import WHOLE_GPU


class Capacity(NamedTuple):
    """Weights in proportion to one over the most that any node has.

    They are the smallest whole numbers, so that sums weighed with them are exact and equal scores
    are seen to be equal; 0 for a resource that no node limits or has.
    """

    per_cpu_milli: float
    per_gpu_milli: float


def largest_node(cluster: Cluster) -> Capacity:
    """The largest number of cores and of GPUs of a node, not necessarily the same one."""
    limited = cluster.cpu_milli[cluster.cpu_milli != UNLIMITED]
    cpu = int(limited.max(initial=0)) if len(limited) == cluster.num_nodes else 0
    gpu = int(cluster.gpus.max()) * WHOLE_GPU
    if not cpu or not gpu:
        return Capacity(1.0 if cpu else 0.0, 1.0 if gpu else 0.0)
    common = gcd(cpu, gpu)
    return Capacity(float(gpu // common), float(cpu // common))
