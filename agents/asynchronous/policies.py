"""Policies that commit after a number of local steps: BSP, SSP, TAP, local SGD and ADACOMM."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt, Le

from envs.arrays import IntArray
from envs.asynchronous.workers import Workers
from envs.bounds import Count, Positive, bounded


@bounded
@dataclass
class LocalSteps:
    """Every worker commits after `local_steps`, and waits while it is over `ahead` commits ahead.

    (1, 0) is BSP, (1, s) SSP with slack s, (1, inf) TAP. (steps, 0) is local SGD, and ADACOMM with
    a fixed period: the server holds the mean of the workers' parameters after a round.

    Guarantees:
        No worker steps on while it has made over `ahead` commits more than the slowest.

    Source:
        Ho et al.: *More Effective Distributed ML via a Stale Synchronous Parallel Parameter
        Server*, NeurIPS 2013 (SSP); Stich: *Local SGD Converges Fast and Communicates Little*,
        ICLR 2019.
    """

    local_steps: Count
    ahead: Annotated[float, Ge(0.0)] = 0.0

    def begin(self, workers: Workers, target: float) -> None: ...

    def commits(self, worker: int, steps: int, now: float, made: IntArray) -> bool:
        return steps >= self.local_steps

    def observe(self, now: float, loss: float, made: IntArray) -> None: ...


@bounded
@dataclass
class AdaComm:
    """Local SGD in rounds of ceil(sqrt(F(t) / F(0)) `local_steps`) steps, set every `period_s`.

    F is the loss. Where the number would not fall, it is the last one times `decay`.

    Guarantees:
        As `LocalSteps` with nobody ahead; rounds never grow, and have at least one step.

    Source:
        Wang, Joshi: *Adaptive Communication Strategies to Achieve the Best Error-Runtime Trade-off
        in Local-Update SGD*, SysML 2019.
    """

    local_steps: Count
    period_s: Positive
    decay: Annotated[float, Gt(0.0), Le(1.0)]
    ahead: float = 0.0

    def begin(self, workers: Workers, target: float) -> None:
        self._rounds, self._steps = [self.local_steps], self.local_steps  # of those begun, the next
        self._first, self._due = 0.0, 0.0

    def commits(self, worker: int, steps: int, now: float, made: IntArray) -> bool:
        if made[worker] == len(self._rounds):  # the first to end a step of a new round
            self._rounds.append(self._steps)
        return steps >= self._rounds[int(made[worker])]

    def observe(self, now: float, loss: float, made: IntArray) -> None:
        if now < self._due:
            return
        self._due = now + self.period_s
        self._first = self._first or loss
        steps = math.ceil(math.sqrt(loss / self._first) * self.local_steps)
        if now > 0.0:
            last = self._steps
            self._steps = steps if steps < last else max(1, math.floor(self.decay * last))
