"""Workers of a parameter server: their speeds and delays."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Lt

from envs.arrays import FloatArray
from envs.bounds import Count, NonNegative, Positive, bounded

Heterogeneity = Annotated[float, Ge(1.0), Lt(1e6)]


@bounded
@dataclass(frozen=True)
class Workers:
    """Seconds of each of n workers; policies know all but how long the next step takes.

    Attributes:
        step_s: (n,) mean time of a local step, a gradient of one batch.
        push_s, pull_s: (n,) delay of an update to the server, of parameters from it.
        jitter: standard deviation of a step's time over its mean; times have a gamma distribution.
    """

    step_s: Annotated[FloatArray, Gt(0.0)]
    push_s: Annotated[FloatArray, Ge(0.0)]
    pull_s: Annotated[FloatArray, Ge(0.0)]
    jitter: NonNegative = 0.0


@bounded
def spread_workers(
    count: Count, heterogeneity: Heterogeneity, step_s: Positive, push_s: NonNegative,
    pull_s: NonNegative, jitter: NonNegative = 0.0,
) -> Workers:  # fmt: skip
    """Speeds evenly spaced, the fastest `heterogeneity` times the slowest; equal delays.

    Their mean is 1 / `step_s`: at every heterogeneity all workers together make as many steps in a
    second, if none of them waits.
    """
    speed = np.linspace(1.0, heterogeneity if count > 1 else 1.0, count)
    same = np.ones(count)
    return Workers(step_s * speed.mean() / speed, push_s * same, pull_s * same, jitter)
