"""A set-invariant network of how fast a job runs beside its neighbours, and how it is fitted."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import torch
from annotated_types import MinLen
from torch import Tensor, nn
from torch.nn.functional import silu, softplus

from envs.arrays import FloatArray
from envs.bounds import Count, NonNegative, Positive, bounded
from models.interference.measurements import Fold, Measurements

LEAST_SCALE = 0.005  # of a predicted error


class InterferenceNetwork(nn.Module):
    """M independent networks of one shape, evaluated at once.

    A sum over the neighbours, as in Deep Sets (Zaheer et al., NeurIPS 2017), of what a network
    makes of the job and one neighbour:

        slow-down of i beside S = 1 + sum over j in S of exp(f(i, j)),    rate = 1 / slow-down

    The rate does not depend on the order of the neighbours, is 1 alone, and no neighbour raises it.
    For jobs that share a resource equally in turns the sum is exact. Only pairs have been measured:
    that the slow-downs of several neighbours add up is an assumption.

    f takes the embeddings of both jobs through one hidden layer; a second output is the scale of
    the error, that of a Laplace distribution of the rate.

    Args:
        networks: M.
        inputs: features of a profile.
        hidden: width of the embedding and of the hidden layers.
        generator: of the first weights.
    """

    def __init__(self, networks: int, inputs: int, hidden: int, generator: torch.Generator) -> None:
        super().__init__()
        self.networks, self.inputs, self.hidden = networks, inputs, hidden

        def weight(rows: int, columns: int, gain: float) -> nn.Parameter:
            values = torch.randn(networks, rows, columns, generator=generator)
            return nn.Parameter(values * gain / math.sqrt(rows))

        def bias(columns: int) -> nn.Parameter:
            return nn.Parameter(torch.zeros(networks, 1, columns))

        self.embed, self.embed_bias = weight(inputs, hidden, 1.4), bias(hidden)
        self.own = weight(inputs + hidden, hidden, 1.0)
        self.other, self.pair_bias = weight(inputs + hidden, hidden, 1.0), bias(hidden)
        self.mix, self.mix_bias = weight(hidden, hidden, 1.4), bias(hidden)
        self.read, self.read_bias = weight(hidden, 2, 0.3), bias(2)
        self.own_linear, self.other_linear = weight(inputs, 2, 0.0), weight(inputs, 2, 0.0)

    def embeddings(self, profiles: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Of (M, N, F) profiles: (M, N, H) as a job and as a neighbour, (M, N, 2) linear parts."""
        state = silu(profiles @ self.embed + self.embed_bias)
        state = torch.cat([profiles, state], dim=-1)
        own, other = state @ self.own + self.pair_bias, state @ self.other
        return own, other, profiles @ self.own_linear, profiles @ self.other_linear

    def _heads(self, pairs: Tensor, linear: Tensor) -> tuple[Tensor, Tensor]:
        """(M, N) logarithm of the added slow-down, and the scale, of (M, N, H) pairs."""
        state = silu(silu(pairs) @ self.mix + self.mix_bias)
        added = state @ self.read[..., :1] + self.read_bias[..., :1] + linear[..., :1]
        scale = state.detach() @ self.read[..., 1:] + self.read_bias[..., 1:] + linear[..., 1:]
        scale = LEAST_SCALE + softplus(scale - 3.0)
        return added.squeeze(-1).clamp(-12.0, 12.0), scale.squeeze(-1)

    def all_pairs(self, profiles: Tensor) -> tuple[Tensor, Tensor]:
        """(M, T, P, P) rates of the row's job beside the column's, and scales of their errors.

        Args:
            profiles: (M, T, P, F).
        """
        networks, tables, jobs, _ = profiles.shape
        flat = profiles.reshape(networks, tables * jobs, -1)
        own, other, row, column = (
            x.view(networks, tables, jobs, -1) for x in self.embeddings(flat)
        )
        pairs = own[:, :, :, None] + other[:, :, None]
        linear = row[:, :, :, None] + column[:, :, None]
        shape = (networks, tables, jobs, jobs)
        added, scale = self._heads(
            pairs.reshape(networks, -1, self.hidden), linear.reshape(networks, -1, 2)
        )
        return torch.sigmoid(-added).view(shape), scale.view(shape)

    def forward(self, profiles: Tensor, own: Tensor, neighbours: Tensor) -> Tensor:
        """(M, B) rates.

        Args:
            profiles: (M, P, F) of P jobs.
            own: (B,) which job.
            neighbours: (B, L) which neighbours; negative: none.
        """
        as_job, as_neighbour, row, column = self.embeddings(profiles)
        at = neighbours.clamp(min=0).flatten()
        times = neighbours.shape[1]
        mine = own.repeat_interleave(times)
        added, _ = self._heads(as_job[:, mine] + as_neighbour[:, at], row[:, mine] + column[:, at])
        present = (neighbours >= 0).to(added.dtype)
        slow = added.exp().view(self.networks, *neighbours.shape) * present
        return 1.0 / (1.0 + slow.sum(dim=-1))


