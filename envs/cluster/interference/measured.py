"""What tables of measurements have in common."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envs.cluster.nodes import Cluster
from envs.errors import InputError

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Capped:
    """Measured ratios cut to 1, because no neighbour and no spread speeds a job up.

    Attributes:
        count: entries that were above 1.
        largest: the largest of them, or 1.
    """

    count: int
    largest: float


def cap(ratio: FloatArray) -> tuple[FloatArray, Capped]:
    """`ratio` with no entry above 1, and what that changed."""
    above = ratio > 1.0
    return np.minimum(ratio, 1.0), Capped(int(above.sum()), float(ratio.max(initial=1.0)))


def nearest_below(values: Sequence[int], wanted: int) -> int:
    """The largest of ascending `values` up to `wanted`, or the smallest of all."""
    fitting = [value for value in values if value <= wanted]
    return fitting[-1] if fitting else values[0]


def require_one_type(cluster: Cluster, source: str) -> None:
    """Check that a cluster has a single GPU type, because `source` was measured on one.

    Raises:
        InputError: it has several.
    """
    if len(cluster.gpu_types) > 1:
        raise InputError(
            f"the cluster has {', '.join(cluster.gpu_types)}; {source} was measured on one GPU "
            "type and says nothing of others",
            field="gpu_types",
        )
