"""Max-load and latency of a partition as constraint programs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import combinations, pairwise

import numpy as np

from agents.constraint_program.program import (
    ConstraintProgram,
    PlacementVariables,
    TimeScale,
)
from agents.step.grouping import canonical, parcels, topological
from envs.arrays import IntArray
from envs.partition.problem import LatencyProblem, MaxLoadProblem, PartitionProblem
from envs.step.plans import Placement, Plan


class PartitionModel(ABC):
    """The least objective of the placements of `problem`, in units of `scale`.

    The load of a device, in units, is the sum of the seconds of its atoms and of the messages that
    it sends and receives, each rounded down where the scale is not exact. So is the optimum.

    Args:
        problem: at least one operator.
        scale: how times become integers.
        horizon: units, the largest objective of interest.
        lower: units, below which no objective is.
    """

    def __init__(
        self, problem: PartitionProblem, scale: TimeScale, horizon: int, lower: int
    ) -> None:
        self.problem = problem
        self.horizon = horizon
        self.program = ConstraintProgram()
        self.seconds = scale.within(problem.step.op_seconds, horizon)  # (N, D) units
        self.place = PlacementVariables(self.program, problem.step, self.seconds <= horizon)
        self.objective = self.program.integer(min(lower, horizon), horizon)
        self.program.minimize(self.objective)
        self.loads = self._loads(scale)  # by device: literals and the units they add
        self._build()

    @abstractmethod
    def _build(self) -> None:
        """Constrain `objective` from below by the loads."""

    @abstractmethod
    def _renamed(self, device: IntArray) -> IntArray:
        """`device` (N,) with interchangeable devices renamed as the program wants them."""

    @property
    def watched(self) -> list[int]:
        """The variables that `plan` reads."""
        return self.place.watched

    def plan(self, values: Sequence[int]) -> Plan:
        """The placement of a solution in the graph's order, given the values of `watched`."""
        device = self.place.devices(values)
        return Plan(Placement(device), np.arange(len(device)))

    def set_hint(self, plan: Plan) -> None:
        """Start the search from the feasible placement of `plan`."""
        self.program.set_hint(self.place.hint(self._renamed(plan.placement.device)))

    def forbid(self, plan: Plan) -> None:
        """Rule out the placement of `plan`."""
        literals = self.place.literals(plan.placement.device)
        self.program.add_clause([~literal for literal in literals])

    def _loads(self, scale: TimeScale) -> list[list[tuple[int, int]]]:
        atoms, atom = self.place.by_atom, self.place.atom
        terms: list[list[tuple[int, int]]] = []
        for d in range(self.problem.step.topology.num_devices):
            work = np.bincount(atom, weights=self.seconds[:, d])
            work = np.minimum(work, self.horizon + 1).astype(np.int64)  # too long is too long
            terms.append([(on[d], int(work[a])) for a, on in enumerate(atoms) if d in on])
        for (source, targets), seconds in parcels(self.problem.traffic, atom).items():
            for d, length in enumerate(scale.within(seconds, self.horizon).tolist()):
                if length:
                    terms[d] += [(lit, length) for lit in self._passes(source, targets, d)]
        return terms

    def _passes(self, source: int, targets: tuple[int, ...], d: int) -> list[int]:
        """The literals "d sends" and "d receives" a bundle, each left out where impossible."""
        program, atoms = self.program, self.place.by_atom
        home = atoms[source].get(d)
        there = [atoms[a][d] for a in targets if d in atoms[a]]
        found = []
        if home is not None:
            leaves = program.boolean()
            found.append(leaves)
            for a in targets:
                stays = [atoms[a][d]] if d in atoms[a] else []
                program.add_clause([~home, *stays, leaves])
        if there:
            enters = program.boolean()
            found.append(enters)
            for target in there:
                program.add_clause([~target, enters, *([] if home is None else [home])])
        return found


class MaxLoadModel(PartitionModel):
    """Every device's load is at most the objective; see `MaxLoadProblem`.

    A contiguous placement gives every device a place in a line: along `MaxLoadProblem.precedence`
    places never fall. Interchangeable devices stand in the line in the order of their numbers;
    without a line, they are used in that order.
    """

    problem: MaxLoadProblem

    def _build(self) -> None:
        for d in range(self.problem.step.topology.num_devices):
            load = [(literal, -units) for literal, units in self.loads[d]]
            self.program.add_linear([(self.objective, 1), *load], lower=0)
        if not self.problem.contiguous:
            self.place.use_in_order()
            return
        devices = list(range(self.problem.step.topology.num_devices))
        rank = line(self.program, self.place, devices)
        place = [self.program.integer(0, len(devices) - 1) for _ in self.place.by_atom]
        for a, on in enumerate(self.place.by_atom):
            for d, literal in on.items():
                self.program.add_linear(
                    [(place[a], 1), (rank[d], -1)], lower=0, upper=0, when=[literal]
                )
        arcs = self.place.atom[self.problem.precedence]
        for a, b in np.unique(arcs[arcs[:, 0] != arcs[:, 1]], axis=0).tolist():
            self.program.add_order(place[a], place[b])

    def _renamed(self, device: IntArray) -> IntArray:
        if not self.problem.contiguous:
            return canonical(device, self.place.classes)
        return in_line(device, self.problem.precedence, self.place.classes)


