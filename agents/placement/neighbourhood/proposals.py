"""What the local search tries next: random moves, those of critical operators more often."""

from __future__ import annotations

import numba
import numpy as np
from numpy.typing import NDArray

from agents.placement.neighbourhood.moves import (
    LARGEST,
    LONGEST,
    UNITS,
    Move,
    Units,
    clear,
    pull,
    push,
    put,
)
from envs.step.incremental import Chosen, Facts, Times

RandomState = NDArray[np.uint64]

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


@numba.njit(
    cache=True, nogil=True, boundscheck=False, error_model="numpy", forceinline=True, _nrt=False
)
def draw(state: RandomState) -> float:
    """A uniform number of [0, 1), by SplitMix64.

    Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return np.float64(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)


@numba.njit(cache=True, nogil=True, boundscheck=False, error_model="numpy", _nrt=False)
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


@numba.njit(
    cache=True, nogil=True, boundscheck=False, error_model="numpy", forceinline=True, _nrt=False
)
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


@numba.njit(
    cache=True, nogil=True, boundscheck=False, error_model="numpy", forceinline=True, _nrt=False
)
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
    made: bool
    if way > 0:
        made = push(facts, chosen, move, op, target)
    else:
        made = pull(facts, chosen, move, op, target)
    return made


@numba.njit(
    cache=True, nogil=True, boundscheck=False, error_model="numpy", forceinline=True, _nrt=False
)
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
