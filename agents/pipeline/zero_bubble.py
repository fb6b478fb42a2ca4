"""Zero-bubble schedules under a memory limit: a simple start, gaps filled, then a short search.

After Qi, Wan, Huang and Lin, "Zero Bubble Pipeline Parallelism" (ICLR 2024), and Qi, Wan, Amar and
Lin, "Pipeline Parallelism with Controllable Memory" (NeurIPS 2024): 1F1B with more forward passes
before the first backward pass, or micro-batches that repeat one block of passes, whose steps from
stage to stage decide how long activations are held.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice, product
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.pipeline.published import numbered
from agents.step.random_numbers import RandomState, draw
from envs.arrays import FloatArray, IntArray
from envs.compilation import compiled, compiled_inner
from envs.errors import InputError
from envs.step.pipeline import Action, Orders, Pipeline, Work

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
    limit: float  # of the memory of a rank
    communication: float
    micro_batches: int


class Skeleton(NamedTuple):
    """What a search decides; pass 2 c + b of a rank is of its stage c, b = 1 backward."""

    passes: ByteArray  # (R, 2 V m)
    patience: FloatArray  # (R,) idle time in all; above it a gradient is run that does not fit


@compiled
def fill(
    facts: Facts, passes: ByteArray, patience: FloatArray
) -> tuple[float, float, float, IntArray]:
    """Span, makespan and mean span; all are inf where memory is too small or something waits.

    And (R, 3 V m) what is run, in order: 3 * stage + 0 forward, 1 input, 2 weight.

    A rank runs forward passes and input gradients in the order of its skeleton. Gradients of
    weights are run in the order in which they come up: where a whole one fits before the next input
    is there, where memory asks for one, and where the rank would otherwise have been idle beyond
    its patience.
    """
    ranks, chunks = facts.stage.shape
    stages, batches = len(facts.rank), facts.micro_batches
    length = passes.shape[1]
    end = np.full((2, stages, batches), -1.0)
    clock, first, memory = np.zeros(ranks), np.full(ranks, -1.0), np.zeros(ranks)
    idle = np.zeros(ranks)
    position = np.zeros(ranks, dtype=np.int64)
    done = np.zeros((ranks, 2 * chunks), dtype=np.int64)
    owed = np.empty((ranks, chunks * batches), dtype=np.int64)
    head, tail = np.zeros(ranks, dtype=np.int64), np.zeros(ranks, dtype=np.int64)
    left = ranks * length
    row = np.empty((ranks, 3 * chunks * batches), dtype=np.int64)
    moved = True
    while moved and left:
        moved = False
        for r in range(ranks):
            while position[r] < length:
                item = passes[r, position[r]]
                back = item & 1
                s = facts.stage[r, item >> 1]
                k = done[r, item]
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
                    short = memory[r] + facts.memory[back, s] > facts.limit
                    fits = facts.seconds[2, w] <= gap
                    if not (short or fits or (gap > 0.0 and idle[r] + gap > patience[r])):
                        break
                    clock[r] += facts.seconds[2, w]
                    memory[r] += facts.memory[2, w]
                    row[r, position[r] + head[r]] = 3 * w + 2
                    head[r] += 1
                memory[r] += facts.memory[back, s]
                if memory[r] > facts.limit:
                    return np.inf, np.inf, np.inf, row
                start = max(clock[r], ready)
                if first[r] >= 0.0:
                    idle[r] += start - clock[r]
                else:
                    first[r] = start
                clock[r] = start + facts.seconds[back, s]
                end[back, s, k] = clock[r]
                done[r, item] += 1
                row[r, position[r] + head[r]] = 3 * s + back
                position[r] += 1
                if back:
                    owed[r, tail[r]] = s
                    tail[r] += 1
                left -= 1
                moved = True
    if left:
        return np.inf, np.inf, np.inf, row
    span = makespan = total = 0.0
    for r in range(ranks):
        while head[r] < tail[r]:
            w = owed[r, head[r]]
            clock[r] += facts.seconds[2, w]
            row[r, length + head[r]] = 3 * w + 2
            head[r] += 1
        span = max(span, clock[r] - first[r])
        makespan = max(makespan, clock[r])
        total += clock[r] - first[r]
    return span, makespan, total / ranks, row


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
    batches = facts.micro_batches
    span, makespan, mean, _ = fill(facts, passes, patience)
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
            number = int(draw(random) * batches)
            run = 1 if draw(random) < 0.6 else 1 + int(draw(random) * (batches - number))
            by = int(draw(random) * 2.0 * _FARTHEST) - _FARTHEST
            by = by + 1 if by >= 0 else by
            for q in range(r, last):
                _shift(x[q], item, batches, number, run, by)
        else:
            z[r:last] = max(0.0, now - bound) * max(0.0, 1.6 * draw(random) - 0.1)
        span, makespan, mean, _ = fill(facts, x, z)
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
def _shift(order: ByteArray, item: int, total: int, number: int, run: int, by: int) -> None:
    """Move the occurrences `number`.. of the `total` of `item`, `run` of them, `by` places each."""
    length = len(order)
    first = 0 if by < 0 else length - 1
    step = 1 if by < 0 else -1
    count = 0
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


Value = tuple[float, float]  # the objective, and what decides between equals

_SLOPES = np.linspace(1.0, 3.0, 17)  # more forward passes first per rank before it
_STEPS = (1, 2, 3)  # from stage to stage in a block, in passes
_WAITS = (0, 1, 3)  # where a block turns around, in passes
_BUDGETS = 24  # idle times that are tried
_STARTS = 8  # skeletons that the search begins with; every round leaves the better half
_ROUNDS = 4
_EFFORT = 3e8  # passes that the starts, and that the search, may play: fewer tries of large ones


@dataclass(frozen=True)
class Memory:
    """What every pass adds to its rank, per stage, and the most a rank may hold."""

    forward: tuple[float, ...]
    input_gradient: tuple[float, ...]
    weight_gradient: tuple[float, ...]
    limit: float


def zero_bubble(
    pipeline: Pipeline,
    memory: Memory,
    published: Orders | None,
    tries: int,
    seed: int,
    weight: float,
) -> Orders:
    """Lists with little idle time in which no rank holds more than it may.

    Args:
        pipeline: one chain of stages, as many on every rank.
        published: lists that are one of the starts.
        tries: skeletons that the search looks at.
        weight: 0: the span is to be small, 1: the makespan.

    Raises:
        InputError: the memory of a rank does not hold one micro-batch.
    """
    facts = _facts(pipeline, memory)
    bound = max(pipeline.work)
    budgets = _budgets(pipeline)
    random = np.array([seed], dtype=np.uint64)

    def value(skeleton: Skeleton) -> Value:
        span, makespan, *_ = fill(facts, *skeleton)
        return (1.0 - weight) * span + weight * makespan, span + makespan

    def best(passes: Iterable[ByteArray], patience: Sequence[float], count: int) -> list[Skeleton]:
        """The `count` best of different values."""
        found: dict[Value, Skeleton] = {}
        for row in passes:
            for idle in patience:
                skeleton = Skeleton(row, np.full(len(row), idle))
                found.setdefault(value(skeleton), skeleton)
            for worse in sorted(found)[count:]:
                del found[worse]
        kept = [found[key] for key in sorted(found) if key[0] < np.inf]
        return [skeleton._replace(passes=skeleton.passes.copy()) for skeleton in kept]

    most = int(_EFFORT / (2 * len(pipeline.tasks)))
    few = budgets if facts.stage.shape[1] == 1 else budgets[::8]
    starts = islice(_starts(facts, published), 4 + most // len(few))
    skeletons = best(starts, few, 4 * _STARTS)
    skeletons = best((skeleton.passes for skeleton in skeletons), budgets, _STARTS)
    while skeletons:
        for skeleton in skeletons:
            share = min(tries, most) // (_ROUNDS * len(skeletons))
            improve(facts, *skeleton, share, bound, weight, random)
        skeletons.sort(key=value)
        if len(skeletons) == 1 or value(skeletons[0])[0] <= bound:
            return _orders(facts, skeletons[0])
        skeletons = skeletons[: len(skeletons) // 2]
    raise InputError("the memory of a rank does not hold one micro-batch")


def _facts(pipeline: Pipeline, memory: Memory) -> Facts:
    ranks = range(pipeline.num_ranks)
    mine = [[s for s, r in enumerate(pipeline.rank) if r == rank] for rank in ranks]
    seconds = (pipeline.forward, pipeline.input_gradient, pipeline.weight_gradient)
    adds = (memory.forward, memory.input_gradient, memory.weight_gradient)
    return Facts(
        np.array(mine, dtype=np.int64),
        np.array(pipeline.rank, dtype=np.int64),
        np.array(seconds, dtype=np.float64),
        np.array(adds, dtype=np.float64),
        float(memory.limit),
        pipeline.longest_communication,
        pipeline.micro_batches,
    )


def _budgets(pipeline: Pipeline) -> list[float]:
    """Idle times up to what 1F1B has."""
    most = pipeline.num_ranks * (max(pipeline.forward) + max(pipeline.input_gradient))
    most += 2 * pipeline.num_ranks * pipeline.longest_communication
    return [most * (k / _BUDGETS) ** 1.5 for k in range(_BUDGETS)] + [np.inf]


def _starts(facts: Facts, published: Orders | None) -> Iterator[ByteArray]:
    ranks, chunks = facts.stage.shape
    alone = [*range(0, 2 * chunks, 2), *range(2 * chunks - 1, 0, -2)]
    yield np.array([alone * facts.micro_batches] * ranks, dtype=np.int8)
    if published is not None:
        yield _skeleton(facts, published)
    if chunks == 1:
        for slope, first, fewer in product(_SLOPES, (1, 2), (0, 1)):
            counts = [int(first + slope * (ranks - 1 - r)) for r in range(ranks)]
            yield _warmed_up(facts, counts, fewer)
    legs = chunks if chunks < 3 else 1  # that differ in their steps
    for forward, backward in product(product(_STEPS, repeat=legs), repeat=2):
        steps = [*forward * (chunks // legs), *backward * (chunks // legs)]
        for waits in product(_WAITS, repeat=2 * legs - 1):
            yield _repeated(facts, steps, waits if legs == chunks else waits * (2 * chunks - 1))


def _skeleton(facts: Facts, orders: Orders) -> ByteArray:
    rows = []
    for rank, order in enumerate(orders):
        stages = facts.stage[rank].tolist()
        rows.append(
            [2 * stages.index(a.stage) + (a.work is not Work.FORWARD) for a in order
             if a.work is not Work.WEIGHT]
        )  # fmt: skip
    return np.array(rows, dtype=np.int8)


def _warmed_up(facts: Facts, first: Sequence[int], fewer: int) -> ByteArray:
    """1F1B after `first` (R,) forward passes, or what memory holds less `fewer` per rank before."""
    batches = facts.micro_batches
    passes = np.ones((len(first), 2 * batches), dtype=np.int8)
    for rank, count in enumerate(first):
        adds = facts.memory[0, facts.stage[rank, 0]]
        most = facts.limit // adds - fewer * rank if adds > 0 else batches
        held = int(max(1, min(count, most, batches)))
        passes[rank, :held] = 0
        passes[rank, held + 1 : 2 * batches - held : 2] = 0
    return passes


def _repeated(facts: Facts, steps: Sequence[int], waits: Sequence[int]) -> ByteArray:
    """Every micro-batch runs the same block, one period after the one before it.

    All passes count as equally long, communication as nothing.

    Args:
        steps: (2 V,) from stage to stage on the way through each chunk and back.
        waits: (2 V - 1,) between two chunks.
    """
    ranks, chunks = facts.stage.shape
    stages, batches = len(facts.rank), facts.micro_batches
    at, now = np.zeros(2 * stages, dtype=np.int64), 0
    for n in range(2 * stages):
        at[n] = now
        leg, place = divmod(n, ranks)
        now += 1 + waits[leg] if place == ranks - 1 and leg < len(waits) else steps[leg]
    late = 3 * chunks * np.arange(batches)
    kinds = np.repeat(np.arange(2 * chunks, dtype=np.int8), batches)
    passes = np.empty((ranks, len(kinds)), dtype=np.int8)
    for rank, mine in enumerate(facts.stage):
        when = np.concatenate([at[n] + late for s in mine for n in (s, 2 * stages - 1 - s)])
        passes[rank] = kinds[np.argsort(when, kind="stable")]
    return passes


def _orders(facts: Facts, skeleton: Skeleton) -> Orders:
    *_, row = fill(facts, *skeleton)
    return [
        [Action(Work(code % 3), code // 3, batch) for code, batch in numbered(codes)]
        for codes in row.tolist()
    ]
