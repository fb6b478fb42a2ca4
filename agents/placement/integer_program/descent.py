"""Improve a placement of groups by a MILP over moves, each priced by the simulator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import highspy
import numpy as np

from agents.linear_program import LinearProgram
from agents.placement.integer_program.moves import Moves
from agents.step.grouping import GroupedProblem
from envs.arrays import FloatArray, IntArray
from envs.step.price import Pricer
from envs.step.problem import StepProblem
from envs.step.step import Simulator

_BATCH, _LEAST_BATCH = 256, 32  # moves drawn together, the fewer the more pieces there are ...
_PIECES = 100_000  # ... so that they have about so many pieces together
_TRIES = 4000  # moves in a row that bring nothing, after which a placement counts as best
_TRIES_PER_CHOICE = 40  # ... or so many for every group and device, if that is less
_COLUMNS = 64  # moves in one MILP at most, the best
_MILP_SECONDS = 0.2
_LEAST_GAIN = 1e-7  # relative to the cost
_CHARGE = 1e3  # step times, if as much overflows as the devices hold


class Prices(Protocol):
    """What placements of the pieces cost."""

    def settle(self, device: IntArray) -> bool:
        """Price from now on in the order that suits `device` (K,); whether it is another one."""

    def __call__(self, devices: IntArray) -> tuple[FloatArray, FloatArray]:
        """(B,) seconds of placements `devices` (B, K), and (B,) bytes that overflow."""


class OrderedPrices:
    """Seconds and overflow, activations included, in one of the orders that are allowed.

    Args:
        problem: of the pieces.
        room: (D,) bytes, instead of the capacities.
    """

    def __init__(self, problem: StepProblem, room: FloatArray | None = None) -> None:
        self.pricer = Pricer(problem)
        self._rule = self.pricer.rules[0]
        if room is not None:
            self.pricer.held = self.pricer.held._replace(capacity=room)

    def settle(self, device: IntArray) -> bool:
        """As `Prices.settle`."""
        before, self._rule = self._rule, self.pricer.price(device).rule
        return self._rule != before

    def __call__(self, devices: IntArray) -> tuple[FloatArray, FloatArray]:
        """As `Prices`."""
        return self.pricer.prices(devices, self._rule)


class SimulatedPrices:
    """Seconds of a simulator, and the state that does not fit `room` (D,) bytes."""

    def __init__(self, simulator: Simulator, room: FloatArray) -> None:
        self.simulator = simulator
        self.room = room
        self._state = simulator.problem.graph.state_bytes

    def settle(self, device: IntArray) -> bool:
        """As `Prices.settle`; the simulator's rule gives each placement its own order."""
        return False

    def __call__(self, devices: IntArray) -> tuple[FloatArray, FloatArray]:
        """As `Prices`."""
        over = np.zeros(len(devices))
        for d, room in enumerate(self.room):
            over += np.maximum((devices == d) @ self._state - room, 0.0)
        return self.simulator.step_times(devices), over


class MovePricing:
    """Descent over the placements of one grouping.

    Each of a batch of random moves (`Moves`) is priced by what it changes in the simulated step, in
    the order that suits the placement at hand, which is chosen anew where no move pays. The bytes
    that overflow are charged so dearly that they shrink first. The moves that pay are the columns
    of a set packing problem, solved by HiGHS:

        maximise sum of gains of chosen moves, such that every group is in at most one of them
        and the state on every device fits.

    Its solution is simulated; if the moves together gain less than the best alone, that one is
    taken. `descend` repeats this until thousands of moves in a row have not paid.

    Args:
        grouped: the groups.
        moves: draws the moves.
        prices: of placements of the pieces; None: in all orders that are allowed.
    """

    def __init__(self, grouped: GroupedProblem, moves: Moves, prices: Prices | None = None) -> None:
        self.grouped = grouped
        self.moves = moves
        self.prices: Prices = prices or OrderedPrices(grouped.problem)
        self.simulations = 0
        self._charge = 0.0  # seconds for every byte that overflows

    def costs(self, devices: IntArray) -> FloatArray:
        """(B,) seconds of the fused step of placements `devices` (B, G), overflow charged."""
        self.simulations += len(devices)
        seconds, overflow = self.prices(devices[:, self.grouped.fusion.piece_group])
        return seconds + self._charge * overflow

    def descend(self, device: IntArray, out_of_time: Callable[[], bool]) -> IntArray:
        """(G,) the best placement reached from `device` (G,)."""
        tries = min(_TRIES, _TRIES_PER_CHOICE * self.grouped.allowed.size)
        pieces = max(self.grouped.problem.graph.num_operators, 1)
        batch = max(min(_BATCH, _PIECES // pieces), _LEAST_BATCH)
        self.prices.settle(self.grouped.fusion.expand_pieces(device))
        while True:
            self.moves.forget()
            cost, idle = self._charged(device), 0
            while idle < tries and not out_of_time():
                moved = self.moves.draw(device, self.grouped.allowed, batch)
                idle += batch
                after = self.costs(moved)
                pays = np.flatnonzero(after < cost * (1.0 - _LEAST_GAIN))
                if len(pays):
                    pays = pays[np.argsort(after[pays], kind="stable")][:_COLUMNS]
                    device, cost = self._choose(device, cost, moved[pays], after[pays])
                    idle = 0
            if out_of_time() or not self.prices.settle(self.grouped.fusion.expand_pieces(device)):
                return device

    def _charged(self, device: IntArray) -> float:
        """The cost of `device` (G,), by which overflow is charged from now on."""
        seconds, overflow = self.prices(self.grouped.fusion.expand_pieces(device)[None])
        capacity = self.grouped.problem.capacity
        held = float(capacity[np.isfinite(capacity)].sum())
        self._charge = _CHARGE * float(seconds[0]) / max(held, 1.0)
        return float(seconds[0] + self._charge * overflow[0])

    def _choose(
        self, device: IntArray, cost: float, moved: IntArray, after: FloatArray
    ) -> tuple[IntArray, float]:
        """The placement after the best of the moves, or after several of them together."""
        if len(moved) > 1:
            together = self._pack(device, cost - after, moved)
            if together is not None:
                reached = float(self.costs(together[None])[0])
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
        state, capacity = self.grouped.state, self.grouped.problem.capacity
        for d in np.flatnonzero(np.isfinite(capacity)):
            load = float(state[device == d].sum())
            growth = ((moved == d) * state - (device == d) * state).sum(axis=1)
            unit = max(float(capacity[d]), 1.0)
            left = max(float(capacity[d]) - load, 0.0)
            program.add_row([(chosen, growth / unit)], upper=left / unit)
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
        return together
