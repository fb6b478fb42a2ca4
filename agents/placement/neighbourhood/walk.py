"""The annealing walk of the local search: judges moves, keeps some, and remembers the best plan."""

from __future__ import annotations

from functools import cached_property
from typing import NamedTuple

import numpy as np

from agents.placement.neighbourhood.levels import Level
from agents.placement.neighbourhood.moves import (
    HIGH,
    LOW,
    UNITS,
    IndexArray,
    Move,
    Units,
    no_move,
    propose,
    undo,
)
from agents.step.random_numbers import RandomState, draw
from envs.arrays import FloatArray, IntArray
from envs.compilation import compiled, inlined, inlined_inner, lean
from envs.step.incremental import (
    Chosen,
    Facts,
    Probe,
    Times,
    schedule_of,
    settle,
    settle_all,
    within,
)
from envs.step.live_memory import Stored, Streams, peak_bytes, stored_of, streams_of
from envs.step.price import Pricer, Pricing, price

_DEAREST, _CHEAPEST = 1e3, 1.0  # charge if all bytes overflowed, in starting step times
_RISE, _FALL = 1.1, 0.99  # factor of the charge per move while memory overflows, while it fits
_FULL = 0.8  # part of the room: while all peaks are below it, few plans are looked at
_SELDOM = 32  # plans kept between two looks then
ROUNDING = 1e-12  # relative

# what the costs of a walk are
SECONDS, OVERFLOW, BEST_SECONDS, BEST_OVERFLOW, CHARGE, LEAST_CHARGE, MOST_CHARGE = range(7)


class Walk(NamedTuple):
    """Where a walk stands, apart from its schedule, and the best plan it saw.

    `cost` holds, in this order: the step time and the overflow (the part of all bytes that does not
    fit) of the plan as it is; those of the best plan; the charge, seconds if all bytes overflowed,
    and its limits. A plan overflows, too, if it uses a device whose room is negative.
    """

    used: FloatArray  # (D,) bytes of state
    units_on: IntArray  # (D,)
    room: FloatArray  # (D,) bytes
    peak: FloatArray  # (D,) bytes, of the plan that was looked at last
    best_device: IndexArray  # (N,)
    best_order: IndexArray  # (N,)
    cost: FloatArray  # (7,)
    bytes: FloatArray  # (1,) all state and the activations of one micro-batch
    random: RandomState  # (1,)
    judged: IntArray  # (1,) moves
    unseen: IntArray  # (1,) plans that may be kept before the peaks are looked at again


@lean
def anneal(
    facts: Facts,
    chosen: Chosen,
    times: Times,
    probe: Probe,
    units: Units,
    stored: Stored,
    streams: Streams,
    walk: Walk,
    move: Move,
    temperature: float,  # seconds
    moves: int,
) -> None:
    """Propose `moves` moves at one temperature."""
    cost, counter, random = walk.cost, move.counter, walk.random
    for _ in range(moves):
        if not propose(facts, chosen, times, units, move, cost[SECONDS], random):
            continue
        walk.judged[0] += 1
        carry_state(walk, chosen, units, move, 1)
        overflow = overflow_of(walk, walk.used)  # of the state: a lower bound
        heat = -temperature * np.log(1.0 - draw(random))
        limit = cost[SECONDS] + cost[CHARGE] * (cost[OVERFLOW] - overflow) + heat
        low, high = counter[LOW], counter[HIGH]
        settled = kept = within(facts, chosen, times, probe, low, high, limit)
        looked = False
        if settled:
            seconds = settle(facts, chosen, times, probe, low, high)
            kept = seconds <= limit + limit * ROUNDING
            if kept:
                better = seconds < cost[BEST_SECONDS] or cost[BEST_OVERFLOW] > 0.0
                looked = better or walk.unseen[0] == 0 or overflow > 0.0
            if looked:
                overflow = _look(facts, chosen, times, stored, streams, walk)
                limit = cost[SECONDS] + cost[CHARGE] * (cost[OVERFLOW] - overflow) + heat
                kept = seconds <= limit + limit * ROUNDING
        if kept:
            walk.unseen[0] -= not looked
            cost[SECONDS], cost[OVERFLOW] = seconds, overflow
            if looked:
                remember(walk, chosen)
        else:
            carry_state(walk, chosen, units, move, -1)
            undo(facts, chosen, units, move)
            if settled:
                settle(facts, chosen, times, probe, low, high)
            if looked and walk.unseen[0] != 0:  # the plan as it is may not have been looked at
                cost[OVERFLOW] = _look(facts, chosen, times, stored, streams, walk)
        recharge(walk)


@compiled
def refresh(
    facts: Facts,
    chosen: Chosen,
    times: Times,
    probe: Probe,
    units: Units,
    stored: Stored,
    streams: Streams,
    walk: Walk,
) -> None:
    """Work out everything about the plan in `chosen`, and keep it if it is the best."""
    walk.cost[SECONDS] = settle_all(facts, chosen, times, probe)
    walk.used[:] = 0.0
    walk.units_on[:] = 0
    for unit in range(len(units.state)):
        d = chosen.device[units.member[units.member_ptr[unit]]]
        walk.used[d] += units.state[unit]
        walk.units_on[d] += 1
    walk.cost[OVERFLOW] = _look(facts, chosen, times, stored, streams, walk)
    remember(walk, chosen)


