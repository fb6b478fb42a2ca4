"""Who is on which device, in a constraint program."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from agents.placement.constraint_program.program import ConstraintProgram
from agents.placement.grouping import atoms
from agents.placement.symmetry import device_classes
from envs.step.problem import StepProblem

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

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
        self._on: list[dict[int, int]] = [
            {d: program.boolean() for d in range(devices) if allowed[a, d]} for a in range(count)
        ]
        for literals in self._on:
            program.add_exactly_one(list(literals.values()))
        self.classes = device_classes(problem)
        self._add_memory(problem)

    @property
    def num_atoms(self) -> int:
        """A."""
        return len(self._on)

    def of(self, operator: int) -> dict[int, int]:
        """The literal of each device that is allowed to have `operator`."""
        return self._on[int(self.atom[operator])]

    @property
    def by_atom(self) -> list[dict[int, int]]:
        """(A,) for each atom, the literal of each device that is allowed to have it."""
        return self._on

    @property
    def watched(self) -> list[int]:
        """The variables that `devices` reads."""
        return [literal for row in self._on for literal in row.values()]

    def devices(self, values: Sequence[int]) -> IntArray:
        """(N,) devices, given the values of `watched`."""
        home, place = np.empty(self.num_atoms, dtype=np.int64), iter(values)
        for a, row in enumerate(self._on):
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
                for row in self._on:
                    if later in row:
                        self._program.add_clause([~row[later], *before])
                    if earlier in row:
                        before.append(row[earlier])

    def literals(self, device: IntArray) -> list[int]:
        """The literals that are true in the placement `device` (N,)."""
        home = np.empty(self.num_atoms, dtype=np.int64)
        home[self.atom] = device
        return [row[int(home[a])] for a, row in enumerate(self._on)]

    def hint(self, device: IntArray) -> dict[int, int]:
        """The values of all variables of `watched` in the placement `device` (N,)."""
        true = set(self.literals(device))
        return {literal: int(literal in true) for literal in self.watched}

    def _add_memory(self, problem: StepProblem) -> None:
        for d, capacity in enumerate(problem.capacity.tolist()):
            here = [a for a in range(self.num_atoms) if d in self._on[a]]
            sizes, room = whole_bytes(self.state, capacity)
            if sum(int(sizes[a]) for a in here) > room:
                held = [(self._on[a][d], int(sizes[a])) for a in here]
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
