"""Simulated annealing of partitions, with restarts: the max-load and the latency objective."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Annotated, Protocol

import numpy as np
from annotated_types import Ge, Lt
from numpy.typing import NDArray

from agents.partition.atoms import Lines, PartitionAtoms
from agents.partition.bound import max_load_bound
from agents.partition.dp import ContiguousDP
from agents.partition.kernel import Calls, Loads, Proposal, anneal_latency, anneal_loads
from agents.solver import Budget, Result
from agents.step.incumbent import PartitionIncumbent
from agents.step.lower_bound import longest_paths
from agents.step.problems import Partition, PartitionPlanner
from envs.arrays import IntArray
from envs.bounds import Count, Positive, Share, bounded
from envs.errors import InputError
from envs.graphs.builder import GraphBuilder
from envs.graphs.op_graph import NONE
from envs.hardware.devices import Device, DeviceSpec
from envs.hardware.topology import Topology
from envs.partition.problem import LatencyProblem, MaxLoadProblem, PartitionProblem
from envs.step.plans import Plan
from envs.step.problem import StepProblem

_FORBIDDEN = 1e3  # seconds of an atom where it is not allowed, in seconds of all atoms
_BALANCE = 0.3  # weight of all work against the latency, times the temperature
_LEAST = 1e-15  # seconds: a scale, where nothing takes any time
_LARGEST_CLUSTER = 256  # atoms that move together
_ROUNDING = 1e-12  # relative; covers the rounding of sums
_NO_PAIRS = np.zeros((0, 2), dtype=np.int64)


class PartitionWalk(Protocol):
    """Walks over placements of atoms by random moves and keeps the best that fits."""

    atoms: PartitionAtoms
    arcs: IntArray  # (P, 2) operators: a start is a line along these
    best: NDArray[np.uint32]  # (A,)
    chunk: int  # moves that take a few milliseconds
    bound_takes_time: bool  # whether `bound` gains from seconds

    @property
    def value(self) -> float:
        """Seconds of `best`; inf: nothing that fits yet."""

    def stand(self, device: IntArray) -> None:
        """Go on from placement `device` (A,)."""

    def keep(self, device: IntArray, seconds: float) -> None:
        """Take `device` (A,), whose objective is `seconds`, for the best so far."""

    def run(self, temperature: float, steps: int) -> None:
        """Propose `steps` moves; `temperature` is a relative change of the objective."""

    def bound(self, seconds: float) -> float:
        """A lower bound on the objective, worked out within `seconds`; 0: what needs no time."""


class _Walk:
    """What the walks share: state, scratch, and the units of the cost."""

    def __init__(self, problem: PartitionProblem, precedence: IntArray, seed: int) -> None:
        self.atoms = PartitionAtoms.build(problem, precedence)
        a, d = self.atoms.seconds.shape
        fastest = np.where(self.atoms.allowed, self.atoms.seconds, np.inf).min(axis=1)
        self._work = max(float(fastest[np.isfinite(fastest)].sum()), _LEAST)
        room = np.ascontiguousarray(problem.step.capacity, dtype=np.float64)
        self._traffic = self.atoms.traffic(room, _FORBIDDEN * self._work)
        self.best = np.zeros(a, dtype=np.uint32)
        self._least = np.array([np.inf])
        self._random = np.random.default_rng(seed)
        self._loads = Loads(
            device=np.zeros(a, dtype=np.uint32),
            readers=np.zeros((len(self.atoms.sender), d), dtype=np.int64),
            load=np.zeros(d),
            used=np.zeros(d),
            arcs=np.zeros((d, d), dtype=np.int64),
        )
        self._trial = Proposal(
            member=np.zeros(a + 1, dtype=np.uint32),
            goal=np.zeros(a + 1, dtype=np.uint32),
            origin=np.zeros(a + 1, dtype=np.uint32),
            mark=np.zeros(a, dtype=np.int64),
            ticket=np.zeros(1, dtype=np.int64),
        )
        self._charge = np.zeros(1)
        self._largest = max(2, min(a // 4, _LARGEST_CLUSTER))

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


class LoadWalk(_Walk):
    """The walk of a `MaxLoadProblem`, contiguous or not."""

    chunk = 4096
    bound_takes_time = True

    def __init__(self, problem: MaxLoadProblem, seed: int) -> None:
        super().__init__(problem, problem.precedence if problem.contiguous else _NO_PAIRS, seed)
        self.arcs = problem.precedence
        self._scale = self._work / len(self._traffic.room)

    def run(self, temperature: float, steps: int) -> None:
        """Propose `steps` moves; `temperature` is a relative change of the loads' norm."""
        anneal_loads(
            self._traffic, self._loads, self._trial, self._scale, self._charge, temperature, steps,
            self._largest, self._random, self.best, self._least,
        )  # fmt: skip

    def bound(self, seconds: float) -> float:
        """See `max_load_bound`."""
        return max_load_bound(self.atoms, self.value, seconds)


