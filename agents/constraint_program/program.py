"""Times as integers: exact where they have a common unit, rounded down where they have none."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from itertools import combinations, pairwise

import numpy as np

from agents.step.grouping import atoms, device_classes
from envs.arrays import BoolArray, FloatArray, IntArray
from envs.step.problem import StepProblem

_BINARY_DIGITS, _DECIMAL_DIGITS = 40, 15  # behind the point, of a common unit
_ULPS = 4.0  # by which a time may miss a multiple of a decimal unit
_ROUNDING = 1e-12  # relative; covers the rounding of sums of times in floating point


@dataclass(frozen=True)
class TimeScale:
    """Seconds in units.

    Any program whose constraints only say that something is not before something else, and whose
    durations are rounded down, has an optimum that is rounded down: its bounds stay valid. Where
    the optimum takes only times that are whole, its bound is exact.
    """

    unit: Fraction  # seconds
    exact: bool  # all times are whole units
    rounding: float  # relative, to be taken off a bound: what sums of floats may lose

    @classmethod
    def of(cls, times: Sequence[FloatArray], horizon: float, resolution: float) -> TimeScale:
        """The unit of which most of `times` are multiples, or 1 / `resolution` of the horizon.

        `horizon` (seconds) holds at most `resolution` units in either case; times beyond it do not
        count. Units are products of powers of 1/2 and 1/10, and their multiples; what is a multiple
        but for its last digits is taken for one. If half of the times are of no such unit, it is
        not worth having.
        """
        known = np.unique(np.concatenate([array[array <= horizon] for array in times]))
        best, found = 0.5 * len(known), None
        for decimals in range(_DECIMAL_DIGITS + 1):
            for binary in range(_BINARY_DIGITS + 1):
                parts = 10**decimals * 2**binary
                if horizon * parts > resolution:
                    break
                whole = _whole(known, float(parts))
                if whole.sum() > best:
                    best, found = float(whole.sum()), (decimals, binary)
        if found is None:
            return cls(Fraction(horizon or 1.0) / Fraction(resolution), False, _ROUNDING)
        parts = 10 ** found[0] * 2 ** found[1]
        whole = _whole(known, float(parts))
        multiples = np.rint(known[whole] * float(parts)).astype(np.int64)
        step = int(np.gcd.reduce(multiples, initial=0)) or 1
        exact = bool(whole.all())
        floats_are_exact = exact and found[0] == 0 and (known * parts % 1.0 == 0.0).all()
        return cls(Fraction(step, parts), exact, 0.0 if floats_are_exact else _ROUNDING)

    def units(self, seconds: FloatArray) -> FloatArray:
        """Whole units of `seconds`: exact, or rounded down; inf stays."""
        count = seconds * float(1 / self.unit)
        return np.where(_whole(seconds, float(1 / self.unit)), np.rint(count), np.floor(count))

    def within(self, seconds: FloatArray, horizon: int) -> IntArray:
        """Whole units of `seconds`, one more than `horizon` where they are out of reach."""
        return np.minimum(self.units(seconds), horizon + 1).astype(np.int64)

    def bound(self, units: float) -> float:
        """Seconds that are certainly not above `units`."""
        if not np.isfinite(units):
            return units
        return float(Fraction(units) * self.unit) * (1.0 - self.rounding)

    def explain(self) -> str:
        """How times became integers, in a few words."""
        unit = f"{float(self.unit):.6g} s"
        return f"times in units of {unit}" + ("" if self.exact else ", rounded down")


def _whole(seconds: FloatArray, parts: float) -> BoolArray:
    """Whether `seconds` are multiples of 1 / `parts`, but for their last digits."""
    finite = np.where(np.isfinite(seconds), seconds, 0.0)
    return np.abs(np.rint(finite * parts) / parts - finite) <= _ULPS * np.spacing(finite)


Terms = Sequence[tuple[int, int]]  # (variable, coefficient)

_LOWEST, _HIGHEST = -(2**63), 2**63 - 1  # no bound


class ConstraintProgram:
    """Integer variables, numbered as they are added, and constraints on them.

    A literal is the number of a 0-1 variable, or its complement `~number`: the negation.
    Constraints with `when` hold if all those literals are true.

    `text()` is the program in the text format of OR-tools' public `CpModelProto`: nothing of
    OR-tools is needed here, whose build of HiGHS cannot share a process with highspy's.
    """

    def __init__(self) -> None:
        self._variables: list[str] = []
        self._constraints: list[str] = []
        self._objective = ""
        self._hint = ""
        self.true = self.integer(1, 1)  # a literal

    def integer(self, lower: int, upper: int) -> int:
        """A new variable in lower..upper."""
        self._variables.append(f"variables{{domain:{lower} domain:{upper}}}")
        return len(self._variables) - 1

    def boolean(self) -> int:
        """A new 0-1 variable."""
        return self.integer(0, 1)

    def add_linear(
        self,
        terms: Terms,
        *,
        lower: int = _LOWEST,
        upper: int = _HIGHEST,
        when: Sequence[int] = (),
    ) -> None:
        """lower <= sum of coefficient * variable <= upper; a negated literal counts as 0 or 1."""
        negated = sum(factor for variable, factor in terms if variable < 0)
        lower = _LOWEST if lower == _LOWEST else lower - negated
        upper = _HIGHEST if upper == _HIGHEST else upper - negated
        body = "".join(
            f"vars:{variable} coeffs:{factor} " if variable >= 0
            else f"vars:{~variable} coeffs:{-factor} "
            for variable, factor in terms
        )  # fmt: skip
        self._add(f"linear{{{body}domain:{lower} domain:{upper}}}", when)

    def add_clause(self, literals: Sequence[int]) -> None:
        """At least one of `literals`."""
        self._add(f"bool_or{{{_all('literals', literals)}}}")

    def add_exactly_one(self, literals: Sequence[int]) -> None:
        """One of `literals` and no other."""
        self._add(f"exactly_one{{{_all('literals', literals)}}}")

    def either(self, literals: Sequence[int]) -> int:
        """The literal "one of `literals` at least"."""
        literals = list(dict.fromkeys(literals))
        if len(literals) == 1:
            return literals[0]
        some = self.boolean()
        self.add_clause([*literals, ~some])
        for literal in literals:
            self.add_clause([~literal, some])
        return some

    def both(self, first: int, second: int) -> int:
        """The literal "`first` and `second`"."""
        return first if first == second else ~self.either([~first, ~second])

    def add_order(self, first: int, second: int, *, gap: int = 0, when: Sequence[int] = ()) -> None:
        """Variable `second` is at least variable `first` + `gap`."""
        self.add_linear([(second, 1), (first, -1)], lower=gap, when=when)

    def fixed_interval(self, start: int, size: int, present: int) -> int:
        """The interval start..start + size, there if literal `present` is true."""
        view = f"vars:{start} coeffs:1"
        body = f"start{{{view}}} size{{offset:{size}}} end{{{view} offset:{size}}}"
        return self._add(f"interval{{{body}}}", (present,))

    def interval(self, start: int, size: int, end: int, present: int) -> int:
        """The interval of the variables `start`, `size`, `end`, there if `present` is true."""
        self.add_linear([(start, 1), (size, 1), (end, -1)], lower=0, upper=0, when=(present,))
        body = " ".join(
            f"{name}{{vars:{variable} coeffs:1}}"
            for name, variable in (("start", start), ("size", size), ("end", end))
        )
        return self._add(f"interval{{{body}}}", (present,))

    def add_no_overlap(self, intervals: Sequence[int]) -> None:
        """No two of the intervals that are there have a common inner point."""
        self._add(f"no_overlap{{{_all('intervals', intervals)}}}")

    def add_cumulative(
        self, intervals: Sequence[int], demands: Sequence[int], capacity: int
    ) -> None:
        """At no time the demands of the intervals that are there exceed variable `capacity`."""
        sizes = "".join(f"demands{{offset:{demand}}}" for demand in demands)
        room = f"capacity{{vars:{capacity} coeffs:1}}"
        self._add(f"cumulative{{{room}{_all('intervals', intervals)}{sizes}}}")

    def minimize(self, variable: int) -> None:
        """The value of `variable` is the objective."""
        self._objective = f"objective{{vars:{variable} coeffs:1}}"

    def set_hint(self, values: Mapping[int, int]) -> None:
        """Values from which the search starts; they need be neither complete nor feasible."""
        numbers = _all("vars", list(values))
        self._hint = f"solution_hint{{{numbers}{_all('values', list(values.values()))}}}"

    def text(self) -> str:
        """The program as a `CpModelProto` in text format."""
        return "\n".join([*self._variables, *self._constraints, self._objective, self._hint])

    def _add(self, body: str, when: Sequence[int] = ()) -> int:
        """The number of the new constraint, by which others refer to intervals."""
        given = _all("enforcement_literal", list(dict.fromkeys(when)))
        self._constraints.append(f"constraints{{{given}{body}}}")
        return len(self._constraints) - 1


def _all(field: str, values: Sequence[int]) -> str:
    return "".join(f"{field}:{value} " for value in values)


_RANGE = 2.0**30  # units of memory in a program at most; see `CpSolver.search`


class PlacementVariables:
    """A literal for every atom (co-location group or free operator) and device.

    Every atom is on one device that is allowed, and the state on a device fits it.

    Args:
        program: takes the variables.
        problem: graph, topology, capacities.
        possible: (N, D) whether the operator may be on the device at all.
    """

    def __init__(
        self, program: ConstraintProgram, problem: StepProblem, possible: BoolArray
    ) -> None:
        self._program = program
        self.atom = atoms(problem)
        count, devices = int(self.atom.max()) + 1, problem.topology.num_devices
        self.state: FloatArray = np.bincount(
            self.atom, weights=problem.graph.state_bytes, minlength=count
        ).astype(np.float64)  # (A,) bytes
        allowed = self.state[:, None] <= problem.capacity
        np.logical_and.at(allowed, self.atom, possible)
        # (A,) for each atom, the literal of each device that is allowed to have it
        self.by_atom: list[dict[int, int]] = [
            {d: program.boolean() for d in range(devices) if allowed[a, d]} for a in range(count)
        ]
        for literals in self.by_atom:
            program.add_exactly_one(list(literals.values()))
        self.classes = device_classes(problem)
        self._add_memory(problem)

    @property
    def num_atoms(self) -> int:
        return len(self.by_atom)

    def of(self, operator: int) -> dict[int, int]:
        """The literal of each device that is allowed to have `operator`."""
        return self.by_atom[int(self.atom[operator])]

    @property
    def watched(self) -> list[int]:
        """The variables that `devices` reads."""
        return [literal for row in self.by_atom for literal in row.values()]

    def devices(self, values: Sequence[int]) -> IntArray:
        """(N,) devices, given the values of `watched`."""
        home, place = np.empty(self.num_atoms, dtype=np.int64), iter(values)
        for a, row in enumerate(self.by_atom):
            home[a] = next(d for d, value in [(d, next(place)) for d in row] if value)
        return home[self.atom]

    def use_in_order(self) -> None:
        """Break the symmetry of interchangeable devices by their first use.

        The later of two holds an atom only if the one before it holds an atom with an earlier first
        operator; `symmetry.canonical` renames the devices of any placement so.
        """
        for members in self.classes:
            for earlier, later in pairwise(members):
                before: list[int] = []
                for row in self.by_atom:
                    if later in row:
                        self._program.add_clause([~row[later], *before])
                    if earlier in row:
                        before.append(row[earlier])

    def literals(self, device: IntArray) -> list[int]:
        """The literals that are true in the placement `device` (N,)."""
        home = np.empty(self.num_atoms, dtype=np.int64)
        home[self.atom] = device
        return [row[int(home[a])] for a, row in enumerate(self.by_atom)]

    def hint(self, device: IntArray) -> dict[int, int]:
        """The values of all variables of `watched` in the placement `device` (N,)."""
        true = set(self.literals(device))
        return {literal: int(literal in true) for literal in self.watched}

    def _add_memory(self, problem: StepProblem) -> None:
        for d, capacity in enumerate(problem.capacity.tolist()):
            here = [a for a in range(self.num_atoms) if d in self.by_atom[a]]
            sizes, room = whole_bytes(self.state, capacity)
            if sum(int(sizes[a]) for a in here) > room:
                held = [(self.by_atom[a][d], int(sizes[a])) for a in here]
                self._program.add_linear(held, upper=room)


def whole_bytes(sizes: FloatArray, capacity: float) -> tuple[IntArray, int]:
    """`sizes` and `capacity` in whole units; no set of sizes that fits is made not to fit.

    Exact where all sizes together are few units of a common size, else rounded down.
    """
    total = float(sizes.sum())
    room = min(capacity, total)
    if total < 2.0**53 and (sizes == np.floor(sizes)).all():
        step = int(np.gcd.reduce(sizes.astype(np.int64), initial=0)) or 1
        if total < _RANGE * step:
            return (sizes / step).astype(np.int64), int(room // step)
    units = np.floor(sizes / total * _RANGE).astype(np.int64)
    return units, int(np.floor(room / total * _RANGE)) + 1


class OperatorVariables:
    """Start, end, position and device of every operator; devices run one operator at a time.

    The positions are those of one permutation of all operators: "u before v" is a literal for every
    pair that may compete for a device or a port, positions follow it, and it follows the paths of
    the graph. Operators that nothing orders may have equal positions.

    Args:
        program: takes the variables.
        problem: at least one operator.
        seconds: (N, D) units; no operator is where it takes more than `horizon`.
        horizon: units, the largest end.
        lower: units, the least value of `finish`.
    """

    def __init__(
        self,
        program: ConstraintProgram,
        problem: StepProblem,
        seconds: IntArray,
        horizon: int,
        lower: int,
    ) -> None:
        n = problem.graph.num_operators
        self.program = program
        self.problem = problem
        self.seconds = seconds
        self.horizon = horizon
        self.place = PlacementVariables(program, problem, seconds <= horizon)
        self.place.use_in_order()
        self.finish = program.integer(min(lower, horizon), horizon)
        self.start = [program.integer(0, horizon) for _ in range(n)]
        self.end = [program.integer(0, horizon) for _ in range(n)]
        above, self._below = _reachable(problem.graph.edges, n)
        self.position = [
            program.integer(above[v].bit_count(), n - 1 - self._below[v].bit_count())
            for v in range(n)
        ]
        self._before: dict[tuple[int, int], int] = {}
        for v in range(n):
            lengths = [(on, -int(seconds[v, d])) for d, on in self.place.of(v).items()]
            program.add_linear([(self.end[v], 1), (self.start[v], -1), *lengths], lower=0, upper=0)
            program.add_order(self.end[v], self.finish)
        for u, v in np.unique(problem.graph.edges[:, :2], axis=0).tolist():
            program.add_order(self.end[u], self.start[v])
            program.add_order(self.position[u], self.position[v], gap=1)
        for d in range(problem.topology.num_devices):
            self._add_device(d, [v for v in range(n) if d in self.place.of(v)])

    def before(self, u: int, v: int) -> int:
        """The literal "u before v", for u != v."""
        if u > v:  # no path of the graph leads to a smaller number
            return ~self.before(v, u)
        if self._below[u] >> v & 1:
            return self.program.true
        if (u, v) not in self._before:
            literal = self.program.boolean()
            self.program.add_order(self.position[u], self.position[v], gap=1, when=[literal])
            self.program.add_order(self.position[v], self.position[u], gap=1, when=[~literal])
            self._before[u, v] = literal
        return self._before[u, v]

    def order_literals(self, position: IntArray) -> list[int]:
        """All literals "u before v" or their negations, as they are true for `position` (N,)."""
        return [
            literal if position[u] < position[v] else ~literal
            for (u, v), literal in self._before.items()
        ]

    def together(self, u: int, v: int) -> bool:
        """Whether u and v are always on one device."""
        return bool(self.place.atom[u] == self.place.atom[v])

    def _add_device(self, d: int, here: list[int]) -> None:
        """Device d runs those of the operators `here` that are on it, one at a time."""
        program = self.program
        on = {v: self.place.of(v)[d] for v in here}
        program.add_no_overlap(
            [program.fixed_interval(self.start[v], int(self.seconds[v, d]), on[v]) for v in here]
        )
        load = [(on[v], -int(self.seconds[v, d])) for v in here]
        program.add_linear([(self.finish, 1), *load], lower=0)
        for u, v in combinations(here, 2):
            before = self.before(u, v)
            if before != program.true:
                program.add_order(self.end[u], self.start[v], when=[before, on[u], on[v]])
                program.add_order(self.end[v], self.start[u], when=[~before, on[u], on[v]])


def _reachable(edges: IntArray, count: int) -> tuple[list[int], list[int]]:
    """Bit sets of each operator's ancestors and of its descendants."""
    above, below = [0] * count, [0] * count
    for u, v in edges[np.argsort(edges[:, 1], kind="stable"), :2].tolist():
        above[v] |= above[u] | 1 << u
    for u, v in edges[np.argsort(-edges[:, 0], kind="stable"), :2].tolist():
        below[u] |= below[v] | 1 << v
    return above, below
