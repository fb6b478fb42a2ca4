"""Weighted sums along edges between rows of two kinds, there and back."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn.functional import embedding_bag


class Links(Protocol):
    """E edges between `sizes[0]` rows of a first kind and `sizes[1]` of a second."""

    def to_second(self, rows: Tensor) -> Tensor:
        """(sizes[1], F) sums of the first kind's rows."""

    def to_first(self, rows: Tensor) -> Tensor:
        """(sizes[0], F) sums of the second kind's rows."""


class Bags(NamedTuple):
    """Which rows are added, one bag after the other."""

    rows: Tensor  # (E,)
    starts: Tensor  # (bags,) where a bag begins
    weights: Tensor  # (E,)


class PackedLinks:
    """Edges that are all there, sorted by both ends, so that sums need no scattering.

    Args:
        first: (E,) rows of the first kind.
        second: (E,) rows of the second.
        sizes: how many rows there are.
        weights: (E,) of what comes to the first kind, to the second.
    """

    def __init__(
        self, first: Tensor, second: Tensor, sizes: tuple[int, int], weights: tuple[Tensor, Tensor]
    ) -> None:
        by_first, by_second = first.argsort(), second.argsort()
        starts = _starts(first, sizes[0]), _starts(second, sizes[1])
        to_first, to_second = (weight.contiguous() for weight in weights)
        self._to_first = (
            Bags(second[by_first], starts[0], to_first[by_first]),
            Bags(first[by_second], starts[1], to_first[by_second]),
        )
        self._to_second = (
            Bags(first[by_second], starts[1], to_second[by_second]),
            Bags(second[by_first], starts[0], to_second[by_first]),
        )

    def to_second(self, rows: Tensor) -> Tensor:
        """(sizes[1], F) sums."""
        return _sums(rows, *self._to_second)

    def to_first(self, rows: Tensor) -> Tensor:
        """(sizes[0], F) sums."""
        return _sums(rows, *self._to_first)


class PaddedLinks:
    """Edges of which some are padding, whose sums go to one extra row, a sink, that is dropped.

    Args:
        first: (E,) rows of the first kind; any row where an edge is padding.
        second: (E,) rows of the second; any row where an edge is padding.
        sizes: how many rows there are.
        weights: (E,) of what comes to the first kind, to the second.
        real: (E,) bool, no padding.
    """

    def __init__(
        self,
        first: Tensor,
        second: Tensor,
        sizes: tuple[int, int],
        weights: tuple[Tensor, Tensor],
        real: Tensor,
    ) -> None:
        self._ends = first, second
        self._sinks = first.where(real, sizes[0]), second.where(real, sizes[1])
        self._sizes = sizes
        self._weights = tuple(weight.unsqueeze(1) for weight in weights)

    def to_second(self, rows: Tensor) -> Tensor:
        """(sizes[1], F) sums."""
        return self._scattered(rows, 0, 1)

    def to_first(self, rows: Tensor) -> Tensor:
        """(sizes[0], F) sums."""
        return self._scattered(rows, 1, 0)

    def _scattered(self, rows: Tensor, source: int, target: int) -> Tensor:
        sent = rows.index_select(0, self._ends[source]) * self._weights[target]
        index = self._sinks[target].unsqueeze(1).expand(-1, rows.shape[1])
        size = self._sizes[target]
        return rows.new_zeros(size + 1, rows.shape[1]).scatter_add(0, index, sent)[:size]


class _Sums(torch.autograd.Function):
    """Sums over bags; the gradient is a sum over the bags of the other direction."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, *bags: Tensor) -> Tensor:
        ctx.save_for_backward(*bags[3:])
        return _summed(rows, Bags(*bags[:3]))

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        return (_summed(gradient.contiguous(), Bags(*ctx.saved_tensors)), *[None] * 6)


def _sums(rows: Tensor, there: Bags, back: Bags) -> Tensor:
    sums: Tensor = _Sums.apply(rows, *there, *back)  # type: ignore[no-untyped-call]
    return sums


def _summed(rows: Tensor, bags: Bags) -> Tensor:
    if len(bags.rows) == 0:
        return rows.new_zeros(len(bags.starts), rows.shape[1])
    weights = bags.weights.to(rows.dtype)
    return embedding_bag(bags.rows, rows, bags.starts, mode="sum", per_sample_weights=weights)


def _starts(ends: Tensor, size: int) -> Tensor:
    counts = torch.bincount(ends, minlength=size)
    return counts.cumsum(0) - counts
