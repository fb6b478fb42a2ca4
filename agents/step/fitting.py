"""Placements that fit, activations included: less room, then repairs, until there is a plan."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from agents.solver import Budget
from agents.step.grouping import GroupedProblem
from agents.step.incumbent import StepIncumbent
from envs.arrays import BoolArray, FloatArray, IntArray
from envs.compilation import compiled
from envs.step.order import OneFOneB
from envs.step.problem import StepProblem

_TRIALS = 2000  # groups put on a device, by search, before it gives up ...
_TRIALS_PER_GROUP = 8  # ... and as many more for each group


class MemoryFit:
    """A placement of all groups in which the state fits, kept up while groups are pinned.

    Best-fit decreasing with backtracking: the groups still free, the largest first, each on the
    device where it leaves the least room. It looks at sizes only, and it gives up after a fixed
    number of trials: that no placement is found proves nothing.

    Args:
        grouped: the groups, their state and the devices allowed for each.
        room: (D,) bytes for state.
    """

    def __init__(self, grouped: GroupedProblem, room: FloatArray) -> None:
        self.state, self.allowed = grouped.state, grouped.allowed
        self.room = room.copy()
        self.pinned = np.zeros(grouped.num_groups, dtype=np.bool_)
        self._largest_first = np.argsort(-grouped.state, kind="stable")
        self.device: IntArray | None = self._search(self.room, self.pinned)  # (G,) None: not found

    def pin(self, group: int, device: int) -> bool:
        """Put `group` on `device` for good; False, and no change, if then no placement is found."""
        fits = self.allowed[group, device] and self.state[group] <= self.room[device]
        if self.device is None or not fits:
            return False
        if self.device[group] != device:
            room, pinned = self.room.copy(), self.pinned.copy()
            room[device] -= self.state[group]
            pinned[group] = True
            found = self._search(room, pinned)
            if found is None:
                return False
            self.device = np.where(pinned, self.device, found)
            self.device[group] = device
        self.room[device] -= self.state[group]
        self.pinned[group] = True
        return True

    def _search(self, room: FloatArray, pinned: BoolArray) -> IntArray | None:
        """(G,) devices of the groups that are not pinned, or None."""
        free = self._largest_first[~pinned[self._largest_first]]
        device = np.zeros(len(pinned), dtype=np.int64)
        trials = _TRIALS + _TRIALS_PER_GROUP * len(free)
        left = room.copy()
        return device if search(self.state, self.allowed, free, left, trials, device) else None


@compiled
def search(
    state: FloatArray,  # (G,) bytes
    allowed: BoolArray,  # (G, D)
    free: IntArray,  # (F,) groups to be placed, in the order of the search
    left: FloatArray,  # (D,) bytes, changed in place
    trials: int,
    device: IntArray,  # (G,) out
) -> bool:
    """Depth first, the tightest device first; whether all of `free` were placed."""
    tried = np.zeros((len(free), len(left)), dtype=np.bool_)
    depth = 0
    while depth < len(free):
        group = free[depth]
        tightest = -1
        for d in range(len(left)):
            fits = allowed[group, d] and state[group] <= left[d] and not tried[depth, d]
            if fits and (tightest < 0 or left[d] <= left[tightest]):
                tightest = d
        if tightest < 0:  # dead end: undo the group before
            tried[depth] = False
            depth -= 1
            if depth < 0:
                return False
            left[device[free[depth]]] += state[free[depth]]
        elif trials == 0:
            return False
        else:
            trials -= 1
            tried[depth, tightest] = True
            device[group] = tightest
            left[tightest] -= state[group]
            depth += 1
    return True


_REPAIRS = 16  # placements made with less and less room while activations overflow
_DRAWS = 64  # rooms drawn under a deterministic limit
_FRUITLESS = 24  # draws in a row that led to no new placement, after which none is expected
_LESS_ROOM = 0.6  # of the capacity at most, in a draw ...
_MILDER = 0.8  # ... and so much of that after each draw without a new placement
_SAMPLE = 64  # moves looked at for each that is made


# How a planner makes one placement: (G,) devices on which `GroupedProblem.state` fits a room (D,),
# and (N,) an order of its own. None where no such placement was found.
Attempt = Callable[[GroupedProblem, FloatArray], tuple[IntArray, IntArray | None] | None]


class Fitting:
    """Has placements made with less and less room until one fits, activations included.

    Args:
        incumbent: is offered the placements, in all orders that its problem allows; where any is,
            also in the planner's own. Under a window that is what a dynamic runtime makes of it, or
            of that of 1F1B, so that only the micro-batches that count as state are under way.
        budget: seconds since the incumbent's start; the first placement is made in any case. With
            a limit on evaluations the search is the same on any machine, so long as they last.
        spent: whether another limit is reached.
    """

    def __init__(
        self,
        incumbent: StepIncumbent,
        budget: Budget,
        *,
        spent: Callable[[], bool] = lambda: False,
    ) -> None:
        self._incumbent = incumbent
        self._budget_s = budget.seconds
        self._draws = None if budget.evaluations is None else _DRAWS
        self._spent = spent
        self._pricer = incumbent.pricer
        self._random = np.random.default_rng(0)
        self._known: set[bytes] = set()
        self._seen: list[tuple[GroupedProblem, Attempt]] = []
        self._nearest: tuple[float, GroupedProblem, IntArray] | None = None  # bytes too many
        self.binds = False  # whether activations overflow a device, or might

    @property
    def goes_on(self) -> bool:
        """Whether another placement may be made."""
        incumbent = self._incumbent
        return incumbent.evaluations == 0 or (
            incumbent.seconds < self._budget_s and not self._spent()
        )

    def run(self, grouped: GroupedProblem, attempt: Attempt) -> None:
        """Offer placements of `grouped`.

        The room of a device is lowered by what it lacks until the placement fits. Where a device
        has overflowed, or would if all activations were live at once, further placements count the
        activations of all micro-batches as state, then those of half of them, down to one. If there
        is no plan then, what overflowed least is repaired.
        """
        self._seen.append((grouped, attempt))
        capacity, all_of_them = grouped.problem.capacity, grouped.problem.graph.num_micro_batches
        first = self._tighten(grouped, capacity, attempt, 0)
        if first is not None and self._nearest is None and not self.binds:
            every = grouped.holding(all_of_them).state
            if (np.bincount(first, weights=every, minlength=len(capacity)) <= capacity).all():
                return
        self.binds = True
        micro_batches = all_of_them
        while micro_batches > 0:
            self._tighten(grouped, capacity, attempt, micro_batches)
            micro_batches //= 2
        self._repair()

    def insist(self) -> None:
        """While there is no plan, draw rooms to try again.

        Also with placements of any kind: a planner's own may be too narrow.
        """
        random = self._random
        fruitless = draws = 0
        while self._incumbent.plan is None and self.goes_on and fruitless < _FRUITLESS:
            if not self._seen or draws == self._draws:
                return
            known, draws = len(self._known), draws + 1
            grouped, attempt = self._seen[random.integers(len(self._seen))]
            capacity = grouped.problem.capacity
            less = _LESS_ROOM * _MILDER**fruitless
            room = capacity * (1.0 - random.uniform(0.0, less, len(capacity)))
            micro_batches = int(random.integers(1 + grouped.problem.graph.num_micro_batches))
            if draws == 1:
                room, micro_batches = capacity, 0
            for made_by in (attempt, _packed):
                self._tighten(grouped, room, made_by, micro_batches)
            self._repair()
            fruitless = fruitless + 1 if len(self._known) == known else 0

    def _tighten(
        self, grouped: GroupedProblem, room: FloatArray, attempt: Attempt, micro_batches: int
    ) -> IntArray | None:
        """Lower `room` until a placement fits; (G,) devices of the first placement."""
        first, sized = None, grouped.holding(micro_batches)
        for _ in range(_REPAIRS):
            made = attempt(sized, room) if self.goes_on else None
            if made is None:
                break
            device, own = made
            first = device if first is None else first
            self._known.add(device.tobytes())
            excess = self._offer(grouped.fusion.expand(device), own, micro_batches)
            if not excess.any():
                break
            if self._nearest is None or excess.sum() < self._nearest[0]:
                self._nearest = float(excess.sum()), grouped, device
            room = sized.less_room(room, device, excess)
        return first

    def _offer(self, placed: IntArray, own: IntArray | None, micro_batches: int) -> FloatArray:
        """(D,) bytes of excess of placement `placed` (N,)."""
        problem = self._incumbent.problem
        excess = self._incumbent.offer(placed)
        if not problem.any_order:
            return excess
        if 0 < micro_batches < problem.graph.num_micro_batches:
            ranking = OneFOneB()(problem.graph, placed) if own is None else own
            own = self._pricer.windowed(placed, ranking, micro_batches)
        return excess if own is None else self._incumbent.offer(placed, own)

    def _repair(self) -> None:
        """While there is no plan, move groups of what overflowed least from where it does.

        One after another, always that after which least overflows, of a sample; ends where none
        helps.
        """
        if self._nearest is None or self._incumbent.plan is not None or not self.goes_on:
            return
        _, grouped, device = self._nearest
        self._nearest = None
        excess = self._incumbent.offer(grouped.fusion.expand(device))
        while excess.any() and self.goes_on:
            rule = self._pricer.price(grouped.fusion.expand(device)).rule
            moves = np.argwhere(grouped.allowed & (excess[device] > 0.0)[:, None] & (excess == 0.0))
            chosen = moves[self._random.permutation(len(moves))[:_SAMPLE]]
            if not len(chosen):
                return
            placements = np.tile(device, (len(chosen), 1))
            placements[np.arange(len(chosen)), chosen[:, 0]] = chosen[:, 1]
            _, over = self._pricer.prices(placements[:, grouped.fusion.group], rule)
            best = int(over.argmin())
            if over[best] >= excess.sum():
                return
            device = placements[best]
            excess = self._incumbent.offer(grouped.fusion.expand(device))


def _packed(grouped: GroupedProblem, room: FloatArray) -> tuple[IntArray, None] | None:
    """Any placement that fits, for planners whose own kind is too narrow; an `Attempt`."""
    device = MemoryFit(grouped, room).device
    return None if device is None else (device, None)


def shapes(problem: StepProblem, line: IntArray) -> Iterator[IntArray]:
    """Devices of consecutive segments: `line`, and what the allowed orders are made for.

    Interleaved orders go round the line twice, those of a V there and back.
    """
    yield line
    if len(line) > 1:
        if "interleaved" in problem.orders:
            yield np.concatenate([line, line])
        if {"zb_v", "dualpipe_v"} & set(problem.orders):
            yield np.concatenate([line, line[::-1]])
