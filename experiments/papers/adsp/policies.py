"""Policies that commit after a number of local steps: BSP, SSP, TAP, local SGD and ADACOMM."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Le

from envs.arrays import FloatArray, IntArray
from envs.bounds import Count, Positive, bounded
from experiments.papers.adsp.simulation import Workers


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


@bounded
@dataclass
class Adsp:
    """All workers make the same number of commits in a check period; the fast step more between.

    At every check the goal for everybody's commits rises by the rate, and each worker spreads what
    it lacks over the period. Every `epoch` checks the rate is searched from 1 up: it rises by one
    while the reward of a period does, one over the time to the target that its losses predict. It
    is at most that at which the slowest worker can commit. With `commit_rate` it is fixed.

    Guarantees:
        No worker ever waits; none makes fewer commits than the goal if it can keep up.

    Source:
        Hu, Wang, Wu: *Distributed Machine Learning through Heterogeneous Edge Systems*, AAAI 2020
        (arXiv 1911.06949); reconstructed, see page.md.

    Attributes:
        chosen: time and rate of every change.
    """

    check_s: Positive
    epoch: Count
    commit_rate: Count | None = None
    chosen: list[tuple[float, int]] = field(default_factory=list)
    ahead: float = math.inf

    def begin(self, workers: Workers, target: float) -> None:
        slowest = float((workers.step_s + workers.push_s + workers.pull_s).max())
        self._most = max(1, math.floor(self.check_s / slowest))
        self._push, self._target = workers.push_s, target
        self._rate = self.commit_rate or 1
        self._goal, self._checks, self._best, self._searching = 0, 0, 0.0, True
        self._due = self._gap = np.zeros_like(workers.push_s)
        self._times, self._losses = list[float](), list[float]()
        self.chosen = [(0.0, self._rate)]

    def commits(self, worker: int, steps: int, now: float, made: IntArray) -> bool:
        if now < self._due[worker] - 1e-9 * now:
            return False
        self._due[worker] += self._gap[worker]
        return True

    def observe(self, now: float, loss: float, made: IntArray) -> None:
        self._times.append(now)
        self._losses.append(loss)
        if now < self._checks * self.check_s * (1.0 - 1e-9):
            return
        if self._checks and self.commit_rate is None:
            self._search(now)
        self._checks += 1
        self._times, self._losses = [now], [loss]
        self._goal += self._rate
        # commits in a period are due at its end, and evenly before
        self._gap = self.check_s / np.maximum(self._goal - made, 1)
        self._due = now + self._gap - np.minimum(self._push, self._gap)

    def _search(self, now: float) -> None:
        """After a period: probe the next rate, or go back to the last until the epoch ends."""
        rate = self._rate
        if self._checks % self.epoch == 0:
            self._searching, self._best, rate = True, 0.0, 1
        elif self._searching:
            reward = 1.0 / predicted(np.array(self._times), np.array(self._losses), self._target)
            self._searching = reward > self._best and rate < self._most
            if reward <= self._best:
                rate = max(1, rate - 1)
            elif self._searching:
                self._best, rate = reward, rate + 1
        if rate != self._rate:
            self.chosen.append((now, rate))
        self._rate = rate


def predicted(times: FloatArray, losses: FloatArray, target: float) -> float:
    """When a curve 1 / (a² t + b) + c through `losses` at `times` reaches `target`; inf if never.

    For a given c the curve is a line in 1 / (loss - c); of 64 values of c below the target and all
    losses that with the least squares of errors is taken.
    """
    best, found = math.inf, math.inf
    for c in min(target, float(losses.min())) * np.linspace(0.0, 0.98, 64):
        slope, at_zero = np.polyfit(times, 1.0 / (losses - c), 1)
        curve = slope * times + at_zero
        error = float(np.sum((1.0 / curve + c - losses) ** 2))
        if slope > 0.0 and curve.min() > 0.0 and error < best:
            best, found = error, (1.0 / (target - c) - at_zero) / slope
    return max(float(found), 1e-9)
