"""Simulated annealing of partitions, with restarts: the max-load and the latency objective."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Annotated, ClassVar

import numpy as np
from annotated_types import Ge, Lt

from agents.partition.atoms import Lines, PartitionAtoms, max_load_bound
from agents.partition.dp import ContiguousDP
from agents.partition.kernel import Calls, Loads, Proposal, anneal
from agents.solver import Budget, Result
from agents.step.incumbent import PartitionIncumbent
from agents.step.lower_bound import longest_paths, why_no_plan
from agents.step.problems import Partition, PartitionPlanner
from envs.arrays import IntArray
from envs.bounds import Count, Positive, bounded
from envs.errors import InputError
from envs.graphs.op_graph import NONE
from envs.partition.problem import LatencyProblem, MaxLoadProblem, PartitionProblem
from envs.placement.generator import toy_pipeline
from envs.step.plans import Plan

_FORBIDDEN = 1e3  # seconds of an atom where it is not allowed, in seconds of all atoms
_BALANCE = 0.3  # weight of all work against the latency, times the temperature
_LEAST = 1e-15  # seconds: a scale, where nothing takes any time
_LARGEST_CLUSTER = 256  # atoms that move together
_ROUNDING = 1e-12  # relative; covers the rounding of sums
_NOWHERE = "no device can hold operators that a line of devices does not part"
_NO_PAIRS = np.zeros((0, 2), dtype=np.int64)


class PartitionWalk:
    """Walks over placements of atoms by random moves and keeps the best that fits.

    It starts at a placement that need not be feasible.

    Raises:
        InputError: `problem` is neither a `MaxLoadProblem` nor a `LatencyProblem`.
    """

    def __init__(self, problem: PartitionProblem, seed: int) -> None:
        self._timed, precedence = True, _NO_PAIRS
        match problem:
            case MaxLoadProblem():
                self._timed, self.arcs = False, problem.precedence
                precedence = problem.precedence if problem.contiguous else _NO_PAIRS
            case LatencyProblem():
                self.arcs = problem.step.graph.edges[:, :2]
            case _:
                raise InputError(f"cannot search {type(problem).__name__}", field="problem")
        step, self.atoms = problem.step, PartitionAtoms.build(problem, precedence)
        self.chunk = 256 if self._timed else 4096  # moves that take a few milliseconds
        a, d = self.atoms.seconds.shape
        fastest = np.where(self.atoms.allowed, self.atoms.seconds, np.inf).min(axis=1)
        self._work = max(float(fastest[np.isfinite(fastest)].sum()), _LEAST)
        room = np.ascontiguousarray(step.capacity, dtype=np.float64)
        self._traffic = self.atoms.traffic(room, _FORBIDDEN * self._work)
        self.best = np.zeros(a, np.uint32)
        self._least = np.array([np.inf])
        self._random = np.random.default_rng(seed)
        self._loads = Loads(
            device=np.zeros(a, np.uint32),
            readers=np.zeros((len(self.atoms.sender), d), dtype=np.int64),
            load=np.zeros(d),
            used=np.zeros(d),
            arcs=np.zeros((d, d), dtype=np.int64),
        )
        member, goal, origin = np.zeros((3, a + 1), dtype=np.uint32)
        mark, ticket = np.zeros(a, np.int64), np.zeros(1, np.int64)
        self._trial = Proposal(member, goal, origin, mark, ticket)
        self._charge = np.zeros(1)
        self._largest = max(2, min(a // 4, _LARGEST_CLUSTER))
        n, hosted = len(step.op_seconds), problem.host != NONE
        on_host = step.op_seconds[:, problem.host] if hosted else np.zeros(n)
        self._calls = Calls(
            atom=self.atoms.of.astype(np.uint32),
            host_seconds=np.where(np.isfinite(on_host), on_host, _FORBIDDEN * self._work),
            use_ptr=step.graph.use_ptr.astype(np.uint32),
            use=step.graph.use_op.astype(np.uint32),
            host=int(problem.host) if hosted else d,
            block=np.zeros(n, np.uint32),
            following=np.zeros(n, np.int64),
            first=np.zeros(d, np.int64),
            waiting=np.zeros(d + n, np.int64),
            start=np.zeros(d + n),
            stack=np.zeros(d + n, np.uint32),
        )

    @property
    def value(self) -> float:
        """Seconds of `best`; inf: nothing that fits yet."""
        return float(self._least[0])

    def stand(self, device: IntArray) -> None:
        """Go on from placement `device` (A,)."""
        self._loads.device[:] = device

    def keep(self, device: IntArray, seconds: float) -> None:
        """Take `device` (A,), whose objective is `seconds`, for the best so far."""
        self.best[:] = device
        self._least[0] = seconds

    def run(self, temperature: float, steps: int) -> None:
        """Propose `steps` moves.

        `temperature` is a relative change of the loads' norm, or relative to the best latency.
        """
        scale = self._work / len(self._traffic.room)
        if self._timed:
            scale = self.value if 0.0 < self.value < np.inf else self._work
        anneal(
            self._traffic, self._calls, self._loads, self._trial, self._timed,
            _BALANCE * temperature, scale, self._charge, temperature, steps, self._largest,
            self._random, self.best, self._least,
        )  # fmt: skip


def bound(problem: PartitionProblem, atoms: PartitionAtoms) -> float:
    """Seconds that no placement of `problem` is below.

    Of a latency the longest path with every operator on its fastest device: an accelerator's call
    takes at least the seconds of its operators on a path.
    """
    if isinstance(problem, MaxLoadProblem):
        return max_load_bound(atoms)
    graph, path = problem.step.graph, problem.step.op_seconds.min(axis=1)
    head, tail = longest_paths(path, graph.use_ptr, graph.use_op)
    return float((head + path + tail).max(initial=0.0)) * (1.0 - _ROUNDING)


@bounded
@dataclass(frozen=True, eq=False, kw_only=True)
class PartitionSearch:
    """Anneals partitions in cycles that grow longer, each from a new start or from the best.

    A move gives an atom the device of an atom it exchanges parcels with, or any other; does the
    same to a connected cluster of atoms of one device; lets two atoms, two clusters or two devices
    change places. Two devices' loads change with an atom's device, and they are kept up to date
    (`partition.kernel`); a latency is worked out anew for every move whose loads are acceptable.
    A worse placement is accepted with probability exp(-increase / temperature) (Kirkpatrick,
    Gelatt, Vecchi, "Optimization by simulated annealing", Science 220, 1983). The temperature falls
    geometrically over a cycle. Cycles come in pairs: one from a random line of the forward pass
    cut into one piece per device, from a first temperature between `warm` and `hot`; one from the
    best placement so far, from a first temperature between `cold` and `warm`. A pair is `growth`
    times as long as the one before; the last fills what is left of the budget.

    The first placements tried are those on a single device. After the first cycle, every planner
    of `starts` partitions the same step contiguously for max-load, within an equal part of
    `start_share` of the budget; what it finds is one more placement to go on from.

    One thread; uses the budget to the end unless the lower bound is met. With a deterministic
    limit (of proposed moves) `starts` get it, too, as their own limit, and the budget is only a
    ceiling.

    Args:
        first_moves: proposed moves of the first cycle.
        growth: of the length of cycles.
        hot: highest first temperature of a cycle, as a fraction of the objective.
        warm: lowest first temperature of a cycle from a new start, likewise.
        cold: last temperature of a cycle, likewise.
        starts: planners of contiguous max-load partitions.
        start_share: of the budget, below 1.
        seed: of the generator.
    """

    solves: ClassVar = (Partition,)

    first_moves: Count = 2000
    growth: Annotated[float, Ge(1.0), Lt(np.inf)] = 1.5
    hot: Positive = 0.3
    warm: float = 0.02
    cold: Positive = 0.0003
    starts: Sequence[PartitionPlanner] = (ContiguousDP(),)
    start_share: Annotated[float, Ge(0.0), Lt(1.0)] = 0.2
    seed: int = 0

    def __post_init__(self) -> None:
        cold, warm, hot = self.cold, self.warm, self.hot
        if not cold <= warm <= hot:
            raise InputError(f"not cold = {cold} <= warm = {warm} <= hot = {hot}", field="warm")

    def solve(self, problem: Partition, budget: Budget, start: Sequence[Plan] = ()) -> Result[Plan]:
        """As `agents.solver.Solver.solve`; `Budget.evaluations` counts proposed moves.

        Raises:
            InputError: `problem` is neither of a `MaxLoadProblem` nor of a `LatencyProblem`.
        """
        _compile()
        incumbent = PartitionIncumbent(problem.problem)
        walk = PartitionWalk(problem.problem, self.seed)
        if not walk.atoms.allowed.any(axis=1).all():
            incumbent.impossible = why_no_plan(problem.step) or _NOWHERE
            return incumbent.result()
        incumbent.prove(bound(problem.problem, walk.atoms))
        search = _Search(self, incumbent, walk, budget)
        for plan in start:
            incumbent.offer(plan.placement.device)
        search.try_single_devices()
        search.cycle(fresh=True, moves=self.first_moves)
        search.take_starts()
        moves = float(self.first_moves)
        while not search.over:
            search.cycle(fresh=False, moves=int(moves))
            search.cycle(fresh=True, moves=int(moves))
            moves *= self.growth
        incumbent.evaluations = search.done
        return incumbent.result()


class _Search:
    """One run: the walk, the best so far, and what is left of budget and limit."""

    def __init__(
        self,
        settings: PartitionSearch,
        incumbent: PartitionIncumbent,
        walk: PartitionWalk,
        budget: Budget,
    ) -> None:
        self.settings = settings
        self.incumbent = incumbent
        self.walk = walk
        self.budget = budget
        self.done = 0  # proposed moves
        self._walked = 0.0  # seconds
        self._random = np.random.default_rng([settings.seed, 1])
        self._lines = Lines(walk.atoms, walk.arcs, incumbent.problem.step.capacity)

    @property
    def over(self) -> bool:
        """Whether budget or limit are used up, or the best is proved optimal."""
        return self.incumbent.optimal or self.budget.spent(self.incumbent.seconds, self.done)

    def try_single_devices(self) -> None:
        """Offer every device for the whole step."""
        operators, devices = self.incumbent.problem.step.op_seconds.shape
        for device in range(devices):
            self.incumbent.offer(np.full(operators, device, dtype=np.int64))
        self._settle()

    def take_starts(self) -> None:
        """Have every start planner partition the step, and go on from what it finds."""
        problem = Partition(MaxLoadProblem(self.incumbent.problem.step, contiguous=True))
        for planner in self.settings.starts:
            seconds = self.budget.seconds * self.settings.start_share / len(self.settings.starts)
            found = planner.solve(problem, Budget(seconds, self.budget.evaluations)).solution
            if found is not None:
                self.incumbent.offer(found.placement.device)
                self._settle()

    def cycle(self, fresh: bool, moves: int) -> None:
        """Anneal once over about `moves` proposed moves, from a new line or from the best."""
        settings, walk = self.settings, self.walk
        low, high = (settings.warm, settings.hot) if fresh else (settings.cold, settings.warm)
        first = low * (high / low) ** self._random.random()
        if fresh or self.incumbent.device is None:
            walk.stand(self._lines.draw(self._random))
        else:
            walk.stand(walk.atoms.contract(self.incumbent.device))
        length, at = self._length(moves), 0
        while at < length and not self.over:
            steps = min(walk.chunk, length - at)
            began = self.incumbent.seconds
            walk.run(first * (settings.cold / first) ** (at / length), steps)
            self._walked += self.incumbent.seconds - began
            self.done += steps
            at += steps
            if walk.value < self.incumbent.step_time:
                self.incumbent.offer(walk.atoms.expand(walk.best))
                self._settle()

    def _length(self, moves: int) -> int:
        """`moves`, or all that limit or budget leave where the next cycle would not fit."""
        left = np.inf
        if self.budget.evaluations is not None:
            left = self.budget.evaluations - self.done
        elif self.done:
            left = (self.budget.seconds - self.incumbent.seconds) * self.done / self._walked
        return max(1, int(left)) if left < 1.5 * moves else moves

    def _settle(self) -> None:
        """Have the walk know the best feasible placement."""
        if self.incumbent.device is not None:
            best = self.walk.atoms.contract(self.incumbent.device)
            self.walk.keep(best, self.incumbent.step_time)


@cache
def _compile() -> None:
    """Have the kernels compiled, once on a machine, before the clock starts."""
    step = toy_pipeline()
    for problem in (MaxLoadProblem(step, contiguous=True), LatencyProblem(step)):
        walk = PartitionWalk(problem, 0)
        walk.run(1.0, 1)
        bound(problem, walk.atoms)
