"""Shares of fractional jobs that join others on a GPU."""

from __future__ import annotations

from collections.abc import Sequence


class JoiningShares(tuple[tuple[int, int], ...]):
    """The one share, (node, 1), of a fractional job that goes to the partial GPU `partial`."""

    partial: int

    def __new__(cls, shares: Sequence[tuple[int, int]], partial: int) -> JoiningShares:
        """See `ClusterSimulator.start`."""
        joining = super().__new__(cls, shares)
        joining.partial = partial
        return joining
