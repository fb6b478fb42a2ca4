"""Running scales of rewards and of what the critic predicts."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class RewardScale:
    """The standard deviation of the discounted sum of past rewards, which rewards are divided by.

    Engstrom et al., "Implementation matters in deep policy gradients" (ICLR 2020), section 2; here
    over seconds. Until two sums are known it is 1.

    Args:
        agents: B.
    """

    def __init__(self, agents: int) -> None:
        self.sums = np.zeros(agents)
        self.count, self.mean, self.squares = 0.0, 0.0, 0.0

    @property
    def deviation(self) -> float:
        """The standard deviation so far."""
        if self.count < 2 or self.squares <= 0.0:
            return 1.0
        return float(np.sqrt(self.squares / self.count))

    def add(self, rewards: FloatArray, discounts: FloatArray, ends: NDArray[np.bool_]) -> None:
        """Take in (T, B) rewards, what counts after each step, and where episodes end."""
        for t in range(len(rewards)):
            self.sums = self.sums + rewards[t]
            self._merge(self.sums)
            self.sums = np.where(ends[t], 0.0, self.sums * discounts[t])

    def _merge(self, values: FloatArray) -> None:
        """Chan, Golub and LeVeque's update of a variance by a batch (1979)."""
        count = len(values)
        total, off = self.count + count, float(values.mean()) - self.mean
        self.squares += float(values.var()) * count + off**2 * self.count * count / total
        self.mean += off * count / total
        self.count = total

    def document(self) -> dict[str, object]:
        """As JSON takes it."""
        return {
            "sums": self.sums.tolist(),
            "count": self.count,
            "mean": self.mean,
            "squares": self.squares,
        }

    def restore(self, document: dict[str, object]) -> None:
        """Take up what `document` gave."""
        self.sums = np.array(document["sums"], np.float64)
        for name in ("count", "mean", "squares"):
            setattr(self, name, float(document[name]))  # type: ignore[arg-type]


class ValueScale:
    """Mean and standard deviation of what the critic is to predict, over about `memory` batches.

    The critic learns standard scores, as in Yu et al., "The surprising effectiveness of PPO in
    cooperative multi-agent games" (arXiv:2103.01955, section 5.1). Means are exponential and free
    of the bias of their start.

    Args:
        memory: batches.
    """

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
        """Take in the targets of a batch."""
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

    def document(self) -> dict[str, object]:
        """As JSON takes it."""
        return {"weight": self.weight, "first": self.first, "second": self.second}

    def restore(self, document: dict[str, object]) -> None:
        """Take up what `document` gave."""
        for name in ("weight", "first", "second"):
            setattr(self, name, float(document[name]))  # type: ignore[arg-type]
