"""Weights of a priority by policy gradients with parameter-based exploration.

Sehnke et al., "Parameter-exploring policy gradients", Neural Networks 23 (2010), with symmetric
samples. Noise on every single action drowns what one action does to completion times hours later;
weights that stay the same for a whole replay, on the very same jobs, do not.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Gt, Le

from envs.arrays import FloatArray
from envs.bounds import Count, Positive, bounded


@bounded
@dataclass(frozen=True)
class WeightSearchConfig:
    """What a person chooses about the search.

    Attributes:
        rounds: steps.
        pairs: replays with weights shifted by an offset and by its opposite, per round.
        spread: standard deviation of an offset.
        memory: pairs of which the slope is estimated, the latest.
        fade: weight of a pair relative to the one after it.
        prior: pairs without any slope that are counted beside them.
        step: by which the weights go down the slope.
        limit: of half the difference of a pair's log mean JCTs; larger ones count as that.
    """

    rounds: Count = 15
    pairs: Count = 8
    spread: Positive = 0.3
    memory: Count = 160
    fade: Annotated[float, Gt(0.0), Le(1.0)] = 0.99
    prior: Positive = 8.0
    step: Positive = 2.0
    limit: Positive = 0.25


class WeightSearch:
    """Goes down the slope of the log mean JCT over the weights.

    The slope is that of a ridge regression over the latest pairs: older pairs were drawn around
    other weights and count less, and as long as there are few, steps are short.

    Args:
        config: of the search.
        start: (D,) weights to begin with.
    """

    def __init__(self, config: WeightSearchConfig, start: FloatArray) -> None:
        self.config = config
        self.weights = np.array(start, np.float64)
        self._offsets = np.zeros((0, len(start)))
        self._slopes = np.zeros(0)

    def offsets(self, rng: np.random.Generator) -> FloatArray:
        """(pairs, D) to try on either side of the weights."""
        return self.config.spread * rng.normal(size=(self.config.pairs, len(self.weights)))

    def learn(self, offsets: FloatArray, above: FloatArray, below: FloatArray) -> None:
        """Take one step.

        Args:
            offsets: (P, D).
            above: (P,) log mean JCTs with the weights plus these offsets.
            below: (P,) minus them, of the same jobs on the same cluster.
        """
        config = self.config
        slopes = np.clip((above - below) / 2.0, -config.limit, config.limit)
        self._offsets = np.concatenate([self._offsets, offsets])[-config.memory :]
        self._slopes = np.concatenate([self._slopes, slopes])[-config.memory :]
        known = len(self._slopes) / config.memory
        self.weights = self.weights - config.step * known * self.slope()

    def state(self) -> dict[str, list[object]]:
        """What the search needs to go on, as JSON takes it."""
        arrays = {"weights": self.weights, "offsets": self._offsets, "slopes": self._slopes}
        return {name: array.tolist() for name, array in arrays.items()}

    def load(self, state: dict[str, list[object]]) -> None:
        """Go on from what `state` gave."""
        self.weights, self._slopes = (np.array(state[x], np.float64) for x in ("weights", "slopes"))
        self._offsets = np.array(state["offsets"], np.float64).reshape(-1, len(self.weights))

    def slope(self) -> FloatArray:
        """(D,) of the log mean JCT."""
        config, pairs = self.config, len(self._slopes)
        counted = self._offsets * config.fade ** np.arange(pairs)[::-1, None]
        ridge = config.prior * config.spread**2 * np.eye(len(self.weights))
        found = np.linalg.solve(counted.T @ self._offsets + ridge, counted.T @ self._slopes)
        return np.asarray(found, np.float64)
