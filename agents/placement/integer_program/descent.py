"""Improve a placement of groups by a MILP over moves, each priced by the simulator."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from agents.linear_program import LinearProgram, best_values
from agents.step.grouping import GroupedProblem, device_classes
from envs.arrays import BoolArray, FloatArray, IntArray
from envs.compilation import compiled, compiled_inner
from envs.step.price import Pricer
from envs.step.problem import StepProblem
from envs.step.step import Simulator

HashArray = NDArray[np.uint64]

LEFT, RIGHT, ANYWHERE, EXCHANGE, SHIFT, RENAME = 0.25, 0.5, 0.83, 0.9, 0.92, 0.93  # shares, added
_KNOWN = 1 << 16  # slots for hashes of placements; half of them are used


class Moves:
    """Draws placements one move away from a placement of groups, none of them twice.

    A move is, with the shares above: a run of consecutive groups goes where its left neighbour is,
    its right one, or anywhere; two devices change places within a run; every border between
    devices shifts by as many groups, as where layers repeat; two devices change places everywhere;
    or two groups do. Runs are short more often than long, a third of all groups at most.

    Placements that differ in the names of interchangeable devices alone count as one. What was
    drawn before is not drawn again, until `forget`.

    Args:
        problem: says which devices are interchangeable.
        random: draws the moves.
    """

    def __init__(self, problem: StepProblem, random: np.random.Generator) -> None:
        self.random = random
        self._class = np.zeros(problem.topology.num_devices, dtype=np.int64)
        for number, members in enumerate(device_classes(problem)):
            self._class[members] = number
        self._known: HashArray = np.zeros(_KNOWN, dtype=np.uint64)

    def forget(self) -> None:
        """Everything may be drawn again."""
        self._known[:] = 0

    def draw(self, device: IntArray, allowed: BoolArray, count: int) -> IntArray:
        """(B, G) at most `count` placements, each one move from `device` (G,); `allowed` (G, D)."""
        moved = np.empty((count, len(device)), dtype=np.int64)
        found = draw_moves(device, allowed, self._class, self._known, self.random, moved)
        return moved[:found]


@compiled
def draw_moves(
    device: IntArray,  # (G,)
    allowed: BoolArray,  # (G, D)
    alike: IntArray,  # (D,) class of interchangeable devices
    known: HashArray,  # (a power of two,) in and out: hashes of placements drawn, 0: none
    random: np.random.Generator,
    moved: IntArray,  # (B, G) out
) -> int:
    """How many of B draws are new, allowed and lead elsewhere; they stand first in `moved`."""
    groups, found = len(device), 0
    name = np.empty(len(alike), dtype=np.int64)
    used = np.empty(len(alike), dtype=np.int64)
    remember(device, alike, known, name, used)
    for _ in range(len(moved)):
        row = moved[found]
        row[:] = device
        make_move(device, row, len(alike), random)
        good = True
        for g in range(groups):
            good = good and allowed[g, row[g]]
        if good and remember(row, alike, known, name, used):
            found += 1
    return found


@compiled
def make_move(
    device: IntArray,  # (G,)
    row: IntArray,  # (G,) in: as `device`; out: after the move
    devices: int,
    random: np.random.Generator,
) -> None:
    """Draw one move."""
    groups = len(device)
    length = 1 + int(random.random() ** 2 * max(groups / 3.0, 1.0))
    drawn = int(random.integers(0, groups)) - length // 2
    end = min(max(drawn + length, 1), groups)
    first = min(max(drawn, 0), groups - 1)
    kind, other = random.random(), int(random.integers(0, groups))
    target = int(random.integers(0, devices))
    if kind < ANYWHERE:
        if kind < LEFT:
            target = int(device[max(first - 1, 0)])
        elif kind < RIGHT:
            target = int(device[min(end, groups - 1)])
        row[first:end] = target
    elif kind < EXCHANGE or SHIFT <= kind < RENAME:
        here, there = int(device[first]), device[other]
        if kind >= EXCHANGE:
            first, end, here = 0, groups, target
        for g in range(first, end):
            if device[g] == here:
                row[g] = there
            elif device[g] == there:
                row[g] = here
    elif kind < SHIFT:
        by = 1 + length // 4
        by = by if target % 2 == 0 else -by
        for g in range(groups):
            row[g] = device[min(max(g + by, 0), groups - 1)]
    else:
        row[first], row[other] = device[other], device[first]


@compiled_inner
def remember(
    device: IntArray,  # (G,)
    alike: IntArray,  # (D,)
    known: HashArray,  # (a power of two,)
    name: IntArray,  # (D,) scratch
    used: IntArray,  # (D,) scratch
) -> bool:
    """Whether the placement is not in `known`, with interchangeable devices by their first use.

    It is then put there; where more than half of the slots are used, all others are forgotten.
    """
    name[:] = -1
    used[:] = 0
    value = np.uint64(0xCBF29CE484222325)
    for d in device:
        if name[d] < 0:
            name[d] = used[alike[d]] * len(alike) + alike[d]
            used[alike[d]] += 1
        value = (value ^ np.uint64(name[d])) * np.uint64(0x9E3779B97F4A7C15)
        value ^= value >> np.uint64(29)
    if value == np.uint64(0):
        value = np.uint64(1)
    mask = np.uint64(len(known) - 1)
    slot = value & mask
    for _ in range(len(known) // 2):
        if known[slot] == value:
            return False
        if known[slot] == np.uint64(0):
            known[slot] = value
            return True
        slot = (slot + np.uint64(1)) & mask
    known[:] = 0
    known[value & mask] = value
    return True


_BATCH, _LEAST_BATCH = 256, 32  # moves drawn together, the fewer the more pieces there are ...
_PIECES = 100_000  # ... so that they have about so many pieces together
_TRIES = 4000  # moves in a row that bring nothing, after which a placement counts as best
_TRIES_PER_CHOICE = 40  # ... or so many for every group and device, if that is less
_COLUMNS = 64  # moves in one MILP at most, the best
_MILP_SECONDS = 0.2
_LEAST_GAIN = 1e-7  # relative to the cost
_CHARGE = 1e3  # step times, if as much overflows as the devices hold


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
            self.pricer.work.capacity[:] = room

    def settle(self, device: IntArray) -> bool:
        """Price from now on in the order that suits `device` (K,); whether it is another one."""
        before, self._rule = self._rule, self.pricer.price(device).rule
        return self._rule != before

    def __call__(self, devices: IntArray) -> tuple[FloatArray, FloatArray]:
        """(B,) seconds of placements `devices` (B, K), and (B,) bytes that overflow."""
        return self.pricer.prices(devices, self._rule)


class SimulatedPrices:
    """Seconds of a simulator, and the state that does not fit `room` (D,) bytes."""

    def __init__(self, simulator: Simulator, room: FloatArray) -> None:
        self.simulator = simulator
        self.room = room
        self._state = simulator.problem.graph.state_bytes

    def settle(self, device: IntArray) -> bool:
        """As `OrderedPrices.settle`; the simulator's rule gives each placement its own order."""
        return False

    def __call__(self, devices: IntArray) -> tuple[FloatArray, FloatArray]:
        """As `OrderedPrices`."""
        over = np.zeros(len(devices))
        for d, room in enumerate(self.room):
            over += np.maximum((devices == d) @ self._state - room, 0.0)
        return self.simulator.step_times(devices), over


Prices = OrderedPrices | SimulatedPrices  # what placements of the pieces cost


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
        values = best_values(solver)
        if values is None:
            return None
        taken = values[chosen] > 0.5
        together = device.copy()
        for move in np.flatnonzero(taken):
            together[changes[move]] = moved[move, changes[move]]
        return together
