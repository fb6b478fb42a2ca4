"""Fits many interference networks at once, each to what its fold knows."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch

from envs.cluster.interference.rates import FloatArray
from envs.errors import InputError
from models.interference.measurements import Measurements
from models.interference.network import InterferenceNetwork
from models.interference.probes import Fold

AT_ONCE = 4  # networks; their activations then stay in the processor's cache
ROUNDING = 1e-3  # of the absolute error near 0


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

    Raises:
        InputError: naming the key that is out of range.
    """

    hidden: int
    steps: int
    learning_rate: float
    weight_decay: float
    jitter: Sequence[float]
    fingerprint_weight: float
    members: int
    inner_members: int

    def __post_init__(self) -> None:
        for key in ("hidden", "steps", "members", "inner_members"):
            if getattr(self, key) < 1:
                raise InputError(f"{getattr(self, key)} is not above 0", field=key)
        for key in ("learning_rate", "fingerprint_weight"):
            if not 0.0 < getattr(self, key) < float("inf"):
                raise InputError(f"{getattr(self, key)} is not above 0", field=key)
        if not 0.0 <= self.weight_decay < float("inf"):
            raise InputError(f"{self.weight_decay} is negative", field="weight_decay")
        if not self.jitter or not all(0.0 <= j < float("inf") for j in self.jitter):
            raise InputError(f"{self.jitter} are no noise levels", field="jitter")


@dataclass(frozen=True, eq=False)
class Task:
    """One ensemble to be fitted."""

    fold: Fold
    jitter: float
    members: int


@dataclass(frozen=True, eq=False)
class Fitted:
    """What an ensemble of M networks says of all pairs.

    Attributes:
        rate: (M, T, P, P).
        scale: (M, T, P, P) of the error of each network.
        weights: of the M networks, by name.
    """

    rate: FloatArray
    scale: FloatArray
    weights: dict[str, torch.Tensor]

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
) -> Iterator[Fitted]:
    """Fit every task's ensemble, `AT_ONCE` networks at a time; one seed, one result.

    All folds must have equally many probes.
    """
    generator = torch.Generator().manual_seed(seed)
    queue = [task for task in tasks for _ in range(task.members)]
    rates, scales, weights = [], [], []
    done = 0
    for start in range(0, len(queue), AT_ONCE):
        group = queue[start : start + AT_ONCE]
        network, inputs = _fit_group(measurements, group, config, generator)
        with torch.no_grad():
            rate, scale = network.all_pairs(inputs)
        for member in range(len(group)):
            rates.append(rate[member].numpy().astype(np.float64))
            scales.append(scale[member].numpy().astype(np.float64))
            weights.append({n: v[member].clone() for n, v in network.state_dict().items()})
        while done < len(tasks) and len(rates) >= tasks[done].members:
            count = tasks[done].members
            stacked = {n: torch.stack([w[n] for w in weights[:count]]) for n in weights[0]}
            yield Fitted(np.stack(rates[:count]), np.stack(scales[:count]), stacked)
            del rates[:count], scales[:count], weights[:count]
            done += 1


def _fit_group(
    measurements: Measurements, group: Sequence[Task], config: FitConfig, generator: torch.Generator
) -> tuple[InterferenceNetwork, torch.Tensor]:
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
    return network, inputs


def _weights(fold: Fold, fingerprint: float) -> FloatArray:
    """(T, P, P) weights that add up to 1."""
    unseen = fold.unseen[:, None] | fold.unseen
    weight = fold.known * np.where(unseen, fingerprint, 1.0)
    weights: FloatArray = weight / weight.sum()
    return weights
