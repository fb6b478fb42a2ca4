"""Jobs submitted faster or slower, so that a cluster is asked for a given share of what it has."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from envs.cluster.nodes import Cluster
from envs.cluster.workload.slicing import stretch
from envs.cluster.workload.trace import Trace
from envs.errors import InputError


def reference_gpus(cluster: Cluster, speeds: Mapping[str, float] | None) -> float:
    """How many GPUs of the type on which the trace's durations hold the cluster is worth.

    Args:
        cluster: the GPUs.
        speeds: of each GPU type, 1 = as in the trace; None: all count as 1.

    Raises:
        InputError: a type of the cluster has no speed, or one that is not above 0.
    """
    if speeds is None:
        return float(cluster.num_gpus)
    by_type = np.zeros(len(cluster.gpu_types))
    for index, name in enumerate(cluster.gpu_types):
        if name not in speeds:
            raise InputError("has no speed", file=f"cluster {cluster.name}", field=f"speeds.{name}")
        if not 0 < speeds[name] < np.inf:
            raise InputError(f"{speeds[name]} is not above 0", field=f"speeds.{name}")
        by_type[index] = speeds[name]
    return float((cluster.gpus * by_type[cluster.gpu_type]).sum())


def at_load(trace: Trace, capacity: float, load: float) -> Trace:
    """`trace` from second 0, its gaps stretched to the offered load, rounded to seconds.

    Jobs that are submitted all at once, or ask for no GPU, stay so: they have no load to change.

    Args:
        trace: the jobs.
        capacity: GPUs, of the type on which the durations hold.
        load: GPU-seconds asked for / (capacity x seconds from the first to the last submission).
    """
    trace = trace.canonical()
    if trace.span_s == 0 or not trace.num_gpus.any():
        return trace
    return stretch(trace, float(trace.gpu_seconds.sum()) / (capacity * trace.span_s) / load)
