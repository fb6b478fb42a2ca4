"""Nodes of one kind of a batch of graphs as rows of one matrix, with or without the padding."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from models.cluster.links import PackedLinks


class Rows(Protocol):
    """K rows for the nodes of one kind in B graphs, each padded to the same size L."""

    present: Tensor  # (B, L) bool

    def number(self, flat: Tensor) -> Tensor:
        """Rows of nodes given by b L + their place in graph b; rows of padding do not matter."""

    def pack(self, padded: Tensor) -> Tensor:
        """(K, ...) rows of (B, L, ...)."""

    def unpack(self, rows: Tensor) -> Tensor:
        """(B, L, F) of (K, F) rows; what stands in padding does not matter."""

    def total(self, rows: Tensor) -> Tensor:
        """(B, F) sums of the rows of every graph, without padding."""

    def spread(self, graphs: Tensor) -> Tensor:
        """(K, F) of (B, F): each row gets what its graph has."""


class PackedRows:
    """Only the nodes there are. Most of a training batch is padding, which then costs nothing."""

    def __init__(self, mask: Tensor) -> None:
        self.present = mask != 0
        self._graphs, self._size = mask.shape
        self._place = self.present.flatten().nonzero().squeeze(1)  # (K,)
        self._number = self.present.flatten().cumsum(0) - 1
        graph, row = self._place // self._size, torch.arange(len(self._place), device=mask.device)
        one = torch.ones(len(row), device=mask.device)
        self._links = PackedLinks(row, graph, (len(row), self._graphs), (one, one))
        self._graph = graph

    def number(self, flat: Tensor) -> Tensor:
        """Rows of nodes."""
        return self._number[flat]

    def pack(self, padded: Tensor) -> Tensor:
        """(K, ...) rows."""
        return padded.flatten(0, 1).index_select(0, self._place)

    def unpack(self, rows: Tensor) -> Tensor:
        """(B, L, F), 0 in padding."""
        flat = rows.new_zeros(self._graphs * self._size, rows.shape[1])
        return flat.index_copy(0, self._place, rows).view(self._graphs, self._size, -1)

    def total(self, rows: Tensor) -> Tensor:
        """(B, F) sums."""
        return self._links.to_second(rows)

    def spread(self, graphs: Tensor) -> Tensor:
        """(K, F) of (B, F)."""
        if not graphs.is_floating_point():
            return graphs.index_select(0, self._graph)
        return self._links.to_first(graphs)


class PaddedRows:
    """All nodes, with the padding: no shape depends on values, so that programs can be exported."""

    def __init__(self, mask: Tensor) -> None:
        self.present = mask != 0
        self._graphs, self._size = mask.shape

    def number(self, flat: Tensor) -> Tensor:
        """Rows of nodes."""
        return flat

    def pack(self, padded: Tensor) -> Tensor:
        """(K, ...) rows."""
        return padded.flatten(0, 1)

    def unpack(self, rows: Tensor) -> Tensor:
        """(B, L, F)."""
        return rows.view(self._graphs, self._size, rows.shape[1])

    def total(self, rows: Tensor) -> Tensor:
        """(B, F) sums."""
        mask = self.present.to(rows.dtype).unsqueeze(1)  # (B, 1, L)
        return torch.bmm(mask, self.unpack(rows)).squeeze(1)

    def spread(self, graphs: Tensor) -> Tensor:
        """(K, F) of (B, F)."""
        wide = graphs.unsqueeze(1).expand(-1, self._size, -1)
        return wide.reshape(self._graphs * self._size, graphs.shape[1])


def _count(rows: Rows, dtype: torch.dtype) -> Tensor:
    """(B, 1) nodes of every graph, at least 1."""
    return rows.present.sum(dim=1, keepdim=True).clamp(min=1).to(dtype)


def mean(rows: Rows, states: Tensor) -> Tensor:
    """(B, F) means of the rows of every graph, 0 where there are none."""
    return rows.total(states) / _count(rows, states.dtype)
