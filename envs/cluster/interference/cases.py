"""Which case of a rate model's tables a job is, and which measurement stands for a case.

A case is a profile and a gang size.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.cluster.interference.rates import ONE_NODE, ONE_RACK, SEVERAL_RACKS
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import UNKNOWN, Labels, Trace
from envs.errors import InputError, require_one_of

Suits = Callable[[IntArray], BoolArray]  # (G,) gang sizes -> (G, P)
Measured = tuple[str, *tuple[int, ...]]  # model, GPUs and, in some tables, nodes


def assign(
    trace: Trace, names: Sequence[str], suits: Suits | None, seed: int, *, named: bool = True
) -> IntArray:
    """(J,) profile of every job, an index into `names`.

    A job with a model has the profile of that name. All others draw one, with equal chances, of
    those that suit their gang size. A draw depends on the seed and on the job's id alone, so that a
    job keeps its profile when the trace is cut or sorted. Jobs without GPU have profile 0.

    Args:
        trace: the jobs.
        names: P profiles.
        suits: which profiles jobs of these gang sizes may draw; None: any.
        seed: of the draws.
        named: whether jobs with a model have its profile; otherwise they draw one, too.

    Raises:
        InputError: a model that is not among `names`, a gang size that no profile suits.
    """
    labels = trace.model if named else Labels.unknown(len(trace))
    rows = [names.index(name) if name in names else UNKNOWN for name in labels.names]
    chosen = np.array([*rows, UNKNOWN], np.int64)[labels.codes]
    for job in np.flatnonzero((chosen == UNKNOWN) & (labels.codes != UNKNOWN)):
        where = {"file": trace.name, "record": trace.job_id[job], "field": "model"}
        require_one_of(labels[int(job)], names, **where)
    chosen[(chosen == UNKNOWN) & (trace.num_gpus == 0)] = 0
    drawing = np.flatnonzero(chosen == UNKNOWN)
    if len(drawing) == 0:
        return chosen
    gangs, gang = np.unique(trace.num_gpus[drawing], return_inverse=True)
    allowed = (
        np.ones((len(gangs), len(names)), np.bool_)
        if suits is None
        else suits(gangs.astype(np.int64))
    )
    count = allowed.sum(axis=1)
    for size in gangs[count == 0]:
        raise InputError(f"no profile suits a job of {size} GPUs", file=trace.name, field="model")
    place = np.minimum(_uniform(trace.job_id[drawing], seed) * count[gang], count[gang] - 1)
    order = np.argsort(~allowed, axis=1, kind="stable")  # those allowed come first
    chosen[drawing] = order[gang, place.astype(np.int64)]
    return chosen


def _uniform(job_id: NDArray[np.str_], seed: int) -> FloatArray:
    """A number in [0, 1) for every id: FNV-1a over its characters, then the SplitMix64 mixer.

    Fowler, Noll and Vo (RFC 9923); Steele, Lea and Flood, Fast splittable pseudorandom number
    generators, OOPSLA 2014.
    """
    letters = np.ascontiguousarray(job_id).view(np.uint32).reshape(len(job_id), -1)
    number = np.full(len(job_id), 0xCBF29CE484222325, np.uint64)
    for column in letters.T.astype(np.uint64):
        mixed = (number ^ column) * np.uint64(0x100000001B3)
        number = np.where(column > 0, mixed, number)
    number += np.uint64(seed * 0x9E3779B97F4A7C15 % 2**64)
    number = (number ^ (number >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    number = (number ^ (number >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    number ^= number >> np.uint64(31)
    return (number >> np.uint64(11)).astype(np.float64) * 2.0**-53


@dataclass(frozen=True)
class Cases:
    """P pairs that occur, in ascending order of profile, then gang size."""

    names: Sequence[str]  # of all profiles
    profile: IntArray  # (P,)
    gpus: IntArray  # (P,) gang size
    of_job: NDArray[np.int32]  # (J,) case of every job

    @classmethod
    def of(cls, trace: Trace, names: Sequence[str], seed: int, suits: Suits | None = None) -> Cases:
        """The cases of jobs with the profiles that `assign` gives them.

        Raises:
            InputError: see `assign`.
        """
        profile = assign(trace, names, suits, seed)
        largest = int(trace.num_gpus.max(initial=0)) + 1
        codes, of_job = np.unique(profile * largest + trace.num_gpus, return_inverse=True)
        return cls(names, codes // largest, codes % largest, of_job.astype(np.int32))

    def tightest_spread(self, cluster: Cluster) -> IntArray:
        """(P,) ONE_NODE, ONE_RACK or SEVERAL_RACKS: the least spread a job can have."""
        rack = np.zeros(cluster.num_racks, np.int64)
        np.add.at(rack, cluster.rack, cluster.gpus)
        spread = np.where(self.gpus <= rack.max(), ONE_RACK, SEVERAL_RACKS)
        return np.where(self.gpus <= cluster.gpus.max(), ONE_NODE, spread).astype(np.int64)

    def fewest_nodes(self, cluster: Cluster) -> IntArray:
        """(P,) nodes that a job needs at least; at least 1."""
        room = np.cumsum(np.sort(cluster.gpus)[::-1])
        return np.searchsorted(room, self.gpus).astype(np.int64).clip(max=len(room) - 1) + 1

    def rows(self, measured: Sequence[Measured], *nodes: int) -> IntArray:
        """(P,) the measurement that stands for each case: `nearest_row`."""
        wanted = zip(self.profile, self.gpus, strict=True)
        rows = [nearest_row(measured, self.names[at], gpus, *nodes) for at, gpus in wanted]
        return np.array(rows, np.int64)


def nearest_row(measured: Sequence[Measured], model: str, *sizes: int) -> int:
    """The row of `measured` for a model and so many GPUs, then nodes.

    For a gang size that was not measured the next smaller one stands in, or the smallest; for the
    number of nodes likewise, among the measurements of that gang size.
    """

    def apart(row: int) -> list[tuple[bool, int]]:
        pairs = zip(measured[row][1:], sizes, strict=True)
        return [(have > wanted, abs(have - wanted)) for have, wanted in pairs]

    return min((row for row, (name, *_) in enumerate(measured) if name == model), key=apart)


def require_one_type(cluster: Cluster, source: str) -> None:
    """Check that a cluster has a single GPU type, because `source` was measured on one.

    Raises:
        InputError: it has several.
    """
    if len(cluster.gpu_types) > 1:
        raise InputError(
            f"the cluster has {', '.join(cluster.gpu_types)}; {source} was measured on one GPU "
            "type and says nothing of others",
            field="gpu_types",
        )