@inlined_inner
def _look(
    facts: Facts, chosen: Chosen, times: Times, stored: Stored, streams: Streams, walk: Walk
) -> float:
    """The overflow of the plan in `chosen`; says for how long it need not be worked out again."""
    peak_bytes(facts, chosen, times, stored, streams, walk.peak)
    walk.unseen[0] = _SELDOM
    for d in range(len(walk.room)):
        if walk.units_on[d] > 0 and walk.peak[d] > _FULL * walk.room[d]:
            walk.unseen[0] = 0
    overflow: float = overflow_of(walk, walk.peak)
    return overflow


@inlined_inner
def recharge(walk: Walk) -> None:
    """Raise the charge while memory overflows, and let it fall while it fits."""
    cost = walk.cost
    if cost[OVERFLOW] > 0.0:
        cost[CHARGE] = min(cost[CHARGE] * _RISE, cost[MOST_CHARGE])
    else:
        cost[CHARGE] = max(cost[CHARGE] * _FALL, cost[LEAST_CHARGE])


@inlined
def remember(walk: Walk, chosen: Chosen) -> None:
    """Keep the plan if it is the best so far."""
    cost = walk.cost
    if cost[OVERFLOW] < cost[BEST_OVERFLOW] or (
        cost[OVERFLOW] == cost[BEST_OVERFLOW] and cost[SECONDS] < cost[BEST_SECONDS]
    ):
        cost[BEST_SECONDS], cost[BEST_OVERFLOW] = cost[SECONDS], cost[OVERFLOW]
        for i in range(len(chosen.order)):
            walk.best_device[i] = chosen.device[i]
            walk.best_order[i] = chosen.order[i]


@inlined_inner
def carry_state(walk: Walk, chosen: Chosen, units: Units, move: Move, sign: int) -> None:
    """Carry the state of the units that the move put elsewhere there, or back (`sign` -1)."""
    for i in range(move.counter[UNITS]):
        unit = move.unit[i]
        origin, now = move.origin[i], chosen.device[units.member[units.member_ptr[unit]]]
        walk.used[origin] -= sign * units.state[unit]
        walk.used[now] += sign * units.state[unit]
        walk.units_on[origin] -= sign
        walk.units_on[now] += sign


@inlined_inner
def overflow_of(walk: Walk, held: FloatArray) -> float:
    """The part of all bytes that does not fit where devices hold `held` (D,) bytes."""
    total = 0.0
    for d in range(len(walk.room)):
        if walk.units_on[d] > 0 and held[d] > walk.room[d]:
            total += held[d] - walk.room[d]
    part: float = total / max(1.0, walk.bytes[0])
    return part


class Walker:
    """One walk on one level: a schedule, the units in it, and the best plan seen.

    Args:
        level: what is searched.
        device: (K,) devices of the pieces, to start from.
        order: (K,) a topological order of the pieces.
        room: (D,) bytes.
        scale: seconds: what charges are counted in.
        seed: of the random numbers.
    """

    def __init__(
        self,
        level: Level,
        device: IntArray,
        order: IntArray,
        room: FloatArray,
        scale: float,
        seed: int,
    ) -> None:
        self.level, self.units = level, level.units
        self.schedule = schedule_of(level.problem, device, order)
        self.stored, self.streams = stored_of(level.problem, level.inner), streams_of(level.problem)
        self.move = no_move(len(order))
        graph = level.problem.graph
        batches = graph.num_micro_batches
        self.walk = Walk(
            used=np.zeros(len(room)),
            units_on=np.zeros(len(room), dtype=np.int64),
            room=room.copy(),
            peak=np.zeros(len(room)),
            best_device=self.schedule.chosen.device.copy(),
            best_order=self.schedule.chosen.order.copy(),
            cost=np.full(7, np.inf),
            bytes=np.array([level.units.state.sum() + graph.tensor_bytes.sum() / batches]),
            random=np.array([seed], dtype=np.uint64),
            judged=np.zeros(1, dtype=np.int64),
            unseen=np.zeros(1, dtype=np.int64),
        )
        self.set_scale(scale)
        self.start_from(device, order)

    def set_scale(self, scale: float) -> None:
        """Count the charge for what does not fit in `scale` seconds."""
        self.walk.cost[CHARGE:] = _DEAREST * scale, _CHEAPEST * scale, _DEAREST * scale

    def start_from(self, device: IntArray, order: IntArray) -> None:
        """Go on from another plan; the best plan stays, unless this one is better."""
        self.schedule.chosen.device[:] = device
        self.schedule.chosen.order[:] = order
        refresh(*self.schedule, self.units, self.stored, self.streams, self.walk)

    def restrict(self, room: FloatArray) -> None:
        """Change the room (D,) and forget the best plan."""
        self.walk.room[:] = room
        self.walk.cost[[BEST_SECONDS, BEST_OVERFLOW]] = np.inf
        self.start_from(*self.plan)

    def run(self, temperature: float, moves: int) -> None:
        """Propose `moves` moves at one temperature in seconds."""
        anneal(
            *self.schedule, self.units, self.stored, self.streams, self.walk, self.move,
            temperature, moves,
        )  # fmt: skip

    def less_room(self, excess: FloatArray) -> FloatArray:
        """(D,) bytes of room once the best plan has exceeded a peak by `excess` (D,).

        Goes on from that plan. The peaks of a coarse level are not those of all operators.
        """
        self.start_from(*self.best)
        room, peak = self.walk.room, self._peak()
        return np.where(excess > 0.0, np.minimum(room, peak) - excess, room)

    def _peak(self) -> FloatArray:
        """(D,) bytes at the peak, where the walk has just started from a plan."""
        return self.walk.peak

    @property
    def seconds(self) -> float:
        """Step time of the plan where the walk stands."""
        return float(self.walk.cost[SECONDS])

    @property
    def plan(self) -> tuple[IntArray, IntArray]:
        """Devices and order where the walk stands."""
        chosen = self.schedule.chosen
        return chosen.device.astype(np.int64), chosen.order.astype(np.int64)

    @property
    def best(self) -> tuple[IntArray, IntArray]:
        """Devices and order of the best plan."""
        return self.walk.best_device.astype(np.int64), self.walk.best_order.astype(np.int64)

    @property
    def best_seconds(self) -> float:
        """Step time of the best plan, inf while none fits."""
        return float(self.walk.cost[BEST_SECONDS]) if self.best_overflow == 0.0 else np.inf

    @property
    def overflow(self) -> float:
        """The part of all bytes that does not fit where the walk stands."""
        return float(self.walk.cost[OVERFLOW])

    @property
    def best_overflow(self) -> float:
        """The part of all bytes that does not fit in the best plan."""
        return float(self.walk.cost[BEST_OVERFLOW])

    @property
    def judged(self) -> int:
        """Moves judged so far."""
        return int(self.walk.judged[0])


