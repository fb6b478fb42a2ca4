"""`PlacerPolicy`: where the groups of any step go on any devices, decided in a few sweeps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, NamedTuple

import numpy as np
import torch
from annotated_types import Ge, MinLen
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional

from envs.bounds import Count, bounded
from envs.placement import sweeps
from envs.placement.facts import DEVICE, LINK, NODE, NODE_DEVICE, WHOLE
from envs.placement.sweeps import CANDIDATE, Boards
from models.architecture import MASKED_LOGIT
from models.step.decoding import PARALLEL, Encoded, FeatureArray, IntArray, Views, allowed


class Appraisal(NamedTuple):
    """What a policy says of plans that are given."""

    log_probabilities: Tensor  # (S, A)
    entropy: Tensor  # (S, A)
    known: Tensor  # (S, A) bool: the token exists


@bounded
@dataclass(frozen=True)
class PlacerConfig:
    """Everything a person chooses about the policy.

    Attributes:
        hidden: width of the states.
        rounds: of message passing and attention.
        heads: of the attention.
        sweeps: over the groups, each after the first a refinement.
        topology: whether links between devices are encoded.
    """

    hidden: Annotated[int, Ge(8)]
    rounds: Count
    heads: Count
    sweeps: Annotated[Sequence[str], MinLen(1)]
    topology: bool


class Attention(nn.Module):
    """What rows of `queries` take from rows of `keys`; a bias (B, heads, Q, K) where given."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.query = nn.Linear(hidden, hidden, bias=False)
        self.key = nn.Linear(hidden, 2 * hidden, bias=False)
        self.out = nn.Linear(hidden, hidden, bias=False)

    def forward(self, queries: Tensor, keys: Tensor, bias: Tensor) -> Tensor:
        b, q, h = queries.shape
        k = keys.shape[1]
        query = self.query(queries).view(b, q, self.heads, -1).transpose(1, 2)
        key, value = self.key(keys).view(b, k, self.heads, -1).transpose(1, 2).chunk(2, dim=-1)
        score = query @ key.transpose(2, 3) / query.shape[-1] ** 0.5 + bias
        found = torch.softmax(score, dim=-1) @ value
        out: Tensor = self.out(found.transpose(1, 2).reshape(b, q, h))
        return out