class LatencyWalk(_Walk):
    """The walk of a `LatencyProblem`."""

    chunk = 256
    bound_takes_time = False

    def __init__(self, problem: LatencyProblem, seed: int) -> None:
        super().__init__(problem, _NO_PAIRS, seed)
        step = problem.step
        self.arcs = step.graph.edges[:, :2]
        n, devices = step.op_seconds.shape
        on_host = step.op_seconds[:, problem.host] if problem.host != NONE else np.zeros(n)
        self._calls = Calls(
            atom=self.atoms.of.astype(np.uint32),
            host_seconds=np.where(np.isfinite(on_host), on_host, _FORBIDDEN * self._work),
            use_ptr=step.graph.use_ptr.astype(np.uint32),
            use=step.graph.use_op.astype(np.uint32),
            host=devices if problem.host == NONE else int(problem.host),
            block=np.zeros(n, dtype=np.uint32),
            following=np.zeros(n, dtype=np.int64),
            first=np.zeros(devices, dtype=np.int64),
            waiting=np.zeros(devices + n, dtype=np.int64),
            start=np.zeros(devices + n),
            stack=np.zeros(devices + n, dtype=np.uint32),
        )
        path = step.op_seconds.min(axis=1)
        head, tail = longest_paths(path, step.graph.use_ptr, step.graph.use_op)
        self._path = float((head + path + tail).max(initial=0.0)) * (1.0 - _ROUNDING)

    def run(self, temperature: float, steps: int) -> None:
        """Propose `steps` moves; `temperature` is relative to the best latency so far."""
        scale = self.value if 0.0 < self.value < np.inf else self._work
        anneal_latency(
            self._traffic, self._calls, self._loads, self._trial, _BALANCE * temperature, scale,
            self._charge, temperature, steps, self._largest, self._random, self.best, self._least,
        )  # fmt: skip

    def bound(self, seconds: float) -> float:
        """The longest path with every operator on its fastest device; needs no time.

        Valid, since an accelerator's call takes at least the seconds of its operators on a path.
        """
        return self._path


def walk_of(problem: PartitionProblem, seed: int) -> PartitionWalk:
    """The walk of `problem`, at a placement that need not be feasible.

    Raises:
        InputError: `problem` is neither a `MaxLoadProblem` nor a `LatencyProblem`.
    """
    match problem:
        case MaxLoadProblem():
            return LoadWalk(problem, seed)
        case LatencyProblem():
            return LatencyWalk(problem, seed)
    raise InputError(f"cannot search {type(problem).__name__}", field="problem")


@bounded
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
        first_moves: proposed moves of the first cycle.
        growth: of the length of cycles.
        hot: highest first temperature of a cycle, as a fraction of the objective.
        warm: lowest first temperature of a cycle from a new start, likewise.
        cold: last temperature of a cycle, likewise.
        starts: planners of contiguous max-load partitions.
        start_share: of the budget.
        bound_share: of the budget; both shares together are below 1.
        seed: of the generator.
    """

    solves = (Partition,)

    def __init__(
        self,
        *,
        first_moves: Count = 2000,
        growth: Annotated[float, Ge(1.0), Lt(np.inf)] = 1.5,
        hot: Positive = 0.3,
        warm: float = 0.02,
        cold: Positive = 0.0003,
        starts: Sequence[PartitionPlanner] = (ContiguousDP(),),
        start_share: Share = 0.2,
        bound_share: Share = 0.1,
        seed: int = 0,
    ) -> None:
        if not cold <= warm <= hot:
            raise InputError(f"not cold = {cold} <= warm = {warm} <= hot = {hot}", field="warm")
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

    def solve(self, problem: Partition, budget: Budget, start: Sequence[Plan] = ()) -> Result[Plan]:
        """As `agents.solver.Solver.solve`; `Budget.evaluations` counts proposed moves.

        Raises:
            InputError: `problem` is neither of a `MaxLoadProblem` nor of a `LatencyProblem`.
        """
        _compile()
        incumbent = PartitionIncumbent(problem.problem)
        walk = walk_of(problem.problem, self.seed)
        incumbent.impossible = walk.atoms.impossible(problem.step)
        if incumbent.impossible:
            return incumbent.result()
        began = incumbent.seconds
        incumbent.prove(walk.bound(0.0))
        proof_s = incumbent.seconds - began
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
        left = budget.seconds - incumbent.seconds
        if budget.evaluations is None and not incumbent.optimal and left > proof_s:
            incumbent.prove(walk.bound(left - proof_s))  # which begins with the first bound
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
        self.budget_s, self.limit = budget.seconds, budget.evaluations
        proving = self.limit is None and walk.bound_takes_time
        self.deadline = self.budget_s * (1.0 - proving * settings.bound_share)
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
        problem = Partition(MaxLoadProblem(self.incumbent.problem.step, contiguous=True))
        for planner in self.settings.starts:
            seconds = self.budget_s * self.settings.start_share / len(self.settings.starts)
            found = planner.solve(problem, Budget(seconds, self.limit)).solution
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
        if self.limit is not None:
            left = self.limit - self.done
        elif self.done:
            left = (self.deadline - self.incumbent.seconds) * self.done / self._walked
        return max(1, int(left)) if left < 1.5 * moves else moves

    def _settle(self) -> None:
        """Have the walk know the best feasible placement."""
        if self.incumbent.device is not None:
            best = self.walk.atoms.contract(self.incumbent.device)
            self.walk.keep(best, self.incumbent.step_time)


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
