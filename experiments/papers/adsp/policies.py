"""Policies that commit after some local steps: BSP, SSP, TAP, local SGD, ADACOMM and ADSP."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Le

from envs.arrays import FloatArray, IntArray
from envs.bounds import Count, Positive, bounded
from experiments.papers.adsp.simulation import Policy, Workers


@bounded
@dataclass
class LocalSteps(Policy):
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

    def commits(self, worker: int, steps: int, now: float, made: IntArray) -> bool:
        return steps >= self.local_steps


@bounded
@dataclass
class AdaComm(Policy):
    """Local SGD in rounds of ceil(sqrt(F(t) / F(0)) `local_steps`) steps, set every `period_s`.

    F is the loss. Where the number would not fall, it is the last one times `decay`.

    Guarantees:
        As `LocalSteps` with `ahead` 0; rounds never grow, and have at least one step.

    Source:
        Wang, Joshi: *Adaptive Communication Strategies to Achieve the Best Error-Runtime Trade-off
        in Local-Update SGD*, SysML 2019.
    """

    local_steps: Count
    period_s: Positive
    decay: Annotated[float, Gt(0.0), Le(1.0)]

    def begin(self, workers: Workers, target: float) -> None:
        # steps of the rounds that have begun, and of the next one
        self._rounds, self._steps = {0: self.local_steps}, self.local_steps
        self._first, self._due = 0.0, 0.0

    def commits(self, worker: int, steps: int, now: float, made: IntArray) -> bool:
        # the first to end a step of a new round begins it
        return steps >= self._rounds.setdefault(int(made[worker]), self._steps)

    def observe(self, now: float, loss: float, made: IntArray) -> None:
        if now < self._due:
            return
        self._due = now + self.period_s
        if now == 0.0:
            self._first = loss
            return
        steps = math.ceil(math.sqrt(loss / self._first) * self.local_steps)
        last = self._steps
        self._steps = steps if steps < last else max(1, math.floor(self.decay * last))


@bounded
@dataclass
class Adsp(Policy):
    """All workers make the same number of commits in a check period; the fast step more between.

    At every check the goal for the commits of each worker rises by the rate, and each spreads what
    it lacks over the period. Every `epoch` checks the rate is searched from 1 up: it rises by one
    while the reward of a period does, one over the time to the target that its losses predict. It
    is at most that at which the slowest worker can commit. With `commit_rate` it is fixed.

    Guarantees:
        No worker ever waits; none makes fewer commits than the goal if it can keep up.

    Source:
        Hu, Wang, Wu: *Distributed Machine Learning through Heterogeneous Edge Systems*, AAAI 2020
        (arXiv 1911.06949); reconstructed, see page.md.
    """

    check_s: Positive
    epoch: Count
    commit_rate: Count | None = None
    ahead = math.inf

    def begin(self, workers: Workers, target: float) -> None:
        slowest = float((workers.step_s + workers.push_s + workers.pull_s).max())
        self._most = max(1, math.floor(self.check_s / slowest))
        self._push, self._target = workers.push_s, target
        self._goal, self._checks, self._best = 0, 0, 0.0
        self._curve: list[tuple[float, float]] = []
        self.chosen = [(0.0, self.commit_rate or 1)]

    def commits(self, worker: int, steps: int, now: float, made: IntArray) -> bool:
        if now < self._due[worker] - 1e-9 * now:
            return False
        self._due[worker] += self._gap[worker]
        return True

    def observe(self, now: float, loss: float, made: IntArray) -> None:
        self._curve.append((now, loss))
        if now < self._checks * self.check_s * (1.0 - 1e-9):
            return
        rate = self.chosen[-1][1]
        if self.commit_rate is None and (new := self._searched(rate)) != rate:
            rate = new
            self.chosen = [*self.chosen, (now, rate)]
        self._checks += 1
        self._curve = [(now, loss)]
        self._goal += rate
        # commits in a period are due at its end, and evenly before
        self._gap = self.check_s / np.maximum(self._goal - made, 1)
        self._due = now + self._gap - np.minimum(self._push, self._gap)

    def _searched(self, rate: int) -> int:
        """After a period: probe the next rate, or go back to the last until the epoch ends.

        `_best` is the reward of the last rate, inf once the search of this epoch has ended.
        """
        if self._checks % self.epoch == 0:
            self._best, rate = 0.0, 1
        elif self._best < math.inf:
            times, losses = np.array(self._curve).T
            reward = 1.0 / predicted(times, losses, self._target)
            if reward <= self._best:
                self._best, rate = math.inf, max(1, rate - 1)
            elif rate < self._most:
                self._best, rate = reward, rate + 1
            else:
                self._best = math.inf
        return rate


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
