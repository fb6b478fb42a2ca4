"""What episodes are drawn from as training goes on: small clusters and little load first."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from envs.cluster.environment.ranges import checked_range
from envs.errors import InputError

Load = tuple[float, float]


@dataclass(frozen=True)
class Stage:
    """What is drawn at some progress."""

    load: Load | None  # least and most; None: as in the trace
    gpus: float  # most GPUs of a cluster


class Stages(Protocol):
    """The stage that belongs to a progress."""

    def stage(self, progress: float) -> Stage:
        """The stage at `progress`, from 0 at the beginning to 1 at the end of training."""


class OneStage:
    """The same from beginning to end: all clusters.

    Args:
        load: least and most load; None: gaps stay as they are in the trace.

    Raises:
        InputError: the range is empty or not above 0.
    """

    def __init__(self, load: Sequence[float] | None) -> None:
        self._stage = Stage(None if load is None else checked_range("load", load), np.inf)

    def stage(self, progress: float) -> Stage:
        """The stage."""
        _check_progress(progress)
        return self._stage


class Curriculum:
    """Load and cluster size grow until some progress and then stay.

    The ends of the load's range change linearly in between, the GPUs of the largest cluster
    geometrically.

    Args:
        first_load: least and most load at progress 0.
        load: the same from `until` on.
        first_gpus: GPUs of the largest clusters at progress 0.
        gpus: the same from `until` on.
        until: progress, above 0 and at most 1.

    Raises:
        InputError: a range is empty or not above 0, clusters would shrink, or `until` is out of
            range.
    """

    def __init__(
        self,
        *,
        first_load: Sequence[float],
        load: Sequence[float],
        first_gpus: int,
        gpus: int,
        until: float,
    ) -> None:
        self._first_load, self._load = (
            np.array(checked_range("first_load", first_load)),
            np.array(checked_range("load", load)),
        )
        self._gpus = checked_range("first_gpus", (first_gpus, gpus))
        if not 0 < until <= 1:
            raise InputError(f"{until} is not above 0 and at most 1", field="until")
        self._until = until

    def stage(self, progress: float) -> Stage:
        """The stage at `progress`.

        Raises:
            InputError: `progress` is not in 0..1.
        """
        _check_progress(progress)
        way = min(progress / self._until, 1.0)
        least, most = (self._first_load + way * (self._load - self._first_load)).tolist()
        first, last = self._gpus
        return Stage((least, most), last if way == 1.0 else first * (last / first) ** way)


def _check_progress(progress: float) -> None:
    if not 0 <= progress <= 1:
        raise InputError(f"{progress} is not in 0..1", field="progress")
