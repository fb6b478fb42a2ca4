"""The packing experiment: jobs arrive one after the other, stay if they fit, and never leave.

Weng et al., USENIX ATC 2023, section 6.1: jobs are drawn from a trace until they ask for a given
multiple of the cluster's GPUs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from agents.cluster.rules.bins import NOWHERE, Bins, requests_by_job, take
from agents.cluster.rules.fractional import FractionalRule, choose
from envs.arrays import IntArray
from envs.bounds import Positive, bounded
from envs.cluster.nodes import Cluster, ResourceRequests
from envs.cluster.workload.trace import WHOLE_GPU
from envs.errors import InputError
from envs.memory import require_memory

ARRIVAL_BYTES = 100  # of one, drawn and packed


@dataclass(frozen=True, eq=False)
class Packed:
    """What became of K arrivals."""

    jobs: IntArray  # (K,) their numbers in the workload
    node: IntArray  # (K,) or NOWHERE for a job that did not fit
    gpu: IntArray  # (K,) slot of a job with one GPU, otherwise NOWHERE
    arrived_milli: IntArray  # (K,) thousandths of a GPU asked for so far
    allocated_milli: IntArray  # (K,) thousandths of a GPU in use after the arrival

    @property
    def failed(self) -> int:
        """Jobs that did not fit."""
        return int((self.node == NOWHERE).sum())


@bounded
def draw_arrivals(
    workload: ResourceRequests, cluster: Cluster, load: Positive, rng: np.random.Generator
) -> IntArray:
    """Jobs drawn at random with replacement, until they ask for `load` times the cluster's GPUs.

    Raises:
        InputError: the cluster or the workload has no GPUs.
    """
    demand = workload.demand_milli
    if not cluster.num_gpus:
        raise InputError("nothing to pack on: no GPUs", file=cluster.name, field="gpus")
    if not demand.any():
        raise InputError("nothing to pack: no GPUs", file=workload.name, field="num_gpus")
    wanted = load * cluster.num_gpus * WHOLE_GPU
    require_memory(ARRIVAL_BYTES * wanted / demand.mean(), "so many arrivals", field="load")
    drawn = rng.integers(len(workload), size=int(wanted / demand.mean()) + 1)
    while demand[drawn].sum() < wanted:
        drawn = np.concatenate([drawn, rng.integers(len(workload), size=len(drawn))])
    enough = int(np.searchsorted(np.cumsum(demand[drawn]), wanted)) + 1
    return rng.permutation(drawn[:enough])


def pack(
    rule: FractionalRule,
    cluster: Cluster,
    workload: ResourceRequests,
    arrivals: IntArray,
    rng: np.random.Generator,
) -> Packed:
    """Put the `arrivals`, numbers of jobs in `workload`, on the empty cluster where `rule` says."""
    bins, requests = Bins.empty(cluster), requests_by_job(workload, cluster)
    costs = rule.costs(cluster, bins, len(set(requests)), workload)
    spots = np.full((2, len(arrivals)), NOWHERE, np.int64)
    for place, job in enumerate(arrivals.tolist()):
        spot = choose(rule, costs, bins, requests[job], rng)
        if spot is not None:
            take(bins, *spot, requests[job])
            spots[:, place] = spot
    demand = workload.demand_milli[arrivals]
    return Packed(
        jobs=arrivals,
        node=spots[0],
        gpu=spots[1],
        arrived_milli=np.cumsum(demand),
        allocated_milli=np.cumsum(np.where(spots[0] == NOWHERE, 0, demand)),
    )
