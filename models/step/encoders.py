"""Message passing over operators and over devices, on dense adjacency matrices.

A coarsened graph has at most a few hundred nodes, so that a batched matrix product over a dense
(N, N) adjacency is several times faster on a CPU than gather and scatter over the edge list, and
exports with every size dynamic. Padded edges carry weight zero, so that the result is exact.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch_geometric.nn import DenseGraphConv

from envs.spaces import FeatureWidths
from models.step.graph_batch import GraphBatch


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
    """Node states from operator features, the device each operator stands on, and its neighbours.

    Args:
        widths: feature widths of the observation.
        hidden: width H of a node state.
        rounds: rounds of message passing over the whole graph.
    """

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
    """Device states from device features, the operators standing there, links and traffic.

    Args:
        widths: feature widths of the observation.
        hidden: width H of a device state.
        rounds: rounds of message passing between devices.
    """

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
