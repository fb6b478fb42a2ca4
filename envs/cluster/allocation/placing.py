"""Where the workers and parameter servers of a job go: on few machines, the fullest of them."""

from __future__ import annotations

import numpy as np

from envs.cluster.allocation.problem import NIC, MalleableJob
from envs.cluster.allocation.speeds import FloatArray, IntArray


def placed(
    job: MalleableJob, workers: int, servers: int, free: FloatArray
) -> tuple[IntArray, IntArray] | None:
    """(M,) workers and (M,) servers within what is `free` (M, R); None: this rule finds no room.

    One machine takes all where one can, the fullest of them, which costs no NIC. Otherwise machines
    are filled in the order of what they hold, the most first; the last one is the fullest that
    holds what remains.
    """
    per_worker, per_server = np.asarray(job.worker), np.asarray(job.server)
    inner = free[:, :NIC] * (1.0 + 1e-12) + 1e-12
    put = np.zeros((2, len(free)), np.int64)
    whole = (inner >= workers * per_worker + servers * per_server).all(axis=1)
    if whole.any():
        put[:, _fullest(whole, free)] = workers, servers
        return put[0], put[1]
    ends = np.floor(free[:, NIC] / job.reserved + 1e-9).astype(np.int64)
    shared = not job.speed.needs_servers  # a ring has one end on a machine, whatever runs there
    room = fitting(per_worker, inner)
    room = np.where(ends > 0, room, 0) if shared else np.minimum(room, ends)
    left = np.array([workers, servers])
    for m in np.argsort(-room, kind="stable"):
        if left[1] == 0:  # workers alone: does a fuller machine hold all that remains?
            last = (room >= left[0]) & (put.sum(axis=0) == 0)
            if last.any():
                put[0, _fullest(last, free)] = left[0]
                return put[0], put[1]
        spare, nics = inner[m], ends[m]
        if shared and nics == 0:
            continue
        for kind, demand in ((1, per_server), (0, per_worker)):
            most = int(fitting(demand, spare[None])[0])
            count = min(int(left[kind]), most if shared else min(most, int(nics)))
            put[kind, m], left[kind] = count, left[kind] - count
            spare, nics = spare - count * demand, nics - count
        if not left.any():
            return put[0], put[1]
    return None


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


def _fullest(among: FloatArray, free: FloatArray) -> int:
    """The machine with the fewest free GPUs, then cores."""
    chosen = np.flatnonzero(among)
    return int(chosen[np.lexsort((free[chosen, 1], free[chosen, 0]))[0]])
