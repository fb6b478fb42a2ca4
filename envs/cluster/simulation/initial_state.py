"""The state of a cluster before anything has happened."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster_state import (
    CLOCK,
    JOB,
    NODE,
    NONE,
    PARTIAL,
    RUN,
    SHARE,
    ClusterState,
)
from envs.cluster.simulation.schedule import NEVER
from envs.cluster.workload.trace import WHOLE_GPU, Trace
from envs.errors import InputError

IntArray = NDArray[np.int64]


def initial_state(
    cluster: Cluster, trace: Trace, incidents: NDArray[np.void], keep_runs: bool
) -> ClusterState:
    """Nothing has arrived, everything is free.

    Raises:
        InputError: a job asks for more GPUs than the cluster has of the types it permits, or for
            none of its types.
    """
    jobs = np.zeros(len(trace), JOB)
    jobs["submit"] = trace.submit_s
    jobs["work"] = jobs["remaining"] = trace.duration_s
    jobs["start"] = jobs["finish"] = NEVER
    jobs["cpu"], jobs["memory"] = trace.cpu_milli, trace.memory_mib
    jobs["gpus"], jobs["milli"] = trace.num_gpus, trace.gpu_milli
    jobs["types"] = permitted_types(cluster, trace)
    for chain in ("share", "place", "before", "after"):
        jobs[chain] = NONE
    nodes = np.zeros(cluster.num_nodes, NODE)
    nodes["gpus"] = nodes["free"] = cluster.gpus
    nodes["rack"], nodes["type"] = cluster.rack, cluster.gpu_type
    nodes["cpu"], nodes["memory"] = cluster.cpu_milli, cluster.memory_mib
    nodes["share"] = nodes["partial"] = NONE
    nodes["up"] = 1
    shares = np.zeros(max_shares(cluster, trace), SHARE)
    shares["next"] = np.append(np.arange(1, len(shares)), NONE)
    partials = np.zeros(cluster.num_gpus, PARTIAL)
    partials["next"] = np.append(np.arange(1, len(partials)), NONE)
    clock = np.zeros(1, CLOCK)
    clock["head"] = clock["tail"] = NONE
    clock["free"] = cluster.num_gpus
    return ClusterState(
        jobs=jobs,
        nodes=nodes,
        shares=shares,
        partials=partials,
        heap=np.zeros(len(trace), np.int32),
        clock=clock,
        incidents=incidents,
        runs=np.zeros(4 * len(shares) if keep_runs else 0, RUN),
    )


def max_shares(cluster: Cluster, trace: Trace) -> int:
    """Shares that suffice for all jobs at once, and for one more gang that is only imagined.

    Compiled rules ask whether a gang would fit if others stopped, while these still hold theirs.
    """
    gangs = int(np.minimum(np.maximum(trace.num_gpus, 1), cluster.num_nodes).sum())
    on_gpus = trace.num_gpus > 0
    smallest = int(trace.gpu_milli[on_gpus].min(initial=WHOLE_GPU))
    held = cluster.num_gpus * (WHOLE_GPU // smallest) + int((~on_gpus).sum())
    return max(1, min(gangs, held)) + cluster.num_nodes


def permitted_types(cluster: Cluster, trace: Trace) -> IntArray:
    """(J,) bit t is set where a job may run on GPU type t.

    Raises:
        InputError: a job asks for types that the cluster does not have, or for more GPUs of its
            types than there are.
    """
    masks = cluster.type_masks(trace.gpu_type.names)
    types = masks[trace.gpu_type.codes]
    if (types == 0).any():
        job = int(np.argmax(types == 0))
        raise InputError(
            f"asks for {trace.gpu_type[job]}, the cluster has {', '.join(cluster.gpu_types)}",
            file=trace.name,
            record=job,
            field="gpu_type",
        )
    of_type = np.bincount(cluster.gpu_type, cluster.gpus, len(cluster.gpu_types)).astype(np.int64)
    for mask in np.unique(masks):
        usable = mask >> np.arange(len(of_type)) & 1 == 1
        available = int(of_type[usable].sum())
        too_large = (types == mask) & (trace.num_gpus > available)
        if too_large.any():
            job = int(np.argmax(too_large))
            raise InputError(
                f"job '{trace.job_id[job]}' asks for {trace.num_gpus[job]} GPUs, "
                f"the cluster has {available} for it",
                file=trace.name,
                record=job,
                field="num_gpus",
            )
    return types
