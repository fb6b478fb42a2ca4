"""A learned posterior over the work that a job still needs, from its progress and that of its like.

Jobs submitted one after the other with the same gang size take similar times, so that neighbours
that have finished, or have run for long, tell of those that have not. Often they take the very same
time, to less than a percent: the posterior may therefore copy what a finished neighbour took, as
texts are summarised by words copied from them (See et al., "Get to the point", ACL 2017).

It is a distribution over bins of the remaining time, and has a Gittins index: Gittins, "Bandit
processes and dynamic allocation indices", J. R. Stat. Soc. B 41 (1979); for scheduling, Aalto,
Ayesta and Righter, "On the Gittins index in the M/G/1 queue", Queueing Systems 63 (2009), eq. 1.

A fitted one is a folder: durations.safetensors, the weights, and spec.json, the columns of its
input, the bins, the settings, origin and sha256.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from envs.arrays import FloatArray
from envs.cluster.environment.duration_features import (
    DURATIONS_OF_MEANS,
    DURATIONS_OF_NEAR,
    DURATIONS_OF_OWN,
    NEAR_WIDTH,
    OWN_WIDTH,
    columns,
    width,
)
from envs.errors import InputError
from models.artifacts import (
    atomic_folder,
    load_optimizer,
    optimizer_arrays,
    save_weights,
    write_spec,
)
from models.durations.bins import (
    ALIKE,
    FAR,
    KIND,
    LEAST_CHANCE,
    SCHEMA_VERSION,
    SELF_WIDTH,
    SHORTEST_WORK_S,
    SPREADS,
    WEIGHTS_FILE,
    DurationConfig,
    FloatRows,
    gittins_tables,
    upper_edges_s,
)

_CENTRE, _SCALE = -9.0, 3.0  # of logarithms of indices, so that they are of the order of 1


def bins_of(seconds: Tensor) -> Tensor:
    """The bin, 0 to 25, of each remaining time in seconds; an edge belongs to the bin below it."""
    return torch.bucketize(seconds.double(), torch.from_numpy(upper_edges_s()).to(seconds.device))


class GittinsIndex(nn.Module):
    """max over b of P(remaining <= b) / E[min(remaining, b)], with b over the edges of the bins.

    Within a bin remaining times are evenly spread; those in the last are above all edges, so that
    both expressions are linear in the probabilities of the bins.
    """

    reached: Tensor
    spent: Tensor

    def __init__(self) -> None:
        super().__init__()
        reached, spent = gittins_tables()
        self.register_buffer("reached", torch.from_numpy(reached), persistent=False)
        self.register_buffer("spent", torch.from_numpy(spent), persistent=False)

    def forward(self, logits: Tensor) -> Tensor:
        """(...,) natural logarithms of indices in 1/s from (..., 26) logits."""
        probability = logits.softmax(-1)
        chance = (probability @ self.reached).clamp(min=torch.finfo(logits.dtype).tiny)
        return (chance.log() - (probability @ self.spent).log()).amax(-1)

    def feature(self, logits: Tensor) -> Tensor:
        """The same, centred and scaled to the order of 1."""
        centred: Tensor = (self(logits) - _CENTRE) / _SCALE
        return centred


FEW_COPIES = -2.0  # logit of a copy at first
TIMES = [*DURATIONS_OF_OWN, *(OWN_WIDTH + column for column in DURATIONS_OF_MEANS)]


class DurationPosterior(nn.Module):
    """Log chances of the bins, from rows of `DurationFeatures`.

    Neighbours are a set with a side each: encoded alike, beside the job itself, and pooled by
    attention, to which an empty entry always belongs. From that come logits over the bins. The
    posterior is a mixture of these and of copies: as much work in all as a finished neighbour took,
    but for a factor whose logarithm is logistic with a deviation of `SPREADS`. Each is conditional
    on the work the job has done, by which also its share of the mixture is multiplied (Bayes).
    """

    own: nn.Linear
    near: nn.Linear
    near_again: nn.Linear
    attention: nn.Linear
    readout: nn.Linear
    bins: nn.Linear
    copies: nn.Linear
    copies_again: nn.Linear
    no_copy: nn.Linear
    edges_s: Tensor
    spreads: Tensor

    def __init__(self, config: DurationConfig) -> None:
        super().__init__()
        self.config = config
        for name, (outputs, inputs) in config.layers().items():
            self.add_module(name, nn.Linear(inputs, outputs))
        self.dropout = nn.Dropout(config.dropout)
        nn.init.constant_(self.copies_again.bias, FEW_COPIES)
        self.register_buffer("edges_s", torch.from_numpy(upper_edges_s()).float(), persistent=False)
        self.register_buffer("spreads", torch.tensor(SPREADS), persistent=False)

    def forward(self, rows: Tensor) -> Tensor:
        """(A, 26) of (A, width) rows."""
        own = rows[:, :SELF_WIDTH]
        near = rows[:, SELF_WIDTH:].view(rows.shape[0], -1, NEAR_WIDTH)
        sides = near.shape[1]
        # Seconds of work: (A,) done, (A, 2 K) done by neighbours; which of these have finished.
        done = _seconds(own[:, 2]).clamp(min=SHORTEST_WORK_S)
        took = _seconds(near[:, :, 1]).clamp(min=SHORTEST_WORK_S)
        finished = (near[:, :, 0] > 0.0) & (near[:, :, 2] > 0.0)
        side = (torch.arange(sides) >= sides // 2).to(rows.dtype).view(1, sides, 1)
        beside = own.unsqueeze(1).expand(-1, sides, -1)
        seen = [near, evidence_of(done, took, finished), beside, side.expand(rows.shape[0], -1, -1)]
        states = self.near_again(torch.relu(self.near(torch.cat(seen, dim=2))))  # (A, 2 K, H)
        scores = self.attention(states).masked_fill(near[:, :, :1] == 0.0, -1e9)
        nobody = scores.new_zeros(scores.shape[0], 1, scores.shape[2])
        weights = torch.cat([scores, nobody], dim=1).softmax(dim=1)[:, :-1]
        pooled = torch.bmm(weights.transpose(1, 2), states).flatten(1)
        read = torch.relu(self.readout(torch.cat([torch.relu(self.own(own)), pooled], dim=1)))
        read = self.dropout(read)
        copied = finished.nonzero(as_tuple=True)  # P finished neighbours
        copies = self.copies_again(torch.relu(self.copies(torch.relu(states[copied]))))  # (P, S)
        row, took = copied[0], took[copied]
        return self._mixed(
            self.bins(read).softmax(dim=1), self.no_copy(read).squeeze(1), done, row, took, copies
        )

    def _mixed(
        self, bins: Tensor, no_copy: Tensor, done: Tensor, row: Tensor, took: Tensor, copies: Tensor
    ) -> Tensor:
        """(A, 26) log chances.

        Args:
            bins: (A, 26) chances without copies.
            no_copy: (A,) logit of these.
            done: (A,) seconds of work done.
            row: (P,) whose neighbour has finished.
            took: (P,) seconds of its work.
            copies: (P, S) logits of its copies.
        """
        edges = torch.cat([done.unsqueeze(1), done.unsqueeze(1) + self.edges_s], dim=1)
        over = (edges.log()[row] - took.log().unsqueeze(1)).float()  # (P, 26)
        beyond = (-over.unsqueeze(2) / self.spreads).clamp(-FAR, FAR).sigmoid()
        ended = beyond - torch.cat([beyond[:, 1:], torch.zeros_like(beyond[:, :1])], dim=1)
        # A share is e^logit times the chance to have come so far, by which its bins are divided.
        most = no_copy.detach().scatter_reduce(0, row, copies.detach().amax(dim=1), "amax")
        share, shares = (no_copy - most).exp(), (copies - most[row].unsqueeze(1)).exp()
        come_so_far = torch.einsum("ps,ps->p", shares, beyond[:, 0])
        whole = share.index_add(0, row, come_so_far).unsqueeze(1)
        mixed = (share.unsqueeze(1) * bins).index_add(
            0, row, torch.einsum("ps,pbs->pb", shares, ended)
        )
        log_chances: Tensor = (mixed / whole + LEAST_CHANCE).log()
        return log_chances


def evidence_of(done: Tensor, took: Tensor, finished: Tensor) -> Tensor:
    """(A, 2 K, 3) what finished neighbours say of the job.

    The feature of the time that the job still needs if it takes as long, and how many others of
    them took the same time, to 2 and to 20 percent, / 4.
    """
    left = torch.log1p((took - done.unsqueeze(1)).clamp(min=0.0) / 60.0) / 4.0
    apart = (took.log().unsqueeze(2) - took.log().unsqueeze(1)).abs()
    both = finished.unsqueeze(2) & finished.unsqueeze(1)
    alike = [((apart < limit) & both).sum(dim=2) - 1 for limit in ALIKE]
    evidence = torch.stack([left, *(count / 4.0 for count in alike)], dim=2)
    return (evidence * finished.unsqueeze(2)).float()


def stretched(rows: Tensor, factor: Tensor) -> Tensor:
    """`rows` (A, width) had all times been multiplied by `factor` (A,)."""
    rows = rows.clone()
    near = rows[:, SELF_WIDTH:].view(rows.shape[0], -1, NEAR_WIDTH)
    rows[:, TIMES] = _time_of(rows[:, TIMES], factor.unsqueeze(1))
    for column in DURATIONS_OF_NEAR:
        near[:, :, column] = _time_of(near[:, :, column], factor.unsqueeze(1))
    return rows


def _seconds(feature: Tensor) -> Tensor:
    return 60.0 * torch.expm1(4.0 * feature.double())


def _time_of(feature: Tensor, factor: Tensor) -> Tensor:
    return torch.log1p(factor * torch.expm1(4.0 * feature)) / 4.0


class DurationFit:
    """Fits a posterior to (A, width) rows and (A,) seconds of work that were left.

    Args:
        config: of the network and the fit.
        rows: of jobs.
        remaining_s: of them.
        seed: of the weights, the order of the rows and the noise.

    Raises:
        InputError: the rows do not have the columns of `config.history`.
    """

    def __init__(
        self, config: DurationConfig, rows: FloatRows, remaining_s: FloatArray, seed: int
    ) -> None:
        if rows.shape[1] != width(config.history):
            reason = f"{rows.shape[1]} columns do not go with {config.history}"
            raise InputError(reason, field="history")
        self.config, self.generator = config, torch.Generator().manual_seed(seed)
        self._inputs, self._left = torch.from_numpy(rows), torch.from_numpy(remaining_s)
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.network = DurationPosterior(config).eval()
            self._random = torch.get_rng_state()  # of dropout
        self.optimizer = torch.optim.AdamW(
            self.network.parameters(), config.learning_rate, weight_decay=config.weight_decay
        )
        steps = config.epochs * -(-len(rows) // config.batch)
        self._schedule = torch.optim.lr_scheduler.LinearLR(self.optimizer, 1.0, 0.01, steps)

    def epoch(self) -> float:
        """One pass over all rows; the mean cross entropy."""
        total, most = 0.0, math.log(self.config.stretch)
        self.network.train()
        with torch.random.fork_rng():
            torch.set_rng_state(self._random)
            order = torch.randperm(len(self._inputs), generator=self.generator)
            for part in order.split(self.config.batch):
                factor = torch.empty(len(part))
                factor = factor.uniform_(-most, most, generator=self.generator).exp()
                log_chances = self.network(stretched(self._inputs[part], factor))
                loss = nn.functional.nll_loss(log_chances, bins_of(self._left[part] * factor))
                self.optimizer.zero_grad()
                loss.backward()
                self.optimizer.step()
                self._schedule.step()
                total += loss.item() * len(part)
            self._random = torch.get_rng_state()
        self.network.eval()
        return total / len(self._inputs)

    def state(self) -> tuple[dict[str, object], dict[str, Mapping[str, Tensor]]]:
        """What the fit needs to go on: plain numbers, and arrays by file and name."""
        random = {"dropout": self._random, "order": self.generator.get_state()}
        files: dict[str, Mapping[str, Tensor]] = {
            "weights": self.network.state_dict(),
            "optimizer": optimizer_arrays(self.optimizer),
            "random": random,
        }
        schedule = self._schedule.state_dict()
        return {"epoch": schedule["last_epoch"], "rate": schedule["_last_lr"]}, files

    def load(self, numbers: Mapping[str, Any], files: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Go on from what `state` gave."""
        self.network.load_state_dict(dict(files["weights"]))
        load_optimizer(self.optimizer, files["optimizer"])
        self._schedule.last_epoch = numbers["epoch"]
        for group, rate in zip(self.optimizer.param_groups, numbers["rate"], strict=True):
            group["lr"] = rate
        self._random = files["random"]["dropout"]
        self.generator.set_state(files["random"]["order"])


def fit(
    config: DurationConfig, rows: FloatRows, remaining_s: FloatArray, seed: int
) -> tuple[DurationPosterior, list[float]]:
    """The network of a whole `DurationFit`, and the mean cross entropy of every epoch."""
    fitted = DurationFit(config, rows, remaining_s, seed)
    losses = [fitted.epoch() for _ in range(config.epochs)]
    return fitted.network, losses


def save_durations(
    posterior: DurationPosterior, folder: Path, provenance: Mapping[str, object]
) -> None:
    """Write the folder whole or not at all."""
    with atomic_folder(folder) as temporary:
        save_weights(posterior, temporary / WEIGHTS_FILE)
        spec = {
            "kind": KIND,
            "schema_version": SCHEMA_VERSION,
            "units": {"work": "seconds on the GPU type of the trace"},
            "history": posterior.config.history,
            "columns": columns(posterior.config.history),
            "bins": upper_edges_s().tolist(),
            "config": asdict(posterior.config),
            "provenance": dict(provenance),
        }
        write_spec(temporary, spec)
