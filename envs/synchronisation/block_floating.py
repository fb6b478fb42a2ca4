"""Block floating point: the integers of a packet share one exponent, and no sum of them overflows.

Sapio et al., *Scaling Distributed Machine Learning with In-Network Aggregation*, NSDI 2021:
switches add integers only. Every worker sends, one packet ahead, the exponent of what comes next
in a slot; the switch answers with the largest of all, by which all workers scale that packet.
"""

from __future__ import annotations

import numpy as np

from envs.arrays import FloatArray, IntArray
from envs.errors import InputError

SMALLEST = -1022  # the exponent of a packet of zeros: below those of all others


def largest_integer(workers: int, bits: int) -> int:
    """What no worker's integers exceed, so that the sum of all fits into `bits` with its sign.

    Raises:
        InputError: there is no such integer but 0.
    """
    found = ((1 << (bits - 1)) - 1) // workers
    if found < 1:
        raise InputError(f"{bits} bits cannot hold the sum of {workers} workers", field="bits")
    return found


def exponents(values: FloatArray, elements: int) -> IntArray:
    """(W, P) the least e of every packet of `elements` values with |x| < 2^e.

    Raises:
        InputError: a value is not finite.
    """
    workers, length = values.shape
    packets = -(-length // elements)
    padded = np.zeros((workers, packets * elements))
    padded[:, :length] = np.abs(values)
    largest = padded.reshape(workers, packets, elements).max(axis=2)
    if not np.isfinite(largest).all():
        worker = int(np.flatnonzero(~np.isfinite(largest).all(axis=1))[0])
        raise InputError("holds a value that is not finite", record=f"gradient of worker {worker}")
    found = np.frexp(largest)[1].astype(np.int64)
    return np.where(largest > 0.0, np.maximum(found, SMALLEST), SMALLEST)


def error_bound(values: FloatArray, elements: int, bits: int) -> FloatArray:
    """(E,) what the error of a sum of `values` (W, E) is at most.

    Every worker rounds to the nearest of the multiples of 2^e / f, where e is its packet's shared
    exponent and f is `largest_integer`: half of that for each worker. 2^e is at most twice the
    packet's largest value.
    """
    workers, length = values.shape
    shared = exponents(values, elements).max(axis=0)
    step = np.ldexp(1.0, shared) / largest_integer(workers, bits)
    bound: FloatArray = np.repeat(0.5 * workers * step, elements)[:length]
    return bound
