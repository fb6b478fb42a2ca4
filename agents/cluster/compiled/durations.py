"""How long jobs are thought to take, and how much of it they have left."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from envs.arrays import FloatArray, IntArray
from envs.cluster.simulation.cluster_kernel import attained_by
from envs.cluster.simulation.cluster_state import ClusterState
from envs.cluster.workload.trace import WHOLE_GPU
from envs.compilation import compiled, compiled_inner


class Memory(NamedTuple):
    """What schedulers remember of durations: averages that forget, by the likes of a job."""

    like: IntArray  # (J, L) classes of every job, the narrowest first
    mean: FloatArray  # (C,) seconds, nan: none of the class has finished
    prior: float  # seconds, where no job at all has
    recency: float  # weight of the latest duration
    rank: FloatArray  # (J,) of an order that is worked out elsewhere


@compiled_inner
def predicted(memory: Memory, job: int) -> float:
    """Seconds that a job is thought to take."""
    for level in range(memory.like.shape[1]):
        mean: float = memory.mean[memory.like[job, level]]
        if not np.isnan(mean):
            return mean
    return memory.prior


@compiled
def learn(memory: Memory, job: int, seconds: float) -> None:
    """A job has finished after so many seconds of work."""
    for level in range(memory.like.shape[1]):
        kind = memory.like[job, level]
        before = memory.mean[kind]
        if np.isnan(before):
            before = seconds
        memory.mean[kind] = before + memory.recency * (seconds - before)


@compiled
def gpu_seconds(state: ClusterState, memory: Memory, job: int) -> float:
    """That a job is thought to take."""
    record = state.jobs[job]
    return float(predicted(memory, job) * record.gpus * (record.milli / WHOLE_GPU))


@compiled_inner
def left(state: ClusterState, memory: Memory, job: int) -> float:
    """Seconds of work that a running job is thought to have left."""
    done = attained_by(state.jobs[job], state.clock[0].now)
    return float(max(predicted(memory, job) - done, 0.3 * done, 1.0))
