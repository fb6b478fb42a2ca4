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

import numpy as np
from numpy.typing import NDArray

from agents.pipeline.filling import Facts, Skeleton, fill, improve
from envs.errors import InputError
from envs.step.pipeline import Action, Orders, Pipeline, Work

ByteArray = NDArray[np.int8]
Value = tuple[float, float]  # the objective, and what decides between equals

_SLOPES = np.linspace(1.0, 3.0, 17)  # more forward passes first per rank before it
_STEPS = (1, 2, 3)  # from stage to stage in a block, in passes
_WAITS = (0, 1, 3)  # where a block turns around, in passes
_BUDGETS = 24  # idle times that are tried
_STARTS = 8  # skeletons that the search begins with; every round leaves the better half
_ROUNDS = 4
_EFFORT = 3e8  # passes that the starts, and that the search, may play: fewer tries of large ones
_NOTHING = np.empty((0, 0), dtype=np.int64)


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
        span, makespan, _ = fill(facts, *skeleton, _NOTHING)
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
        return [found[key].copy() for key in sorted(found) if key[0] < np.inf]

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
        np.full(len(ranks), memory.limit, dtype=np.float64),
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
        most = facts.limit[rank] // adds - fewer * rank if adds > 0 else batches
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
    ranks, chunks = facts.stage.shape
    row = np.empty((ranks, 3 * chunks * facts.micro_batches), dtype=np.int64)
    fill(facts, *skeleton, row)
    orders = []
    for codes in row.tolist():
        done = [0] * (3 * len(facts.rank))
        order = []
        for code in codes:
            order.append(Action(Work(code % 3), code // 3, done[code]))
            done[code] += 1
        orders.append(order)
    return orders
