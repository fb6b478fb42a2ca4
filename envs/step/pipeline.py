"""Pipelines of stages: every rank runs a list of actions strictly in order.

A stage has a forward pass and a backward pass, whole or split into the gradient of its input and
that of its weights. A rank runs one action at a time, each at max(rank free, inputs there). What
passes between ranks arrives `communication` later and occupies no rank.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import IntEnum
from itertools import pairwise
from typing import Literal, NamedTuple

from envs.errors import InputError

Overlap = Literal["serial", "atomic"]


class Work(IntEnum):
    """What is done for one stage and micro-batch."""

    FORWARD = 0
    INPUT = 1  # the gradient of the stage's input, which the stage before waits for
    WEIGHT = 2  # the gradient of its weights, which no operator waits for
    BACKWARD = 3  # both at once: neither is there before the end


class Action(NamedTuple):
    """One item of a rank's list; `overlapped`: (stage, micro-batch) of a backward beside it."""

    work: Work
    stage: int
    micro_batch: int
    overlapped: tuple[int, int] | None = None


Orders = Sequence[Sequence[Action]]  # the list of every rank


class Bar(NamedTuple):
    """One action as it was played."""

    work: Work
    stage: int
    micro_batch: int
    start: float
    finish: float


@dataclass(frozen=True)
class Pipeline:
    """Stages on ranks, and how long they take.

    Args:
        rank: (S,) the rank of each stage.
        micro_batches: micro-batch k passes the stages of chain k mod `len(chains)`.
        forward, input_gradient, weight_gradient: (S,) durations.
        communication: from a stage to its neighbour on another rank: one number, or (S - 1,) for
            stages s and s + 1 where they are one chain.
        chains: the stages of each chain in the order of the forward pass; every stage is on one.
    """

    rank: tuple[int, ...]
    micro_batches: int
    forward: tuple[float, ...]
    input_gradient: tuple[float, ...]
    weight_gradient: tuple[float, ...]
    communication: float | tuple[float, ...]
    chains: tuple[tuple[int, ...], ...]

    @property
    def num_ranks(self) -> int:
        """How many ranks there are."""
        return max(self.rank) + 1

    @property
    def tasks(self) -> list[tuple[int, int]]:
        """All (stage, micro-batch), those of one micro-batch after the other."""
        return [(s, k) for k in range(self.micro_batches) for s in self.chain(k)]

    @property
    def before(self) -> Mapping[int, int]:
        """The stage that each stage's forward pass waits for, where there is one."""
        return {b: a for chain in self.chains for a, b in pairwise(chain)}

    @property
    def after(self) -> Mapping[int, int]:
        """The stage that each stage's backward pass waits for, where there is one."""
        return {a: b for b, a in self.before.items()}

    @property
    def work(self) -> tuple[float, ...]:
        """How long each rank computes: no span is shorter."""
        total: list[float] = [0] * self.num_ranks
        for stage, _ in self.tasks:
            total[self.rank[stage]] += self.seconds(Work.FORWARD, stage)
            total[self.rank[stage]] += self.seconds(Work.BACKWARD, stage)
        return tuple(total)

    @property
    def longest_communication(self) -> float:
        """Between two ranks."""
        longest = self.communication
        return float(max(longest, default=0.0) if isinstance(longest, tuple) else longest)

    def chain(self, micro_batch: int) -> tuple[int, ...]:
        """The stages that a micro-batch passes."""
        return self.chains[micro_batch % len(self.chains)]

    def seconds(self, work: Work, stage: int) -> float:
        """How long `work` takes."""
        if work is Work.BACKWARD:
            return self.input_gradient[stage] + self.weight_gradient[stage]
        return (self.forward, self.input_gradient, self.weight_gradient)[work][stage]

    def delay(self, source: int, destination: int) -> float:
        """From the end of one stage to the start of another."""
        if self.rank[source] == self.rank[destination]:
            return 0
        if isinstance(self.communication, tuple):
            return self.communication[min(source, destination)]
        return self.communication