AT_ONCE = 4  # networks; their activations then stay in the processor's cache
ROUNDING = 1e-3  # of the absolute error near 0


@bounded
@dataclass(frozen=True)
class FitConfig:
    """How a network is fitted.

    Args:
        hidden: width of its layers.
        steps: of AdamW over all known pairs.
        learning_rate: at its highest, in a cycle (Smith and Topin, Super-convergence, 2017).
        weight_decay: of AdamW.
        jitter: choices of the standard deviation of noise on the standardised profiles; folds
            inside the training models choose among them.
        fingerprint_weight: of a measurement beside a probe of a new job, others counting 1.
        members: networks of an ensemble.
        inner_members: networks of an ensemble in inner folds.
    """

    hidden: Count = 32
    steps: Count = 400
    learning_rate: Positive = 0.01
    weight_decay: NonNegative = 0.01
    jitter: Annotated[Sequence[NonNegative], MinLen(1)] = (0.15, 0.3)
    fingerprint_weight: Positive = 2.0
    members: Count = 8
    inner_members: Count = 2


@dataclass(frozen=True, eq=False)
class Task:
    """An ensemble of `members` networks that is to be fitted to a fold."""

    fold: Fold
    jitter: float
    members: int


@dataclass(frozen=True, eq=False)
class Fitted:
    """What the ensemble of a task, M networks, says of all pairs.

    Attributes:
        task: what it was fitted to.
        rate: (M, T, P, P).
        scale: (M, T, P, P) of the error of each network.
        weights: of the M networks, by name.
    """

    task: Task
    rate: FloatArray
    scale: FloatArray
    weights: dict[str, Tensor]

    @property
    def mean(self) -> FloatArray:
        """(T, P, P) rates."""
        mean: FloatArray = self.rate.mean(axis=0)
        return mean

    @property
    def spread(self) -> FloatArray:
        """(T, P, P) error to be expected: of the networks, and between them."""
        spread: FloatArray = np.sqrt((self.scale**2).mean(axis=0) + self.rate.var(axis=0))
        return spread


def fit(
    measurements: Measurements, tasks: Sequence[Task], config: FitConfig, seed: int
) -> list[Fitted]:
    """Fit every task's ensemble, `AT_ONCE` networks at a time; one seed, one result.

    All folds must have equally many probes.
    """
    generator = torch.Generator().manual_seed(seed)
    queue = [task for task in tasks for _ in range(task.members)]
    groups = [
        _fit_group(measurements, queue[start : start + AT_ONCE], config, generator)
        for start in range(0, len(queue), AT_ONCE)
    ]
    rate, scale = (np.concatenate([group[at] for group in groups]) for at in (0, 1))
    weights = {n: torch.cat([group[2][n] for group in groups]) for n in groups[0][2]}
    found, first = [], 0
    for task in tasks:
        own = slice(first, first + task.members)
        first += task.members
        found.append(Fitted(task, rate[own], scale[own], {n: w[own] for n, w in weights.items()}))
    return found


def _fit_group(
    measurements: Measurements, group: Sequence[Task], config: FitConfig, generator: torch.Generator
) -> tuple[FloatArray, FloatArray, dict[str, Tensor]]:
    """(G, T, P, P) rates and scales, and weights of a network for each task of the group."""
    target = torch.tensor(np.nan_to_num(measurements.rate), dtype=torch.float32)
    inputs = torch.tensor(np.stack([t.fold.inputs for t in group]), dtype=torch.float32)
    weight = torch.tensor(
        np.stack([_weights(t.fold, config.fingerprint_weight) for t in group]), dtype=torch.float32
    )
    jitter = torch.tensor([t.jitter for t in group]).view(-1, 1, 1, 1)
    network = InterferenceNetwork(len(group), inputs.shape[-1], config.hidden, generator)
    optimizer = torch.optim.AdamW(
        network.parameters(), lr=config.learning_rate, weight_decay=config.weight_decay
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, config.learning_rate, config.steps)
    for _ in range(config.steps):
        noisy = inputs + jitter * torch.randn(inputs.shape, generator=generator)
        rate, scale = network.all_pairs(noisy)
        error = torch.sqrt((rate - target) ** 2 + ROUNDING)
        likelihood = error.detach() / scale + torch.log(scale)  # of a Laplace distribution
        loss = (weight * (error + 0.01 * likelihood)).sum()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    with torch.no_grad():
        rates, scales = (of.numpy().astype(np.float64) for of in network.all_pairs(inputs))
    return rates, scales, network.state_dict()


def _weights(fold: Fold, fingerprint: float) -> FloatArray:
    """(T, P, P) weights that add up to 1."""
    unseen = fold.unseen[:, None] | fold.unseen
    weight = fold.known * np.where(unseen, fingerprint, 1.0)
    weights: FloatArray = weight / weight.sum()
    return weights
