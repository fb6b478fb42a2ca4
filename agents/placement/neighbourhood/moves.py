"""The moves of the local search: what is tried, how it is made and taken back."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.step.random_numbers import RandomState, draw
from envs.arrays import BoolArray, FloatArray, IntArray
from envs.compilation import inlined, inlined_inner, lean
from envs.step.incremental import Chosen, Facts, Times, sort_row

IndexArray = NDArray[np.uint32]

LONGEST = 128  # positions that one move of the order may cross
LARGEST = 32  # units that one move may put on another device

# what the counters of a move count
UNITS, STRETCH, FRONT, CARRIED, LOW, HIGH, TICKET = range(7)


class Units(NamedTuple):
    """What is placed as a whole: U units that partition the N operators."""

    of: IndexArray  # (N,) unit of each operator
    member_ptr: IndexArray  # (U + 1,)
    member: IndexArray  # (N,) operators by unit
    state: FloatArray  # (U,) bytes
    allowed: BoolArray  # (U, D) supported, and the unit alone fits


class Move(NamedTuple):
    """A move made in a schedule, with what it takes to judge it and to take it back.

    `counter` holds, in this order: units put elsewhere; length of the stretch of the order that was
    changed, and its first position; operators carried; the first and the last position with a
    trace of the move; the newest stamp.
    """

    unit: IndexArray  # (LARGEST,) units put elsewhere
    origin: IndexArray  # (LARGEST,) the devices they were on
    stretch: IndexArray  # (LONGEST,) operators of the stretch, as they stood
    carried: IndexArray  # (LONGEST,) those of them that were moved past the others
    stamp: IntArray  # (N,) stamps of the operators carried
    counter: IntArray  # (7,)


def no_move(operators: int) -> Move:
    """Room for a move."""
    return Move(
        unit=np.zeros(LARGEST, dtype=np.uint32),
        origin=np.zeros(LARGEST, dtype=np.uint32),
        stretch=np.zeros(LONGEST, dtype=np.uint32),
        carried=np.zeros(LONGEST, dtype=np.uint32),
        stamp=np.zeros(operators, dtype=np.int64),
        counter=np.zeros(7, dtype=np.int64),
    )


@inlined
def clear(move: Move, operators: int) -> None:
    """Forget the last move."""
    counter = move.counter
    counter[UNITS], counter[STRETCH], counter[CARRIED] = 0, 0, 0
    counter[LOW], counter[HIGH] = operators, -1


@inlined_inner
def put(facts: Facts, chosen: Chosen, units: Units, move: Move, unit: int, device: int) -> None:
    """Put `unit` on `device`."""
    input_ptr, inputs = facts.input_ptr, facts.inputs
    position, placed = chosen.position, chosen.device
    low, high, at = move.counter[LOW], move.counter[HIGH], move.counter[UNITS]
    first, last = units.member_ptr[unit], units.member_ptr[unit + 1]
    move.unit[at], move.origin[at] = unit, placed[units.member[first]]
    move.counter[UNITS] = at + 1
    for m in range(first, last):
        op = units.member[m]
        placed[op] = device
        p = np.int64(position[op])
        low, high = min(low, p), max(high, p)
        for i in range(input_ptr[op], input_ptr[op + 1]):
            low = min(low, np.int64(position[inputs[i]]))
    move.counter[LOW], move.counter[HIGH] = low, high


@inlined
def reorder(facts: Facts, chosen: Chosen, move: Move, op: int, target: int) -> bool:
    """Move `op` to position `target`, and with it what must not be passed.

    Moving up it takes along its ancestors that stand between, moving down its descendants.
    Everything keeps its order but for that. Returns False, and changes nothing, when the operator
    at `target` is one of those, or too far away.
    """
    use_ptr, uses, input_ptr, inputs = facts.use_ptr, facts.uses, facts.input_ptr, facts.inputs
    stamp, carried, stretch, counter = move.stamp, move.carried, move.stretch, move.counter
    order = chosen.order
    here = int(chosen.position[op])
    up = target < here
    front, length = (target, here - target + 1) if up else (here, target - here + 1)
    if length < 2 or length > LONGEST:
        return False
    counter[TICKET] += 1
    ticket = counter[TICKET]
    stamp[op] = ticket
    carried[0] = op
    many = 1
    for away in range(1, length):
        other = order[here - away] if up else order[here + away]
        tied = False
        if up:
            for i in range(use_ptr[other], use_ptr[other + 1]):
                tied = tied or stamp[uses[i, 0]] == ticket
        else:
            for i in range(input_ptr[other], input_ptr[other + 1]):
                tied = tied or stamp[inputs[i]] == ticket
        if tied:
            stamp[other] = ticket
            carried[many] = other
            many += 1
    if stamp[order[target]] == ticket:
        return False
    for i in range(length):
        stretch[i] = order[front + i]
    at = front
    for first in range(2):  # moving up, first those that are carried, then those that are not
        for i in range(length):
            if (stamp[stretch[i]] == ticket) == ((first == 0) == up):
                order[at] = stretch[i]
                chosen.position[stretch[i]] = at
                at += 1
    counter[STRETCH], counter[FRONT], counter[CARRIED] = length, front, many
    counter[LOW], counter[HIGH] = min(counter[LOW], front), max(counter[HIGH], front + length - 1)
    _sort_inputs(facts, chosen, move)
    return True


@inlined
def undo(facts: Facts, chosen: Chosen, units: Units, move: Move) -> None:
    """Take the move back; its traces stay where they were."""
    for i in range(move.counter[UNITS]):
        unit = move.unit[i]
        for m in range(units.member_ptr[unit], units.member_ptr[unit + 1]):
            chosen.device[units.member[m]] = move.origin[i]
    length, front = move.counter[STRETCH], move.counter[FRONT]
    if length > 0:
        for i in range(length):
            op = move.stretch[i]
            chosen.order[front + i] = op
            chosen.position[op] = front + i
        _sort_inputs(facts, chosen, move)


@inlined_inner
def _sort_inputs(facts: Facts, chosen: Chosen, move: Move) -> None:
    """Sort the rows of those who send to the carried operators, and note where that is."""
    use_ptr, input_ptr, inputs = facts.use_ptr, facts.input_ptr, facts.inputs
    low = move.counter[LOW]
    for j in range(move.counter[CARRIED]):
        op = move.carried[j]
        for i in range(input_ptr[op], input_ptr[op + 1]):
            producer = inputs[i]
            if use_ptr[producer + 1] - use_ptr[producer] > 1 and sort_row(facts, chosen, producer):
                low = min(low, np.int64(chosen.position[producer]))
    move.counter[LOW] = low


# Shares of the kinds of moves; the rest are exchanges of two units.
_SHIFT = 0.4  # an operator is shifted in the order
_UNIT = 0.15  # a unit goes to another device
_CLUSTER = 0.4  # a unit and some of its neighbours go to another device
_CRITICAL_DRAWS = 3  # operators drawn in hope of a critical one
_TO_NEIGHBOUR = 0.65  # chance that a unit goes where a neighbour is, not anywhere
_GROWTH = 0.7  # chance that a cluster grows by another step
_SHIFT_TOO = 0.4  # chance that an operator put elsewhere is shifted, too
_PAST_MATES = 0.7  # chance that an operator is shifted past operators of one device
_ANOTHER_MATE = 0.4  # chance that it passes one more of them
_FARTHEST = 32.0  # positions, else
_NEARBY = 32  # positions between two units that are exchanged
_ROUNDING = 1e-9  # relative: slack of a critical operator


@lean
def propose(
    facts: Facts,
    chosen: Chosen,
    times: Times,
    units: Units,
    move: Move,
    step_time: float,  # seconds of the plan as it is
    random: RandomState,  # (1,)
) -> bool:
    """Make a random move in `chosen`; False, and no change, where it comes to nothing."""
    device = chosen.device
    n, devices = facts.op_seconds.shape
    clear(move, n)
    op = np.int64(draw(random) * n)
    for _ in range(_CRITICAL_DRAWS):
        if times.start[op] + times.tail[op] >= step_time * (1.0 - _ROUNDING):
            break
        op = np.int64(draw(random) * n)
    d = np.int64(device[op])
    kind = draw(random)
    if kind < _SHIFT:
        shifted: bool = _shift(facts, chosen, move, op, d, random)
        return shifted
    if kind >= _SHIFT + _UNIT + _CLUSTER:
        exchanged: bool = _exchange(chosen, facts, units, move, op, random)
        return exchanged
    e = np.int64(draw(random) * devices)
    if draw(random) < _TO_NEIGHBOUR:
        e = np.int64(device[_neighbour(facts, op, random)])
    if e == d or not units.allowed[units.of[op], e]:
        return False
    put(facts, chosen, units, move, units.of[op], e)
    if draw(random) < _SHIFT_TOO:
        _shift(facts, chosen, move, op, e, random)
    if kind < _SHIFT + _UNIT:
        return True
    at = op
    while draw(random) < _GROWTH and move.counter[UNITS] < LARGEST:
        other = _neighbour(facts, at, random)
        unit = units.of[other]
        if device[other] == d and units.allowed[unit, e]:
            put(facts, chosen, units, move, unit, e)
        if device[other] == e:
            at = other
    return True


@inlined_inner
def _neighbour(facts: Facts, op: int, random: RandomState) -> np.int64:
    """A producer or a consumer of `op`; itself if it has none."""
    inputs = facts.input_ptr[op + 1] - facts.input_ptr[op]
    uses = facts.use_ptr[op + 1] - facts.use_ptr[op]
    k = np.uint32(draw(random) * (inputs + uses))
    if k < inputs:
        return np.int64(facts.inputs[facts.input_ptr[op] + k])
    if k < inputs + uses:
        return np.int64(facts.uses[facts.use_ptr[op] + k - inputs, 0])
    return np.int64(op)


@inlined_inner
def _shift(
    facts: Facts, chosen: Chosen, move: Move, op: int, mate: int, random: RandomState
) -> bool:
    """Shift `op` past some operators, or past some of those on device `mate`."""
    order, device = chosen.order, chosen.device
    here = np.int64(chosen.position[op])
    way = 1 if draw(random) < 0.5 else -1
    target = here
    if draw(random) < _PAST_MATES:
        passed = 1
        while draw(random) < _ANOTHER_MATE:
            passed += 1
        while passed > 0:
            target += way
            if target < 0 or target >= len(order) or abs(target - here) >= LONGEST:
                return False
            if device[order[target]] == mate:
                passed -= 1
    else:
        target += way * np.int64(np.exp(draw(random) * np.log(_FARTHEST)))
        if target < 0 or target >= len(order):
            return False
    made: bool = reorder(facts, chosen, move, op, target)
    return made


@inlined_inner
def _exchange(
    chosen: Chosen, facts: Facts, units: Units, move: Move, op: int, random: RandomState
) -> bool:
    """Exchange the devices of the unit of `op` and of one nearby in the order."""
    at = np.int64(chosen.position[op]) + np.int64((draw(random) * 2.0 - 1.0) * _NEARBY)
    if at < 0 or at >= len(chosen.order):
        return False
    other = chosen.order[at]
    d, e = np.int64(chosen.device[op]), np.int64(chosen.device[other])
    u, v = units.of[op], units.of[other]
    if d == e or not units.allowed[u, e] or not units.allowed[v, d]:
        return False
    put(facts, chosen, units, move, u, e)
    put(facts, chosen, units, move, v, d)
    return True
