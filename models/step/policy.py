"""`PlacementPolicy`: from a padded graph to one logit per device and a value.

Message passing over operators and over devices is on dense adjacency matrices: a coarsened graph
has at most a few hundred nodes, so that a batched matrix product over a dense (N, N) adjacency is
several times faster on a CPU than gather and scatter over the edge list, and exports with every
size dynamic. Padded edges carry weight zero, so that the result is exact.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge
from gymnasium import spaces
from torch import Tensor, nn
from torch_geometric.nn import DenseGraphConv

from envs.bounds import bounded
from envs.errors import InputError
from envs.spaces import FeatureWidths
from models.architecture import MASKED_LOGIT, Policy, width_of
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


def scatter_edges(batch: GraphBatch, weight: Tensor) -> tuple[Tensor, Tensor]:
    """Dense weighted adjacency of both directions, each row a mean over its edges.

    Args:
        batch: the graphs.
        weight: (B, E, 2) weight of every edge when it carries to its target, to its source.

    Returns:
        (B, N, N) `into`, `into[b, v, u]` the weight of u's message to its consumer v, and
        (B, N, N) `back`, `back[b, u, v]` the weight of v's message to its producer u; parallel
        edges add up, a row is divided by its number of edges.
    """
    graphs, nodes = batch.node_mask.shape
    mask = batch.edge_mask.to(weight.dtype)  # (B, E)
    source, target = batch.edge_index.clamp(max=nodes - 1).unbind(1)  # (B, E) each
    zeros = weight.new_zeros(graphs, nodes * nodes)
    dense = []
    for direction, (receiver, sender) in enumerate(((target, source), (source, target))):
        degree = weight.new_zeros(graphs, nodes).scatter_add(1, receiver, mask)
        share = mask / degree.clamp(min=1.0).gather(1, receiver)
        adjacency = zeros.scatter_add(1, receiver * nodes + sender, weight[:, :, direction] * share)
        dense.append(adjacency.view(graphs, nodes, nodes))
    return dense[0], dense[1]


def sum_edge_features(batch: GraphBatch) -> Tensor:
    """(B, N, 2 * (F_edge + 1)): features and count of a node's incoming, outgoing edges.

    Sums are compressed by log(1 + x), so that a node with many edges stays in range.
    """
    graphs, nodes = batch.node_mask.shape
    mask = batch.edge_mask.to(batch.edge_features.dtype).unsqueeze(-1)  # (B, E, 1)
    values = torch.cat([batch.edge_features * mask, mask], dim=-1)  # (B, E, F_edge + 1)
    ends = batch.edge_index.clamp(max=nodes - 1)
    sums = [
        values.new_zeros(graphs, nodes, values.shape[-1]).scatter_add(
            1, ends[:, end, :, None].expand_as(values), values
        )
        for end in (1, 0)
    ]
    total = torch.cat(sums, dim=-1)
    return torch.sign(total) * torch.log1p(total.abs())


def standing_on(batch: GraphBatch) -> Tensor:
    """(B, N, D) float: 1 where node n stands on device d, 0 in padded rows."""
    devices = torch.arange(batch.device_features.shape[1], device=batch.placement.device)
    stands = batch.placement.unsqueeze(-1) == devices
    return (stands & (batch.node_mask.unsqueeze(-1) != 0)).to(batch.node_features.dtype)


class OperatorConv(nn.Module):
    """One residual round of message passing: half the channels along the edges, half against."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.message = nn.Linear(hidden, 2 * (hidden // 2))
        self.into = DenseGraphConv(hidden // 2, hidden // 2)
        self.back = DenseGraphConv(hidden // 2, hidden - hidden // 2)

    def forward(self, nodes: Tensor, into: Tensor, back: Tensor) -> Tensor:
        """(B, N, H) from (B, N, H) and the two (B, N, N) adjacencies."""
        forth, reply = torch.relu(self.message(nodes)).chunk(2, dim=-1)
        change = torch.cat([self.into(forth, into), self.back(reply, back)], dim=-1)
        return nodes + torch.relu(change)


class OperatorEncoder(nn.Module):
    """Node states from operators, the device that each stands on, and its neighbours."""

    def __init__(self, widths: FeatureWidths, hidden: int, rounds: int) -> None:
        super().__init__()
        inputs = widths.node + 2 * widths.node_device + 2 * (widths.edge + 1) + 2
        self.node_input = nn.Linear(inputs, hidden)
        self.device_input = nn.Linear(widths.device, hidden)
        self.convs = nn.ModuleList(OperatorConv(hidden) for _ in range(rounds))

    def forward(self, batch: GraphBatch, on: Tensor, into: Tensor, back: Tensor) -> Tensor:
        """(B, N, H) node states; `on` is `standing_on(batch)`."""
        costs = batch.node_device_features  # (B, N, D, F)
        indices = torch.arange(batch.node_mask.shape[1], device=batch.current.device)
        marks = torch.stack([batch.placed != 0, indices == batch.current], dim=-1)
        features = torch.cat(
            [
                batch.node_features,
                (on.unsqueeze(-1) * costs).sum(dim=2),
                costs.mean(dim=2),
                sum_edge_features(batch),
                marks.to(batch.node_features.dtype),
            ],
            dim=-1,
        )
        stand = torch.bmm(on, self.device_input(batch.device_features))  # (B, N, H)
        nodes = torch.relu(self.node_input(features) + stand)
        for conv in self.convs:
            nodes = conv(nodes, into, back)
        return nodes


class DeviceEncoder(nn.Module):
    """Device states from device features, the operators standing there, links and traffic."""

    def __init__(self, widths: FeatureWidths, hidden: int, rounds: int) -> None:
        super().__init__()
        self.input = nn.Linear(widths.device + 2 + hidden, hidden)
        self.link_weight = nn.Sequential(
            nn.Linear(widths.link + 2, 16), nn.ReLU(), nn.Linear(16, 1), nn.Sigmoid()
        )
        self.convs = nn.ModuleList(
            DenseGraphConv(hidden, hidden, aggr="mean") for _ in range(rounds)
        )

    def forward(
        self, batch: GraphBatch, nodes: Tensor, on: Tensor, into: Tensor, back: Tensor
    ) -> Tensor:
        """(B, D, H) device states from the (B, N, H) node states."""
        share = on.transpose(1, 2)  # (B, D, N)
        count = share.sum(dim=2, keepdim=True)  # (B, D, 1)
        total = batch.node_mask.sum(dim=1).clamp(min=1).to(nodes.dtype).view(-1, 1, 1)
        placed = torch.bmm(share, (batch.placed != 0).to(nodes.dtype).unsqueeze(-1))
        pooled = torch.bmm(share, nodes) / count.clamp(min=1.0)
        devices = torch.relu(
            self.input(
                torch.cat([batch.device_features, count / total, placed / total, pooled], dim=-1)
            )
        )
        traffic = torch.stack(
            [torch.log1p(share @ (adjacency.detach() @ on)) for adjacency in (into, back)], dim=-1
        )  # (B, D, D, 2)
        weight = self.link_weight(torch.cat([batch.link_features, traffic], dim=-1)).squeeze(-1)
        for conv in self.convs:
            devices = devices + torch.relu(conv(devices, weight))
        return devices


def row_of(current: Tensor, rows: Tensor) -> Tensor:
    """(B, F): row `current[b]` of each (N, F) matrix in `rows` (B, N, F)."""
    index = current.unsqueeze(-1).expand(-1, 1, rows.shape[-1])
    return rows.gather(1, index).squeeze(1)


class PointerHead(nn.Module):
    """One logit per device from the current node, the device and what ties the two together.

    The last round of message passing happens here, for the current node alone and for each
    candidate device apart: the messages of the neighbours that stand on that device.

    `initial_candidate_weights` may name only features that the observation has (`InputError`).
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

        The (B, N, N) adjacencies in `ties` are those whose current rows carry the neighbours'
        messages; `nodes` are (B, N, H), `devices` (B, D, H), `on` (B, N, D).
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


@bounded
@dataclass(frozen=True)
class PolicyConfig:
    """Everything a person chooses about a policy; the observation fixes the rest.

    Attributes:
        hidden: width of node and device states.
        operator_rounds: rounds of message passing over the whole operator graph; one further
            round, for the current group alone, is part of the pointer head.
        device_rounds: rounds of message passing between devices.
        initial_scale: factor on the pointer's last layer at the start; small means near uniform.
        initial_candidate_weights: candidate feature -> starting weight of its direct, linear part
            in a device's logit; the others start at 0. All are learned. A start near a rule that a
            feature expresses: stay where you stand, go where the step gets shorter.
    """

    hidden: Annotated[int, Ge(2)]
    operator_rounds: Annotated[int, Ge(0)]
    device_rounds: Annotated[int, Ge(0)]
    initial_scale: float
    initial_candidate_weights: Mapping[int, float]

    def __post_init__(self) -> None:
        weights = self.initial_candidate_weights
        if not isinstance(weights, Mapping) or not all(isinstance(key, int) for key in weights):
            raise InputError(
                f"{weights!r} does not map candidate features to weights",
                field="initial_candidate_weights",
            )

    def policy(
        self, observation_space: spaces.Dict, action_space: spaces.Space[Any]
    ) -> PlacementPolicy:
        """A fresh policy for an agent that reads padded graphs and chooses a device.

        Raises:
            InputError: the agent does not.
        """
        if not isinstance(action_space, spaces.Discrete):
            raise InputError(f"a placement policy chooses a device, not from {action_space}")
        return PlacementPolicy(
            self,
            FeatureWidths(
                **{
                    field.name: width_of(observation_space, f"{field.name}_features")
                    for field in fields(FeatureWidths)
                }
            ),
        )


class PlacementPolicy(Policy):
    """Actor and critic over one shared encoder; any number of nodes, edges and devices.

    Weights are shared between nodes and between devices. The action mask is applied inside, so
    that training, exploration and the exported policy see the same distribution.
    """

    def __init__(self, config: PolicyConfig, widths: FeatureWidths) -> None:
        super().__init__()
        self.config = config
        self.widths = widths
        hidden = config.hidden
        self.edge_weight = nn.Sequential(
            nn.Linear(widths.edge, 8), nn.ReLU(), nn.Linear(8, 2), nn.Sigmoid()
        )
        self.operators = OperatorEncoder(widths, hidden, config.operator_rounds)
        self.devices = DeviceEncoder(widths, hidden, config.device_rounds)
        self.pointer = PointerHead(
            widths, hidden, config.initial_scale, config.initial_candidate_weights
        )
        self.value = ValueHead(hidden)

    def decide(self, observation: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(B, D) masked logits and (B,) values."""
        logits, value = self(GraphBatch.of(observation))
        return logits, value

    def forward(self, batch: GraphBatch) -> tuple[Tensor, Tensor]:
        """(B, D) masked logits and (B,) values."""
        on = standing_on(batch)
        into, back = scatter_edges(batch, self.edge_weight(batch.edge_features))
        nodes = self.operators(batch, on, into, back)
        devices = self.devices(batch, nodes, on, into, back)
        logits = self.pointer(batch, nodes, devices, on, [into, back])
        return logits, self.value(batch, nodes, devices)
