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
    Flows,
    coflow_problem,
    play_madd,
    simulate,
)

MB_PER_MS = 0.125  # 1 Gb/s
_LARGEST = 2**20  # ports, and coflows of a file
_FLOW_BYTES = 120  # in memory, for each flow


@dataclass(frozen=True, eq=False)
class CoflowTrace:
    """What a file holds of each coflow.

    In the benchmark form mappers (M,), reducers (R,) and the megabytes of these; otherwise flows.
    """

    ports: int
    arrival: FloatArray  # (n,)
    benchmark: bool
    rows: list[Flows]

    def first(self, coflows: int) -> CoflowTrace:
        """Its first coflows, in the order of the file."""
        return replace(self, arrival=self.arrival[:coflows], rows=self.rows[:coflows])

    @cached_property
    def problem(self) -> CoflowProblem:
        """With ports of 1 Gb/s in the benchmark form, of one unit a time unit in the other."""
        if not self.benchmark:
            return coflow_problem(self.ports, 1.0, self.arrival, self.rows)
        flows = sum(len(mappers) * len(reducers) for mappers, reducers, _ in self.rows)
        require_memory(_FLOW_BYTES * flows, f"{flows} flows")
        rows = (_all_to_all(m, r, size / max(len(m), 1)) for m, r, size in self.rows)
        return coflow_problem(self.ports, MB_PER_MS, self.arrival, rows)


def _all_to_all(mappers: IntArray, reducers: IntArray, size: FloatArray) -> Flows:
    """A flow of `size` (R,) from every mapper to each reducer."""
    m = len(mappers)
    return np.tile(mappers, len(reducers)), np.repeat(reducers, m), np.repeat(size, m)


def read_coflows(path: str | Path) -> CoflowTrace:
    """The trace in a file, plain or gzip, in either form.

    Raises:
        InputError: naming file, line and field.
    """
    try:
        text = read_content(path).decode("ascii")
    except UnicodeDecodeError as error:
        raise InputError("is no text in ASCII", file=path) from error
    lines = [
        _Line(path, n, x.split()) for n, x in enumerate(text.splitlines(), start=1) if x.strip()
    ]
    if not lines:
        raise InputError("is empty", file=path)
    head, *lines = lines
    ports, coflows = head.whole("ports", 1, _LARGEST), head.whole("coflows", 1, _LARGEST)
    head.end()
    if len(lines) != coflows:
        raise head.error(
            "coflows", f"the header names {coflows} coflows, the file has {len(lines)}"
        )
    benchmark, arrival, rows = ":" in text, np.zeros(coflows), []
    for at, line in enumerate(lines):
        line.word("id")
        arrival[at] = line.number("arrival")
        rows.append((_shuffle if benchmark else _flows)(line, ports))
        line.end()
    return CoflowTrace(ports, arrival, benchmark, rows)


def _shuffle(line: _Line, ports: int) -> Flows:
    count = line.whole("mappers", 0, len(line.words))
    mappers = [line.whole("location of a mapper", 0, ports - 1) for _ in range(count)]
    reducers, megabytes = [], []
    for _ in range(line.whole("reducers", 0, len(line.words))):
        if not mappers:
            raise line.error("mappers", "there are reducers, but no mapper")
        place, _, size = line.word("reducer").partition(":")
        reducers.append(line.whole("location of a reducer", 0, ports - 1, place))
        megabytes.append(line.number("megabytes", size))
    return np.array(mappers, np.int64), np.array(reducers, np.int64), np.array(megabytes)


def _flows(line: _Line, ports: int) -> Flows:
    count = line.whole("flows", 0, len(line.words))
    for field in ("sources", "destinations"):  # how many: the flows say it themselves
        line.word(field)
    ends, size = np.zeros((count, 2), np.int64), np.zeros(count)
    for f in range(count):
        ends[f] = [line.whole(field, 0, ports - 1) for field in ("source", "destination")]
        size[f] = line.number("size")
    return ends[:, 0], ends[:, 1], size


