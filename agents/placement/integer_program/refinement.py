"""Improve a placement by a MILP over moves of blocks of groups, each priced by the simulator."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import highspy
import numpy as np
from numpy.typing import NDArray

from agents.linear_program import LinearProgram
from agents.placement.integer_program.rounds import Formulation, Rounds
from agents.step.grouping import GroupedProblem, canonical, device_classes
from agents.step.incumbent import StepIncumbent
from envs.graphs.contraction import Fusion, contract, sum_rows
from envs.step.fusion import fuse, fused_problem
from envs.step.problem import StepProblem
from envs.step.ready import ReadySimulator
from envs.step.step import Simulator, StepSimulator

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

_BATCH = 256  # moves priced together
_TRIES = 4000  # moves in a row that bring nothing, after which a placement counts as best
_TRIES_PER_CHOICE = 40  # ... or so many for every group and device, if that is less
_COLUMNS = 64  # moves in one MILP at most, the best
_MILP_SECONDS = 0.2
_LEAST_GAIN = 1e-7  # relative to the step time


class MovePricing:
    """Descent over the placements of one grouping.

    A move gives a block of groups other devices: a run of consecutive groups that of a neighbour or
    any other, or two devices change places within it, or two groups do. Each of a batch of random
    moves is priced by what it changes in the simulated step (1F1B order). The moves that pay are
    the columns of a set packing problem, solved by HiGHS:

        maximise sum of gains of chosen moves, such that every group is in at most one of them
        and the state on every device fits.

    Its solution is simulated; if the moves together gain less than the best alone, that one is
    taken. `descend` repeats this until thousands of moves in a row have not paid.

    Args:
        grouped: the groups.
        room: (D,) bytes for state.
        random: draws the moves.
        simulator: plays the pieces; None: one of their problem.
    """

    def __init__(
        self,
        grouped: GroupedProblem,
        room: FloatArray,
        random: np.random.Generator,
        simulator: Simulator | None = None,
    ) -> None:
        self.grouped = grouped
        self.room = room
        self.random = random
        self.simulator: Simulator = simulator or StepSimulator(grouped.problem)
        self.simulations = 0

    def step_times(self, devices: IntArray) -> FloatArray:
        """(B,) seconds of the fused step of placements `devices` (B, G), in the 1F1B order."""
        self.simulations += len(devices)
        return self.simulator.step_times(devices[:, self.grouped.fusion.piece_group])

    def fits(self, devices: IntArray) -> BoolArray:
        """(B,) whether the state of placements `devices` (B, G) fits."""
        load = [
            np.where(devices == d, self.grouped.state, 0.0).sum(axis=1)
            for d in range(len(self.room))
        ]
        return np.asarray((np.stack(load, axis=1) <= self.room).all(axis=1))

    def descend(self, device: IntArray, out_of_time: Callable[[], bool]) -> IntArray:
        """(G,) the best placement reached from `device` (G,)."""
        seconds = float(self.step_times(device[None])[0])
        idle, tries = 0, min(_TRIES, _TRIES_PER_CHOICE * self.grouped.allowed.size)
        while idle < tries and not out_of_time():
            moved = draw_moves(device, self.grouped.allowed, _BATCH, self.random)
            moved = moved[self.fits(moved)]
            after = self.step_times(moved)
            pays = np.flatnonzero(after < seconds * (1.0 - _LEAST_GAIN))
            idle += _BATCH
            if len(pays):
                pays = pays[np.argsort(after[pays], kind="stable")][:_COLUMNS]
                device, seconds = self._choose(device, seconds, moved[pays], after[pays])
                idle = 0
        return device

    def _choose(
        self, device: IntArray, seconds: float, moved: IntArray, after: FloatArray
    ) -> tuple[IntArray, float]:
        """The placement after the best of the moves, or after several of them together."""
        if len(moved) > 1:
            together = self._pack(device, seconds - after, moved)
            if together is not None:
                reached = float(self.step_times(together[None])[0])
                if reached < after[0]:
                    return together, reached
        return moved[0], float(after[0])

    def _pack(self, device: IntArray, gain: FloatArray, moved: IntArray) -> IntArray | None:
        """(G,) placement after the moves of the set packing problem; None if it has no solution."""
        program = LinearProgram()
        chosen = program.add_columns(len(moved), upper=1.0, integer=True, cost=-gain / gain.max())
        changes = moved != device
        for group in np.flatnonzero(changes.sum(axis=0) > 1):
            program.add_row([(chosen[changes[:, group]], 1.0)], upper=1.0)
        state = self.grouped.state
        for d in np.flatnonzero(np.isfinite(self.room)):
            load = float(state[device == d].sum())
            growth = ((moved == d) * state - (device == d) * state).sum(axis=1)
            unit = max(float(self.room[d]), 1.0)
            program.add_row([(chosen, growth / unit)], upper=(self.room[d] - load) / unit)
        solver = program.solver(time_limit=_MILP_SECONDS)
        solver.run()
        if (
            solver.getInfo().primal_solution_status
            != highspy.SolutionStatus.kSolutionStatusFeasible
        ):
            return None
        taken = np.array(solver.getSolution().col_value, dtype=np.float64)[chosen] > 0.5
        together = device.copy()
        for move in np.flatnonzero(taken):
            together[changes[move]] = moved[move, changes[move]]
        return together if self.fits(together[None])[0] else None


def draw_moves(
    device: IntArray, allowed: BoolArray, count: int, random: np.random.Generator
) -> IntArray:
    """(B, G) at most `count` different placements, each one move from `device` (G,).

    `allowed` (G, D). Runs are short more often than long, a third of all groups at most.
    """
    groups, devices = allowed.shape
    length = 1 + (random.random(count) ** 2 * max(groups / 3.0, 1.0)).astype(np.int64)
    first = random.integers(groups, size=count) - length // 2
    end = np.clip(first + length, 1, groups)
    first = np.clip(first, 0, groups - 1)
    everyone = np.arange(groups)
    inside = (everyone >= first[:, None]) & (everyone < end[:, None])
    kind = random.random(count)
    left, right = device[np.maximum(first - 1, 0)], device[np.minimum(end, groups - 1)]
    target = np.where(kind < 0.25, left, random.integers(devices, size=count))
    target = np.where((kind >= 0.25) & (kind < 0.5), right, target)
    moved = np.where(inside, target[:, None], device)
    other = random.integers(groups, size=count)
    here, there = device[first][:, None], device[other][:, None]
    exchanged = np.where(device == here, there, np.where(device == there, here, device))
    moved = np.where((kind >= 0.85)[:, None], np.where(inside, exchanged, device), moved)
    swap = np.flatnonzero(kind >= 0.92)
    moved[swap] = device
    moved[swap, first[swap]] = device[other[swap]]
    moved[swap, other[swap]] = device[first[swap]]
    good = (moved != device).any(axis=1) & allowed[everyone, moved].all(axis=1)
    return np.unique(moved[good], axis=0)


_PROMISING = 1.03  # times the best step time: a placement that is worth a descent at all levels
_KICK_SECONDS = 0.5  # of one neighbourhood MILP
_KICK_DEVICES = 8  # the neighbourhood MILP is made for at most so many
_FREE = (3, 10)  # groups freed in one neighbourhood, from and up to
_KICK_LEVELS = 3  # levels, drawn at random, of the descent after a kick
_AT_RANDOM = 0.5  # share of kicks that are random moves
_RANDOM_MOVES = (2, 6)  # of such a kick, from and up to
_DRAWN = 32  # moves drawn for each of them


@dataclass
class _Placed:
    """A placement of all operators and its step time in the 1F1B order."""

    seconds: float
    device: IntArray  # (N,)


class Refinement:
    """Improves placements on groupings that respect them.

    `descend` takes a placement through several granularities. At each the graph is fused to so many
    groups, every group that the placement divides between devices is split there, and
    `MovePricing` improves the placement of the groups. What is far from a device border stays
    fused when the groups are few and is divided when they are many, so that a move means another
    block of operators at every level.

    `kick` leaves a placement in which no move pays, and descends again: by `Rounds` on the groups
    of one level, of which only some consecutive ones are free (fix and optimise), or by a few
    random moves, as in iterated local search.

    Args:
        incumbent: takes the plans.
        levels: granularities, in groups.
        kick_groups: granularity of the neighbourhood MILP.
        formulation: makes the models.
        seed: of the moves, the neighbourhoods and HiGHS.
    """

    def __init__(
        self,
        incumbent: StepIncumbent,
        *,
        levels: tuple[int, ...],
        kick_groups: int,
        formulation: Formulation,
        seed: int,
    ) -> None:
        self.incumbent = incumbent
        self.levels = levels
        self.kick_groups = kick_groups
        self.formulation = formulation
        self.seed = seed
        self.random = np.random.default_rng(seed)
        self._ready = ReadySimulator(incumbent.problem)
        self.room = incumbent.problem.capacity.copy()
        self.simulations = 0  # of fused graphs
        self._fusions: dict[int, Fusion] = {}
        self._groupings: dict[int, GroupedProblem] = {}  # the last of each level
        self._classes = device_classes(incumbent.problem)  # the models tell them apart by number
        self._fusing = 0.0  # seconds that a fusion has taken, at most
        self._around: tuple[bytes, Rounds] | None = None

    def descend(
        self, device: IntArray, end: float, levels: tuple[int, ...] | None = None
    ) -> IntArray:
        """(N,) the placement reached from `device` (N,) when the search is `end` seconds old.

        Through `levels`, by default all of them.
        All improvements are offered, also in the order in which a dynamic runtime would start the
        operators.
        """
        here = self._offer(device)
        grouped: GroupedProblem | None = None
        for level in self.levels if levels is None else levels:
            if not self._can_fuse(end):
                break
            grouped, before = self.around(here.device, level), grouped
            if before is not None and np.array_equal(before.fusion.group, grouped.fusion.group):
                continue
            moves = self.moves(grouped)
            start = _of_groups(grouped, here.device)
            group_device = moves.descend(start, lambda: self.incumbent.seconds >= end)
            self.simulations += moves.simulations
            there = self._offer(grouped.fusion.expand(group_device))
            if there.seconds < here.seconds:
                here = there
        self._offer_ready_order(here)
        return here.device

    def kick(self, end: float, node_limit: int) -> int:
        """Leave the best plan and descend; returns the branch-and-bound nodes taken, at least 1.

        By a neighbourhood MILP every other time, by a few random moves otherwise and where the
        devices are too many for the MILP. Without levels there are neighbourhood MILPs alone.
        """
        plan = self.incumbent.plan
        if plan is None:
            return 1
        device, nodes = plan.placement.device, 0
        left: IntArray | None
        if not self._can_fuse(end):
            return 1
        if self.levels and (self._many_devices or self.random.random() < _AT_RANDOM):
            left = self._leave_at_random(device)
        elif self._many_devices:
            return 1
        else:
            rounds = self._rounds_around(device)
            placed = _of_groups(rounds.grouped, device)
            domain = self._neighbourhood(rounds.grouped, canonical(placed, self._classes))
            limit = min(max(end - self.incumbent.seconds, 0.0), _KICK_SECONDS)
            nodes = rounds.solve(limit, node_limit, domain)
            left = min(rounds.found, key=lambda found: found[0], default=(0.0, None))[1]
        if left is not None and self.incumbent.seconds < end:
            drawn = self.random.permutation(len(self.levels))[:_KICK_LEVELS]
            self.descend(left, end, tuple(self.levels[i] for i in np.sort(drawn)))
        return max(nodes, 1)

    @property
    def _many_devices(self) -> bool:
        return self.incumbent.problem.topology.num_devices > _KICK_DEVICES

    def _leave_at_random(self, device: IntArray) -> IntArray:
        """(N,) placement a few random moves away from `device` (N,)."""
        level = self.levels[int(self.random.integers(len(self.levels)))]
        grouped = self.around(device, level)
        moves = self.moves(grouped)
        group_device = _of_groups(grouped, device)
        for _ in range(int(self.random.integers(*_RANDOM_MOVES))):
            moved = draw_moves(group_device, grouped.allowed, _DRAWN, self.random)
            moved = moved[moves.fits(moved)]
            if len(moved):
                group_device = moved[int(self.random.integers(len(moved)))]
        return grouped.fusion.expand(group_device)

    def around(self, device: IntArray, level: int) -> GroupedProblem:
        """The problem in about `level` groups, none of which `device` (N,) divides."""
        problem = self.incumbent.problem
        if level not in self._fusions:
            self._fusions[level] = fuse(problem, level)
        keys = self._fusions[level].group * problem.topology.num_devices + device
        group = np.unique(keys, return_inverse=True)[1].reshape(-1).astype(np.int64)
        known = self._groupings.get(level)
        if known is not None and np.array_equal(known.fusion.group, group):
            return known
        began = self.incumbent.seconds
        fusion = contract(problem.graph, group, weight_gradients=problem.defers)
        pieces = fused_problem(problem, fusion)
        seconds = sum_rows(pieces.op_seconds, fusion.piece_group, fusion.num_groups)
        state = sum_rows(problem.graph.state_bytes, fusion.group, fusion.num_groups)
        allowed = np.isfinite(seconds) & (state[:, None] <= problem.capacity)
        self._groupings[level] = GroupedProblem(fusion, pieces, seconds, state, allowed)
        self._fusing = max(self._fusing, self.incumbent.seconds - began)
        return self._groupings[level]

    def moves(self, grouped: GroupedProblem) -> MovePricing:
        """What improves placements of `grouped`."""
        return MovePricing(grouped, self.room, self.random)

    def ready_simulator(self, device: IntArray) -> Simulator:
        """Says when a dynamic runtime starts the operators of placement `device` (N,)."""
        return self._ready

    def _can_fuse(self, end: float) -> bool:
        """Whether there is time to fuse the graph once more."""
        return self.incumbent.seconds + self._fusing < end

    def _rounds_around(self, device: IntArray) -> Rounds:
        key = device.tobytes()
        if self._around is None or self._around[0] != key:
            grouped = self.around(device, self.kick_groups)
            count = grouped.problem.topology.num_devices
            every = np.arange(count)
            self._around = key, Rounds(self.incumbent, grouped, every, self.formulation, self.seed)
        return self._around[1]

    def _neighbourhood(self, grouped: GroupedProblem, device: IntArray) -> BoolArray:
        """(G, D) the devices of each group: all for a few consecutive ones, drawn at random."""
        groups, devices = grouped.allowed.shape
        domain = np.zeros((groups, devices), dtype=np.bool_)
        domain[np.arange(groups), device] = True
        free = int(self.random.integers(*_FREE))
        first = int(self.random.integers(max(groups - free, 0) + 1))
        domain[first : first + free] = True
        return domain

    def _offer(self, device: IntArray) -> _Placed:
        seconds = self.incumbent.simulator.step_time(device)
        excess = self.incumbent.offer(device)
        if excess.any():
            state = self.incumbent.problem.graph.state_bytes
            used = np.bincount(device, weights=state, minlength=len(self.room))
            lower = np.minimum(self.room, used) - excess
            if self.incumbent.plan is not None:
                best = self.incumbent.plan.placement.device
                lower = np.maximum(lower, np.bincount(best, state, minlength=len(self.room)))
            self.room = np.where(excess > 0.0, lower, self.room)
        return _Placed(seconds, device)

    def _offer_ready_order(self, placed: _Placed) -> None:
        if placed.seconds > _PROMISING * self.incumbent.step_time:
            return
        first = self.incumbent.simulator.order(placed.device)
        position = np.empty(len(first), dtype=np.int64)
        position[first] = np.arange(len(first))
        started = self.ready_simulator(placed.device).run(placed.device, first).op_start
        self.incumbent.offer(placed.device, np.lexsort((position, started)))


def _of_groups(grouped: GroupedProblem, device: IntArray) -> IntArray:
    """(G,) the device of each group's operators."""
    group_device = np.zeros(grouped.num_groups, dtype=np.int64)
    group_device[grouped.fusion.group] = device
    return group_device


def compile_kernels(problem: StepProblem) -> None:
    """Have the simulators compiled, once on a machine, before the clock starts."""
    nowhere = problem.op_seconds.argmin(axis=1)
    StepSimulator(problem).run(nowhere)
    StepSimulator(problem).step_time(nowhere)
    ReadySimulator(problem).run(nowhere)
