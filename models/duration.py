"""A learned posterior over the work that a job still needs, from its progress and that of its like.

Jobs submitted one after the other with the same gang size take similar times, so that neighbours
that have finished, or have run for long, tell of those that have not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from envs.cluster.duration_features import (
    DURATIONS_OF_MEANS,
    DURATIONS_OF_NEAR,
    DURATIONS_OF_OWN,
    MEANS_WIDTH,
    NEAR_WIDTH,
    OWN_WIDTH,
    width,
)
from envs.errors import InputError
from models.posterior import BINS, GittinsIndex, bins_of, log_middles

FloatRows = NDArray[np.float32]
SELF_WIDTH = OWN_WIDTH + MEANS_WIDTH
TIMES = [*DURATIONS_OF_OWN, *(OWN_WIDTH + column for column in DURATIONS_OF_MEANS)]


@dataclass(frozen=True)
class DurationConfig:
    """What a person chooses about the posterior and how it is fitted.

    Attributes:
        history: neighbours K on both sides.
        hidden: width of a neighbour's state.
        readout: width of the last hidden layer.
        heads: of the attention over neighbours.
        dropout: share of the last hidden layer left out in training.
        stretch: in training all times of a job are multiplied by one factor, log-uniform from
            1 / stretch to `stretch`: nobody knows how fast the next cluster's users are.
        epochs: passes over the rows.
        batch: rows per step.
        learning_rate: at first; falls linearly to 0.
        weight_decay: AdamW's.

    Raises:
        InputError: a number is out of range.
    """

    history: int
    hidden: int
    readout: int
    heads: int
    dropout: float
    stretch: float
    epochs: int
    batch: int
    learning_rate: float
    weight_decay: float

    def __post_init__(self) -> None:
        for name in ("history", "hidden", "readout", "heads", "epochs", "batch"):
            if getattr(self, name) < 1:
                raise InputError(f"{getattr(self, name)} is below 1", field=name)
        if not 0.0 <= self.dropout < 1.0:
            raise InputError(f"{self.dropout} is not in [0, 1)", field="dropout")
        if not self.stretch >= 1.0:
            raise InputError(f"{self.stretch} is below 1", field="stretch")
        if not self.learning_rate > 0.0:
            raise InputError(f"{self.learning_rate} is not above 0", field="learning_rate")
        if not self.weight_decay >= 0.0:
            raise InputError(f"{self.weight_decay} is negative", field="weight_decay")


class DurationPosterior(nn.Module):
    """Logits over the bins of `models.posterior`, from rows of `DurationFeatures`.

    Neighbours are a set with a side each: encoded alike, beside the job itself, and pooled by
    attention, to which nobody is always there as well.
    """

    def __init__(self, config: DurationConfig) -> None:
        super().__init__()
        self.config = config
        hidden = config.hidden
        self.own = nn.Linear(SELF_WIDTH, hidden)
        self.near = nn.Linear(NEAR_WIDTH + SELF_WIDTH + 1, hidden)
        self.near_again = nn.Linear(hidden, hidden)
        self.attention = nn.Linear(hidden, config.heads)
        self.readout = nn.Linear((1 + config.heads) * hidden, config.readout)
        self.dropout = nn.Dropout(config.dropout)
        self.bins = nn.Linear(config.readout, BINS)

    def forward(self, rows: Tensor) -> Tensor:
        """(A, 26) logits of (A, width) rows."""
        own = rows[:, :SELF_WIDTH]
        near = rows[:, SELF_WIDTH:].view(rows.shape[0], -1, NEAR_WIDTH)
        sides = near.shape[1]
        side = (torch.arange(sides) >= sides // 2).to(rows.dtype).view(1, sides, 1)
        beside = own.unsqueeze(1).expand(-1, sides, -1)
        told = torch.cat([near, beside, side.expand(rows.shape[0], -1, -1)], dim=2)
        states = self.near_again(torch.relu(self.near(told)))  # (A, 2 K, H)
        scores = self.attention(states).masked_fill(near[:, :, :1] == 0.0, -1e9)
        nobody = scores.new_zeros(scores.shape[0], 1, scores.shape[2])
        weights = torch.cat([scores, nobody], dim=1).softmax(dim=1)[:, :-1]
        pooled = torch.bmm(weights.transpose(1, 2), states).flatten(1)
        read = torch.relu(self.readout(torch.cat([torch.relu(self.own(own)), pooled], dim=1)))
        logits: Tensor = self.bins(self.dropout(read))
        return logits


class GittinsPriority:
    """Log Gittins indices, mean and deviation by the weights of a `DurationPosterior`.

    In numpy: quick for few rows.

    Args:
        weights: by the names of the network's parameters.
        temperature: by which its logits are divided (Guo et al., "On calibration of modern neural
            networks", ICML 2017); above 1: less sure than it was fitted.

    Raises:
        InputError: the temperature is not positive and finite.
    """

    def __init__(self, weights: Mapping[str, FloatRows], temperature: float = 1.0) -> None:
        if not 0.0 < temperature < math.inf:
            raise InputError(f"{temperature} is not positive and finite", field="temperature")
        self.temperature = np.float32(temperature)
        self.weights = {name: np.asarray(array, np.float32) for name, array in weights.items()}
        index = GittinsIndex()
        self._reached, self._spent = index.reached.numpy(), index.spent.numpy()
        self._middles = log_middles().float().numpy()

    @classmethod
    def of(cls, posterior: DurationPosterior, temperature: float = 1.0) -> GittinsPriority:
        """With the weights of a network."""
        state = posterior.state_dict()
        return cls({name: tensor.detach().numpy() for name, tensor in state.items()}, temperature)

    def __call__(self, rows: FloatRows) -> FloatRows:
        """(A, 3) of (A, width) rows: ln of the index in 1/s; mean, deviation of ln remaining s."""
        if len(rows) == 0:
            return np.zeros((0, 3), np.float32)
        logits = self._logits(rows) / self.temperature
        chance = np.exp(logits - logits.max(axis=1, keepdims=True))
        chance /= chance.sum(axis=1, keepdims=True)
        reached = np.maximum(chance @ self._reached, np.finfo(np.float32).tiny)
        index = (np.log(reached) - np.log(chance @ self._spent)).max(axis=1)
        mean = chance @ self._middles
        away = self._middles - mean[:, None]
        told: FloatRows = np.stack([index, mean, np.sqrt((chance * away * away).sum(axis=1))], 1)
        return told

    def _logits(self, rows: FloatRows) -> FloatRows:
        own = rows[:, :SELF_WIDTH]
        near = rows[:, SELF_WIDTH:].reshape(len(rows), -1, NEAR_WIDTH)
        sides = near.shape[1]
        weight, bias = self.weights["near.weight"], self.weights["near.bias"]
        # One matrix product for the neighbours and one for the job, instead of a joined array.
        hidden = near @ weight[:, :NEAR_WIDTH].T
        hidden += (own @ weight[:, NEAR_WIDTH:-1].T + bias)[:, None]
        hidden[:, sides // 2 :] += weight[:, -1]
        states = self._linear("near_again", np.maximum(hidden, 0.0))
        scores = np.where(
            near[:, :, :1] == 0.0, np.float32(-1e9), self._linear("attention", states)
        )
        most = np.maximum(scores.max(axis=1, keepdims=True), 0.0)
        weights = np.exp(scores - most)
        weights /= weights.sum(axis=1, keepdims=True) + np.exp(-most)
        pooled = (weights.transpose(0, 2, 1) @ states).reshape(len(rows), -1)
        alone = np.maximum(self._linear("own", own), 0.0)
        read = np.maximum(self._linear("readout", np.concatenate([alone, pooled], axis=1)), 0.0)
        return self._linear("bins", read)

    def _linear(self, name: str, inputs: FloatRows) -> FloatRows:
        product: FloatRows = (
            inputs @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]
        )
        return product


def stretched(rows: Tensor, factor: Tensor) -> Tensor:
    """`rows` (A, width) had all times been multiplied by `factor` (A,)."""
    rows = rows.clone()
    near = rows[:, SELF_WIDTH:].view(rows.shape[0], -1, NEAR_WIDTH)
    rows[:, TIMES] = _time_of(rows[:, TIMES], factor.unsqueeze(1))
    for column in DURATIONS_OF_NEAR:
        near[:, :, column] = _time_of(near[:, :, column], factor.unsqueeze(1))
    return rows


def _time_of(feature: Tensor, factor: Tensor) -> Tensor:
    return torch.log1p(factor * torch.expm1(4.0 * feature)) / 4.0


def fit(
    config: DurationConfig, rows: FloatRows, remaining_s: NDArray[np.float64], seed: int
) -> tuple[DurationPosterior, list[float]]:
    """Fit a posterior to (A, width) rows and (A,) seconds of work that were left.

    Returns:
        The network, ready to predict, and the mean cross entropy of every epoch.

    Raises:
        InputError: the rows do not have the columns of `config.history`.
    """
    if rows.shape[1] != width(config.history):
        raise InputError(
            f"{rows.shape[1]} columns do not go with {config.history}", field="history"
        )
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        network = DurationPosterior(config)
        optimizer = torch.optim.AdamW(
            network.parameters(), config.learning_rate, weight_decay=config.weight_decay
        )
        inputs, left = torch.from_numpy(rows), torch.from_numpy(remaining_s)
        steps = config.epochs * -(-len(rows) // config.batch)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.01, steps)
        losses, most = [], math.log(config.stretch)
        for _ in range(config.epochs):
            total = 0.0
            for part in torch.randperm(len(rows), generator=generator).split(config.batch):
                factor = torch.empty(len(part)).uniform_(-most, most, generator=generator).exp()
                logits = network(stretched(inputs[part], factor))
                loss = nn.functional.cross_entropy(logits, bins_of(left[part] * factor))
                optimizer.zero_grad()
                loss.backward()
                optimizer.step()
                schedule.step()
                total += loss.item() * len(part)
            losses.append(total / len(rows))
    network.eval()
    return network, losses
