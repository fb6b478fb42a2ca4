"""Where layers come from: called with the episode's random numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from envs.bounds import Count, Share, bounded
from examples.extend.environment.types import Layers


@bounded
@dataclass(frozen=True)
class RandomLayers:
    """Layers of random sizes.

    Args:
        layers: L.
        share: of all activations that there is room for.
    """

    layers: Count = 8
    share: Share = 0.5

    def __call__(self, rng: np.random.Generator) -> Layers:
        """The layers of one episode."""
        seconds, nbytes = rng.uniform(1.0, 4.0, (2, self.layers))
        return Layers(seconds, nbytes, self.share * float(nbytes.sum()))


def toy_layers(rng: np.random.Generator) -> Layers:
    """Room for the first and the last of three: computing the second again takes 2 s, the least."""
    return Layers(np.array([3.0, 2.0, 4.0]), np.array([2.0, 3.0, 2.0]), 4.0)
