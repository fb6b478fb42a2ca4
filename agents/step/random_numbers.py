"""Random numbers of compiled searches."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envs.compilation import inlined

RandomState = NDArray[np.uint64]  # (1,)


@inlined
def draw(state: RandomState) -> float:
    """A uniform number of [0, 1), by SplitMix64.

    Steele, Lea, Flood, "Fast splittable pseudorandom number generators", OOPSLA 2014.
    """
    state[0] += np.uint64(0x9E3779B97F4A7C15)
    z = state[0]
    z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return np.float64(z >> np.uint64(11)) * (1.0 / 9007199254740992.0)
