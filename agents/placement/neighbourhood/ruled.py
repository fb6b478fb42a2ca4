"""The walk where a plan's order must be a named one: it moves units, a rule gives the order."""

from __future__ import annotations

import numpy as np

from agents.placement.neighbourhood.levels import Level
from agents.placement.neighbourhood.moves import UNITS, Move, Units, propose, undo
from agents.placement.neighbourhood.walk import (
    CHARGE,
    OVERFLOW,
    ROUNDING,
    SECONDS,
    Walk,
    Walker,
    carry_state,
    overflow_of,
    recharge,
    remember,
)
from agents.step.random_numbers import draw
from envs.arrays import FloatArray, IntArray
from envs.compilation import compiled
from envs.step.incremental import Chosen, Facts, Times
from envs.step.kernel import Scratch, StepArrays
from envs.step.price import Holdings, Play, Pricer, order_of, price_in_order


@compiled
def anneal_placements(
    facts: Facts,
    chosen: Chosen,
    times: Times,
    units: Units,
    walk: Walk,
    move: Move,
    rule: int,
    arrays: StepArrays,
    held: Holdings,
    play: Play,
    ready: Scratch,
    num_ports: int,
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
            order_of(rule, arrays, held, play, ready, num_ports, placed)
            seconds, excess = price_in_order(arrays, held, play, placed, False)
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

    def __init__(
        self,
        level: Level,
        device: IntArray,
        order: IntArray,
        room: FloatArray,
        scale: float,
        seed: int,
    ) -> None:
        self.pricer = pricer = Pricer(level.problem)
        held = pricer.held
        self.held = held._replace(
            made=held.made + level.inner,
            unread=held.unread + level.inner,
            capacity=np.zeros(len(room)),
        )
        pricer.held = self.held
        self.price = pricer.price(device)
        self.placed = np.zeros(len(device), dtype=np.int64)
        super().__init__(level, device, order, room, scale, seed)

    def start_from(self, device: IntArray, order: IntArray) -> None:
        """Go on from another placement, in its best order."""
        chosen, walk, units = self.schedule.chosen, self.walk, self.units
        self.held.capacity[:] = np.maximum(walk.room, 0.0)
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
        pricer = self.pricer
        anneal_placements(
            facts, chosen, times, self.units, self.walk, self.move, int(self.price.rule),
            pricer.arrays, self.held, pricer.work, pricer.ready, pricer.num_ports, self.placed,
            temperature, moves,
        )  # fmt: skip

    def _peak(self) -> FloatArray:
        return self.pricer.peaks(self.plan[0], self.price.order)[1]
