"""CMA-ES: numbers are evolved by the outcomes of whole episodes."""

from __future__ import annotations

from typing import Any

import numpy as np

from envs.arrays import FloatArray


class CmaEs:
    """Covariance matrix adaptation evolution strategy, with the usual settings.

    Source:
        Hansen, "The CMA evolution strategy: a tutorial", arXiv:1604.00772, 2016, algorithm of
        figure 6 without its negative weights.

    Args:
        start: (D,) mean of the first generation.
        spread: standard deviation of each number there.
    """

    def __init__(self, start: FloatArray, spread: float) -> None:
        n = len(start)
        self.mean, self.spread, self.generation = np.array(start, np.float64), spread, 0
        self.size = 4 + int(3 * np.log(n))
        raw = np.log(self.size / 2 + 0.5) - np.log(np.arange(1, self.size // 2 + 1))
        self._weights = raw / raw.sum()
        mass = 1.0 / np.square(self._weights).sum()
        self._path_rate = (mass + 2) / (n + mass + 5)
        self._rank_rate = (4 + mass / n) / (n + 4 + 2 * mass / n)
        self._one = 2 / ((n + 1.3) ** 2 + mass)
        self._many = min(1 - self._one, 2 * (mass - 2 + 1 / mass) / ((n + 2) ** 2 + mass))
        self._damping = 1 + 2 * max(0.0, np.sqrt((mass - 1) / (n + 1)) - 1) + self._path_rate
        self._mass, self._length = mass, np.sqrt(n) * (1 - 1 / (4 * n) + 1 / (21 * n**2))
        self.covariance, self.steps, self.path = np.eye(n), np.zeros(n), np.zeros(n)

    def ask(self, rng: np.random.Generator) -> FloatArray:
        """(size, D) to try."""
        values, axes = np.linalg.eigh(self.covariance)
        self._scale, self._axes = np.sqrt(np.maximum(values, 1e-20)), axes
        normal = rng.normal(size=(self.size, len(self.mean)))
        self._tried = (normal * self._scale) @ axes.T
        found: FloatArray = self.mean + self.spread * self._tried
        return found

    def learn(self, costs: FloatArray) -> None:
        """Take in what the numbers asked for last cost (size,), less being better."""
        self.generation += 1
        best = self._tried[np.argsort(costs, kind="stable")[: len(self._weights)]]
        step = self._weights @ best
        self.mean = self.mean + self.spread * step
        rate, whitened = self._path_rate, self._axes @ ((self._axes.T @ step) / self._scale)
        self.steps = (1 - rate) * self.steps + np.sqrt(rate * (2 - rate) * self._mass) * whitened
        length = float(np.linalg.norm(self.steps))
        usual = np.sqrt(1 - (1 - rate) ** (2 * self.generation))
        short = float(length / usual < (1.4 + 2 / (len(step) + 1)) * self._length)
        rank = self._rank_rate
        self.path = (1 - rank) * self.path + short * np.sqrt(rank * (2 - rank) * self._mass) * step
        self.covariance = (
            (1 - self._one - self._many) * self.covariance
            + self._one
            * (np.outer(self.path, self.path) + (1 - short) * rank * (2 - rank) * self.covariance)
            + self._many * (best.T * self._weights) @ best
        )
        self.spread *= float(np.exp(rate / self._damping * (length / self._length - 1)))

    def state(self) -> dict[str, object]:
        """What the search needs to go on, as JSON takes it."""
        arrays = {x: getattr(self, x).tolist() for x in ("mean", "covariance", "steps", "path")}
        return {**arrays, "spread": self.spread, "generation": self.generation}

    def load(self, state: dict[str, Any]) -> None:
        """Go on from what `state` gave."""
        for name in ("mean", "covariance", "steps", "path"):
            setattr(self, name, np.array(state[name], np.float64))
        self.spread, self.generation = state["spread"], state["generation"]
