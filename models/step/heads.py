"""Heads: a pointer over devices, and a value."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from envs.errors import InputError
from envs.spaces import FeatureWidths
from models.architecture import MASKED_LOGIT
from models.step.graph_batch import GraphBatch


def row_of(current: Tensor, rows: Tensor) -> Tensor:
    """(B, F): row `current[b]` of each (N, F) matrix in `rows` (B, N, F)."""
    index = current.unsqueeze(-1).expand(-1, 1, rows.shape[-1])
    return rows.gather(1, index).squeeze(1)


class PointerHead(nn.Module):
    """One logit per device from the current node, the device and what ties the two together.

    The last round of message passing happens here, for the current node alone and for each
    candidate device apart: the messages of the neighbours that stand on that device.

    Args:
        widths: feature widths of the observation.
        hidden: width H of node and device states.
        initial_scale: factor on the last layer's initial weights; small means a start near the
            uniform distribution.
        initial_candidate_weights: candidate feature -> starting weight of its direct, linear part
            in a device's logit; the others start at 0.

    Raises:
        InputError: `initial_candidate_weights` names a feature the observation does not have.
    """

    def __init__(
        self,
        widths: FeatureWidths,
        hidden: int,
        initial_scale: float,
        initial_candidate_weights: Mapping[int, float],
    ) -> None:
        super().__init__()
        self.from_node = nn.Linear(hidden, hidden)
        self.from_device = nn.Linear(
            3 * hidden + 3 + widths.candidate + widths.node_device, hidden, bias=False
        )
        self.hidden = nn.Linear(hidden, hidden)
        self.logit = nn.Linear(hidden, 1, bias=False)
        self.direct = nn.Linear(widths.candidate, 1, bias=False)
        with torch.no_grad():
            self.logit.weight.mul_(initial_scale)
            self.direct.weight.zero_()
            for feature, weight in initial_candidate_weights.items():
                if not 0 <= feature < widths.candidate:
                    raise InputError(
                        f"{feature} is not one of {widths.candidate} candidate features",
                        field="initial_candidate_weights",
                    )
                self.direct.weight[0, feature] = weight

    def forward(
        self, batch: GraphBatch, nodes: Tensor, devices: Tensor, on: Tensor, ties: list[Tensor]
    ) -> Tensor:
        """(B, D) logits, `MASKED_LOGIT` where the action mask is 0.

        Args:
            batch: the graphs.
            nodes: (B, N, H) node states.
            devices: (B, D, H) device states.
            on: (B, N, D) which node stands where.
            ties: the (B, N, N) adjacencies whose current rows carry the neighbours' messages.
        """
        current = batch.current
        keep = row_of(current, on)  # (B, D)
        parts = [devices, batch.candidate_features, keep.unsqueeze(-1)]
        parts.append(
            row_of(current, batch.node_device_features.flatten(2)).view_as(
                batch.node_device_features[:, 0]
            )
        )
        for adjacency in ties:
            near = row_of(current, adjacency).unsqueeze(-1) * on  # (B, N, D)
            near = near.transpose(1, 2)
            parts += [near.sum(dim=2, keepdim=True), torch.bmm(near, nodes)]
        state = self.from_node(row_of(current, nodes)).unsqueeze(1)
        state = torch.relu(state + self.from_device(torch.cat(parts, dim=-1)))
        state = torch.relu(self.hidden(state))
        logits = (self.logit(state) + self.direct(batch.candidate_features)).squeeze(-1)
        masked: Tensor = logits.masked_fill(batch.action_mask == 0, MASKED_LOGIT)
        return masked


class ValueHead(nn.Module):
    """The expected return from the pooled graph, the pooled devices and the current node."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(4 * hidden, hidden), nn.ReLU(), nn.Linear(hidden, 1))

    def forward(self, batch: GraphBatch, nodes: Tensor, devices: Tensor) -> Tensor:
        """(B,) values."""
        mask = batch.node_mask.to(nodes.dtype).unsqueeze(1)  # (B, 1, N)
        mean = torch.bmm(mask, nodes).squeeze(1) / mask.sum(dim=2).clamp(min=1.0)
        pooled = [mean, devices.mean(dim=1), devices.amax(dim=1), row_of(batch.current, nodes)]
        value: Tensor = self.layers(torch.cat(pooled, dim=-1)).squeeze(-1)
        return value