class LatencyModel(PartitionModel):
    """When the last operator ends, each accelerator being called once; see `LatencyProblem`.

    The calls stand in a line and so do the operators between them: the stage of an operator is
    2 r + 1 on the r-th accelerator of the line and even on the host, and it never falls along the
    graph. This says that each accelerator is called once, and orders interchangeable ones.
    """

    problem: LatencyProblem

    def _build(self) -> None:
        program, graph, host = self.program, self.problem.step.graph, self.problem.host
        n = graph.num_operators
        accelerators = [d for d in range(self.problem.step.topology.num_devices) if d != host]
        rank = line(program, self.place, accelerators)
        begin = {d: program.integer(0, self.horizon) for d in accelerators}
        end = {d: program.integer(0, self.horizon) for d in accelerators}
        for d in accelerators:
            load = [(literal, -units) for literal, units in self.loads[d]]
            program.add_linear([(end[d], 1), (begin[d], -1), *load], lower=0, upper=0)
            program.add_order(end[d], self.objective)
        available = [program.integer(0, self.horizon) for _ in range(n)]
        stage = [program.integer(0, 2 * len(accelerators)) for _ in range(n)]
        for v in range(n):
            program.add_order(available[v], self.objective)
            for d, on in self.place.of(v).items():
                if d == host:
                    between = program.integer(0, len(accelerators))
                    program.add_linear([(stage[v], 1), (between, -2)], lower=0, upper=0, when=[on])
                    program.add_linear(
                        [(available[v], 1)], lower=int(self.seconds[v, d]), when=[on]
                    )
                else:
                    program.add_linear([(stage[v], 1), (rank[d], -2)], lower=1, upper=1, when=[on])
                    program.add_linear(
                        [(available[v], 1), (end[d], -1)], lower=0, upper=0, when=[on]
                    )
        for u, v in np.unique(graph.edges[:, :2], axis=0).tolist():
            program.add_order(stage[u], stage[v])
            program.add_order(available[u], available[v])
            for d, on in self.place.of(v).items():
                if d == host:
                    gap = int(self.seconds[v, d])
                    program.add_order(available[u], available[v], gap=gap, when=[on])
                elif self.place.atom[u] != self.place.atom[v]:
                    same = [~self.place.of(u)[d]] if d in self.place.of(u) else []
                    program.add_order(available[u], begin[d], when=[on, *same])

    def _renamed(self, device: IntArray) -> IntArray:
        edges = self.problem.step.graph.edges[:, :2]
        count = self.problem.step.topology.num_devices
        block = np.where(device == self.problem.host, count + np.arange(len(device)), device)
        return in_line(device, edges, self.place.classes, block)


def line(
    program: ConstraintProgram, place: PlacementVariables, devices: list[int]
) -> dict[int, int]:
    """The variable of each of `devices`' rank in a line, 0 first.

    Interchangeable devices stand in it in the order of their numbers, those in use first.
    """
    top = len(devices) - 1
    rank = {d: program.integer(0, top) for d in devices}
    classes = [[d for d in members if d in rank] for members in place.classes]
    sorted_pairs = set()
    for members in classes:
        for earlier, later in pairwise(members):
            sorted_pairs.add((earlier, later))
            program.add_order(rank[earlier], rank[later], gap=1)
            used = [
                program.either([on[d] for on in place.by_atom if d in on] or [~program.true])
                for d in (earlier, later)
            ]
            program.add_clause([~used[1], used[0]])
    for d, e in combinations(devices, 2):
        if (d, e) not in sorted_pairs:
            first = program.boolean()
            program.add_order(rank[d], rank[e], gap=1, when=[first])
            program.add_order(rank[e], rank[d], gap=1, when=[~first])
    return rank


def in_line(
    device: IntArray,
    arcs: IntArray,
    classes: list[list[int]],
    block: IntArray | None = None,
) -> IntArray:
    """`device` (N,) with the devices of a class renamed as they stand in a line along `arcs`.

    `block` (N,) is what must stand in the line as one, the devices by default.
    """
    block = device if block is None else block
    arcs, used = block[arcs], set(device.tolist())
    line = topological(arcs[arcs[:, 0] != arcs[:, 1]], np.arange(int(block.max()) + 1))
    return canonical(device, classes, [d for d in line.tolist() if d in used])


MODELS: dict[type, type[PartitionModel]] = {
    MaxLoadProblem: MaxLoadModel,
    LatencyProblem: LatencyModel,
}
