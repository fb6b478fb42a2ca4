"""Max-load and latency of a partition as constraint programs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import combinations, pairwise

import numpy as np

from agents.constraint_program.program import (
    ConstraintProgram,
    PlacementVariables,
    TimeScale,
)
from agents.constraint_program.solver import CpSettings, CpSolver, Outcome
from agents.step.grouping import canonical, parcels, topological
from agents.step.incumbent import PartitionIncumbent
from envs.arrays import IntArray
from envs.errors import InputError
from envs.partition.problem import LatencyProblem, MaxLoadProblem, PartitionProblem


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
        self.seconds = np.minimum(scale.units(problem.step.op_seconds), horizon + 1).astype(
            np.int64
        )  # (N, D) units
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

    def set_hint(self, device: IntArray) -> None:
        """Start the search from the feasible placement `device` (N,)."""
        self.program.set_hint(self.place.hint(self._renamed(device)))

    def forbid(self, device: IntArray) -> None:
        """Rule out the placement `device` (N,)."""
        self.program.add_clause([~literal for literal in self.place.literals(device)])

    def _loads(self, scale: TimeScale) -> list[list[tuple[int, int]]]:
        atoms, atom = self.place.by_atom, self.place.atom
        terms: list[list[tuple[int, int]]] = []
        for d in range(self.problem.step.topology.num_devices):
            work = np.bincount(atom, weights=self.seconds[:, d])
            work = np.minimum(work, self.horizon + 1).astype(np.int64)  # too long is too long
            terms.append([(on[d], int(work[a])) for a, on in enumerate(atoms) if d in on])
        for (source, targets), seconds in parcels(self.problem.traffic, atom).items():
            units = np.minimum(scale.units(seconds), self.horizon + 1).astype(np.int64).tolist()
            for d, length in enumerate(units):
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


_RESOLUTION = 2.0**30  # units in the horizon, at most; see `CpSolver.search`


_MODELS = {MaxLoadProblem: MaxLoadModel, LatencyProblem: LatencyModel}


class CpPartitionSearch:
    """CP-SAT on the model of a partition problem; every solution is evaluated and offered.

    A solution that violates something is ruled out, and the search begins again.

    Args:
        incumbent: takes what is found; a placement it has is where the search begins.
        settings: of CP-SAT.
        budget_s: seconds of the incumbent's clock.
        limit: CP-SAT's deterministic seconds; None: no limit.
    """

    def __init__(
        self,
        incumbent: PartitionIncumbent,
        settings: CpSettings,
        budget_s: float,
        limit: float | None,
    ) -> None:
        self._incumbent = incumbent
        self._problem = incumbent.problem
        self._settings = settings
        self._budget_s = budget_s
        self._left = limit
        model = _MODELS.get(type(incumbent.problem))
        if model is None:
            raise InputError("cp_sat does not solve this problem", field="problem")
        self._model = model
        self._forbidden: list[IntArray] = []
        self.impossible = ""  # why there is no placement, once that is proved

    def run(self) -> None:
        """Search until the optimum is proved, until the budget or the deterministic limit."""
        outcome = Outcome.AGAIN
        while outcome is Outcome.AGAIN and self._goes_on():
            with CpSolver() as solver:
                outcome = self._solve(solver)

    def _goes_on(self) -> bool:
        in_time = self._incumbent.seconds < self._budget_s
        return in_time and not self._incumbent.optimal and (self._left is None or self._left > 0.0)

    def _solve(self, solver: CpSolver) -> Outcome:
        incumbent = self._incumbent
        known = incumbent.device is not None
        longest = incumbent.step_time if known else _serial_seconds(self._problem)
        times = [self._problem.step.op_seconds, self._problem.traffic.seconds]
        scale = TimeScale.of(times, longest, _RESOLUTION)
        horizon = int(scale.units(np.array(longest))) + int(not known)
        model = self._model(
            self._problem, scale, horizon, int(incumbent.lower_bound / float(scale.unit))
        )
        for device in self._forbidden:
            model.forbid(device)
        if incumbent.device is not None:
            model.set_hint(incumbent.device)
        status, used = "", 1.0  # a search that is broken off counts one deterministic second
        for event in solver.search(
            model.program,
            model.place.watched,
            self._settings,
            seconds=self._budget_s - incumbent.seconds,
            deterministic_limit=self._left,
        ):
            if event.status:
                status, used = event.status, event.deterministic_time
            if event.values is not None:
                device = model.place.devices(event.values)
                incumbent.offer(device)
                if self._problem.violations(device):
                    self._forbidden.append(device)
                    status = "VIOLATED"
                    break
            if event.bound is not None:
                incumbent.prove(scale.bound(event.bound))
        if self._left is not None:
            self._left -= used
        if status == "VIOLATED":
            return Outcome.AGAIN
        if status == "INFEASIBLE" and known:
            incumbent.prove(scale.bound(horizon))
        elif status == "INFEASIBLE":
            self.impossible = "CP-SAT proved that no placement is feasible"
        return Outcome.DONE


def _serial_seconds(problem: PartitionProblem) -> float:
    """Seconds that no objective exceeds: all work and all traffic one after the other."""
    seconds = problem.step.op_seconds
    work = np.where(np.isfinite(seconds), seconds, 0.0).max(axis=1).sum()
    able = np.where(np.isfinite(problem.traffic.seconds), problem.traffic.seconds, 0.0)
    return float(work + 2.0 * able.sum())
