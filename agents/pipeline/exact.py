"""The optimum over all orders of a pipeline, proved by CP-SAT."""

from __future__ import annotations

import time
from collections import defaultdict
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from agents.constraint_program.program import ConstraintProgram
from agents.constraint_program.solver import CpSettings, CpSolver
from agents.pipeline.zero_bubble import Memory
from envs.errors import InputError
from envs.step.pipeline import Action, Bar, Pipeline, PlayedPipeline, Work, play

_LARGEST = 2**31  # of a time: see `CpSolver.search`
_SHARE = 0.25  # of the time for a first span, which bounds the times of the second search


@dataclass(frozen=True)
class Proved:
    """The best that was found; no order has a smaller objective than `bound`."""

    played: PlayedPipeline
    objective: float
    bound: float

    @property
    def status(self) -> str:
        return "optimal" if self.objective <= self.bound else "feasible"


def optimum(
    pipeline: Pipeline,
    memory: Memory | None,
    *,
    split: bool,
    span: bool,
    seconds: float,
    settings: CpSettings,
) -> Proved:
    """The smallest makespan, or the smallest longest span of a rank.

    The micro-batches of a chain pass a stage one after the other, forward and backward alike. A
    rank may wait before its first action.

    Args:
        memory: None: no limit.
        split: whether the gradient of weights is an action of its own.

    Raises:
        InputError: times are not whole, memory does not add up, or nothing was found.
    """
    end = time.perf_counter() + seconds
    model = _Model(pipeline, memory, split, span, None)
    share = _SHARE * seconds if span else seconds
    values, bound = _searched(model, settings, share)
    if values is None:
        raise InputError(f"config key 'budget_s': CP-SAT found no order within {share:g} s")
    found = model.played(values)
    if span and bound < found.max_rank_span:
        model = _Model(pipeline, memory, split, span, int(found.max_rank_span))
        values, better = _searched(model, settings, end - time.perf_counter())
        found = model.played(values) if values is not None else found
        bound = max(bound, min(better, found.max_rank_span))
    orders = [[Action(b.work, b.stage, b.micro_batch) for b in row] for row in found.bars]
    again = play(pipeline, orders)
    if span:
        found = again if again.max_rank_span <= found.max_rank_span else found
        return Proved(found, found.max_rank_span, bound)
    return Proved(again, again.makespan, bound)


def _searched(
    model: _Model, settings: CpSettings, seconds: float
) -> tuple[list[int] | None, float]:
    """The best values, None where there are none; a bound, inf where there can be none."""
    values, bound = None, float(model.least)
    with CpSolver() as solver:
        for event in solver.search(
            model.program, model.watched, settings, seconds=seconds, deterministic_limit=None
        ):
            values = event.values or values
            bound = max(bound, event.bound if event.bound is not None else bound)
            bound = np.inf if event.status == "INFEASIBLE" else bound
    return values, bound


