"""The best plan every training environment has found; later episodes may start from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Found = Mapping[str, NDArray[Any]]  # a plan as the arrays of its decisions, by name


@dataclass(frozen=True, eq=False)
class Record:
    """A feasible plan better than all before it in its environment."""

    plan: Found
    step_time: float  # seconds, simulated on every operator


class Archive:
    """One record per environment: many, so that the search does not hang on a single plan.

    Returning to good states and exploring from there is the first half of Go-Explore (Ecoffet et
    al., "First return, then explore", Nature 590, 2021).

    Args:
        size: number of environments.
    """

    def __init__(self, size: int) -> None:
        self.records: list[Record | None] = [None] * size

    @property
    def best(self) -> Record | None:
        """The fastest of all; None before the first."""
        found = [record for record in self.records if record is not None]
        return min(found, key=lambda record: record.step_time, default=None)

    def offer(self, index: int, record: Record) -> None:
        """Keep `record` if it is environment `index`'s fastest."""
        held = self.records[index]
        if held is None or record.step_time < held.step_time:
            self.records[index] = record

    def draw(self, rng: np.random.Generator) -> Record | None:
        """The faster of two records drawn at random; None before the first."""
        found = [record for record in self.records if record is not None]
        if not found:
            return None
        drawn = [found[int(rng.integers(len(found)))] for _ in range(2)]
        return min(drawn, key=lambda record: record.step_time)
