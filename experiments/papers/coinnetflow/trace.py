"""Reader of coflow traces: the coflow-benchmark form, and that of Sincronia's authors (UPWS).

Both begin with `ports coflows`. Then comes a line for each coflow:

* benchmark: `id arrival_ms mappers location… reducers location:megabytes…`. A reducer gets an equal
  part of its megabytes from every mapper.
* UPWS: `id arrival flows sources destinations`, then `source destination size` for each flow.

Ports are numbered from 0. Chowdhury, Zhong, Stoica: *Efficient Coflow Scheduling with Varys*,
SIGCOMM 2014 (the trace); Agarwal et al.: *Sincronia*, SIGCOMM 2018.

The semantics of CoflowSim, a published simulator: its sums of completion times, to the ms.

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

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path

import numpy as np

from envs.arrays import FloatArray, IntArray
from envs.errors import InputError
from envs.files import read_content
from envs.memory import require_memory
from experiments.papers.coinnetflow.simulation import (
    CoflowProblem,
    CoflowTimes,
    coflow_problem,
    play_madd,
    switch_of,
)

MB_PER_MS = 0.125  # 1 Gb/s
_LARGEST = 2**20  # ports, and coflows of a file
_FLOW_BYTES = 80  # in memory, for each flow


@dataclass(frozen=True, eq=False)
class Shuffle:
    """A coflow of the benchmark form."""

    mappers: IntArray  # (M,) ports, one of them maybe several times
    reducers: IntArray  # (R,) ports
    megabytes: FloatArray  # (R,)

    def flows(self) -> tuple[IntArray, IntArray, FloatArray]:
        """Of every mapper to every reducer, by reducer."""
        m, r = len(self.mappers), len(self.reducers)
        size = np.repeat(self.megabytes / max(m, 1), m)
        return np.tile(self.mappers, r), np.repeat(self.reducers, m), size


@dataclass(frozen=True, eq=False)
class CoflowTrace:
    """What a file holds; `shuffles` are None in the UPWS form, `rows` in the other."""

    ports: int
    arrival: FloatArray  # (n,)
    shuffles: tuple[Shuffle, ...] | None
    rows: tuple[tuple[IntArray, IntArray, FloatArray], ...] | None

    def first(self, coflows: int) -> CoflowTrace:
        """Its first coflows, in the order of the file."""
        kept = slice(coflows)
        shuffles, rows = self.shuffles and self.shuffles[kept], self.rows and self.rows[kept]
        return replace(self, arrival=self.arrival[kept], shuffles=shuffles, rows=rows)

    @cached_property
    def problem(self) -> CoflowProblem:
        """With ports of 1 Gb/s in the benchmark form, of one unit a time unit in the other."""
        if self.shuffles is None:
            assert self.rows is not None
            return coflow_problem(self.ports, 1.0, self.arrival, [*self.rows])
        flows = sum(len(one.mappers) * len(one.reducers) for one in self.shuffles)
        require_memory(_FLOW_BYTES * flows, f"{flows} flows")
        rows = [one.flows() for one in self.shuffles]
        return coflow_problem(self.ports, MB_PER_MS, self.arrival, rows)


def read_coflows(path: str | Path) -> CoflowTrace:
    """The trace in a file, plain or gzip, in either form.

    Raises:
        InputError: naming file, line and field.
    """
    try:
        text = read_content(path).decode("ascii")
    except UnicodeDecodeError as error:
        raise InputError("is no text in ASCII", file=path) from error
    lines = [(n, x.split()) for n, x in enumerate(text.splitlines(), start=1) if x.strip()]
    if not lines:
        raise InputError("is empty", file=path)
    head = _Line(path, *lines[0])
    ports, coflows = head.whole("ports", 1, _LARGEST), head.whole("coflows", 1, _LARGEST)
    head.end()
    if len(lines) - 1 != coflows:
        fault = f"the header tells of {coflows} coflows, the file has {len(lines) - 1}"
        raise InputError(fault, file=path, record="line 1", field="coflows")
    parsed = [_Line(path, *line) for line in lines[1:]]
    arrival = np.zeros(coflows)
    benchmark = ":" in text
    shuffles, rows = [], []
    for at, line in enumerate(parsed):
        line.token("id")
        arrival[at] = line.number("arrival")
        if benchmark:
            shuffles.append(_shuffle(line, ports))
        else:
            rows.append(_flows(line, ports))
        line.end()
    return CoflowTrace(
        ports, arrival, tuple(shuffles) if benchmark else None, None if benchmark else tuple(rows)
    )


def _shuffle(line: _Line, ports: int) -> Shuffle:
    count = line.whole("mappers", 0, line.left)
    mappers = [line.whole("location of a mapper", 0, ports - 1) for _ in range(count)]
    reducers, megabytes = [], []
    for _ in range(line.whole("reducers", 0, line.left)):
        if not mappers:
            raise line.error("mappers", "there are reducers, but no mapper")
        place, _, size = line.token("reducer").partition(":")
        reducers.append(line.whole("location of a reducer", 0, ports - 1, place))
        megabytes.append(line.number("megabytes", size))
    return Shuffle(np.array(mappers, np.int64), np.array(reducers, np.int64), np.array(megabytes))


def _flows(line: _Line, ports: int) -> tuple[IntArray, IntArray, FloatArray]:
    flows = line.whole("flows", 0, line.left)
    line.token("sources")  # how many: the flows tell it themselves
    line.token("destinations")
    ends, size = np.zeros((2, flows), dtype=np.int64), np.zeros(flows)
    for f in range(flows):
        ends[0, f] = line.whole("source", 0, ports - 1)
        ends[1, f] = line.whole("destination", 0, ports - 1)
        size[f] = line.number("size")
    return ends[0], ends[1], size


class _Line:
    """The words of a line, one after another; faults name file, line and field."""

    def __init__(self, path: str | Path, number: int, words: list[str]) -> None:
        self._path, self._number, self._words, self._at = path, number, words, 0
        self.left = len(words)

    def error(self, field: str, message: str) -> InputError:
        return InputError(message, file=self._path, record=f"line {self._number}", field=field)

    def token(self, field: str) -> str:
        if self._at == len(self._words):
            raise self.error(field, "the line ends too early")
        self._at += 1
        return self._words[self._at - 1]

    def whole(self, field: str, least: int, most: int, text: str | None = None) -> int:
        text = self.token(field) if text is None else text
        if not text.isdigit() or len(text) > 18:
            raise self.error(field, f"{text!r} is not a whole number")
        if not least <= int(text) <= most:
            raise self.error(field, f"{text} is not between {least} and {most}")
        return int(text)

    def number(self, field: str, text: str | None = None) -> float:
        text = self.token(field) if text is None else text
        try:
            value = float(text) if "_" not in text else np.nan
        except ValueError:
            value = np.nan
        if not 0.0 <= value < 2.0**53:
            raise self.error(field, f"{text!r} is no number from 0 to 2^53")
        return value

    def end(self) -> None:
        if self._at < len(self._words):
            raise self.error("end", f"{len(self._words) - self._at} words too many")


EPOCH_MS, QUANTUM_MS = 10_240.0, 8.0
_MB = 1_048_576.0  # bytes
_DRAINED_MB = 1e-3 / _MB
_SEED = 17  # of the deadlines

_ORDERS = ("fifo", "scf", "ncf", "lcf", "sebf")


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
    if order not in _ORDERS:
        raise InputError(f"{order!r} is none of CoflowSim's {', '.join(_ORDERS)}", field="agent")
    problem, events = found.problem, 0
    state = switch_of(problem)
    line: list[int] = []
    coming = np.argsort(arrival, kind="stable")
    admissions = np.unique(problem.arrival)
    for now, until in zip(admissions, np.append(admissions[1:], np.inf), strict=True):
        line = [c for c in line if np.isinf(state.finish[c])]
        sent = (problem.loads - state.load)[:, problem.ports :]
        left = np.maximum(found.received - sent, 0.0).sum(axis=1)
        keys = problem.arrival, problem.longest, problem.width, left, problem.alone
        key = keys[_ORDERS.index(order)]  # (n,) the smaller goes first
        for c in coming[problem.arrival[coming] == now]:
            if np.isinf(state.finish[c]):
                place = next((k for k, one in enumerate(line) if key[c] < key[one]), len(line))
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
