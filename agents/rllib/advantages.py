"""How much better than expected: advantages, where steps count alike or take time.

Decisions that take time are those of a semi-Markov process (Bradtke and Duff, "Reinforcement
learning methods for continuous-time Markov decision problems", NeurIPS 1994): a step takes the time
dt, often none, and what comes after it counts exp(-dt / tau).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Protocol, runtime_checkable

import numpy as np

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.bounds import Positive, Share, bounded


@runtime_checkable
class Discounting(Protocol):
    """How the future counts."""

    def discounts(self, times: FloatArray) -> FloatArray:
        """What counts of that which comes after steps that take so long."""

    def kept(self, times: FloatArray, observed: bool = False) -> FloatArray:
        """What is left of an advantage after them, the rest taken from the critic.

        `observed`: all of it; nothing is taken from the critic before an episode is cut.
        """

    def accrued(self, rewards: FloatArray, times: FloatArray) -> FloatArray:
        """Rewards of steps, discounted to their start."""


@bounded
@dataclass(frozen=True)
class PerStep:
    """Every step counts alike, whatever time it takes (Schulman et al., arXiv:1506.02438).

    Attributes:
        gamma: what a step later counts.
        gae_lambda: trade of bias against variance in the advantages.
    """

    gamma: Share = 1.0
    gae_lambda: Share = 1.0

    def discounts(self, times: FloatArray) -> FloatArray:
        return np.full_like(times, self.gamma)

    def kept(self, times: FloatArray, observed: bool = False) -> FloatArray:
        return np.full_like(times, 1.0 if observed else self.gae_lambda)

    def accrued(self, rewards: FloatArray, times: FloatArray) -> FloatArray:
        return rewards


@bounded
@dataclass(frozen=True)
class PerTime:
    """Time counts, and not how many decisions are taken in it.

    Advantages are those of Schulman et al. (arXiv:1506.02438, equation 16), with lambda per time
    and not per step. All decisions of one instant are one decision in parts: with lambda per step a
    busy instant with twenty starts would hide from the first of them what becomes of it, though no
    time passes; with lambda per time it does not matter how many parts there are.

    Attributes:
        tau: time after which what happens counts 1 / e.
        credit: time after which 1 / e of what was observed is left in an advantage.
    """

    tau: Positive = 10.0
    credit: Positive = 2.0

    def discounts(self, times: FloatArray) -> FloatArray:
        counts: FloatArray = np.exp(-times / self.tau)
        return counts

    def kept(self, times: FloatArray, observed: bool = False) -> FloatArray:
        left: FloatArray = np.exp(-times / (np.inf if observed else self.credit))
        return left

    def accrued(self, rewards: FloatArray, times: FloatArray) -> FloatArray:
        """`rewards` that come at an even rate over `times`.

        The integral of r / dt exp(-t / tau) from 0 to dt. The rates are even: numbers of jobs and
        GPUs do not change between two events.
        """
        share = times / self.tau
        factor = np.ones_like(share)
        np.divide(-np.expm1(-share), share, out=factor, where=share > 0.0)
        accrued: FloatArray = rewards * factor
        return accrued


def advantages(
    rewards: FloatArray,
    values: FloatArray,
    next_values: FloatArray,
    elapsed: FloatArray,
    ends: BoolArray,
    decides: BoolArray,
    discounting: Discounting,
    observed: bool = False,
) -> tuple[FloatArray, FloatArray]:
    """(T, B) generalised advantages of T steps of B agents, and (T, B) what is to be expected.

    A step in which an agent has no choice is not a decision but a part of what comes of the one
    before: its value is not needed. It is what the step brings and what is to be expected after it.

    Args:
        rewards: (T, B), discounted to the start of their step.
        values: (T, B) expected at the start of every step; read where there is a decision.
        next_values: (T, B) expected at the end of the last step of an episode or of the rollout: 0
            where it is terminated, the value of its last observation where it goes on or is
            truncated; not read elsewhere.
        elapsed: (T, B) time that each step takes.
        ends: (T, B) whether the episode is terminated or truncated with the step.
        decides: (T, B) whether the agent has a choice.
        discounting: how the future counts.
        observed: whether advantages are what was observed, the critic asked at the end alone.
    """
    discounts = discounting.discounts(elapsed)
    carried = discounts * discounting.kept(elapsed, observed) * ~ends
    gains, expected = np.empty((2, *rewards.shape))
    gain, value = np.zeros(rewards.shape[1]), next_values[-1]
    for t in reversed(range(len(rewards))):
        ahead = rewards[t] + discounts[t] * np.where(ends[t], next_values[t], value)
        value = np.where(decides[t], values[t], ahead)
        gain = ahead - value + carried[t] * gain
        gains[t], expected[t] = gain, value
    return gains, expected


class Scale:
    """What is known of past numbers, and goes into checkpoints by the names in `kept`."""

    kept: ClassVar[tuple[str, ...]]

    def state(self) -> dict[str, object]:
        return {name: np.asarray(getattr(self, name)).tolist() for name in self.kept}

    def load(self, state: Mapping[str, object]) -> None:
        for name in self.kept:
            value = np.array(state[name], np.float64)
            setattr(self, name, value if value.ndim else float(value))


class RewardScale(Scale):
    """The standard deviation of the discounted sum of past rewards, which rewards are divided by.

    Engstrom et al., "Implementation matters in deep policy gradients" (ICLR 2020), section 2; here
    over seconds. Until two sums are known it is 1.

    Args:
        agents: B.
    """

    kept = ("sums", "count", "mean", "squares")

    def __init__(self, agents: int) -> None:
        self.sums = np.zeros(agents)
        self.count, self.mean, self.squares = 0.0, 0.0, 0.0

    @property
    def deviation(self) -> float:
        if self.count < 2 or self.squares <= 0.0:
            return 1.0
        return float(np.sqrt(self.squares / self.count))

    def add(
        self,
        rewards: FloatArray,
        discounts: FloatArray,
        ends: BoolArray,
        agents: IntArray | None = None,
    ) -> None:
        """Take in (T, n) rewards of `agents`, what counts after each step, where episodes end."""
        which = slice(None) if agents is None else agents
        for t in range(len(rewards)):
            sums = self.sums[which] + rewards[t]
            self._merge(sums)
            self.sums[which] = np.where(ends[t], 0.0, sums * discounts[t])

    def _merge(self, values: FloatArray) -> None:
        """Chan, Golub and LeVeque's update of a variance by a batch (1979)."""
        count = len(values)
        total, off = self.count + count, float(values.mean()) - self.mean
        self.squares += float(values.var()) * count + off**2 * self.count * count / total
        self.mean += off * count / total
        self.count = total


