"""Improve placements level by level on groupings that respect them, and leave the best again."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import numpy as np

from agents.placement.integer_program.descent import (
    MovePricing,
    Moves,
    OrderedPrices,
    SimulatedPrices,
)
from agents.placement.integer_program.rounds import Formulation, Rounds
from agents.step.grouping import GroupedProblem, canonical, device_classes, fused_around
from agents.step.incumbent import StepIncumbent
from envs.arrays import BoolArray, IntArray
from envs.graphs.contraction import Fusion, contract
from envs.step.fusion import fuse
from envs.step.price import Pricer
from envs.step.problem import StepProblem
from envs.step.step import Simulator

_PROMISING = 1.03  # times the best step time: a placement that is worth a descent at all levels
_KICK_SECONDS = 0.5  # of one neighbourhood MILP
_KICK_DEVICES = 8  # the neighbourhood MILP is made for at most so many
_FREE = (3, 10)  # groups freed in one neighbourhood, from and up to
_KICK_LEVELS = 3  # levels, drawn at random, of the descent after a kick
_AT_RANDOM = 0.5  # share of kicks that are random moves
_RANDOM_MOVES = (2, 6)  # of such a kick, from and up to
_DRAWN = 32  # moves drawn for each of them


@dataclass(frozen=True)
class Placed:
    """A placement of all operators, its step time in the order that suits it, what overflows."""

    device: IntArray  # (N,)
    seconds: float
    overflow: float  # bytes
    order: IntArray | None  # (N,) None: that of the incumbent's simulator

    @property
    def rank(self) -> tuple[float, float]:
        """The less the better."""
        return self.overflow, self.seconds


class Descent:
    """Improves placements on groupings that respect them, until no move pays.

    `descend` takes a placement through several granularities. At each the graph is fused to so many
    groups, every group that the placement divides between devices is split there, and
    `MovePricing` improves the placement of the groups. What is far from a device border stays
    fused when the groups are few and is divided when they are many, so that a move means another
    block of operators at every level.

    Args:
        incumbent: takes the plans.
        levels: granularities, in groups.
        seed: of the moves.
    """

    def __init__(self, incumbent: StepIncumbent, *, levels: tuple[int, ...], seed: int) -> None:
        self.incumbent = incumbent
        self._pricer = Pricer(incumbent.problem)
        self.levels = levels
        self.random = np.random.default_rng(seed)
        self.drawn = Moves(incumbent.problem, self.random)
        self.simulations = 0  # of fused graphs
        self._fusions: dict[int, Fusion] = {}
        self._groupings: dict[int, GroupedProblem] = {}  # the last of each level
        self._fusing = 0.0  # seconds that a fusion has taken, at most
        self.nearest: Placed | None = None  # to a plan that fits

    def descend(
        self, device: IntArray, end: float, levels: tuple[int, ...] | None = None
    ) -> IntArray:
        """(N,) the placement reached from `device` (N,) when the search is `end` seconds old.

        Through `levels`, by default all of them. All improvements are offered.
        """
        here = self._offer(device)
        grouped: GroupedProblem | None = None
        for level in self.levels if levels is None else levels:
            if not self._can_fuse(end):
                break
            grouped, before = self.around(here.device, level), grouped
            if before is not None and np.array_equal(before.fusion.group, grouped.fusion.group):
                continue
            moves = self.pricing(grouped, here)
            start = grouped.of_groups(here.device)
            group_device = moves.descend(start, lambda: self.incumbent.seconds >= end)
            self.simulations += moves.simulations
            if not np.array_equal(group_device, start):
                there = self._offer(grouped.fusion.expand(group_device))
                here = min(here, there, key=lambda placed: placed.rank)
        self.offer_ready_order(here)
        return here.device

    def around(self, device: IntArray, level: int) -> GroupedProblem:
        """The problem in about `level` groups, none of which `device` (N,) divides."""
        problem = self.incumbent.problem
        if level not in self._fusions:
            self._fusions[level] = fuse(problem, level)
        group = fused_around(problem, self._fusions[level], device)
        known = self._groupings.get(level)
        if known is not None and np.array_equal(known.fusion.group, group):
            return known
        began = self.incumbent.seconds
        fusion = contract(problem.graph, group, weight_gradients=problem.defers)
        self._groupings[level] = GroupedProblem.fused(problem, fusion)
        self._fusing = max(self._fusing, self.incumbent.seconds - began)
        return self._groupings[level]

    def price(self, device: IntArray) -> Placed:
        """Placement `device` (N,) in the order that suits it; offered, if it is the best."""
        price = self._pricer.price(device)
        fits = price.excess == 0.0
        if price.seconds < self.incumbent.step_time and (fits or self.incumbent.may_move):
            self.incumbent.offer(device, price.order)
        return Placed(device, price.seconds, price.excess, price.order)

    def pricing(self, grouped: GroupedProblem, placed: Placed) -> MovePricing:
        """What improves placements of `grouped` near `placed`.

        Pieces hold their tensors longer than operators: where memory binds, the devices get as much
        more room as that takes for `placed`.
        """
        prices = OrderedPrices(grouped.problem)
        pieces = grouped.fusion.expand_pieces(grouped.of_groups(placed.device))
        price = prices.pricer.price(pieces)
        if placed.order is not None and (price.excess > 0.0 or placed.overflow > 0.0):
            coarse = prices.pricer.peaks(pieces, price.order)[1]
            fine = self._pricer.peaks(placed.device, placed.order)[1]
            prices = OrderedPrices(grouped.problem, grouped.problem.capacity + coarse - fine)
        return MovePricing(grouped, self.drawn, prices)

    def offer_ready_order(self, placed: Placed) -> None:
        """Offer `placed` in an order that `price` does not look at."""

    def _can_fuse(self, end: float) -> bool:
        """Whether there is time to fuse the graph once more."""
        return self.incumbent.seconds + self._fusing < end

    def _offer(self, device: IntArray) -> Placed:
        placed = self.price(device)
        if self.nearest is None or placed.rank < self.nearest.rank:
            self.nearest = placed
        return placed


class Refinement(Descent):
    """A `Descent` that can leave a placement in which no move pays.

    `kick` leaves it, and descends again: by `Rounds` on the groups of one level, of which only
    some consecutive ones are free (fix and optimise), or by a few random moves, as in iterated
    local search.

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
        super().__init__(incumbent, levels=levels, seed=seed)
        self.kick_groups = kick_groups
        self.formulation = formulation
        self.seed = seed
        self._classes = device_classes(incumbent.problem)  # the models tell them apart by number
        self._around: tuple[bytes, Rounds] | None = None

    def kick(self, end: float, node_limit: int) -> int:
        """Leave the best plan and descend; returns the branch-and-bound nodes taken, at least 1.

        By a neighbourhood MILP every other time, by a few random moves otherwise and where the
        devices are too many for the MILP. Without levels there are neighbourhood MILPs alone. While
        no plan fits, from the placement that comes nearest.
        """
        nodes, left, plan = 0, None, self.incumbent.plan
        here = self.nearest if plan is None else plan.placement
        if here is None or not self._can_fuse(end):
            return 1
        device, alone = here.device, plan is None or self._many_devices
        if self.levels and (alone or self.random.random() < _AT_RANDOM):
            left = self._leave_at_random(device)
        elif self._many_devices:
            return 1
        else:
            rounds = self._rounds_around(device)
            placed = rounds.grouped.of_groups(device)
            domain = self._neighbourhood(rounds.grouped, canonical(placed, self._classes))
            limit = min(max(end - self.incumbent.seconds, 0.0), _KICK_SECONDS)
            nodes = rounds.solve(limit, node_limit, domain)
            left = min(rounds.found, key=lambda found: found[:2], default=(0.0, 0.0, None))[2]
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
        group_device = grouped.of_groups(device)
        for _ in range(int(self.random.integers(*_RANDOM_MOVES))):
            self.drawn.forget()
            moved = self.drawn.draw(group_device, grouped.allowed, _DRAWN)
            if len(moved):
                group_device = moved[int(self.random.integers(len(moved)))]
        return grouped.fusion.expand(group_device)

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