@dataclass(frozen=True)
class PlayedPipeline:
    """One step: what every rank did, in order."""

    bars: tuple[tuple[Bar, ...], ...]

    @property
    def makespan(self) -> float:
        """From zero to the last end."""
        return max(bar.finish for row in self.bars for bar in row)

    @property
    def max_rank_span(self) -> float:
        """The longest time from a rank's first start to its last end.

        It is the period of steps that follow each other without a barrier.
        """
        ends = [max(bar.finish for bar in row) for row in self.bars]
        return max(end - row[0].start for end, row in zip(ends, self.bars, strict=True))

    def peak_live(self, until: Literal[Work.WEIGHT, Work.INPUT]) -> list[int]:
        """Per rank, the most forward passes whose activations are held at once.

        They are released by the gradient `until`, or by a whole backward pass. Only the order
        counts, no time.
        """
        peaks = []
        for row in self.bars:
            live = peak = 0
            for bar in row:
                live += (bar.work is Work.FORWARD) - (bar.work in {until, Work.BACKWARD})
                peak = max(peak, live)
            peaks.append(peak)
        return peaks


def play(pipeline: Pipeline, orders: Orders, overlap: Overlap = "serial") -> PlayedPipeline:
    """One step in these orders.

    `overlap` is what a forward pass with a backward pass beside it is: "serial" one after the
    other, each as soon as its own input is there; "atomic" one action that starts when both inputs
    are there, lasts as long as both, and gives the forward's result after the forward's time.

    Raises:
        InputError: an action is missing, done twice, on the wrong rank, or waits for ever.
    """
    if overlap == "serial":
        orders = [[part for action in order for part in parts(action)] for order in orders]
    _check(pipeline, orders)
    before, after = pipeline.before, pipeline.after
    end: dict[tuple[Work, int, int], float] = {}
    bars: list[list[Bar]] = [[] for _ in orders]
    free: list[float] = [0] * len(orders)
    position = [0] * len(orders)

    def ready(action: Action) -> float | None:
        """When the inputs of an action are there; None: not known yet."""
        work, stage, batch, overlapped = action
        if overlapped is not None:
            first = ready(Action(Work.FORWARD, stage, batch))
            second = ready(Action(Work.BACKWARD, *overlapped))
            return None if first is None or second is None else max(first, second)
        inputs = []
        if work is Work.FORWARD:
            if stage in before:
                inputs = [(Work.FORWARD, before[stage])]
        elif work is Work.WEIGHT:
            inputs = [(Work.INPUT, stage)]
        else:
            inputs = [(Work.FORWARD, stage)]
            if stage in after:
                inputs.append((Work.INPUT, after[stage]))
        ends = [(end.get((kind, s, batch)), pipeline.delay(s, stage)) for kind, s in inputs]
        known = [at + delay for at, delay in ends if at is not None]
        return max(known, default=0) if len(known) == len(ends) else None

    def run(action: Action, rank: int, start: float) -> None:
        for work, stage, batch, _ in parts(action):
            finish = start + pipeline.seconds(work, stage)
            end[Work.INPUT if work is Work.BACKWARD else work, stage, batch] = finish
            bars[rank].append(Bar(work, stage, batch, start, finish))
            free[rank] = start = finish

    waiting = True
    while waiting:
        waiting = False
        for rank, order in enumerate(orders):
            while position[rank] < len(order):
                at = ready(order[position[rank]])
                if at is None:
                    break
                run(order[position[rank]], rank, max(at, free[rank]))
                position[rank] += 1
                waiting = True
    for rank, order in enumerate(orders):
        if position[rank] < len(order):
            work, stage, batch, _ = order[position[rank]]
            raise InputError(
                f"rank {rank} waits for ever to run {work.name.lower()} of stage {stage}, "
                f"micro-batch {batch}"
            )
    return PlayedPipeline(tuple(tuple(row) for row in bars))


def parts(action: Action) -> tuple[Action, ...]:
    """An action, and the backward pass beside it where there is one."""
    if action.overlapped is None:
        return (action,)
    return action._replace(overlapped=None), Action(Work.BACKWARD, *action.overlapped)


def _check(pipeline: Pipeline, orders: Orders) -> None:
    """Every stage and micro-batch once forward and once backward, on its own rank."""
    seen: dict[tuple[int, int], list[Work]] = {task: [] for task in pipeline.tasks}
    for rank, order in enumerate(orders):
        for action in order:
            for work, stage, batch, _ in parts(action):
                if (stage, batch) not in seen or pipeline.rank[stage] != rank:
                    raise InputError(f"rank {rank} has no stage {stage} of micro-batch {batch}")
                seen[stage, batch].append(work)
    whole, split = [Work.FORWARD, Work.BACKWARD], [Work.FORWARD, Work.INPUT, Work.WEIGHT]
    for (stage, batch), works in seen.items():
        if sorted(works) not in (whole, split):
            raise InputError(f"stage {stage} of micro-batch {batch} is not done exactly once")
