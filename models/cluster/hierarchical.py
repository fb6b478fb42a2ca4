"""`HierarchicalPolicy`: from racks, servers, running and pending jobs to what a scheduler does."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple

import torch
from annotated_types import Ge
from gymnasium import spaces
from torch import Tensor, nn

from envs.bounds import Count, NonNegative, bounded
from envs.cluster.environment.observation import ADVISED, JOB_BASE, PEER_BASE, SERVER_BASE
from envs.errors import InputError
from models.architecture import MASKED_LOGIT, Policy, width_of
from models.cluster.batch import ClusterBatch, job_types_width, mean
from models.cluster.encoder import AttentionPool, FlatRound, NodeEncoder, Round, States
from models.durations.bins import BINS
from models.durations.network import GittinsIndex
from models.layout import ClusterWidths, num_cluster_actions


def _scaled(layer: nn.Linear, factor: float) -> nn.Linear:
    """A layer whose first weights are `factor` times what they would be."""
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter.mul_(factor)
    return layer


class JobHead(nn.Module):
    """One logit per job from its state and what is known about it outright.

    Of the `direct` columns known outright the feature of the Gittins index is the first.
    """

    def __init__(
        self, hidden: int, direct: int, initial_scale: float, initial_index_weight: float
    ) -> None:
        super().__init__()
        self.hidden = nn.Linear(hidden + direct, hidden)
        self.logit = _scaled(nn.Linear(hidden, 1), initial_scale)
        self.direct = nn.Linear(direct, 1, bias=False)
        with torch.no_grad():
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
        self.query = _scaled(nn.Linear(hidden, hidden), initial_scale)
        self.servers = nn.Linear(hidden, hidden, bias=False)
        self.racks = nn.Linear(hidden, hidden)
        self.cluster = nn.Linear(hidden, hidden)
        self.speed = nn.Parameter(torch.tensor(initial_speed_weight))
        self._scale = hidden**-0.5

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
        self.query = _scaled(nn.Linear(hidden, hidden), initial_scale)
        self.job = _scaled(nn.Linear(hidden, 1), initial_scale)
        self._scale = hidden**-0.5

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
        first, last = nn.Linear(width, hidden), nn.Linear(hidden, 1)
        self.layers = nn.Sequential(first, nn.ReLU(), _scaled(last, initial_scale))

    def forward(self, *parts: Tensor) -> Tensor:
        """(B, 1) from parts that are `width` wide together."""
        number: Tensor = self.layers(torch.cat(parts, dim=1))
        return number


@bounded
@dataclass(frozen=True)
class HierarchicalConfig:
    """Everything a person chooses about the policy; the spaces fix the rest.

    Attributes:
        hidden: width H of all states.
        rounds: rounds of message passing, each up and down; 0: nodes do not talk.
        heads: of the attention that pools pending jobs.
        hierarchy: whether there are messages from and to racks and the cluster; False: only
            between jobs and servers.
        use_interference: whether features about interference are read; False: they are 0.
        initial_scale: factor on the last layers' first weights; small means near uniform.
        initial_index_weight: first weight of a pending job's Gittins index in its logit, and minus
            that of a running job in the logit of its preemption.
        initial_speed_weight: first weight of a job's speed in the logit of a server group.
        initial_expert_weight: first weight of an expert's action in its own logit, where the
            observation shows one: what is learned is when to do otherwise (residual policy
            learning; Silver et al., arXiv:1812.06298).
    """

    hidden: Annotated[int, Ge(2)] = 64
    rounds: Annotated[int, Ge(0)] = 2
    heads: Count = 4
    hierarchy: bool = True
    use_interference: bool = True
    initial_scale: NonNegative = 0.1
    initial_index_weight: float = 0.0
    initial_speed_weight: float = 0.0
    initial_expert_weight: float = 8.0

    def policy(
        self, observation_space: spaces.Dict, action_space: spaces.Space[Any]
    ) -> HierarchicalPolicy:
        """A fresh policy for a scheduler of a cluster.

        Raises:
            InputError: the spaces are not a scheduler's.
        """
        widths = widths_of_cluster(observation_space)
        return HierarchicalPolicy(self, widths, preempts(observation_space, action_space))


def widths_of_cluster(observation_space: spaces.Dict) -> ClusterWidths:
    """The widths of a scheduler's observation.

    Raises:
        InputError: an array is missing, or jobs have fewer columns than servers have GPU types.
    """
    arrays = ("cluster", "rack", "server", "running", "pending", "share")
    width = {name: width_of(observation_space, f"{name}_features") for name in arrays}
    types, job, running = width["server"] - SERVER_BASE, width.pop("pending"), width.pop("running")
    if types < 1 or job < JOB_BASE + types or running != job:
        raise InputError(
            f"jobs of {job} and {running} columns do not go with servers of {width['server']}",
            field="pending_features",
        )
    other = {
        name: width_of(observation_space, f"{name}_features")
        if f"{name}_features" in observation_space.spaces
        else 0
        for name in ("peer", "state", "sent")
    }
    if other["peer"] not in (0, PEER_BASE + types):
        raise InputError(
            f"peers of {other['peer']} columns do not go with {types} GPU types",
            field="peer_features",
        )
    advised = int(ADVISED in observation_space.spaces)
    return ClusterWidths(**width, job=job, types=types, **other, advised=advised)


def preempts(observation_space: spaces.Dict, action_space: spaces.Space[Any]) -> bool:
    """Whether running jobs can be preempted, by the number of actions.

    Raises:
        InputError: the actions are not numbered as `ClusterActions` says.
    """
    if not isinstance(action_space, spaces.Discrete):
        raise InputError(f"a scheduler chooses one action, not from {action_space}")
    arrays = {"N": "server", "R": "rack", "W": "pending", "M": "running", "F": "peer"}
    sizes = {}
    for letter, name in arrays.items():
        space = observation_space.spaces.get(f"{name}_features")
        sizes[letter] = space.shape[0] if space is not None and space.shape else 0
    for preemption in (False, True):
        if num_cluster_actions(sizes, preemption) == action_space.n:
            return preemption
    raise InputError(f"{action_space.n} actions do not go with {sizes}", field="action_mask")


class Outlook(NamedTuple):
    logits: Tensor  # (B, A), masked
    value: Tensor  # (B,)
    posterior: Tensor  # (B, W + M, 26) logits; what stands in padding does not matter


class HierarchicalPolicy(Policy):
    """Actor and critic over one graph of jobs, servers, racks and the cluster, of any sizes.

    A job's features and history alone give a posterior over its remaining time, and this its
    Gittins index, which is a feature of the job from there on. Messages go up from running jobs
    to the cluster and down again. The probability to start a job on a server group is that of the
    job times that of the group given the job; the mask is applied inside.

    With `preemption` the actions have running jobs.
    """

    def __init__(self, config: HierarchicalConfig, widths: ClusterWidths, preemption: bool) -> None:
        super().__init__()
        self.config, self.widths, self.preemption = config, widths, preemption
        hidden, scale = config.hidden, config.initial_scale
        self.encoder = NodeEncoder(widths, hidden)
        self.posterior_head = nn.Linear(hidden, BINS)
        self.gittins = GittinsIndex()
        self.rounds = nn.ModuleList(
            Round(hidden, config.heads) if config.hierarchy else FlatRound(hidden)
            for _ in range(config.rounds)
        )
        direct = 1 + job_types_width(widths.types)
        self.direct_input = nn.Linear(direct, hidden, bias=False)
        index = config.initial_index_weight
        self.start = JobHead(hidden, direct, scale, index)
        self.pair = PairHead(hidden, scale, config.initial_speed_weight)
        self.readout = Readout(hidden, config.heads)
        self.wait = Perceptron(self.readout.width, hidden, scale)
        self.value = Perceptron(self.readout.width, hidden, 1.0)
        if preemption:
            self.preempt = JobHead(hidden, direct, scale, -index)
        if widths.peer:
            self.forwarding = ForwardHead(hidden, widths.peer + widths.sent, scale)
        if widths.advised:
            self.advice = nn.Parameter(torch.tensor(float(config.initial_expert_weight)))
        if widths.state:
            self.state_value = Perceptron(self.readout.width + widths.state, hidden, 1.0)

    def decide(self, observation: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(B, A) masked logits and (B,) values."""
        outlook = self.assess(observation)
        return outlook.logits, outlook.value

    def assess(self, observation: Mapping[str, Tensor], *, packed: bool = True) -> Outlook:
        """Logits, values and posterior in one pass.

        Args:
            observation: every array of the observation, stacked: (B, ...). Without
                `peer_features` no job can be forwarded; without `state_features` the critic does
                without.
            packed: whether padding is left out first; the results are the same.
        """
        batch = ClusterBatch(
            observation, packed=packed, use_interference=self.config.use_interference
        )
        jobs = self.encoder.jobs(batch.job_features)  # (K, H) pending, then running
        posterior = self.posterior_head(jobs)
        index = self.gittins.feature(posterior).unsqueeze(1)
        direct = torch.cat([index, batch.job_types], dim=1)  # (K, direct)
        jobs = jobs + self.direct_input(direct)
        waiting = batch.num_pending
        states = States(jobs[:waiting], jobs[waiting:], *self.encoder.resources(batch))
        for message_round in self.rounds:
            states = message_round(batch, states)
        logits, read = self._logits(observation, batch, states, direct)
        value = self.value(read)
        if self.widths.state and "state_features" in observation:
            value = value + self.state_value(read, observation["state_features"])
        pending = batch.pending.unpack(posterior[:waiting])
        unpacked = torch.cat([pending, batch.running.unpack(posterior[waiting:])], dim=1)
        return Outlook(logits, value.squeeze(1), unpacked)

    def _logits(
        self,
        observation: Mapping[str, Tensor],
        batch: ClusterBatch,
        states: States,
        direct: Tensor,
    ) -> tuple[Tensor, Tensor]:
        """(B, A) masked logits, and the readout."""
        mask = observation["action_mask"] != 0
        graphs, window = batch.pending.present.shape
        groups = batch.servers.present.shape[1] + batch.rack_present.shape[1] + 1
        starts = torch.arange(window * groups, device=mask.device)  # a slice would not export
        allowed = mask.gather(1, starts.expand(graphs, -1)).view(graphs, window, groups)
        read = self.readout(batch, states)
        waiting = batch.num_pending
        job = batch.pending.unpack(self.start(states.pending, direct[:waiting]))  # (B, W, 1)
        parts = [(job + self.pair(batch, states, allowed)).flatten(1)]
        if self.widths.peer and batch.peer_features is not None:
            parts.append(self.forwarding(batch, states, batch.peer_features).flatten(1))
        if self.preemption:
            stop = batch.running.unpack(self.preempt(states.running, direct[waiting:]))
            parts.append(stop.squeeze(-1))
        parts.append(self.wait(read))
        logits = torch.cat(parts, dim=1)
        if self.widths.advised:
            advised = observation[ADVISED]
            logits = logits.scatter_add(1, advised, self.advice.expand(graphs, 1))
        return logits.masked_fill(~mask, MASKED_LOGIT), read
