"""How much better than expected: advantages where steps take time, not turns.

Decisions are those of a semi-Markov process (Bradtke and Duff, "Reinforcement learning methods for
continuous-time Markov decision problems", NeurIPS 1994): a step takes the time dt, often none, and
what comes after it counts exp(-dt / tau).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Discounting:
    """How the future counts.

    Advantages are those of Schulman et al. (arXiv:1506.02438, equation 16), with lambda per time
    and not per step. All decisions of one instant are one decision in parts: with lambda per step a
    busy instant with twenty starts would hide from the first of them what becomes of it, though no
    time passes; with lambda per time it does not matter how many parts there are.

    Attributes:
        tau: time after which what happens counts 1 / e.
        credit: time after which 1 / e of what was observed is left in an advantage, the rest
            taken from the critic; inf: nothing is taken from it before an episode is cut.
    """

    tau: float
    credit: float

    def discounts(self, times: FloatArray) -> FloatArray:
        """What counts of that which comes after so long."""
        counts: FloatArray = np.exp(-times / self.tau)
        return counts

    def accrued(self, rewards: FloatArray, times: FloatArray) -> FloatArray:
        """`rewards` that come at an even rate over `times`, discounted to the start of the step.

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
    after: FloatArray,
    times: FloatArray,
    ends: NDArray[np.bool_],
    decides: NDArray[np.bool_],
    discounting: Discounting,
) -> tuple[FloatArray, FloatArray]:
    """(T, B) generalised advantages of T steps of B agents, and (T, B) what is to be expected.

    A step in which an agent has no choice is not a decision but a part of what comes of the one
    before: nobody needs to know what to expect there. It is what the step brings and what is to be
    expected after it.

    Args:
        rewards: (T, B), discounted to the start of their step.
        values: (T, B) expected at the start of every step; read where there is a decision.
        after: (T, B) expected at the end of the last step of an episode or of the fragment: 0 where
            it has ended, the value of its last observation where it goes on or was cut; not read
            elsewhere.
        times: (T, B) that each step takes.
        ends: (T, B) whether the episode ends with the step, or is cut there.
        decides: (T, B) whether the agent has a choice.
        discounting: how the future counts.
    """
    discounts = discounting.discounts(times)
    carried = discounts * np.exp(-times / discounting.credit) * ~ends
    gains, expected = np.empty((2, *rewards.shape))
    gain, value = np.zeros(rewards.shape[1]), after[-1]
    for t in reversed(range(len(rewards))):
        ahead = rewards[t] + discounts[t] * np.where(ends[t], after[t], value)
        value = np.where(decides[t], values[t], ahead)
        gain = ahead - value + carried[t] * gain
        gains[t], expected[t] = gain, value
    return gains, expected
