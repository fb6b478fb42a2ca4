"""Policies that commit after a number of local steps: BSP, SSP, TAP, local SGD and ADACOMM."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Gt, Le

from envs.asynchronous.simulation import IntArray
from envs.asynchronous.workers import Workers
from envs.bounds import Count, NonNegative, Positive, bounded


@bounded
@dataclass
class LocalSteps:
    """Every worker commits after `local_steps`, and waits while it is over `ahead` commits ahead.

    (1, 0) is BSP, (1, s) SSP with slack s, (1, inf) TAP. (steps, 0) is local SGD, whose server
    holds the mean of the workers' parameters after every round; ADACOMM with a fixed period is the
    same thing.

    Guarantees:
        No worker steps on while it has made over `ahead` commits more than the slowest.

    Source:
        Ho, Cipar, Cui, Kim, Lee, Gibbons, Gibson, Ganger, Xing: *More Effective Distributed ML via
        a Stale Synchronous Parallel Parameter Server*, NeurIPS 2013 (SSP); Stich: *Local SGD
        Converges Fast and Communicates Little*, ICLR 2019.
    """

    local_steps: Count
    ahead: Annotated[float, Gt(-1)]

    def begin(self, workers: Workers, target: float) -> None: ...

    def commits(self, worker: int, steps: int, now: float, made: IntArray) -> bool:
        return steps >= self.local_steps

    def observe(self, now: float, loss: float, made: IntArray) -> None: ...


@bounded
@dataclass
class AdaComm:
    """Local SGD in rounds of ceil(sqrt(F(t) / F(0)) `local_steps`) steps, set every `period_s`.

    F is the loss. Where the number would not fall, it is the last one times `decay`; 1: it stays.

    Guarantees:
        As `LocalSteps` with nobody ahead; rounds never grow, and end with one step.

    Source:
        Wang, Joshi: *Adaptive Communication Strategies to Achieve the Best Error-Runtime Trade-off
        in Local-Update SGD*, SysML 2019.
    """

    local_steps: Count
    period_s: Positive
    decay: Annotated[Positive, Le(1.0)]
    ahead: NonNegative = 0.0

    def begin(self, workers: Workers, target: float) -> None:
        self._rounds = [self.local_steps]  # steps of every round that has begun
        self._next, self._first, self._due = self.local_steps, 0.0, 0.0

    def commits(self, worker: int, steps: int, now: float, made: IntArray) -> bool:
        if made[worker] == len(self._rounds):  # the first to end a step of a new round
            self._rounds.append(self._next)
        return steps >= self._rounds[made[worker]]

    def observe(self, now: float, loss: float, made: IntArray) -> None:
        if now == 0.0:
            self._first = loss
        elif now >= self._due:
            steps = math.ceil(math.sqrt(loss / self._first) * self.local_steps)
            last = self._next
            self._next = steps if steps < last else max(1, math.floor(self.decay * last))
        if now >= self._due:
            self._due = now + self.period_s