@dataclass
class _Line:
    """The words of a line, one after another; faults name file, line and field."""

    path: str | Path
    number_of: int
    words: list[str]
    at: int = 0

    def error(self, field: str, fault: str) -> InputError:
        return InputError(fault, file=self.path, record=f"line {self.number_of}", field=field)

    def word(self, field: str) -> str:
        if self.at == len(self.words):
            raise self.error(field, "the line ends too early")
        self.at += 1
        return self.words[self.at - 1]

    def whole(self, field: str, least: int, most: int, word: str | None = None) -> int:
        word = self.word(field) if word is None else word
        if not (word.isdigit() and len(word) < 19 and least <= int(word) <= most):
            raise self.error(field, f"{word!r} is no whole number from {least} to {most}")
        return int(word)

    def number(self, field: str, word: str | None = None) -> float:
        word = self.word(field) if word is None else word
        try:
            value = float(word) if "_" not in word else np.nan
        except ValueError:
            value = np.nan
        if not 0.0 <= value < 2.0**53:
            raise self.error(field, f"{word!r} is no number from 0 to 2^53")
        return value

    def end(self) -> None:
        if self.at < len(self.words):
            raise self.error("end", f"{len(self.words) - self.at} words too many")


EPOCH_MS, QUANTUM_MS = 10_240.0, 8.0
COFLOWSIM = ("fifo", "scf", "ncf", "lcf", "sebf")  # its orders
_MB = 1_048_576.0  # bytes
_DRAINED_MB = 1e-3 / _MB
_SEED = 17  # of the deadlines


def simulate_coflowsim(trace: CoflowTrace, name: str) -> tuple[CoflowProblem, CoflowTimes]:
    """A benchmark trace as CoflowSim sees it: admissions for arrivals; times from there to end."""
    rows, received = [], np.zeros((len(trace.rows), trace.ports))  # MB before they are rounded up
    for c, (all_mappers, all_reducers, megabytes) in enumerate(trace.rows):
        mappers, (reducers, own) = np.unique(all_mappers), np.unique(all_reducers, False, True)
        whole = np.bincount(own, np.ceil(np.floor(megabytes * _MB) / _MB), len(reducers))
        received[c, reducers] = whole
        rows.append(_all_to_all(mappers, reducers, np.ceil(whole / max(len(mappers), 1))))
    admitted = np.maximum(np.ceil(trace.arrival / EPOCH_MS) - 1.0, 0.0) * EPOCH_MS
    problem = coflow_problem(trace.ports, MB_PER_MS, admitted, rows)
    coming, random = np.argsort(trace.arrival, kind="stable"), java_doubles(_SEED)
    due = admitted.copy()  # ms, the deadlines that filling up goes by
    for c in coming:
        if len(trace.rows[c][0]):
            seconds = problem.loads[c].max() / (MB_PER_MS * 1024.0)
            due[c] += seconds * (1.0 + next(random)) * 1000.0  # unlike everywhere else
    line: list[int] = []

    def order(_: CoflowProblem, active: IntArray, load: FloatArray) -> IntArray:
        sent = (problem.loads - load)[:, problem.ports :]
        left = np.maximum(received - sent, 0.0).sum(axis=1)
        keys = admitted, problem.longest, problem.width, left, problem.alone
        key = keys[COFLOWSIM.index(name)]  # (n,) the smaller goes first
        line[:] = [c for c in line if c in active]
        for c in coming[np.isin(coming, active) & ~np.isin(coming, line)].tolist():
            place = next((k for k, one in enumerate(line) if key[c] < key[one]), len(line))
            line.insert(place, c)
        return np.array(line, np.int64)

    return problem, simulate(
        problem, order, lambda *given: play_madd(*given, QUANTUM_MS, _DRAINED_MB, due)
    )


def java_doubles(seed: int) -> Iterator[float]:
    """What `java.util.Random(seed).nextDouble()` gives: a congruential generator of 48 bits."""
    state = seed ^ 0x5DEECE66D
    while True:
        found = 0
        for bits in (26, 27):
            state = (state * 0x5DEECE66D + 0xB) % 2**48
            found = (found << bits) + (state >> 48 - bits)
        yield found / 2.0**53
