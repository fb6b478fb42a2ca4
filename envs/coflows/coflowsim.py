"""The semantics of CoflowSim, a published simulator: its sums of completion times, to the ms.

Chowdhury's CoflowSim moves bytes in quanta of 8 ms, in which a port of 1 Gb/s moves 1 MB (a second
has 1024 ms there). Coflows are admitted at the start of their epoch of 10,240 ms, that is earlier
than they arrive; a reducer's bytes are rounded up to a multiple of the number of mappers in MB.
Rates are those of `madd`, filled up in the order of deadlines that are drawn at random. Orders are
fixed at admission: a coflow is put before the first that compares as later.

Only admissions and departures change rates, so that whole quanta are skipped between them. The
program itself subtracts quantum by quantum, and what it loses in rounding there adds up: on its
first 50 coflows the benchmark trace agrees to the ms for all five orders, on all 526 it cannot.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from envs.arrays import FloatArray
from envs.coflows.simulation import CoflowProblem, CoflowTimes, coflow_problem, play_madd, switch_of
from envs.coflows.trace import MB_PER_MS, CoflowTrace
from envs.errors import InputError

EPOCH_MS, QUANTUM_MS = 10_240.0, 8.0
_MB = 1_048_576.0  # bytes
_DRAINED_MB = 1e-3 / _MB
_SEED = 17  # of the deadlines

# The smaller goes first: of the problem, what `lcf` counts as left, and a coflow.
Key = Callable[[CoflowProblem, FloatArray, int], float]
KEYS: Mapping[str, Key] = {
    "fifo": lambda problem, left, c: float(problem.arrival[c]),
    "scf": lambda problem, left, c: float(problem.longest[c]),
    "ncf": lambda problem, left, c: float(problem.width[c]),
    "lcf": lambda problem, left, c: float(left[c]),
    "sebf": lambda problem, left, c: float(problem.alone[c]),
}


@dataclass(frozen=True, eq=False)
class Quantised:
    """A benchmark trace as CoflowSim sees it."""

    problem: CoflowProblem  # arrivals are admissions
    received: FloatArray  # (n, N) MB at each egress port before rounding to the number of mappers
    due: FloatArray  # (n,) ms, the deadline that filling up goes by


def quantised(trace: CoflowTrace) -> Quantised:
    """Raises InputError for a trace of the other form."""
    if trace.shuffles is None:
        fault = "CoflowSim reads coflows with mappers and reducers, this file has flows"
        raise InputError(fault, field="semantics")
    rows, received = [], np.zeros((len(trace.shuffles), trace.ports))
    for c, one in enumerate(trace.shuffles):
        mappers = np.unique(one.mappers)
        reducers, own = np.unique(one.reducers, return_inverse=True)
        whole = np.ceil(np.floor(one.megabytes * _MB) / _MB)
        megabytes = np.bincount(own, whole, len(reducers))
        received[c, reducers] = megabytes
        flow = np.ceil(megabytes / max(len(mappers), 1))
        r, m = len(reducers), len(mappers)
        rows.append((np.tile(mappers, r), np.repeat(reducers, m), np.repeat(flow, m)))
    admitted = np.maximum(np.ceil(trace.arrival / EPOCH_MS) - 1.0, 0.0) * EPOCH_MS
    problem = coflow_problem(trace.ports, MB_PER_MS, admitted, rows)
    due = admitted.copy()
    random = java_doubles(_SEED)
    for c in np.argsort(trace.arrival, kind="stable"):
        if len(trace.shuffles[c].mappers):
            seconds = problem.loads[c].max() / (MB_PER_MS * 1024.0)
            due[c] += seconds * (1.0 + next(random)) * 1000.0  # unlike everywhere else
    return Quantised(problem, received, due)


def simulate_coflowsim(found: Quantised, arrival: FloatArray, order: str) -> CoflowTimes:
    """Times from admission to end; `arrival` (n,) of the trace, by which coflows are admitted.

    Raises:
        InputError: the program knows no such order.
    """
    if order not in KEYS:
        raise InputError(f"{order!r} is none of CoflowSim's {', '.join(KEYS)}", field="agent")
    key, problem, events = KEYS[order], found.problem, 0
    state = switch_of(problem)
    line: list[int] = []
    coming = np.argsort(arrival, kind="stable")
    admissions = np.unique(problem.arrival)
    for now, until in zip(admissions, np.append(admissions[1:], np.inf), strict=True):
        line = [c for c in line if np.isinf(state.finish[c])]
        sent = (problem.loads - state.load)[:, problem.ports :]
        left = np.maximum(found.received - sent, 0.0).sum(axis=1)
        for c in coming[problem.arrival[coming] == now]:
            if np.isinf(state.finish[c]):
                values, own = [key(problem, left, one) for one in line], key(problem, left, int(c))
                place = next((k for k, value in enumerate(values) if own < value), len(line))
                line.insert(place, int(c))
        events += play_madd(
            np.array(line, dtype=np.int64), problem.rate, state, now, until, QUANTUM_MS,
            _DRAINED_MB, found.due,
        )  # fmt: skip
    return CoflowTimes(state.finish - problem.arrival, events)


def java_doubles(seed: int) -> Iterator[float]:
    """What `java.util.Random(seed).nextDouble()` gives: a congruential generator of 48 bits."""
    state, mask = (seed ^ 0x5DEECE66D) & (2**48 - 1), 2**48 - 1
    while True:
        state = (state * 0x5DEECE66D + 0xB) & mask
        high = state >> 22
        state = (state * 0x5DEECE66D + 0xB) & mask
        yield ((high << 27) + (state >> 21)) / 2.0**53