class ValueScale(Scale):
    """Mean and standard deviation of what the critic is to predict, over about `memory` batches.

    The critic learns standard scores, as in Yu et al., "The surprising effectiveness of PPO in
    cooperative multi-agent games" (arXiv:2103.01955, section 5.1). Means are exponential and free
    of the bias of their start.

    Args:
        memory: batches.
    """

    kept = ("weight", "first", "second")

    def __init__(self, memory: float) -> None:
        self.keep = 1.0 - 1.0 / memory
        self.weight, self.first, self.second = 0.0, 0.0, 0.0

    @property
    def mean(self) -> float:
        """Of the targets; 0 before the first."""
        return self.first / self.weight if self.weight else 0.0

    @property
    def deviation(self) -> float:
        """Of the targets; 1 before the first, and where all are equal."""
        if not self.weight:
            return 1.0
        variance = self.second / self.weight - self.mean**2
        return float(np.sqrt(variance)) if variance > 1e-12 * self.mean**2 + 1e-30 else 1.0

    def add(self, targets: FloatArray) -> None:
        share = 1.0 - self.keep
        self.weight = self.keep * self.weight + share
        self.first = self.keep * self.first + share * float(targets.mean())
        self.second = self.keep * self.second + share * float(np.square(targets).mean())

    def scored(self, targets: FloatArray) -> FloatArray:
        """Targets as the critic learns them."""
        scores: FloatArray = (targets - self.mean) / self.deviation
        return scores

    def values(self, scores: FloatArray) -> FloatArray:
        """What the critic's outputs mean."""
        values: FloatArray = scores * self.deviation + self.mean
        return values


