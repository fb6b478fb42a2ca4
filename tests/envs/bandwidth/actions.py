"""Actions in the toy of sends."""

from __future__ import annotations

import numpy as np

from envs.arrays import FloatArray


def weights_of(*share: float) -> FloatArray:
    """(12,) continuous action: the three channels of server 0 in proportion to `share`."""
    return np.append(np.log2(np.array(share) / max(share)) / 5.0, np.zeros(9))
