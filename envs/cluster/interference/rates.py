"""`RateModel`: how fast a job runs where it runs, beside those that run there too.

Every model becomes one set of arrays that the compiled simulator reads: P *cases* of jobs (a
profile and a gang size), T GPU types, K numbers of nodes, Q rows of a table of pairs.
"""

from __future__ import annotations

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from envs.arrays import FloatArray, IntArray
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace

ONE_NODE, ONE_RACK, SEVERAL_RACKS = 0, 1, 2  # how far a job is spread: columns of `locality`
# `RateTables.kind`
ALONE, PAIRS_LEAST, PAIRS_PRODUCT, BOTTLENECK, CONTENTION, SETS, SHARED = range(7)
ON_NODE, ON_GPU, SPANNING = 0, 1, 2  # `RateTables.scope`
GPU_TIME, PCIE, RING, NIC, CPU, UPLINK = range(6)  # columns of `demand`; the last two: of SHARED


class RateTables(NamedTuple):
    """A job's rate = speed x locality x what its neighbours leave it; 1 = as in its trace.

    The slowest of a job's GPU types counts, and the slowest of its nodes: neighbours act on each
    node of a job by themselves, and a gang waits for its slowest member. Neighbours are, by
    `scope`, the other jobs on the node, those on the same set of partial GPUs, or, for a job on
    several nodes, the others on several nodes. What they leave it, by `kind`:

    * ALONE: 1.
    * PAIRS_LEAST: max(floor, least `pair` over the neighbours).
    * PAIRS_PRODUCT: max(floor, product of `pair` over the neighbours).
    * BOTTLENECK: the least, over the resources that the job uses, of max(1, own) / max(1, all), its
      own demand and that of all jobs that use the resource on the node. `scope` is not read: GPU
      time is shared on partial GPUs, PCIe by all jobs, the network port by jobs on several nodes.
    * CONTENTION: 1 / (1 - c + c (k beta + (k - 1) eta) / beta) for a job on several nodes, with c
      its share of communication and k the jobs on several nodes that communicate on the node.
    * SETS: `sets`, of the multiset of neighbours; beyond `largest` neighbours the least over their
      subsets of that size.
    * SHARED: what BOTTLENECK leaves of PCIe, processors, network port and, of the racks of a job on
      several racks, uplinks, times what PAIRS_PRODUCT leaves among the jobs on the same sets of
      partial GPUs. `scope` and GPU time are not read. Jobs on several racks use their uplinks, and
      disturb each other there without a node in common.

    `locality` and `communication` are looked up by case, GPU type, spread and number of nodes (the
    last column stands for K and more nodes).
    """

    kind: int
    scope: int
    profile: NDArray[np.int32]  # (J,) case of every job of the trace
    speed: FloatArray  # (P, T) 1 on the GPU type on which the trace's durations hold
    locality: FloatArray  # (P, T, 3, K) at most 1
    communication: FloatArray  # (P, T, 3, K) share of the time in all-reduces when alone
    row: NDArray[np.int32]  # (P, K) of `pair`, `feasible` and `sets`
    pair: FloatArray  # (Q, Q) in (0, 1]: rate of the first beside the second
    feasible: NDArray[np.bool_]  # (Q, Q) the two fit beside each other; placement rules may ask
    floor: float  # least that pairs leave
    # (P, 4) of a GPU; of a node's PCIe per GPU, and per ring; of its NIC; where SHARED (P, 6), too:
    # of its processors per GPU; of a rack's uplink
    demand: FloatArray
    beta: float  # time per byte of an all-reduce alone
    eta: float  # further time per byte and further all-reduce on the same network port
    sets: FloatArray  # (Q, binomial(Q + largest, largest)) in (0, 1], by `multisets.rank`
    largest: int  # size of the largest multisets in `sets`: 1, 2 or 3


@runtime_checkable
class RateModel(Protocol):
    """An interference model."""

    name: str

    def tables(self, trace: Trace, cluster: Cluster) -> RateTables:
        """The model for the jobs of `trace` on `cluster`.

        Raises:
            InputError: a job's model or a GPU type is not in the model's tables.
        """


def without_neighbours(
    profile: NDArray[np.int32], speed: FloatArray, locality: FloatArray | None = None
) -> RateTables:
    """Tables in which neighbours have no effect, to be completed with `_replace`.

    Args:
        profile: (J,) case of every job.
        speed: (P, T).
        locality: (P, T, 3, K), or anything that broadcasts to it; None: all 1.
    """
    cases, types = speed.shape
    locality = np.ones((1, 1, 1, 1)) if locality is None else locality
    shape = (cases, types, 3, locality.shape[3])
    return RateTables(
        kind=ALONE,
        scope=ON_NODE,
        profile=np.array(profile, np.int32),
        speed=np.array(speed, np.float64, order="C"),
        locality=np.array(np.broadcast_to(locality, shape), np.float64, order="C"),
        communication=np.zeros(shape),
        row=np.zeros((cases, shape[3]), np.int32),
        pair=np.ones((1, 1)),
        feasible=np.ones((1, 1), np.bool_),
        floor=0.0,
        demand=np.zeros((cases, 4)),
        beta=1.0,
        eta=0.0,
        sets=np.ones((1, 2)),
        largest=1,
    )


def with_rows(base: RateTables, row: IntArray, rows: int) -> RateTables:
    """`base` where the case of a job does not say its row of other tables: (J,), below `rows`."""
    both, of_job = np.unique(base.profile * rows + row, return_inverse=True)
    width = base.row.shape[1]
    return of_cases(base, both // rows, of_job)._replace(
        row=np.repeat((both % rows).astype(np.int32)[:, None], width, axis=1)
    )


def of_cases(
    tables: RateTables, cases: NDArray[np.integer], profile: NDArray[np.integer]
) -> RateTables:
    """`tables` for other cases, each given by the one that it was, which jobs have by `profile`."""
    by_case = ("speed", "locality", "communication", "row", "demand")
    return tables._replace(
        profile=profile.astype(np.int32), **{name: getattr(tables, name)[cases] for name in by_case}
    )


class NoInterference:
    """Every job runs at rate 1 wherever it is."""

    name = "none"

    def tables(self, trace: Trace, cluster: Cluster) -> RateTables:
        types = len(cluster.gpu_types)
        return without_neighbours(np.zeros(len(trace), np.int32), np.ones((1, types)))