class Round(nn.Module):
    """Groups hear their neighbours, each other and the devices; devices the groups and each other."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.node_norm, self.device_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.messages = nn.Linear(hidden, hidden)
        self.among = Attention(hidden, heads)
        self.to_devices = Attention(hidden, heads)
        self.node = nn.Sequential(
            nn.Linear(4 * hidden, 2 * hidden), nn.ReLU(), nn.Linear(2 * hidden, hidden)
        )
        self.to_nodes = Attention(hidden, heads)
        self.between = Attention(hidden, heads)
        self.link = nn.Linear(LINK, heads, bias=False)
        self.cost = nn.Linear(NODE_DEVICE, heads, bias=False)
        self.device = nn.Sequential(
            nn.Linear(3 * hidden, 2 * hidden), nn.ReLU(), nn.Linear(2 * hidden, hidden)
        )

    def forward(
        self, views: Views, nodes: Tensor, devices: Tensor, into: Tensor, out: Tensor
    ) -> tuple[Tensor, Tensor]:
        """(B, G, H) and (B, D, H), from the same and two (B, G, G) adjacencies of mean 1 rows."""
        no_node = (~views.node_mask)[:, None, None, :] * MASKED_LOGIT
        no_device = (~views.device_mask)[:, None, None, :] * MASKED_LOGIT
        cost = self.cost(views.node_device_features).permute(0, 3, 1, 2)  # (B, heads, G, D)
        n, d = self.node_norm(nodes), self.device_norm(devices)
        forth, back = torch.relu(self.messages(n)).chunk(2, dim=-1)
        near = torch.cat([into @ forth, out @ back], dim=-1)
        nodes = nodes + self.node(
            torch.cat(
                [n, near, self.among(n, n, no_node), self.to_devices(n, d, cost + no_device)],
                dim=-1,
            )
        )
        link = self.link(views.link_features).permute(0, 3, 1, 2)
        devices = devices + self.device(
            torch.cat(
                [
                    d,
                    self.to_nodes(d, self.node_norm(nodes), cost.transpose(2, 3) + no_node),
                    self.between(d, d, link + no_device),
                ],
                dim=-1,
            )
        )
        return nodes, devices


class PlacerEncoder(nn.Module):
    """Problems to what a decoder takes of them."""

    def __init__(self, config: PlacerConfig, orders: int) -> None:
        super().__init__()
        hidden = config.hidden
        self.topology = config.topology
        self.node_input = nn.Linear(NODE + 2 * NODE_DEVICE + WHOLE, hidden)
        self.device_input = nn.Linear(DEVICE + WHOLE, hidden)
        self.rounds = nn.ModuleList(Round(hidden, config.heads) for _ in range(config.rounds))
        self.node_output = nn.Sequential(nn.LayerNorm(hidden), nn.Linear(hidden, hidden))
        self.device_output = nn.Sequential(
            nn.LayerNorm(hidden), nn.Linear(hidden, hidden, bias=False)
        )
        self.order = nn.Sequential(
            nn.Linear(2 * hidden + WHOLE, hidden), nn.ReLU(), nn.Linear(hidden, orders)
        )

    def forward(self, *views: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Nodes, devices and order logits of `Encoded`, of the arrays of `Views`."""
        given = Views(*views)
        if not self.topology:
            given = given._replace(link_features=torch.zeros_like(given.link_features))
        real = given.device_mask[:, None, :, None].to(given.flow.dtype)
        costs = given.node_device_features
        mean = (costs * real).sum(dim=2) / real.sum(dim=2)
        least = (costs + (1 - real) * 100).amin(dim=2)
        whole = given.whole_features[:, None, :]
        nodes = self.node_input(
            torch.cat(
                [given.node_features, mean, least, whole.expand(-1, mean.shape[1], -1)], dim=-1
            )
        )
        devices = self.device_input(
            torch.cat(
                [given.device_features, whole.expand(-1, given.device_features.shape[1], -1)],
                dim=-1,
            )
        )
        into, out = _rows_of_mean(given.flow.transpose(1, 2)), _rows_of_mean(given.flow)
        for one in self.rounds:
            nodes, devices = one(given, nodes, devices, into, out)
        mask = given.node_mask.unsqueeze(-1).to(nodes.dtype)
        pooled = (nodes * mask).sum(dim=1) / mask.sum(dim=1)
        real = given.device_mask.unsqueeze(-1).to(nodes.dtype)
        around = (devices * real).sum(dim=1) / real.sum(dim=1)
        order = self.order(torch.cat([pooled, around, given.whole_features], dim=-1))
        return self.node_output(nodes), self.device_output(devices), order


def _rows_of_mean(flow: Tensor) -> Tensor:
    """Rows that add up to 1, or to 0."""
    return flow / flow.sum(dim=2, keepdim=True).clamp(min=1e-9)