@compiled
def anneal_placements(
    facts: Facts,
    chosen: Chosen,
    times: Times,
    units: Units,
    walk: Walk,
    move: Move,
    rule: int,
    pricing: Pricing,
    placed: IntArray,  # (K,) scratch
    temperature: float,  # seconds
    moves: int,
) -> None:
    """Propose `moves` moves at one temperature; those of the order alone come to nothing."""
    cost = walk.cost
    for _ in range(moves):
        if not propose(facts, chosen, times, units, move, cost[SECONDS], walk.random):
            continue
        if move.counter[UNITS] == 0:
            undo(facts, chosen, units, move)
            continue
        walk.judged[0] += 1
        carry_state(walk, chosen, units, move, 1)
        heat = -temperature * np.log(1.0 - draw(walk.random))
        limit = cost[SECONDS] + cost[CHARGE] * cost[OVERFLOW] + heat
        kept = cost[CHARGE] * overflow_of(walk, walk.used) <= limit
        if kept:
            placed[:] = chosen.device
            seconds, excess = price(rule, pricing, placed)
            overflow = excess / max(1.0, walk.bytes[0])
            kept = seconds + cost[CHARGE] * overflow <= limit + limit * ROUNDING
        if kept:
            cost[SECONDS], cost[OVERFLOW] = seconds, overflow
            remember(walk, chosen)
        else:
            carry_state(walk, chosen, units, move, -1)
            undo(facts, chosen, units, move)
        recharge(walk)


class RuledWalker(Walker):
    """As `Walker`; the order is that of the present rule, chosen where the walk starts.

    The arguments are those of `Walker`; orders are only looked at for being topological.
    """

    @cached_property
    def pricer(self) -> Pricer:
        """Of the pieces, with what they need inside, in the room of the walk."""
        return Pricer(self.level.problem, inner=self.level.inner)

    @cached_property
    def _placed(self) -> IntArray:
        return np.zeros(len(self.walk.best_device), dtype=np.int64)

    def start_from(self, device: IntArray, order: IntArray) -> None:
        """Go on from another placement, in its best order."""
        chosen, walk, units = self.schedule.chosen, self.walk, self.units
        self.pricer.work.capacity[:] = np.maximum(walk.room, 0.0)
        self.price = self.pricer.price(device)
        chosen.device[:] = device
        home, many = chosen.device[units.member[units.member_ptr[:-1]]], len(walk.room)
        walk.used[:] = np.bincount(home, units.state, many)
        walk.units_on[:] = np.bincount(home, minlength=many)
        walk.cost[SECONDS] = self.price.seconds
        walk.cost[OVERFLOW] = self.price.excess / max(1.0, walk.bytes[0])
        remember(walk, chosen)

    def run(self, temperature: float, moves: int) -> None:
        """Propose `moves` moves at one temperature in seconds."""
        facts, chosen, times, _ = self.schedule
        anneal_placements(
            facts, chosen, times, self.units, self.walk, self.move, int(self.price.rule),
            self.pricer.work, self._placed, temperature, moves,
        )  # fmt: skip

    def _peak(self) -> FloatArray:
        return self.pricer.peaks(self.plan[0], self.price.order)[1]
