"""Improve a placement by a MILP over moves of blocks of groups, each priced by the simulator."""

from __future__ import annotations

from collections.abc import Callable

import highspy
import numpy as np
from numpy.typing import NDArray

from agents.linear_program import LinearProgram
from agents.placement.grouping import GroupedProblem
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