class PlacerHead(nn.Module):
    """One logit per device for a group, from what it and the devices are and from the features."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.candidate = nn.Linear(CANDIDATE, hidden, bias=False)
        self.second = nn.Linear(hidden, hidden)
        self.others = nn.Linear(2 * hidden, hidden, bias=False)
        self.logit = nn.Linear(hidden, 1, bias=False)
        with torch.no_grad():
            self.logit.weight.mul_(0.1)

    def forward(self, nodes: Tensor, devices: Tensor, mask: Tensor, x: Tensor) -> Tensor:
        """(S, D) logits, masked; of (S, H), (S, D, H), (S, D) bool and (S, D, CANDIDATE)."""
        z = torch.relu(nodes.unsqueeze(-2) + devices + self.candidate(x))
        real = mask.unsqueeze(-1)
        mean = (z * real).sum(dim=-2) / real.sum(dim=-2).clamp(min=1)
        most = (z * real).amax(dim=-2)
        around = self.others(torch.cat([mean, most], dim=-1)).unsqueeze(-2)
        z = torch.relu(self.second(z) + around)
        logits: Tensor = self.logit(z).squeeze(-1)
        return logits.masked_fill(~mask, MASKED_LOGIT)


class PlacerPolicy(nn.Module):
    """One encoder, one head, any number of groups and devices; see `PlacerConfig`."""

    def __init__(self, config: PlacerConfig, orders: int = 3) -> None:
        super().__init__()
        self.config = config
        self.encoder = PlacerEncoder(config, orders)
        self.head = PlacerHead(config.hidden)

    def encode(self, views: Views) -> Encoded:
        """With gradients, tensors in and out."""
        return Encoded(*self.encoder(*views))

    def appraise(
        self, encoded: Encoded, given: Boards, problem: IntArray, actions: IntArray
    ) -> Appraisal:
        """What the policy says of `actions` (S, A), with gradients; tensors are `encoded`."""
        rows = torch.from_numpy(problem)
        nodes, devices = encoded.nodes[rows], encoded.devices[rows]
        samples, groups = len(problem), given.seconds.shape[1]
        now, masks = sweeps.standing(given, problem), torch.from_numpy(allowed(given, problem))
        exists = torch.from_numpy(np.arange(groups) < given.groups[problem][:, None])
        spread = devices.unsqueeze(1).expand(-1, groups, -1, -1)
        logs, entropies = [], []
        for number, kind in enumerate(self.config.sweeps):
            x = np.zeros((*masks.shape, CANDIDATE), np.float32)
            taken = np.ascontiguousarray(actions[:, number * groups : (number + 1) * groups])
            if kind == PARALLEL:
                sweeps.look_at_all(given, now, number > 0, x)
                sweeps.put_all(given, now, taken)
            else:
                sweeps.replay(given, now, number > 0, taken, x)
            logits = self.head(nodes, spread, masks, torch.from_numpy(x))
            log, entropy = _appraised(logits, torch.from_numpy(taken))
            logs.append(log * exists)
            entropies.append(entropy * exists)
        log, entropy = _appraised(encoded.order[rows], torch.from_numpy(actions[:, -1].copy()))
        one = torch.ones(samples, 1, dtype=torch.bool)
        return Appraisal(
            torch.cat([*logs, log.unsqueeze(1)], dim=1),
            torch.cat([*entropies, entropy.unsqueeze(1)], dim=1),
            torch.cat([*[exists] * len(self.config.sweeps), one], dim=1),
        )


class PresentNetwork:
    """A policy as it is now, for `models.step.decoding`."""

    def __init__(self, policy: PlacerPolicy) -> None:
        self.policy = policy

    @torch.no_grad()
    def encode(self, views: Views) -> Encoded:
        found = self.policy.encode(Views(*map(torch.from_numpy, views)))
        return Encoded(*(array.numpy() for array in found))

    @torch.no_grad()
    def score(
        self, nodes: FeatureArray, devices: FeatureArray, mask: NDArray[np.bool_], x: FeatureArray
    ) -> FeatureArray:
        arrays = map(torch.from_numpy, (np.ascontiguousarray(nodes), devices, mask, x))
        found: FeatureArray = self.policy.head(*arrays).numpy()
        return found


def _appraised(logits: Tensor, taken: Tensor) -> tuple[Tensor, Tensor]:
    logs = functional.log_softmax(logits, dim=-1)
    entropy = -(logs.exp() * logs).sum(dim=-1)
    return logs.gather(-1, taken.unsqueeze(-1)).squeeze(-1), entropy
