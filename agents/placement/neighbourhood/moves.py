"""The moves of the local search: how they are made in a schedule, and taken back."""

from __future__ import annotations

from typing import NamedTuple

import numba
import numpy as np
from numpy.typing import NDArray

from envs.step.incremental import Chosen, Facts, sort_row

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
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


@numba.njit(
    cache=True, nogil=True, boundscheck=False, error_model="numpy", forceinline=True, _nrt=False
)
def clear(move: Move, operators: int) -> None:
    """Forget the last move."""
    counter = move.counter
    counter[UNITS], counter[STRETCH], counter[CARRIED] = 0, 0, 0
    counter[LOW], counter[HIGH] = operators, -1


@numba.njit(
    cache=True, nogil=True, boundscheck=False, error_model="numpy", forceinline=True, _nrt=False
)
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


@numba.njit(
    cache=True, nogil=True, boundscheck=False, error_model="numpy", forceinline=True, _nrt=False
)
def pull(facts: Facts, chosen: Chosen, move: Move, op: int, target: int) -> bool:
    """Move `op` up to position `target`, and with it its ancestors that stand between.

    Everything keeps its order but for that. Returns False, and changes nothing, when the operator
    at `target` is an ancestor, or too far away.
    """
    use_ptr, uses, order = facts.use_ptr, facts.uses, chosen.order
    stamp, carried, stretch, counter = move.stamp, move.carried, move.stretch, move.counter
    here = np.int64(chosen.position[op])
    length = here - target + 1
    if length < 2 or length > LONGEST:
        return False
    counter[TICKET] += 1
    ticket = counter[TICKET]
    stamp[op] = ticket
    carried[0] = op
    many = 1
    for back in range(1, length):
        other = order[here - back]
        for i in range(use_ptr[other], use_ptr[other + 1]):
            if stamp[uses[i, 0]] == ticket:
                stamp[other] = ticket
                carried[many] = other
                many += 1
                break
    if stamp[order[target]] == ticket:
        return False
    for i in range(length):
        stretch[i] = order[target + i]
    at = target
    for wanted in range(2):  # first those that are carried, then those that are not
        for i in range(length):
            if (stamp[stretch[i]] == ticket) == (wanted == 0):
                order[at] = stretch[i]
                chosen.position[stretch[i]] = at
                at += 1
    counter[STRETCH], counter[FRONT], counter[CARRIED] = length, target, many
    counter[LOW], counter[HIGH] = min(counter[LOW], target), max(counter[HIGH], here)
    _sort_inputs(facts, chosen, move)
    return True


@numba.njit(
    cache=True, nogil=True, boundscheck=False, error_model="numpy", forceinline=True, _nrt=False
)
def push(facts: Facts, chosen: Chosen, move: Move, op: int, target: int) -> bool:
    """Move `op` down to position `target`, and with it its descendants that stand between.

    As `pull`, in the other direction.
    """
    input_ptr, inputs, order = facts.input_ptr, facts.inputs, chosen.order
    stamp, carried, stretch, counter = move.stamp, move.carried, move.stretch, move.counter
    here = np.int64(chosen.position[op])
    length = target - here + 1
    if length < 2 or length > LONGEST:
        return False
    counter[TICKET] += 1
    ticket = counter[TICKET]
    stamp[op] = ticket
    carried[0] = op
    many = 1
    for ahead in range(1, length):
        other = order[here + ahead]
        for i in range(input_ptr[other], input_ptr[other + 1]):
            if stamp[inputs[i]] == ticket:
                stamp[other] = ticket
                carried[many] = other
                many += 1
                break
    if stamp[order[target]] == ticket:
        return False
    for i in range(length):
        stretch[i] = order[here + i]
    at = here
    for wanted in range(2):  # first those that are not carried, then those that are
        for i in range(length):
            if (stamp[stretch[i]] == ticket) == (wanted == 1):
                order[at] = stretch[i]
                chosen.position[stretch[i]] = at
                at += 1
    counter[STRETCH], counter[FRONT], counter[CARRIED] = length, here, many
    counter[LOW], counter[HIGH] = min(counter[LOW], here), max(counter[HIGH], target)
    _sort_inputs(facts, chosen, move)
    return True


@numba.njit(
    cache=True, nogil=True, boundscheck=False, error_model="numpy", forceinline=True, _nrt=False
)
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


@numba.njit(
    cache=True, nogil=True, boundscheck=False, error_model="numpy", forceinline=True, _nrt=False
)
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
