"""Heads over the nodes of a cluster: start a job somewhere, forward, preempt, wait, and values."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from models.architecture import MASKED_LOGIT
from models.cluster.batch import ClusterBatch
from models.cluster.encoder import AttentionPool, States
from models.cluster.rows import mean


class JobHead(nn.Module):
    """One logit per job from its state and what is known about it outright.

    Args:
        hidden: width of a state.
        direct: columns known outright, the feature of the Gittins index first.
        initial_scale: factor on the last layer's first weights.
        initial_index_weight: first weight of the index in the logit.
    """

    def __init__(
        self, hidden: int, direct: int, initial_scale: float, initial_index_weight: float
    ) -> None:
        super().__init__()
        self.hidden = nn.Linear(hidden + direct, hidden)
        self.logit = nn.Linear(hidden, 1)
        self.direct = nn.Linear(direct, 1, bias=False)
        with torch.no_grad():
            self.logit.weight.mul_(initial_scale)
            self.logit.bias.zero_()
            self.direct.weight.zero_()
            self.direct.weight[0, 0] = initial_index_weight

    def forward(self, states: Tensor, direct: Tensor) -> Tensor:
        """(K, 1) from (K, H) and (K, direct)."""
        hidden = torch.relu(self.hidden(torch.cat([states, direct], dim=1)))
        logits: Tensor = self.logit(hidden) + self.direct(direct)
        return logits


class PairHead(nn.Module):
    """Where a job would start: a pointer over servers, racks and all servers together.

    A pair's logit is the product of the job's query and the group's key, and a multiple, learned,
    of the speed the job has on the group's GPU types: those of a server, or of the free GPUs of a
    rack or of all.
    """

    def __init__(self, hidden: int, initial_scale: float, initial_speed_weight: float) -> None:
        super().__init__()
        self.query = nn.Linear(hidden, hidden)
        self.servers = nn.Linear(hidden, hidden, bias=False)
        self.racks = nn.Linear(hidden, hidden)
        self.cluster = nn.Linear(hidden, hidden)
        self.speed = nn.Parameter(torch.tensor(initial_speed_weight))
        self._scale = hidden**-0.5
        with torch.no_grad():
            self.query.weight.mul_(initial_scale)
            self.query.bias.mul_(initial_scale)

    def forward(self, batch: ClusterBatch, states: States, allowed: Tensor) -> Tensor:
        """(B, W, G) logarithms of the chance of every allowed group, given the job."""
        jobs = [self.query(states.pending) * self._scale, self.speed * batch.pending_speeds]
        queries = batch.pending.unpack(torch.cat(jobs, dim=1))  # (B, W, H + T)
        types = batch.server_features[:, -batch.rack_types.shape[2] :]
        servers = torch.cat([self.servers(states.servers), types], dim=1)
        racks = torch.cat([self.racks(states.racks), batch.rack_types], dim=2)
        whole = torch.cat([self.cluster(states.cluster), batch.cluster_types], dim=1)
        keys = torch.cat([batch.servers.unpack(servers), racks, whole.unsqueeze(1)], dim=1)
        pairs = torch.bmm(queries, keys.transpose(1, 2))
        return pairs.masked_fill(~allowed, MASKED_LOGIT).log_softmax(-1)


class ForwardHead(nn.Module):
    """To whom a job goes: a pointer over the other schedulers."""

    def __init__(self, hidden: int, peer: int, initial_scale: float) -> None:
        super().__init__()
        self.peers = nn.Sequential(nn.Linear(peer, hidden), nn.ReLU())
        self.query = nn.Linear(hidden, hidden)
        self.job = nn.Linear(hidden, 1)
        self._scale = hidden**-0.5
        with torch.no_grad():
            for layer in (self.query, self.job):
                layer.weight.mul_(initial_scale)
                layer.bias.mul_(initial_scale)

    def forward(self, batch: ClusterBatch, states: States, peers: Tensor) -> Tensor:
        """(B, W, F) from (B, F, columns) of the other schedulers."""
        parts = [self.query(states.pending) * self._scale, self.job(states.pending)]
        queries = batch.pending.unpack(torch.cat(parts, dim=1))  # (B, W, H + 1)
        keys = self.peers(peers).transpose(1, 2)  # (B, H, F)
        return torch.bmm(queries[..., :-1], keys) + queries[..., -1:]


class Readout(nn.Module):
    """The whole of what a scheduler sees as one row: cluster, pending and running jobs, servers."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.pool = AttentionPool(hidden, heads)
        self.width = (3 + heads) * hidden

    def forward(self, batch: ClusterBatch, states: States) -> Tensor:
        """(B, `width`)."""
        pending = self.pool(batch.pending, states.pending)
        running = mean(batch.running, states.running)
        servers = mean(batch.servers, states.servers)
        return torch.cat([states.cluster, pending, running, servers], dim=1)


class Perceptron(nn.Module):
    """One hidden layer and one number."""

    def __init__(self, width: int, hidden: int, initial_scale: float) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, 1))
        with torch.no_grad():
            for parameter in self.layers[2].parameters():
                parameter.mul_(initial_scale)

    def forward(self, *parts: Tensor) -> Tensor:
        """(B, 1) from parts that are `width` wide together."""
        number: Tensor = self.layers(torch.cat(parts, dim=1))
        return number
