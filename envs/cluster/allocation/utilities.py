"""What a job is worth: by the slot it ends in, or by how much of it was done."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from envs.bounds import NonNegative, Positive, bounded


@runtime_checkable
class Utility(Protocol):
    """Worth of a job. Neither argument makes it worth less by more work or by an earlier end."""

    @property
    def partial(self) -> bool:
        """Whether work counts that ends unfinished: `of` then, else `at`."""

    def at(self, slots: int) -> float:
        """Of a job that ends in the `slots`-th slot after its arrival, counted from 1."""

    def of(self, fraction: float) -> float:
        """Of a job of which a fraction in [0, 1] is done when its time is over; concave."""


class _ByCompletion:
    partial = False

    def of(self, fraction: float) -> float:
        raise NotImplementedError("this utility is of completion: use `at`")


@bounded
@dataclass(frozen=True)
class LinearUtility(_ByCompletion):
    """`weight max(0, 1 - (slots - 1) / patience)`."""

    weight: Positive
    patience: Positive  # slots

    def at(self, slots: int) -> float:
        return self.weight * max(0.0, 1.0 - (slots - 1) / self.patience)


@bounded
@dataclass(frozen=True)
class SigmoidUtility(_ByCompletion):
    """`weight / (1 + exp(steepness (slots - critical)))`.

    Source:
        Bao, Peng, Wu, Li, "Online job scheduling in distributed machine learning clusters",
        INFOCOM 2018: steepness 0 is a job that can wait, 4 to 6 one with a soft deadline.
    """

    weight: Positive
    steepness: NonNegative  # per slot
    critical: Positive  # slots

    def at(self, slots: int) -> float:
        return self.weight / (1.0 + math.exp(min(self.steepness * (slots - self.critical), 700.0)))


@bounded
@dataclass(frozen=True)
class LogUtility:
    """`weight log(1 + fraction / knee) / log(1 + 1 / knee)`: the first samples are worth most."""

    weight: Positive
    knee: Positive = 0.1

    partial = True

    def at(self, slots: int) -> float:
        return self.weight

    def of(self, fraction: float) -> float:
        return self.weight * math.log1p(fraction / self.knee) / math.log1p(1.0 / self.knee)
