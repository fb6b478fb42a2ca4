"""Simulated annealing of partitions, with restarts: the max-load and the latency objective."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache

import numpy as np

from agents.base import PartitionPlanner, PlannerResult
from agents.placement.partitioning.bound import max_load_bound
from agents.placement.partitioning.incumbent import PartitionIncumbent
from agents.placement.partitioning.lines import Lines
from agents.placement.partitioning.walks import PartitionWalk, walk_of
from envs.errors import InputError
from envs.graphs.builder import GraphBuilder
from envs.hardware.devices import Device, DeviceSpec
from envs.hardware.topology import Topology
from envs.partition.latency import LatencyProblem
from envs.partition.max_load import MaxLoadProblem
from envs.partition.problem import PartitionProblem
from envs.step.problem import StepProblem


class PartitionSearch:
    """Anneals partitions in cycles that grow longer, each from a new start or from the best.

    A move gives an atom the device of an atom it exchanges parcels with, or any other; does the
    same to a connected cluster of atoms of one device; lets two atoms, two clusters or two devices
    change places. Two devices' loads change with an atom's device, and they are kept up to date
    (`partitioning.kernel`); a latency is worked out anew for every move whose loads are acceptable.
    A worse placement is accepted with probability exp(-increase / temperature) (Kirkpatrick,
    Gelatt, Vecchi, "Optimization by simulated annealing", Science 220, 1983). The temperature falls
    geometrically over a cycle. Cycles come in pairs: one from a random line of the forward pass
    cut into one piece per device, from a first temperature between `warm` and `hot`; one from the
    best placement so far, from a first temperature between `cold` and `warm`. A pair is `growth`
    times as long as the one before; the last fills what is left of the budget.

    The first placements tried are those on a single device. After the first cycle, every planner
    of `starts` partitions the same step contiguously for max-load, within an equal part of
    `start_share` of the budget; what it finds is one more placement to go on from. `bound_share` of
    the budget is kept for the proof of the lower bound.

    One thread; uses the budget to the end unless the lower bound is met. With a deterministic
    limit (of proposed moves) `starts` get it, too, as their own limit, the bound is the one that
    needs no clock, and the budget is only a ceiling.

    Args:
        first_moves: proposed moves of the first cycle, at least 1.
        growth: of the length of cycles, at least 1.
        hot: highest first temperature of a cycle, as a fraction of the objective.
        warm: lowest first temperature of a cycle from a new start, likewise.
        cold: last temperature of a cycle, likewise.
        starts: planners of contiguous max-load partitions.
        start_share: of the budget, 0..1.
        bound_share: of the budget, 0..1; both shares together are below 1.
        seed: of the generator.

    Raises:
        InputError: a value is out of its range.
    """

    def __init__(
        self,
        *,
        first_moves: int,
        growth: float,
        hot: float,
        warm: float,
        cold: float,
        starts: Sequence[PartitionPlanner],
        start_share: float,
        bound_share: float,
        seed: int,
    ) -> None:
        if first_moves < 1:
            raise InputError(f"{first_moves} is below 1", field="first_moves")
        if not 1.0 <= growth < np.inf:
            raise InputError(f"{growth} is not a finite number of at least 1", field="growth")
        if not 0.0 < cold <= warm <= hot < np.inf:
            raise InputError(f"not 0 < cold = {cold} <= warm = {warm} <= hot = {hot}", field="warm")
        for field, share in (("start_share", start_share), ("bound_share", bound_share)):
            if not 0.0 <= share <= 1.0:
                raise InputError(f"{share} is not between 0 and 1", field=field)
        if start_share + bound_share >= 1.0:
            raise InputError(f"{start_share} leaves no time for the search", field="start_share")
        self.first_moves = first_moves
        self.growth = growth
        self.hot = hot
        self.warm = warm
        self.cold = cold
        self.starts = tuple(starts)
        self.start_share = start_share
        self.bound_share = bound_share
        self.seed = seed

    def partition(
        self, problem: PartitionProblem, budget_s: float, deterministic_limit: int | None = None
    ) -> PlannerResult:
        """As `PartitionPlanner.partition`; the deterministic limit counts proposed moves.

        Raises:
            InputError: `problem` is neither a `MaxLoadProblem` nor a `LatencyProblem`.
        """
        _compile()
        incumbent = PartitionIncumbent(problem)
        walk = walk_of(problem, self.seed)
        impossible = walk.atoms.impossible(problem.step)
        if impossible:
            return incumbent.result(impossible=impossible)
        began = incumbent.seconds
        incumbent.prove(walk.bound(0.0))
        proof_s = incumbent.seconds - began
        search = _Search(self, incumbent, walk, budget_s, deterministic_limit)
        search.try_single_devices()
        search.cycle(fresh=True, moves=self.first_moves)
        search.take_starts()
        moves = float(self.first_moves)
        while not search.over:
            search.cycle(fresh=False, moves=int(moves))
            search.cycle(fresh=True, moves=int(moves))
            moves *= self.growth
        left = budget_s - incumbent.seconds
        if deterministic_limit is None and not incumbent.optimal and left > proof_s:
            incumbent.prove(walk.bound(left - proof_s))  # which begins with the first bound
        return incumbent.result(evaluations=search.done)


class _Search:
    """One run: the walk, the best so far, and what is left of budget and limit."""

    def __init__(
        self,
        settings: PartitionSearch,
        incumbent: PartitionIncumbent,
        walk: PartitionWalk,
        budget_s: float,
        limit: int | None,
    ) -> None:
        self.settings = settings
        self.incumbent = incumbent
        self.walk = walk
        self.budget_s = budget_s
        proving = limit is None and walk.bound_takes_time
        self.deadline = budget_s * (1.0 - proving * settings.bound_share)
        self.limit = limit
        self.done = 0  # proposed moves
        self._walked = 0.0  # seconds
        self._random = np.random.default_rng([settings.seed, 1])
        self._lines = Lines(walk.atoms, walk.arcs, incumbent.problem.step.capacity)

    @property
    def over(self) -> bool:
        """Whether budget or limit are used up, or the best is proved optimal."""
        spent = self.limit is not None and self.done >= self.limit
        return spent or self.incumbent.seconds >= self.deadline or self.incumbent.optimal

    def try_single_devices(self) -> None:
        """Offer every device for the whole step."""
        operators, devices = self.incumbent.problem.step.op_seconds.shape
        for device in range(devices):
            self.incumbent.offer(np.full(operators, device, dtype=np.int64))
        self._settle()

    def take_starts(self) -> None:
        """Have every start planner partition the step, and go on from what it finds."""
        problem = MaxLoadProblem(self.incumbent.problem.step, contiguous=True)
        for planner in self.settings.starts:
            seconds = self.budget_s * self.settings.start_share / len(self.settings.starts)
            found = planner.partition(problem, seconds, self.limit).plan
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
            if walk.value < self.incumbent.objective:
                self.incumbent.offer(walk.atoms.expand(walk.best))
                self._settle()

    def _length(self, moves: int) -> int:
        """`moves`, or all that limit or budget leave where the next cycle would not fit."""
        left = np.inf
        if self.limit is not None:
            left = self.limit - self.done
        elif self.done:
            left = (self.deadline - self.incumbent.seconds) * self.done / self._walked
        return max(1, int(left)) if left < 1.5 * moves else moves

    def _settle(self) -> None:
        """Have the walk know the best feasible placement."""
        if self.incumbent.device is not None:
            best = self.walk.atoms.contract(self.incumbent.device)
            self.walk.keep(best, self.incumbent.objective)


@cache
def _compile() -> None:
    """Have the kernels compiled, once on a machine, before the clock starts."""
    builder = GraphBuilder("three operators")
    last = builder.add_operator("first")
    for name in ("second", "third"):
        tensor = builder.add_tensor(last, 1.0)
        last = builder.add_operator(name)
        builder.add_use(tensor, last)
    spec = DeviceSpec("any", {}, 1.0, np.inf, 0.0, 1.0, 1.0, "")
    apart = 1 - np.eye(2, dtype=np.int64)
    two = Topology(
        name="two devices",
        devices=(Device("this", spec, server=0), Device("that", spec, server=0)),
        link_class=apart,
        class_names=("self", "other"),
        class_latency=np.zeros(2),
        class_bandwidth=np.full(2, np.inf),
        send_port=apart - 1,
        receive_port=apart - 1,
        port_names=("port",),
    )
    graph = builder.build()
    step = StepProblem(graph, two, np.ones((3, 2)), np.array([[0.0, 1.0]] * 2), two.memory_bytes)
    for problem in (MaxLoadProblem(step, contiguous=True), LatencyProblem(step)):
        walk = walk_of(problem, 0)
        walk.run(1.0, 1)
        walk.bound(0.0)
    max_load_bound(walk.atoms, 4.0, 1.0)
