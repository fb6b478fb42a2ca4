"""Where the workers and parameter servers of a job go: on few machines, the fullest of them."""

from __future__ import annotations

import numpy as np

from envs.arrays import BoolArray, FloatArray, IntArray
from experiments.papers.malleable_jobs.problem import NIC, MalleableJob

_NONE = -(1 << 40)  # workers, where the servers beside them do not fit


def placed(
    job: MalleableJob, workers: int, servers: int, free: FloatArray
) -> tuple[IntArray, IntArray] | None:
    """(M,) workers and (M,) servers within what is `free` (M, R); None: there is no room.

    One machine takes all where one can, the fullest of them, which costs no NIC. Otherwise machines
    are filled in the order of what they hold, the most first; the last one is the fullest that
    holds what remains. Where that does not fit, any split that does is taken.
    """
    per_worker, per_server = np.asarray(job.worker), np.asarray(job.server)
    inner = free[:, :NIC] * (1.0 + 1e-12) + 1e-12
    put = np.zeros((2, len(free)), np.int64)
    whole = (inner >= workers * per_worker + servers * per_server).all(axis=1)
    if whole.any():
        put[:, _fullest(whole, free)] = workers, servers
        return put[0], put[1]
    ends = np.floor(free[:, NIC] / job.reserved + 1e-9).astype(np.int64)
    serves = np.minimum(fitting(per_server, inner), ends) if servers else np.zeros_like(ends)
    beside = np.arange(min(servers, serves.max()) + 1)
    room = fitting(per_worker, (inner[:, None] - beside[:, None] * per_server).reshape(-1, NIC))
    room = room.reshape(len(free), -1)  # (M, P) workers beside so many servers
    if job.speed.needs_servers:
        room = np.where(beside <= serves[:, None], np.minimum(room, ends[:, None] - beside), _NONE)
    else:  # a ring has one end on a machine, whatever runs there
        room = np.where(ends[:, None] > 0, room, 0)
    if room[:, 0].sum() < workers or serves.sum() < servers:
        return None
    order = np.argsort(-room[:, 0], kind="stable")
    left, missing = workers, servers
    for m in order:
        last = (room[:, 0] >= left) & ~put.any(axis=0)
        if not missing and last.any():  # the fullest machine that holds all that remains
            put[0, _fullest(last, free)] = left
            return put[0], put[1]
        p = min(missing, int(serves[m]))
        w = min(left, int(room[m, p]))
        put[:, m], left, missing = (w, p), left - w, missing - p
        if not left and not missing:
            return put[0], put[1]
    return _split(workers, servers, room, order)


def _split(
    workers: int, servers: int, room: IntArray, order: IntArray
) -> tuple[IntArray, IntArray] | None:
    """Any split within `room` (M, P) for workers beside servers, machine by machine in `order`.

    By the most workers for every number of servers on the machines so far.
    """
    before = np.arange(servers + 1)[:, None] - np.arange(room.shape[1])
    most, chosen = np.where(np.arange(servers + 1) == 0, 0, _NONE), []
    for m in order:
        sums = np.where(before >= 0, most[before], _NONE) + room[m]
        chosen.append(sums.argmax(axis=1))
        most = np.maximum(sums.max(axis=1), _NONE)
        if most[servers] >= workers:
            break
    else:
        return None
    put = np.zeros((2, len(room)), np.int64)
    for m, beside in zip(order[len(chosen) - 1 :: -1], reversed(chosen), strict=True):
        p = int(beside[servers])
        put[:, m] = min(workers, int(room[m, p])), p
        workers, servers = workers - put[0, m], servers - p
    return put[0], put[1]


def servers_for(job: MalleableJob, workers: int) -> int:
    """One parameter server for each worker, as far as the job may have them."""
    return min(job.most_servers, workers)


def fitting(demand: FloatArray, free: FloatArray) -> IntArray:
    """How many of one kind each machine holds, by what is free of it but its NIC."""
    asked = demand > 0.0
    if not asked.any():
        return np.full(len(free), np.iinfo(np.int32).max, np.int64)
    found: IntArray = (
        np.floor(np.maximum(free[:, asked], 0.0) / demand[asked] + 1e-9)
        .min(axis=1)
        .astype(np.int64)
    )
    return found


def _fullest(among: BoolArray, free: FloatArray) -> int:
    """The machine with the fewest free GPUs, then cores."""
    chosen = np.flatnonzero(among)
    return int(chosen[np.lexsort((free[chosen, 1], free[chosen, 0]))[0]])
