"""Message passing up and down: jobs, servers, racks, the cluster."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

from models.architecture import MASKED_LOGIT
from models.cluster.batch import ClusterBatch, Rows, mean
from models.layout import ClusterWidths


class States(NamedTuple):
    """States of all nodes, H wide."""

    pending: Tensor  # (K, H)
    running: Tensor  # (K, H)
    servers: Tensor  # (K, H)
    racks: Tensor  # (B, R, H)
    cluster: Tensor  # (B, H)


class NodeEncoder(nn.Module):
    """Nodes by themselves, before any message; resources with the GPU types of their servers."""

    def __init__(self, widths: ClusterWidths, hidden: int) -> None:
        super().__init__()
        self.jobs = nn.Sequential(
            nn.Linear(widths.job, hidden), nn.ReLU(), nn.Linear(hidden, hidden), nn.ReLU()
        )
        self.servers = nn.Linear(widths.server, hidden)
        self.racks = nn.Linear(widths.rack + widths.types, hidden)
        self.cluster = nn.Linear(widths.cluster + 2 * widths.types, hidden)

    def resources(self, batch: ClusterBatch) -> tuple[Tensor, Tensor, Tensor]:
        """(K, H) servers, (B, R, H) racks, (B, H) clusters."""
        servers = torch.relu(self.servers(batch.server_features))
        racks = self.racks(torch.cat([batch.rack_features, batch.rack_types], dim=-1))
        cluster = [batch.cluster_features, batch.free_types, batch.all_types]
        return servers, torch.relu(racks), torch.relu(self.cluster(torch.cat(cluster, dim=-1)))


class AttentionPool(nn.Module):
    """Means of the rows of every graph, weighted by attention, one for each of its heads."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.score = nn.Linear(hidden, heads, bias=False)  # a bias would fall out of the softmax

    def forward(self, rows: Rows, states: Tensor) -> Tensor:
        """(B, heads * H) from (K, H)."""
        padded, absent = rows.unpack(states), ~rows.present.unsqueeze(-1)
        weights = self.score(padded).masked_fill(absent, MASKED_LOGIT).softmax(dim=1)
        weights = weights.masked_fill(absent, 0.0)  # where no row is there at all
        return torch.bmm(weights.transpose(1, 2), padded).flatten(1)


class Round(nn.Module):
    """One way up and one way down; every node adds what it hears to its state.

    Up: running jobs to their servers, servers to racks, racks and pending jobs (by attention) to
    the cluster. Down: cluster to racks, to servers, to running jobs; pending jobs attend to racks.
    """

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.pool = AttentionPool(hidden, heads)
        self.servers_up = nn.Linear(2 * hidden, hidden)
        self.racks_up = nn.Linear(2 * hidden, hidden)
        self.cluster_up = nn.Linear((3 + heads) * hidden, hidden)
        self.racks_down = nn.Linear(2 * hidden, hidden)
        self.servers_own = nn.Linear(hidden, hidden)
        self.servers_down = nn.Linear(hidden, hidden, bias=False)
        self.running_own = nn.Linear(hidden, hidden)
        self.running_servers = nn.Linear(hidden, hidden, bias=False)
        self.running_down = nn.Linear(hidden, hidden, bias=False)
        self.pending_own = nn.Linear(hidden, hidden)
        self.pending_down = nn.Linear(hidden, hidden, bias=False)
        self.look = ResourceAttention(hidden)

    def forward(self, batch: ClusterBatch, states: States) -> States:
        pending, running, servers, racks, cluster = states
        heard = torch.cat([servers, batch.to_servers(running)], dim=-1)
        servers = servers + torch.relu(self.servers_up(heard))
        heard = torch.cat([racks, batch.to_racks(servers)], dim=-1)
        racks = racks + torch.relu(self.racks_up(heard))
        there = batch.rack_present.to(racks.dtype).unsqueeze(1)
        mean_rack = torch.bmm(there, racks).squeeze(1) / there.sum(dim=2).clamp(min=1.0)
        parts = [
            cluster,
            mean_rack,
            self.pool(batch.pending, pending),
            mean(batch.running, running),
        ]
        cluster = cluster + torch.relu(self.cluster_up(torch.cat(parts, dim=-1)))
        wide = cluster.unsqueeze(1).expand_as(racks)
        racks = racks + torch.relu(self.racks_down(torch.cat([racks, wide], dim=-1)))
        message = self.servers_own(servers) + batch.from_racks(self.servers_down(racks))
        servers = servers + torch.relu(message)
        message = self.running_own(running) + batch.to_running(self.running_servers(servers))
        message = message + batch.running.spread(self.running_down(cluster))
        running = running + torch.relu(message)
        message = self.pending_own(pending) + batch.pending.spread(self.pending_down(cluster))
        message = message + self.look(batch.pending, pending, racks, batch.rack_present)
        return States(pending + torch.relu(message), running, servers, racks, cluster)


class FlatRound(nn.Module):
    """A round without racks and cluster: jobs and servers hear of each other alone."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.servers_up = nn.Linear(2 * hidden, hidden)
        self.running_own = nn.Linear(hidden, hidden)
        self.running_servers = nn.Linear(hidden, hidden, bias=False)
        self.pending_own = nn.Linear(hidden, hidden)
        self.look = ResourceAttention(hidden)

    def forward(self, batch: ClusterBatch, states: States) -> States:
        pending, running, servers, racks, cluster = states
        heard = torch.cat([servers, batch.to_servers(running)], dim=-1)
        servers = servers + torch.relu(self.servers_up(heard))
        message = self.running_own(running) + batch.to_running(self.running_servers(servers))
        running = running + torch.relu(message)
        resources, present = batch.servers.unpack(servers), batch.servers.present
        message = self.pending_own(pending) + self.look(batch.pending, pending, resources, present)
        return States(pending + torch.relu(message), running, servers, racks, cluster)


class ResourceAttention(nn.Module):
    """Rows of jobs attend to the racks or servers of their graph (scaled dot products)."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.key = nn.Linear(hidden, hidden, bias=False)  # a bias would fall out of the softmax
        self.value = nn.Linear(hidden, hidden, bias=False)

    def forward(self, rows: Rows, jobs: Tensor, resources: Tensor, present: Tensor) -> Tensor:
        """(K, H) from (K, H) jobs and (B, P, H) resources, of which (B, P) are there."""
        scores = torch.bmm(rows.unpack(jobs), self.key(resources).transpose(1, 2))
        scores = (scores * jobs.shape[1] ** -0.5).masked_fill(~present.unsqueeze(1), MASKED_LOGIT)
        return rows.pack(torch.bmm(scores.softmax(-1), self.value(resources)))