def standardised(gains: FloatArray) -> FloatArray:
    """(n,) advantages with mean 0 and deviation 1."""
    if not len(gains):
        return gains
    return np.asarray((gains - gains.mean()) / max(float(gains.std()), 1e-8))


def less_group_mean(
    gains: FloatArray, time: FloatArray, episode: IntArray, rows: int, group_size: int
) -> FloatArray:
    """(T, B) advantages less those of the rest of the group, with the same jobs at the same time.

    What befell all of them was not earned. Mao et al., "Variance reduction for reinforcement
    learning in input-driven environments" (ICLR 2019): an advantage may be taken against anything
    that depends on the input to come, here the jobs. The mean over other environments with the same
    jobs at the same time is one such baseline, as in Decima (Mao et al., SIGCOMM 2019, section
    5.3). One's own environment is left out of it, so that it does not depend on one's own actions.

    Of another environment counts what it stood at in the last step up to that time, in the same
    episode; one that was not in that episode at that time is left out, and where none is left
    nothing is taken away.

    Args:
        gains: (T, B) advantages.
        time: (T, B) of the episode at each step, ascending within an episode.
        episode: (T, B) its number.
        rows: agents of the environments of a group, which stand side by side.
        group_size: those environments; agent s of one and agent s of another are compared.
    """
    found, agents = gains.copy(), rows // group_size
    for column in range(gains.shape[1]):
        first = column - column % rows + column % agents
        total, count = np.zeros((2, len(gains)))
        for other in range(first, first + rows, agents):
            if other != column:
                level, there = _level(gains, time, episode, column, other)
                total += np.where(there, level, 0.0)
                count += there
        found[:, column] -= total / np.maximum(count, 1.0)
    return found


def group_ranks(returns: FloatArray, rows: int, group_size: int) -> FloatArray:
    """(T, B) places within groups, with mean 0 and deviation 1; equal returns share theirs.

    What a return of another size, such as that of a plan that does not fit, cannot outweigh
    (Wierstra et al., "Natural evolution strategies", JMLR 15, 2014, section 3.1).

    Args:
        returns: (T, B) what follows a step.
        rows: agents of the environments of a group, which stand side by side.
        group_size: those environments.
    """
    beside = returns.reshape(len(returns), -1, group_size, 1, rows // group_size)
    other = beside.swapaxes(2, 3)
    place = (beside > other).sum(axis=3) - (beside < other).sum(axis=3).astype(np.float64)
    spread = np.sqrt((place**2).mean(axis=2, keepdims=True))
    return np.asarray((place / np.maximum(spread, 1.0)).reshape(returns.shape))


def largest_of_group(gains: FloatArray, rows: int, group_size: int, count: int) -> BoolArray:
    """(T, B) whether an advantage is of the `count` largest of its group, whatever their sign.

    They are nearly all of a gradient's length for part of its cost (Xu et al., "Not all rollouts
    are useful: down-sampling rollouts in LLM reinforcement learning", arXiv:2504.13818, 2025).

    Args:
        gains: (T, B) advantages.
        rows: agents of the environments of a group, which stand side by side.
        group_size: those environments.
        count: of them.
    """
    beside = np.abs(gains).reshape(len(gains), -1, group_size, rows // group_size)
    rank = np.argsort(np.argsort(-beside, axis=2, kind="stable"), axis=2)
    return np.asarray((rank < count).reshape(gains.shape))


def _level(
    gains: FloatArray, time: FloatArray, episode: IntArray, column: int, other: int
) -> tuple[FloatArray, BoolArray]:
    """(T,) where `other` stood at the times of `column`, and whether it is known."""
    level, there = np.zeros(len(gains)), np.zeros(len(gains), np.bool_)
    for number in np.intersect1d(episode[:, column], episode[:, other]):
        mine = np.flatnonzero(episode[:, column] == number)
        theirs = np.flatnonzero(episode[:, other] == number)
        times = time[theirs, other]
        last = np.searchsorted(times, time[mine, column], side="right") - 1
        known = (last >= 0) & (time[mine, column] <= times[-1])
        level[mine] = gains[theirs[np.maximum(last, 0)], other]
        there[mine] = known
    return level, there
