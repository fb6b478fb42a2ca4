"""Which profile a job has: its label, or one drawn by a seed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from envs.cluster.workload.trace import UNKNOWN, Trace
from envs.errors import InputError

IntArray = NDArray[np.int64]
Suits = Callable[[IntArray], NDArray[np.bool_]]  # (G,) gang sizes -> (G, P)


def assign(trace: Trace, names: Sequence[str], suits: Suits, seed: int) -> IntArray:
    """(J,) profile of every job, an index into `names`.

    A job with a model has the profile of that name. All others draw one, with equal chances, of
    those that suit their gang size. A draw depends on the seed and on the job's id alone, so that a
    job keeps its profile when the trace is cut or sorted. Jobs without GPU have profile 0.

    Args:
        trace: the jobs.
        names: P profiles.
        suits: which profiles jobs of these gang sizes may draw.
        seed: of the draws.

    Raises:
        InputError: a model that is not among `names`, a gang size that no profile suits.
    """
    codes = np.array([_index(names, trace, code) for code in range(len(trace.model.names))], int)
    chosen = np.full(len(trace), UNKNOWN, np.int64)
    labelled = trace.model.codes != UNKNOWN
    chosen[labelled] = codes[trace.model.codes[labelled]]
    chosen[~labelled & (trace.num_gpus == 0)] = 0
    drawing = np.flatnonzero(chosen == UNKNOWN)
    if len(drawing) == 0:
        return chosen
    gangs, gang = np.unique(trace.num_gpus[drawing], return_inverse=True)
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


def _uniform(job_id: NDArray[np.str_], seed: int) -> NDArray[np.float64]:
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
