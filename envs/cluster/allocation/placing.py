"""Where the workers and parameter servers of a job go: on few machines, the fullest of them."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

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
    holds = fitting(per_worker, inner)
    room = np.where(ends > 0, holds, 0) if shared else np.minimum(holds, ends)
    if room.sum() < workers:
        return None
    serves = fitting(per_server, inner) if servers else np.zeros_like(room)
    unused = np.ones(len(free), bool)
    for m in np.argsort(-room, kind="stable"):
        if servers == 0:  # workers alone: does a fuller machine hold all that remains?
            last = (room >= workers) & unused
            if room[m] >= workers and last.any():
                put[0, _fullest(last, free)] = workers
                return put[0], put[1]
        if shared and ends[m] == 0:
            continue
        beside = min(servers, int(serves[m]) if shared else int(min(serves[m], ends[m])))
        most = holds[m]
        if beside:
            most = fitting(per_worker, (inner[m] - beside * per_server)[None])[0]
        count = min(workers, int(most if shared else min(most, ends[m] - beside)))
        put[:, m] = count, beside
        workers, servers = workers - count, servers - beside
        unused[m] = count + beside == 0
        if not workers and not servers:
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


def _fullest(among: NDArray[np.bool_], free: FloatArray) -> int:
    """The machine with the fewest free GPUs, then cores."""
    chosen = np.flatnonzero(among)
    return int(chosen[np.lexsort((free[chosen, 1], free[chosen, 0]))[0]])
