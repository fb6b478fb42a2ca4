"""The kernel of the zero-bubble search: weight gradients fill the gaps that a skeleton leaves.

A skeleton says in which order a rank runs forward passes and input gradients. Gradients of weights
are run in the order in which they come up: where a whole one fits before the next input is there,
where memory asks for one, and where the rank would otherwise have been idle beyond its patience.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.step.random_numbers import RandomState, draw
from envs.arrays import FloatArray, IntArray
from envs.compilation import compiled, compiled_inner

ByteArray = NDArray[np.int8]

_SMOOTH = 0.3  # how much the mean span counts beside the cost
_HEAT = 0.0001  # of the cost: what a move may cost at the start
_FARTHEST = 3  # places that a move shifts a pass


class Facts(NamedTuple):
    """A pipeline as arrays, with one chain of stages and the same number of them on every rank."""

    stage: IntArray  # (R, V) the stages of a rank, first to last
    rank: IntArray  # (S,)
    seconds: FloatArray  # (3, S) forward, input gradient, weight gradient
    memory: FloatArray  # (3, S) what each adds to its rank
    limit: FloatArray  # (R,) of memory
    communication: float
    micro_batches: int


class Skeleton(NamedTuple):
    """What a search decides; pass 2 c + b of a rank is of its stage c, b = 1 backward."""

    passes: ByteArray  # (R, 2 V m)
    patience: FloatArray  # (R,) idle time in all; above it a gradient is run that does not fit

    def copy(self) -> Skeleton:
        return Skeleton(self.passes.copy(), self.patience.copy())


@compiled
def fill(
    facts: Facts, passes: ByteArray, patience: FloatArray, row: IntArray
) -> tuple[float, float, float]:
    """Span, makespan and mean span; all are inf where memory is too small or something waits.

    Args:
        row: (R, 3 V m) takes what is run, in order: 3 * stage + 0 forward, 1 input, 2 weight;
            empty: nothing is written.
    """
    ranks, chunks = facts.stage.shape
    stages, batches = len(facts.rank), facts.micro_batches
    length = passes.shape[1]
    end = np.full((2, stages, batches), -1.0)
    clock, first, memory = np.zeros(ranks), np.full(ranks, -1.0), np.zeros(ranks)
    idle = np.zeros(ranks)
    position, written = np.zeros(ranks, dtype=np.int64), np.zeros(ranks, dtype=np.int64)
    done = np.zeros((ranks, 2 * chunks), dtype=np.int64)
    owed = np.empty((ranks, chunks * batches), dtype=np.int64)
    head, tail = np.zeros(ranks, dtype=np.int64), np.zeros(ranks, dtype=np.int64)
    left = ranks * length
    record = row.shape[0] > 0
    moved = True
    while moved and left:
        moved = False
        for r in range(ranks):
            while position[r] < length:
                item = passes[r, position[r]]
                back = item & 1
                s = facts.stage[r, item >> 1]
                k = done[r, item]
                if k >= batches:
                    return np.inf, np.inf, np.inf
                ready = 0.0
                other = s + 1 if back else s - 1
                if back and end[0, s, k] < 0.0:
                    break
                if 0 <= other < stages:
                    if end[back, other, k] < 0.0:
                        break
                    ready = end[back, other, k]
                    if facts.rank[other] != r:
                        ready += facts.communication
                if back:
                    ready = max(ready, end[0, s, k])
                while head[r] < tail[r]:
                    w = owed[r, head[r]]
                    gap = ready - clock[r]
                    short = memory[r] + facts.memory[back, s] > facts.limit[r]
                    fits = facts.seconds[2, w] <= gap
                    if not (short or fits or (gap > 0.0 and idle[r] + gap > patience[r])):
                        break
                    clock[r] += facts.seconds[2, w]
                    memory[r] += facts.memory[2, w]
                    head[r] += 1
                    if record:
                        row[r, written[r]] = 3 * w + 2
                        written[r] += 1
                memory[r] += facts.memory[back, s]
                if memory[r] > facts.limit[r]:
                    return np.inf, np.inf, np.inf
                start = max(clock[r], ready)
                if first[r] >= 0.0:
                    idle[r] += start - clock[r]
                else:
                    first[r] = start
                clock[r] = start + facts.seconds[back, s]
                end[back, s, k] = clock[r]
                done[r, item] += 1
                position[r] += 1
                if record:
                    row[r, written[r]] = 3 * s + back
                    written[r] += 1
                if back:
                    owed[r, tail[r]] = s
                    tail[r] += 1
                left -= 1
                moved = True
    if left:
        return np.inf, np.inf, np.inf
    span = makespan = total = 0.0
    for r in range(ranks):
        while head[r] < tail[r]:
            w = owed[r, head[r]]
            clock[r] += facts.seconds[2, w]
            head[r] += 1
            if record:
                row[r, written[r]] = 3 * w + 2
                written[r] += 1
        span = max(span, clock[r] - first[r])
        makespan = max(makespan, clock[r])
        total += clock[r] - first[r]
    return span, makespan, total / ranks


@compiled
def improve(
    facts: Facts,
    passes: ByteArray,
    patience: FloatArray,
    tries: int,
    bound: float,
    weight: float,
    random: RandomState,
) -> int:
    """Simulated annealing over skeletons from one that is feasible; the best is left in place.

    A move shifts passes along a rank's order, the same ones on neighbouring ranks, or changes their
    patience. Cost: makespan where `weight` is 1, span where it is 0. Stops at `bound`.

    Returns:
        how many skeletons were tried.
    """
    ranks, length = passes.shape
    nothing = np.empty((0, 0), dtype=np.int64)
    span, makespan, mean = fill(facts, passes, patience, nothing)
    now = (1.0 - weight) * span + weight * makespan
    best, second = now, span + makespan
    cost = now + _SMOOTH * mean
    a, c = passes.copy(), patience.copy()
    for step in range(tries):
        if best <= bound:
            return step
        x, z = a.copy(), c.copy()
        r = int(draw(random) * ranks)
        last = r + 1 if draw(random) < 0.5 else r + 1 + int(draw(random) * (ranks - r))
        if draw(random) < 0.8:
            item = a[r, int(draw(random) * length)]
            count = 0
            for i in range(length):
                count += a[r, i] == item
            number = int(draw(random) * count)
            run = 1 if draw(random) < 0.6 else 1 + int(draw(random) * (count - number))
            by = int(draw(random) * 2.0 * _FARTHEST) - _FARTHEST
            by = by + 1 if by >= 0 else by
            for q in range(r, last):
                _shift(x[q], item, number, run, by)
        else:
            z[r:last] = max(0.0, now - bound) * max(0.0, 1.6 * draw(random) - 0.1)
        span, makespan, mean = fill(facts, x, z, nothing)
        if span == np.inf:
            continue
        value = (1.0 - weight) * span + weight * makespan
        other = value + _SMOOTH * mean
        heat = _HEAT * now * (1.0 - step / tries)
        if other > cost - heat * np.log(1.0 - draw(random)):
            continue
        a, c, cost = x, z, other
        if value < best or (value == best and span + makespan < second):
            best, second = value, span + makespan
            passes[:], patience[:] = x, z
    return tries


@compiled_inner
def _shift(order: ByteArray, item: int, number: int, run: int, by: int) -> None:
    """Move the occurrences `number`.. of `item`, `run` of them, `by` places each."""
    length = len(order)
    first = 0 if by < 0 else length - 1
    step = 1 if by < 0 else -1
    count = 0
    total = 0
    for i in range(length):
        total += order[i] == item
    i = first
    while 0 <= i < length:
        if order[i] == item:
            occurrence = count if by < 0 else total - 1 - count
            count += 1
            if number <= occurrence < number + run:
                target = min(max(i + by, 0), length - 1)
                j = i
                while j != target:
                    order[j] = order[j - step]
                    j -= step
                order[target] = item
        i += step
