"""One option for every operator: the program behind signatures and intra-operator parallelism."""

from __future__ import annotations

import time
from dataclasses import dataclass
from math import prod

import numpy as np

from agents.constraint_program.program import ConstraintProgram, TimeScale, whole_bytes
from agents.constraint_program.solver import CpSettings, CpSolver
from agents.solver import Status
from envs.arrays import FloatArray, IntArray

_TABLE = 1 << 20  # entries of the largest table of the dynamic program
_RESOLUTION = 2.0**26  # units of time in the whole program


@dataclass(frozen=True, eq=False)
class ChoiceProgram:
    """Choose an option for each of N operators: the sum of seconds is least, and the bytes fit.

    Options of SBP are signatures, edges cost boxing (OneFlow); options of Alpa are its parallel
    algorithms, their seconds computation and communication, edges cost resharding (Zheng et al.,
    "Alpa", OSDI 2022, section 4.2). inf: not possible.
    """

    seconds: tuple[FloatArray, ...]  # (N,) of (options,)
    edges: tuple[tuple[int, int], ...]  # (E,) operators; an edge may stand twice
    edge_seconds: tuple[FloatArray, ...]  # (E,) of (options of the first, options of the second)
    memory: tuple[FloatArray, ...] = ()  # (N,) of (options,) bytes; none: nothing is held
    capacity: float = np.inf  # bytes

    def value(self, options: IntArray) -> float:
        """Seconds of a choice; inf where it does not fit."""
        held = sum(float(table[o]) for table, o in zip(self.memory, options, strict=False))
        if held > self.capacity:
            return np.inf
        own = sum(float(table[o]) for table, o in zip(self.seconds, options, strict=True))
        edges = zip(self.edges, self.edge_seconds, strict=True)
        return own + sum(float(table[options[u], options[v]]) for (u, v), table in edges)


@dataclass(frozen=True)
class Choice:
    """What was chosen, and what is proved."""

    options: IntArray | None  # (N,)
    seconds: float  # inf without a choice
    status: Status
    lower_bound: float


def choose(program: ChoiceProgram, settings: CpSettings, budget_s: float) -> Choice:
    """The best choice; proved unless `budget_s` ends first.

    By a dynamic program along the operators, eliminated in the order that keeps its tables small:
    on chains it is the usual one. Where the graph is too wide for that, or memory binds, by CP-SAT.
    """
    free = _eliminate(program)
    if free is not None:
        value = program.value(free)
        if np.isfinite(value):
            return Choice(free, value, "optimal", value)
        if not program.memory or program.capacity == np.inf:
            return Choice(None, np.inf, "infeasible", np.inf)
    return _solve(program, settings, budget_s)


def _eliminate(program: ChoiceProgram) -> IntArray | None:
    """The optimum without regard to memory; None where a table would be too large."""
    sizes = [len(table) for table in program.seconds]
    around = {number: {number} for number in range(len(sizes))}  # itself and what it is tied to
    for u, v in program.edges:
        around[u].add(v)
        around[v].add(u)
    tables: list[tuple[tuple[int, ...], FloatArray]] = [
        ((number,), table) for number, table in enumerate(program.seconds)
    ]
    tables += zip(program.edges, program.edge_seconds, strict=True)
    bests: list[tuple[int, tuple[int, ...], IntArray]] = []
    while around:
        node = min(around, key=lambda n: prod(sizes[other] for other in around[n]))
        scope = tuple(sorted(around.pop(node) - {node}))
        if sizes[node] * prod(sizes[other] for other in scope) > _TABLE:
            return None
        for other in scope:
            around[other] = (around[other] | set(scope)) - {node}
        total: FloatArray = np.zeros([sizes[other] for other in (*scope, node)])
        for nodes, table in (entry for entry in tables if node in entry[0]):
            turned = np.transpose(table, np.argsort([(*scope, node).index(n) for n in nodes]))
            total += turned.reshape([sizes[n] if n in nodes else 1 for n in (*scope, node)])
        tables = [entry for entry in tables if node not in entry[0]]
        tables.append((scope, total.min(axis=-1)))
        bests.append((node, scope, total.argmin(axis=-1)))
    options: IntArray = np.zeros(len(sizes), dtype=np.int64)
    for node, scope, best in reversed(bests):
        options[node] = best[tuple(options[other] for other in scope)]
    return options


def _solve(program: ChoiceProgram, settings: CpSettings, budget_s: float) -> Choice:
    """CP-SAT: one literal for each option, one for each pair of options on an edge."""
    end = time.perf_counter() + budget_s
    model = ConstraintProgram()
    finite = [np.where(np.isfinite(t), t, 0.0) for t in (*program.seconds, *program.edge_seconds)]
    horizon = sum(float(table.max()) for table in finite)
    times = [table.ravel() for table in (*program.seconds, *program.edge_seconds)]
    scale = TimeScale.of(times, horizon, _RESOLUTION)
    terms: list[tuple[int, int]] = []

    def literal(seconds: float) -> int:
        if not np.isfinite(seconds):
            return ~model.true
        new = model.boolean()
        terms.append((new, int(scale.units(np.array(seconds)))))
        return new

    chosen = [[literal(float(s)) for s in table] for table in program.seconds]
    for options in chosen:
        model.add_exactly_one(options)
    for (u, v), table in zip(program.edges, program.edge_seconds, strict=True):
        pair = [[literal(float(s)) for s in row] for row in table]
        for o, option in enumerate(chosen[u]):
            model.add_linear([*((p, 1) for p in pair[o]), (option, -1)], lower=0, upper=0)
        for o, option in enumerate(chosen[v]):
            model.add_linear([*((row[o], 1) for row in pair), (option, -1)], lower=0, upper=0)
    if program.memory and program.capacity < np.inf:
        sizes, room = whole_bytes(np.concatenate(program.memory), program.capacity)
        held = [option for options in chosen for option in options]
        model.add_linear(list(zip(held, sizes.tolist(), strict=True)), upper=room)
    total = model.integer(0, int(scale.units(np.array(horizon))))
    model.add_linear([*terms, (total, -1)], lower=0, upper=0)
    model.minimize(total)
    watched = [option for options in chosen for option in options if option >= 0]
    best, value, lower, status = None, np.inf, 0.0, ""
    with CpSolver() as solver:
        left = max(end - time.perf_counter(), 0.0)
        for event in solver.search(
            model, watched, settings, seconds=left, deterministic_limit=None
        ):
            if event.values is not None:
                true = {name for name, v in zip(watched, event.values, strict=True) if v}
                rows = [[option in true for option in options] for options in chosen]
                found = np.array([row.index(True) for row in rows], dtype=np.int64)
                if program.value(found) < value:
                    best, value = found, program.value(found)
            if event.bound is not None:
                lower = max(lower, scale.bound(event.bound))
            status = event.status or status
    if status == "INFEASIBLE":
        return Choice(None, np.inf, "infeasible", np.inf)
    if best is None:
        return Choice(None, np.inf, "limit", lower)
    done = status == "OPTIMAL" and value <= lower * (1.0 + 1e-6)
    return Choice(best, value, "optimal" if done else "feasible", min(lower, value))
