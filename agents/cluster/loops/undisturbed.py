"""When a loop without a simulator applies, and what it returns."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agents.cluster.placement.codes import COUNTED, PACKED
from agents.cluster.policy import PlacementRule
from envs.cluster.nodes import UNLIMITED, Cluster
from envs.cluster.simulation.initial_state import permitted_types
from envs.cluster.simulation.schedule import NEVER, Schedule
from envs.cluster.workload.trace import WHOLE_GPU, Trace
from envs.errors import InputError

FloatArray = NDArray[np.float64]


def only_gpus_count(cluster: Cluster, trace: Trace) -> bool:
    """Whether any set of free GPUs serves any job: whole GPUs of any type, and nothing else.

    Raises:
        InputError: a job asks for more GPUs than the cluster has, or for GPU types that it does
            not have.
    """
    every = (1 << len(cluster.gpu_types)) - 1
    if (permitted_types(cluster, trace) != every).any() or (trace.gpu_milli != WHOLE_GPU).any():
        return False
    for asked, there in (
        (trace.cpu_milli, cluster.cpu_milli),
        (trace.memory_mib, cluster.memory_mib),
    ):
        if asked.any() and (there != UNLIMITED).any():
            return False
    return True


def numbers_decide(placement: PlacementRule, cluster: Cluster) -> bool:
    """Whether a gang fits under `placement` as soon as as many GPUs are free, wherever they are."""
    rule = getattr(placement, "code", None)
    return rule in COUNTED or (rule in PACKED and cluster.num_nodes == 1)


def equal_nodes(cluster: Cluster) -> bool:
    """Whether all nodes have as many GPUs."""
    return bool((cluster.gpus == cluster.gpus[0]).all())


def job_bits(trace: Trace) -> int:
    """Bits that hold a job's number beside a time in one 64-bit key.

    Raises:
        InputError: the times of the trace are too long for that.
    """
    bits = max(1, (len(trace) - 1).bit_length())
    horizon = float(trace.duration_s.sum(dtype=np.float64))
    horizon += float(trace.submit_s[-1]) if len(trace) else 0.0
    if horizon >= 2.0 ** (62 - bits):
        problem = f"{len(trace)} jobs of {horizon:.3g} seconds in all are too long to be simulated"
        raise InputError(problem, file=trace.name, field="duration_s")
    return bits


def never(jobs: int) -> FloatArray:
    """(J,) times of what has not happened."""
    return np.full(jobs, NEVER)


def schedule_of(
    trace: Trace, start: FloatArray, finish: FloatArray, preemptions: NDArray[np.int32]
) -> Schedule:
    """The schedule of jobs that all finished."""
    return Schedule(
        submit=trace.submit_s.astype(np.float64),
        start=start,
        finish=finish,
        work=trace.duration_s.astype(np.float64),
        gpus=trace.num_gpus.astype(np.float64),
        held=trace.duration_s.astype(np.float64),
        preemptions=preemptions,
    )
