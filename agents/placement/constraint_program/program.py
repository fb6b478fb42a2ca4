"""A constraint program put together piece by piece, for CP-SAT in a process of its own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

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

    @property
    def num_variables(self) -> int:
        """Variables so far."""
        return len(self._variables)

    @property
    def num_constraints(self) -> int:
        """Constraints so far."""
        return len(self._constraints)

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

    def add_clause(self, literals: Sequence[int], *, when: Sequence[int] = ()) -> None:
        """At least one of `literals`."""
        self._add(f"bool_or{{{_all('literals', literals)}}}", when)

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
