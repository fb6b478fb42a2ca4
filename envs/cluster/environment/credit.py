"""Which reward terms each of several schedulers gets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

Terms = Mapping[str, float]


class Credit(Protocol):
    """Shares the reward of a step out."""

    def __call__(self, own: Sequence[Terms]) -> Sequence[Terms]:
        """The terms each scheduler gets, from those of each one's own jobs, weighted."""


class TeamCredit:
    """Everybody gets the sum of all."""

    def __call__(self, own: Sequence[Terms]) -> Sequence[Terms]:
        """The terms of every scheduler."""
        total = {name: sum(terms[name] for terms in own) for name in own[0]}
        return [total] * len(own)


class OwnCredit:
    """Everybody gets that of the jobs in its own queue, on their way to it and on its servers."""

    def __call__(self, own: Sequence[Terms]) -> Sequence[Terms]:
        """The terms of every scheduler."""
        return own
