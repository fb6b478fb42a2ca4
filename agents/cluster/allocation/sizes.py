"""The sizes that a malleable job can have, each as good as the machines allow when empty."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from envs.arrays import FloatArray, IntArray
from envs.cluster.allocation.placing import fitting
from envs.cluster.allocation.problem import NIC, AllocationProblem, MalleableJob

_SLACK = 1.0 + 1e-9


@dataclass(frozen=True, eq=False)
class Sizes:
    """C numbers of workers and servers of a job.

    No placement of a size makes more progress in a slot or takes less of all machines together, so
    a program over sizes relaxes every plan. On machines that are alike it is as good as one over
    placements: the mean of a fractional solution over all orders of the machines takes the same of
    each. Left out are sizes that fit nowhere, and those beaten by one that makes as much progress
    and takes no more of any resource.
    """

    workers: IntArray  # (C,)
    servers: IntArray  # (C,)
    progress: FloatArray  # (C,) fraction of the job
    demand: FloatArray  # (C, R) of all machines together

    def __len__(self) -> int:
        return len(self.progress)

    @staticmethod
    def of(problem: AllocationProblem, job: MalleableJob) -> Sizes:
        """Those of a job on empty machines."""
        spare = np.unique(problem.capacity, axis=0) * _SLACK
        needs = job.speed.needs_servers
        w, p = np.meshgrid(
            np.arange(job.least_workers, job.most_workers + 1),
            np.arange(1, job.most_servers + 1) if needs else np.zeros(1, np.int64),
        )
        w, p = w[p <= w], p[p <= w]  # more servers than workers help none
        inner = np.outer(w, job.worker) + np.outer(p, job.server)
        together = (spare[:, None, :NIC] >= inner).all(axis=2).any(axis=0)
        ends = np.floor(problem.capacity[:, NIC] / job.reserved + 1e-9)
        room = fitting(np.asarray(job.worker), problem.capacity[:, :NIC])
        most = np.cumsum(np.sort(np.minimum(room, ends) if needs else room * (ends >= 1))[::-1])
        apart = (w <= most[-1]) & (problem.machines > 1)
        if needs:  # servers may go where no worker is; a ring goes where most of it fits
            apart &= w + p <= ends.sum()
        span = np.where(together, 1, 2 if needs else np.searchsorted(most, w) + 1)
        found = []
        for i in np.flatnonzero(together | apart):
            on, serving = np.ones(span[i], np.int64), np.zeros(span[i], np.int64)
            on[0] = w[i] if needs else w[i] - span[i] + 1
            on[1:] = 0 if needs else 1
            serving[-1] = p[i]
            made = problem.progress(job, on, serving)
            if made > 0.0:
                taken = job.speed.ends(on, serving).sum() * job.reserved
                found.append((w[i], p[i], made, *inner[i], taken))
        table = np.array(found).reshape(-1, 4 + NIC)
        kept = table[_unbeaten(table[:, 2], table[:, 3:])]
        whole = kept[:, :2].astype(np.int64)
        return Sizes(whole[:, 0], whole[:, 1], kept[:, 2], kept[:, 3:])


def _unbeaten(progress: FloatArray, demand: FloatArray) -> IntArray:
    """Those of C for which none is no worse in anything; of equals, the first."""
    kept: list[int] = []
    for i in np.lexsort((*demand.T[::-1], -progress)):
        if not (demand[kept] <= demand[i]).all(axis=1).any():
            kept.append(int(i))
    return np.sort(np.array(kept, np.int64))
