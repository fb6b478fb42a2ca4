"""Which case of a rate model's tables a job is: its profile and its gang size."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.cluster.interference.rates import ONE_NODE, ONE_RACK, SEVERAL_RACKS
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import UNKNOWN, Trace
from envs.errors import InputError


def read_number(value: object, *, key: str) -> float:
    """A finite number from 0 on.

    Raises:
        InputError: naming `key`.
    """
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{value!r} is not a number", field=key)
    if not 0.0 <= value < float("inf"):
        raise InputError(f"{value!r} is negative or not finite", field=key)
    return float(value)


Suits = Callable[[IntArray], BoolArray]  # (G,) gang sizes -> (G, P)


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
    chosen = np.full(len(trace), UNKNOWN, np.int64)
    labelled = (trace.model.codes != UNKNOWN) & named
    if labelled.any():
        codes = np.array([_index(names, trace, code) for code in range(len(trace.model.names))])
        chosen[labelled] = codes[trace.model.codes[labelled]]
    chosen[~labelled & (trace.num_gpus == 0)] = 0
    drawing = np.flatnonzero(chosen == UNKNOWN)
    if len(drawing) == 0:
        return chosen
    gangs, gang = np.unique(trace.num_gpus[drawing], return_inverse=True)
    allowed = np.ones((len(gangs), len(names)), np.bool_)
    if suits is not None:
        allowed = suits(gangs.astype(np.int64))
    count = allowed.sum(axis=1)
    if (count == 0).any():
        size = gangs[np.argmax(count == 0)]
        raise InputError(f"no profile suits a job of {size} GPUs", file=trace.name, field="model")
    place = np.minimum(_uniform(trace.job_id[drawing], seed) * count[gang], count[gang] - 1)
    order = np.argsort(~allowed, axis=1, kind="stable")  # those allowed come first
    chosen[drawing] = order[gang, place.astype(np.int64)]
    return chosen


def _index(names: Sequence[str], trace: Trace, code: int) -> int:
    name = trace.model.names[code]
    if name in names:
        return list(names).index(name)
    jobs = np.flatnonzero(trace.model.codes == code)
    if len(jobs) == 0:
        return UNKNOWN
    raise InputError(
        f"{name!r} is none of {', '.join(names)}",
        file=trace.name,
        record=str(trace.job_id[jobs[0]]),
        field="model",
    )


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

    profile: IntArray  # (P,)
    gpus: IntArray  # (P,) gang size
    of_job: NDArray[np.int32]  # (J,) case of every job

    @classmethod
    def of(cls, trace: Trace, profile: IntArray) -> Cases:
        """The cases of jobs with these profiles, (J,)."""
        largest = int(trace.num_gpus.max(initial=0)) + 1
        codes, of_job = np.unique(profile * largest + trace.num_gpus, return_inverse=True)
        return cls(codes // largest, codes % largest, of_job.astype(np.int32))

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

    def require_speed(self, trace: Trace, cluster: Cluster, speed: FloatArray) -> None:
        """Check that every job runs on every GPU type on which it may be placed.

        Args:
            trace: the jobs.
            cluster: its GPU types.
            speed: (P, T); 0 where a case does not run.

        Raises:
            InputError: naming the first job that does not run on a type it permits.
        """
        masks = cluster.type_masks(trace.gpu_type.names)[trace.gpu_type.codes]
        permitted = masks[:, None] >> np.arange(len(cluster.gpu_types)) & 1 == 1
        wrong = permitted & (speed[self.of_job] <= 0.0)
        if wrong.any():
            job, kind = (int(index[0]) for index in np.nonzero(wrong))
            raise InputError(
                f"the job's model does not run on GPU type {cluster.gpu_types[kind]!r}",
                file=trace.name,
                record=str(trace.job_id[job]),
                field="gpu_type",
            )


def nearest_below(values: Sequence[int], wanted: int) -> int:
    """The largest of ascending `values` up to `wanted`, or the smallest of all."""
    fitting = [value for value in values if value <= wanted]
    return fitting[-1] if fitting else values[0]


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