class _Model:
    """Starts of all actions as variables.

    `known` is a span that is to be beaten. Every rank's first action waits for the first stage of a
    chain, and that stage's last gradient for the others: all ranks are at work within two spans, or
    three where chains begin on different ranks.
    """

    def __init__(
        self, pipeline: Pipeline, memory: Memory | None, split: bool, span: bool, known: int | None
    ) -> None:
        self._pipeline = pipeline
        self._works = (
            (Work.FORWARD, Work.INPUT, Work.WEIGHT) if split else (Work.FORWARD, Work.BACKWARD)
        )
        own = (*pipeline.forward, *pipeline.input_gradient, *pipeline.weight_gradient)
        if not all(float(x).is_integer() for x in (pipeline.longest_communication, *own)):
            raise InputError("config key 'name': exact needs times that are whole numbers")
        late = 2 * pipeline.longest_communication * len(pipeline.tasks)
        self.horizon = int(sum(pipeline.work) + late)  # one action at a time
        if self.horizon >= _LARGEST:
            raise InputError(f"config key 'name': exact needs times whose sum is below {_LARGEST}")
        if known is not None:
            self.horizon = min(self.horizon, (1 + len(pipeline.chains)) * known)
        self.least = int(max(pipeline.work))
        self.program = program = ConstraintProgram()
        self.start = {
            Action(work, *task): program.integer(0, self.horizon)
            for task in pipeline.tasks
            for work in self._works
        }
        self.watched = list(self.start.values())
        most = self.horizon if known is None else known - 1
        self.objective = program.integer(self.least, most)
        if len(pipeline.chains) == 1:  # all others wait for it
            program.add_linear([(self.watched[0], 1)], lower=0, upper=0)
        program.minimize(self.objective)
        self._order()
        self._ranks(span)
        if memory is not None:
            self._hold(memory)

    def played(self, values: list[int]) -> PlayedPipeline:
        """The step of a solution."""
        rows: list[list[Bar]] = [[] for _ in range(self._pipeline.num_ranks)]
        for action, at in zip(self.start, values, strict=True):
            length = self._pipeline.seconds(action.work, action.stage)
            bar = Bar(action.work, action.stage, action.micro_batch, at, at + length)
            rows[self._pipeline.rank[action.stage]].append(bar)
        return PlayedPipeline(
            tuple(tuple(sorted(row, key=lambda bar: (bar.start, bar.finish))) for row in rows)
        )

    def _length(self, action: Action) -> int:
        return int(self._pipeline.seconds(action.work, action.stage))

    def _after(self, first: Action, second: Action) -> None:
        gap = self._length(first) + int(self._pipeline.delay(first.stage, second.stage))
        self.program.add_order(self.start[first], self.start[second], gap=gap)

    def _order(self) -> None:
        """What waits for what, and micro-batches one after the other."""
        back = self._works[1]
        passed: dict[tuple[Work, int], list[Action]] = defaultdict(list)
        for batch in range(self._pipeline.micro_batches):
            chain = self._pipeline.chain(batch)
            for a, b in pairwise(chain):
                self._after(Action(Work.FORWARD, a, batch), Action(Work.FORWARD, b, batch))
                self._after(Action(back, b, batch), Action(back, a, batch))
            last = chain[-1]
            self._after(Action(Work.FORWARD, last, batch), Action(back, last, batch))
            for s in chain:
                if Work.WEIGHT in self._works:
                    self._after(Action(back, s, batch), Action(Work.WEIGHT, s, batch))
                for work in self._works:
                    passed[work, s].append(Action(work, s, batch))
        for actions in passed.values():
            for first, second in pairwise(actions):
                self._after(first, second)

    def _ranks(self, span: bool) -> None:
        """One action at a time; the objective."""
        program = self.program
        for rank in range(self._pipeline.num_ranks):
            mine = [a for a in self.start if self._pipeline.rank[a.stage] == rank]
            program.add_no_overlap(
                [program.fixed_interval(self.start[a], self._length(a), program.true) for a in mine]
            )
            first = program.integer(0, self.horizon if span else 0)
            for a in mine:
                program.add_order(first, self.start[a])
                over = [(self.objective, 1), (self.start[a], -1), (first, 1)]
                program.add_linear(over, lower=self._length(a))

    def _hold(self, memory: Memory) -> None:
        """A forward pass takes memory that the gradients give back at their ends."""
        program, back = self.program, self._works[1]
        capacity = program.integer(int(memory.limit), int(memory.limit))
        given = list(
            zip(memory.forward, memory.input_gradient, memory.weight_gradient, strict=True)
        )
        for rank in range(self._pipeline.num_ranks):
            intervals, demands = [], []
            for task in self._pipeline.tasks:
                if self._pipeline.rank[task[0]] != rank:
                    continue
                taken, first, second = given[task[0]]
                if taken + first + second or first > 0 or second > 0:
                    raise InputError(
                        "config key 'memory': exact needs gradients that give back what the "
                        "forward pass takes"
                    )
                releases = [(back, -first), (self._works[-1], -second)]
                for work, size in releases if back is not self._works[-1] else [(back, taken)]:
                    if not float(size).is_integer():
                        raise InputError("config key 'memory': exact needs whole numbers")
                    begin, end = self.start[Action(Work.FORWARD, *task)], Action(work, *task)
                    length, until = (program.integer(0, self.horizon) for _ in range(2))
                    over = [(until, 1), (self.start[end], -1)]
                    program.add_linear(over, lower=self._length(end), upper=self._length(end))
                    intervals.append(program.interval(begin, length, until, program.true))
                    demands.append(int(size))
            program.add_cumulative(intervals, demands, capacity)