class SimulatedRefinement(Refinement, ABC):
    """`Refinement` that has its prices from simulators of its own, and looks at state alone.

    Where activations overflow, the room for state on that device is lowered by the excess. A
    placement is also offered in the order in which a dynamic runtime would start the operators.
    """

    def __init__(self, incumbent: StepIncumbent, **settings: Any) -> None:
        super().__init__(incumbent, **settings)
        self.room = incumbent.problem.capacity.copy()

    @abstractmethod
    def simulator(self, grouped: GroupedProblem) -> Simulator:
        """Plays the pieces of `grouped`."""

    @abstractmethod
    def ready_simulator(self, device: IntArray) -> Simulator:
        """Says when a dynamic runtime starts the operators of placement `device` (N,)."""

    def price(self, device: IntArray) -> Placed:
        """As `Descent.price`; the placement is offered."""
        excess = self.incumbent.offer(device)
        if excess.any():
            state = self.incumbent.problem.graph.state_bytes
            used = np.bincount(device, weights=state, minlength=len(self.room))
            lower = np.minimum(self.room, used) - excess
            if self.incumbent.plan is not None:
                best = self.incumbent.plan.placement.device
                lower = np.maximum(lower, np.bincount(best, state, minlength=len(self.room)))
            self.room = np.where(excess > 0.0, lower, self.room)
        seconds = self.incumbent.simulator.step_time(device)
        return Placed(device, seconds, float(excess.sum()), None)

    def pricing(self, grouped: GroupedProblem, placed: Placed) -> MovePricing:
        """As `Descent.pricing`, by `simulator`."""
        prices = SimulatedPrices(self.simulator(grouped), self.room)
        return MovePricing(grouped, self.drawn, prices)

    def offer_ready_order(self, placed: Placed) -> None:
        """As `Descent.offer_ready_order`, if it is promising."""
        device = placed.device
        if placed.seconds > _PROMISING * self.incumbent.step_time:
            return
        first = self.incumbent.simulator.order(device)
        started = self.ready_simulator(device).run(device, first).op_start
        self.incumbent.offer(device, np.lexsort((np.argsort(first), started)))


def compile_kernels(problem: StepProblem) -> None:
    """Have the kernels compiled, once on a machine, before the clock starts."""
    nowhere = problem.op_seconds.argmin(axis=1)
    prices = OrderedPrices(problem)
    prices.settle(nowhere)
    prices(nowhere[None])
    Moves(problem, np.random.default_rng(0)).draw(nowhere, np.isfinite(problem.op_seconds), 1)
