"""`PlacerPolicy`: where the groups of any step go on any devices, decided in a few sweeps."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
import torch
from annotated_types import Ge, MinLen
from gymnasium import spaces
from torch import Tensor, nn
from torch.nn import functional

from envs.arrays import BoolArray, IntArray
from envs.bounds import Count, bounded
from envs.errors import InputError
from envs.placement import sweeps
from envs.placement.episodes import ORDER_CLASSES
from envs.placement.sweeps import CANDIDATE
from envs.placement.whole import DEVICE, FEATURES, GIVEN, LINK, NODE, NODE_DEVICE, WHOLE
from models.architecture import MASKED_LOGIT, Appraisal, Composed, Policy, perceptron
from models.step.decoding import (
    PARALLEL,
    SEQUENTIAL,
    Chunk,
    Encoded,
    FeatureArray,
    Views,
    allowed,
    chunks,
    compose,
    with_room,
)

_CURIOUS = 0.02  # of the plans whose order class is drawn evenly: none is ever given up


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

    hidden: Annotated[int, Ge(8)] = 64
    rounds: Count = 3
    heads: Count = 4
    sweeps: Annotated[Sequence[str], MinLen(1)] = ("sequential",)
    topology: bool = True

    def __post_init__(self) -> None:
        for kind in self.sweeps:
            if kind not in (SEQUENTIAL, PARALLEL):
                raise InputError(f"{kind!r} is no {SEQUENTIAL} or {PARALLEL} one", field="sweeps")
        if self.hidden % (2 * self.heads):
            message = f"{self.hidden} is no multiple of twice the {self.heads} heads"
            raise InputError(message, field="hidden")

    def policy(
        self, observation_space: spaces.Dict, action_space: spaces.Space[Any]
    ) -> PlacerPolicy:
        """A fresh policy for whole problems, `envs.placement.whole`.

        Raises:
            InputError: the spaces are others.
        """
        if not {"sizes", *FEATURES} <= set(observation_space.spaces):
            raise InputError("a placer reads whole problems", field="model")
        (groups,) = observation_space["state"].shape or (0,)
        tokens = len(self.sweeps) * groups + 1
        if action_space.shape != (tokens,):
            message = f"{len(self.sweeps)} sweeps make {tokens} tokens, not {action_space.shape}"
            raise InputError(message, field="model.sweeps")
        return PlacerPolicy(self)


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
    """Groups hear their neighbours, each other and devices; devices the groups and each other."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.node_norm, self.device_norm = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.messages = nn.Linear(hidden, hidden)
        self.among = Attention(hidden, heads)
        self.to_devices = Attention(hidden, heads)
        self.node = perceptron(4 * hidden, 2 * hidden, hidden)
        self.to_nodes = Attention(hidden, heads)
        self.between = Attention(hidden, heads)
        self.link = nn.Linear(LINK, heads, bias=False)
        self.cost = nn.Linear(NODE_DEVICE, heads, bias=False)
        self.device = perceptron(3 * hidden, 2 * hidden, hidden)

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

    def __init__(self, config: PlacerConfig) -> None:
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
        orders = len(ORDER_CLASSES)
        self.order = perceptron(2 * hidden + WHOLE, hidden, (GIVEN + 1) * orders)
        self.bent = nn.Parameter(torch.zeros(orders, hidden))

    def forward(self, *views: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The arrays of `Encoded`, of those of `Views`."""
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
        chances = torch.softmax(order.unflatten(-1, (GIVEN + 1, -1)), dim=-1)
        order = torch.log((1 - _CURIOUS) * chances + _CURIOUS / chances.shape[-1])
        bent = self.bent.unsqueeze(0).expand(order.shape[0], -1, -1)
        return self.node_output(nodes), self.device_output(devices), order, bent


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


class PlacerPolicy(Policy):
    """One encoder, one head, any number of groups and devices; see `PlacerConfig`.

    An observation is one of `envs.placement.whole`, an action a whole plan: the devices of all
    groups sweep by sweep, padded as the observation is, and then the order class.
    """

    def __init__(self, config: PlacerConfig) -> None:
        super().__init__()
        self.config = config
        self.encoder = PlacerEncoder(config)
        self.head = PlacerHead(config.hidden)

    def compose(self, observation: Mapping[str, Tensor], greedy: bool = False) -> Composed:
        """Draw a plan for each of (n, ...) observations, by torch's global generator."""
        arrays = {name: array.numpy() for name, array in observation.items()}
        random = np.random.default_rng(int(torch.randint(2**62, ())))
        n, most, kinds = len(arrays["sizes"]), arrays["state"].shape[1], self.config.sweeps
        actions = torch.zeros(n, most * len(kinds) + 1, dtype=torch.int64)
        logs = torch.zeros(actions.shape)
        network = PresentNetwork(self)
        for chunk in chunks(arrays):
            heat = np.zeros(len(chunk.rows)) if greedy else np.ones(len(chunk.rows))
            found = compose(
                network, network.encode(chunk.views), chunk.given, chunk.problem, chunk.start,
                chunk.stands, kinds, heat, random,
            )  # fmt: skip
            tokens = _tokens(chunk.given.seconds.shape[1], most, len(kinds))
            rows = torch.from_numpy(chunk.rows).unsqueeze(1)
            actions[rows, tokens] = torch.from_numpy(found.actions)
            logs[rows, tokens] = torch.from_numpy(found.log_probabilities)
        return Composed(actions, logs, torch.zeros(n))

    def appraise(
        self, observation: Mapping[str, Tensor], actions: Tensor, asked: Tensor | None = None
    ) -> Appraisal:
        """What the policy says of (n, A) `actions`, with gradients.

        `asked` (n, A) are the tokens whose probability is asked for, given those of `actions`
        before them; by default these themselves.
        """
        arrays = {name: array.cpu().numpy() for name, array in observation.items()}
        n, most, kinds = len(arrays["sizes"]), arrays["state"].shape[1], self.config.sweeps
        asked = actions if asked is None else asked
        device = next(self.parameters()).device
        found = torch.zeros(3, *actions.shape, device=device)
        for chunk in chunks(arrays):
            tokens = _tokens(chunk.given.seconds.shape[1], most, len(kinds))
            rows = torch.from_numpy(chunk.rows).unsqueeze(1)
            views = Views(*(torch.from_numpy(array).to(device) for array in chunk.views))
            own = self.read(
                Encoded(*self.encoder(*views)), chunk, actions[rows, tokens].cpu().numpy(),
                asked[rows, tokens].to(device),
            )  # fmt: skip
            found = found.index_put((torch.arange(3)[:, None, None], rows, tokens), own)
        return Appraisal(found[0], found[1], found[2].bool(), torch.zeros(n, device=device))

    def read(
        self,
        encoded: Encoded,
        chunk: Chunk,
        actions: IntArray,
        asked: Tensor,
    ) -> Tensor:
        """(3, S, A): log probabilities, entropies and 1 where there is a token, with gradients."""
        device, given, problem = asked.device, chunk.given, chunk.problem
        rows = torch.from_numpy(problem).to(device)
        order = torch.from_numpy(actions[:, -1].copy()).to(device)
        nodes = encoded.nodes[rows] + encoded.bent[rows, order].unsqueeze(1)
        devices = encoded.devices[rows]
        groups = given.seconds.shape[1]
        now, masks = sweeps.standing(given, problem, chunk.stands), allowed(given, problem)
        exists = torch.from_numpy(np.arange(groups) < given.groups[problem][:, None]).to(device)
        spread = devices.unsqueeze(1).expand(-1, groups, -1, -1)
        parts = []
        for number, kind in enumerate(self.config.sweeps):
            x = np.zeros((*masks.shape, CANDIDATE), np.float32)
            here = slice(number * groups, (number + 1) * groups)
            taken = np.ascontiguousarray(actions[:, here])
            if kind == PARALLEL:
                sweeps.look_at_all(given, now, x)
                sweeps.put_all(given, now, taken)
            else:
                sweeps.replay(given, now, taken, x)
            roomy = torch.from_numpy(with_room(masks, x)).to(device)
            logits = self.head(nodes, spread, roomy, torch.from_numpy(x).to(device))
            parts.append(_appraised(logits, asked[:, here]) * exists)
        parts.append(
            _appraised(encoded.order[rows, torch.from_numpy(chunk.start).to(device)], asked[:, -1:])
        )
        both = torch.cat(parts, dim=2)
        known = torch.cat([*[exists] * len(self.config.sweeps), exists[:, :1]], dim=1)
        return torch.cat([both, known.to(both.dtype).unsqueeze(0)])


def _tokens(groups: int, most: int, sweeps: int) -> Tensor:
    """(A,) where the tokens of `sweeps` x `groups` and the order stand among padded ones."""
    own = (torch.arange(sweeps) * most).unsqueeze(1) + torch.arange(groups)
    return torch.cat([own.flatten(), torch.tensor([most * sweeps])])


class PresentNetwork:
    """A policy as it is now, for `models.step.decoding`."""

    def __init__(self, policy: PlacerPolicy) -> None:
        self.policy = policy

    @torch.no_grad()
    def encode(self, views: Views) -> Encoded:
        found = self.policy.encoder(*map(torch.from_numpy, views))
        return Encoded(*(array.numpy() for array in found))

    @torch.no_grad()
    def score(
        self, nodes: FeatureArray, devices: FeatureArray, mask: BoolArray, x: FeatureArray
    ) -> FeatureArray:
        arrays = map(torch.from_numpy, (np.ascontiguousarray(nodes), devices, mask, x))
        found: FeatureArray = self.policy.head(*arrays).numpy()
        return found


def _appraised(logits: Tensor, asked: Tensor) -> Tensor:
    """(2, ...) log probabilities of what is asked for, 0 where it is below 0; entropies."""
    logits = logits if logits.dim() > asked.dim() else logits.unsqueeze(1)
    logs = functional.log_softmax(logits, dim=-1)
    own = logs.gather(-1, asked.clamp(min=0).unsqueeze(-1)).squeeze(-1)
    return torch.stack([own, -(logs.exp() * logs).sum(dim=-1)])
