"""A decoder-only mixture-of-experts transformer whose routing has static shapes."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil, sqrt
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from envs.bounds import Count, Positive, Share, bounded
from envs.errors import InputError


@bounded
@dataclass(frozen=True)
class MixtureOfExpertsConfig:
    """Sizes of the model.

    Every `expert_period`-th block has experts in place of its feed-forward network, as in GShard
    (Lepikhin et al., 2020). Each token goes to its `top_k` experts; an expert takes at most
    `capacity(tokens)` of them, the ones with the largest gates, and drops the rest.
    """

    vocabulary: Count = 32_000
    max_sequence: Count = 1024
    hidden: Count = 768
    intermediate: Count = 3072
    layers: Count = 12
    heads: Count = 12
    experts: Count = 8
    top_k: Count = 2
    capacity_factor: Positive = 1.25
    expert_period: Count = 2
    dropout: Share = 0.1
    balance_weight: float = 0.01  # of the load-balancing loss (Fedus et al., 2021, eq. 4)

    def __post_init__(self) -> None:
        if self.hidden % self.heads:
            raise InputError(
                f"must divide hidden = {self.hidden}", file="mixture of experts", field="heads"
            )
        if self.top_k > self.experts:
            raise InputError(
                f"cannot exceed experts = {self.experts}", file="mixture of experts", field="top_k"
            )

    def capacity(self, tokens: int) -> int:
        """Rows of an expert's buffer for a micro-batch of `tokens` tokens."""
        return min(tokens, ceil(self.capacity_factor * self.top_k * tokens / self.experts))


class MixtureOfExpertsOutput(NamedTuple):
    """What the language model returns."""

    loss: Tensor  # () cross entropy and weighted load-balancing loss
    logits: Tensor  # (batch, sequence, vocabulary)


class FeedForward(nn.Module):
    """Two linear layers around a GELU: a dense block's network, and a single expert."""

    def __init__(self, config: MixtureOfExpertsConfig) -> None:
        super().__init__()
        self.up = nn.Linear(config.hidden, config.intermediate)
        self.down = nn.Linear(config.intermediate, config.hidden)

    def forward(self, x: Tensor) -> Tensor:
        """(..., hidden) to (..., hidden)."""
        out: Tensor = self.down(functional.gelu(self.up(x)))
        return out


class ExpertLayer(nn.Module):
    """Top-k routing to experts with fixed-size buffers: no shape depends on the data.

    A token's gates outside its top k are 0. Each expert then takes the `capacity` tokens with its
    largest gates; a token that did not choose it but fills its buffer has gate 0 and so adds
    nothing. Experts are separate modules, so that each can be placed on a device of its own, and
    each receives only its own tokens.
    """

    def __init__(self, config: MixtureOfExpertsConfig) -> None:
        super().__init__()
        self.config = config
        self.router = nn.Linear(config.hidden, config.experts, bias=False)
        self.experts = nn.ModuleList(FeedForward(config) for _ in range(config.experts))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """(tokens, hidden) to the mixed output (tokens, hidden) and the load-balancing loss ()."""
        tokens = x.shape[0]
        probability = functional.softmax(self.router(x), dim=-1)  # (tokens, experts)
        chosen = torch.topk(probability, self.config.top_k, dim=-1)
        gates = torch.zeros_like(probability).scatter(1, chosen.indices, chosen.values)
        gates = gates / gates.sum(dim=-1, keepdim=True)
        buffer = torch.topk(gates.t(), self.config.capacity(tokens), dim=-1)  # (experts, capacity)
        mixed = []
        for expert, index, gate in zip(
            self.experts, buffer.indices.unbind(), buffer.values.unbind(), strict=True
        ):
            mixed.append(expert(x.index_select(0, index)) * gate.unsqueeze(1))
        out = torch.zeros_like(x).index_add(0, buffer.indices.flatten(), torch.cat(mixed))
        share = (gates > 0).to(probability.dtype).mean(dim=0) / self.config.top_k
        balance = self.config.experts * torch.sum(share * probability.mean(dim=0))
        return out, balance


class CausalAttention(nn.Module):
    """Multi-head self-attention with explicit matrix products and a causal mask."""

    def __init__(self, config: MixtureOfExpertsConfig) -> None:
        super().__init__()
        self.heads = config.heads
        self.query = nn.Linear(config.hidden, config.hidden)
        self.key = nn.Linear(config.hidden, config.hidden)
        self.value = nn.Linear(config.hidden, config.hidden)
        self.out = nn.Linear(config.hidden, config.hidden)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> Tensor:
        """(batch, sequence, hidden), mask (sequence, sequence), to (batch, sequence, hidden)."""
        query, key, value = (
            projection(x).unflatten(-1, (self.heads, -1)).transpose(1, 2)
            for projection in (self.query, self.key, self.value)
        )
        score = query @ key.transpose(-1, -2) / sqrt(query.shape[-1]) + mask
        weight = self.dropout(functional.softmax(score, dim=-1))
        out: Tensor = self.out((weight @ value).transpose(1, 2).flatten(2))
        return out


class Block(nn.Module):
    """Pre-normalised transformer block, its second half dense or a mixture of experts."""

    def __init__(self, config: MixtureOfExpertsConfig, *, sparse: bool) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(config.hidden)
        self.attention = CausalAttention(config)
        self.mixture_norm = nn.LayerNorm(config.hidden)
        self.mixture = ExpertLayer(config) if sparse else FeedForward(config)
        self.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor) -> tuple[Tensor, Tensor | None]:
        """(batch, sequence, hidden) to the same, and the load-balancing loss of a sparse block."""
        x = x + self.dropout(self.attention(self.attention_norm(x), mask))
        y = self.mixture_norm(x)
        if isinstance(self.mixture, ExpertLayer):
            out, balance = self.mixture(y.flatten(0, 1))
            return x + self.dropout(out.view_as(x)), balance
        return x + self.dropout(self.mixture(y)), None


class MixtureOfExperts(nn.Module):
    """Causal language model with tied embedding and head."""

    def __init__(self, config: MixtureOfExpertsConfig) -> None:
        super().__init__()
        self.config = config
        self.token = nn.Embedding(config.vocabulary, config.hidden)
        self.position = nn.Embedding(config.max_sequence, config.hidden)
        self.blocks = nn.ModuleList(
            Block(config, sparse=index % config.expert_period == config.expert_period - 1)
            for index in range(config.layers)
        )
        self.norm = nn.LayerNorm(config.hidden)
        self.head = nn.Linear(config.hidden, config.vocabulary, bias=False)
        self.head.weight = self.token.weight

    def forward(self, input_ids: Tensor, labels: Tensor) -> MixtureOfExpertsOutput:
        """Tokens and next-token labels, each (batch, sequence), to loss and logits."""
        length = input_ids.shape[1]
        weight = self.token.weight
        position = torch.arange(length, device=input_ids.device)
        mask = torch.full(
            (length, length), float("-inf"), dtype=weight.dtype, device=weight.device
        ).triu(1)
        x = self.token(input_ids) + self.position(position)
        penalties = []
        for block in self.blocks:
            x, balance = block(x, mask)
            if balance is not None:
                penalties.append(balance)
        logits = self.head(self.norm(x))
        loss = functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        if penalties:
            loss = loss + self.config.balance_weight * torch.stack(penalties).sum()
        return MixtureOfExpertsOutput(loss, logits)
