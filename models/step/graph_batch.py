"""`GraphBatch`: a batch of padded graph observations as tensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from models.layout import Observation


@dataclass(frozen=True)
class GraphBatch:
    """B padded graphs of N nodes, E edges and D devices.

    A padded edge is one with mask 0; its end points may lie outside the nodes (the sink node N).
    """

    node_features: Tensor  # (B, N, F_node) float32
    node_mask: Tensor  # (B, N) int8, 1 = a node
    node_device_features: Tensor  # (B, N, D, F_node_device) float32
    edge_index: Tensor  # (B, 2, E) int64: source, target
    edge_features: Tensor  # (B, E, F_edge) float32
    edge_mask: Tensor  # (B, E) int8, 1 = an edge
    device_features: Tensor  # (B, D, F_device) float32
    link_features: Tensor  # (B, D, D, F_link) float32: from, to
    placement: Tensor  # (B, N) int64: device where each node stands
    placed: Tensor  # (B, N) int8, 1 = decided, 0 = standing where the completion rule puts it
    current: Tensor  # (B, 1) int64: the node to decide now
    candidate_features: Tensor  # (B, D, F_candidate) float32
    action_mask: Tensor  # (B, D) int8, 1 = allowed

    @classmethod
    def of(cls, tensors: Mapping[str, Tensor]) -> GraphBatch:
        """The batch in `tensors`; other entries are left out."""
        return cls(**{name: tensors[name] for name in cls.__dataclass_fields__})

    @classmethod
    def stack(cls, observations: Sequence[Observation]) -> GraphBatch:
        """One batch of equally padded single observations."""
        return cls.of(
            {
                name: torch.from_numpy(np.stack([item[name] for item in observations]))
                for name in cls.__dataclass_fields__
            }
        )


FIELD_NAMES: tuple[str, ...] = tuple(GraphBatch.__dataclass_fields__)
