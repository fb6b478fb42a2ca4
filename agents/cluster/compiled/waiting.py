"""Jobs that wait, by request: of jobs that ask for the same, the first in priority comes first."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.arrays import FloatArray, IntArray
from envs.cluster.simulation.cluster_state import NONE, ClusterState
from envs.compilation import compiled_inner, pasted


class Waiting(NamedTuple):
    """One heap for each of C distinct requests, of jobs by key and, where equal, by turn."""

    kind: NDArray[np.int32]  # (J,) index of the job's request
    size: IntArray  # (C,) GPUs of the request
    base: IntArray  # (C + 1,) where its heap begins
    heap: NDArray[np.int32]  # (J,)
    number: IntArray  # (C,) of jobs that wait
    key: FloatArray  # (J,) priority, the least first; constant while the job waits
    turn: IntArray  # (J,) which of equal keys comes first; distinct
    known: NDArray[np.bool_]  # (J,) whether the job is in its heap


def nobody_waiting(gpus: NDArray[np.int32], *others: NDArray[Any]) -> Waiting:
    """Empty heaps for J jobs that ask for `gpus` (J,) and for what `others`, each (J,), say."""
    kind = np.zeros(len(gpus), np.int64)
    columns: list[NDArray[Any]] = [gpus, *others]
    for column in columns:
        if (column != column[:1]).any():
            values, code = np.unique(column, return_inverse=True)
            kind = np.unique(kind * len(values) + code, return_inverse=True)[1]
    _, member, jobs = np.unique(kind, return_index=True, return_counts=True)
    return Waiting(
        kind=kind.astype(np.int32),
        size=gpus[member].astype(np.int64),
        base=np.concatenate([[0], np.cumsum(jobs)]).astype(np.int64),
        heap=np.zeros(len(gpus), np.int32),
        number=np.zeros(len(jobs), np.int64),
        key=np.zeros(len(gpus)),
        turn=np.zeros(len(gpus), np.int64),
        known=np.zeros(len(gpus), np.bool_),
    )


@pasted
def first(waiting: Waiting, kind: int) -> int:
    """The first job of a request, or NONE."""
    job: int = waiting.heap[waiting.base[kind]] if waiting.number[kind] else NONE
    return job


@pasted
def ahead(waiting: Waiting, a: int, b: int) -> bool:
    """Whether waiting job `a` comes before waiting job `b`."""
    first_key, second_key = waiting.key[a], waiting.key[b]
    earlier: bool = waiting.turn[a] < waiting.turn[b]
    return bool(first_key < second_key or (first_key == second_key and earlier))


@compiled_inner
def join(waiting: Waiting, job: int, key: float, turn: int) -> None:
    """A job waits, with priority `key` and, among equals, `turn`."""
    kind = waiting.kind[job]
    heap = waiting.heap[waiting.base[kind] : waiting.base[kind + 1]]
    waiting.key[job] = key
    waiting.turn[job] = turn
    waiting.known[job] = True
    place = waiting.number[kind]
    waiting.number[kind] += 1
    while place > 0:
        parent = (place - 1) >> 1
        if not ahead(waiting, job, heap[parent]):
            break
        heap[place] = heap[parent]
        place = parent
    heap[place] = job


@compiled_inner
def leave(waiting: Waiting, kind: int) -> None:
    """The first job of a request waits no longer."""
    heap = waiting.heap[waiting.base[kind] : waiting.base[kind + 1]]
    waiting.known[heap[0]] = False
    waiting.number[kind] -= 1
    size = waiting.number[kind]
    job = heap[size]
    place = 0
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and ahead(waiting, heap[child + 1], heap[child]):
            child += 1
        if not ahead(waiting, heap[child], job):
            break
        heap[place] = heap[child]
        place = child
    heap[place] = job


@compiled_inner
def oldest_newcomer(state: ClusterState, waiting: Waiting) -> int:
    """The first job at the tail of the queue that is in no heap yet, or NONE.

    Jobs enter the queue at its tail, so all newcomers are behind it.
    """
    newcomer = NONE
    job = state.clock[0].tail
    while job != NONE and not waiting.known[job]:
        newcomer = job
        job = state.jobs[job].before
    return newcomer
