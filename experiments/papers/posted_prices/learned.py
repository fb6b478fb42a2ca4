"""A rule and its adversary, two networks in a zero-sum game over value / hindsight.

Every update is over all actions, in expectation, and nothing is sampled: the rule's output gives
the exact score of every sequence that matters to it, the adversary's a chance for each of them.
The adversary moves to its best response, smoothed by entropy at a temperature that falls, the rule
up the expected score. Of all iterates the one with the best exact worst score is kept.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import numpy as np
import torch
from scipy.special import expit, softmax
from torch import Tensor, nn
from torch.nn import functional

from envs.arrays import FloatArray
from envs.bounds import Count, Positive, Share, bounded
from experiments.papers.posted_prices.problem import (
    PricingProblem,
    RequestTree,
    worst_reserve_ratio,
    worst_sales_ratio,
)
from experiments.papers.posted_prices.rules import reserve_levels

HATS = 24  # features of a place on a line
MOMENTS = (0.5, 0.99)  # decays of Adam's


@bounded
@dataclass(frozen=True)
class PlaySettings:
    """How the two networks play."""

    iterations: Count = 800  # updates of both networks
    hidden: Count = 32  # units of the one hidden layer of each
    rule_step: Positive = 0.006  # Adam's, at the start
    adversary_step: Positive = 0.01
    decay: Share = 0.01  # of the rule's step, at the end
    answers: Count = 2  # steps of the adversary for one of the rule
    hot: Positive = 0.03  # temperature of the adversary at the start, as a share of the worst score
    cold: Positive = 0.001  # and at the end


def play(game: Game, settings: PlaySettings, seed: int) -> tuple[float, float]:
    """The worst ratio of the rule before and after training.

    A game has features (n, F) of the rule's `decisions` and (z, G) of the `sequences` that the
    adversary chooses from; from a logit of each decision its `scores` (z,) are value / hindsight.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        rule, adversary = (_network(x, settings) for x in (game.decisions, game.sequences))
    up = torch.optim.Adam(rule.parameters(), settings.rule_step, MOMENTS)
    down = torch.optim.Adam(adversary.parameters(), settings.adversary_step, MOMENTS)
    fall = torch.optim.lr_scheduler.ExponentialLR(up, settings.decay ** (1.0 / settings.iterations))
    best, kept = -1.0, torch.zeros(0)
    first = rule(game.decisions).detach()
    for iteration in range(settings.iterations):
        done = iteration / settings.iterations
        temperature = settings.hot * (settings.cold / settings.hot) ** done
        logits = rule(game.decisions)
        scores = game.scores(logits)
        known = scores.detach()
        worst = float(known.min())
        if worst > best:
            best, kept = worst, logits.detach()
        wanted = ((worst - known) / (temperature * (worst + FLOOR))).clamp(min=-FARTHEST)
        weight = torch.softmax(wanted, 0) + 1.0 / len(wanted)
        for _ in range(settings.answers):
            answer = adversary(game.sequences)
            missed = (answer - wanted) ** 2 * (weight + torch.softmax(answer.detach(), 0))
            down.zero_grad()
            missed.sum().backward()
            down.step()
        chance = torch.softmax(adversary(game.sequences).detach(), 0)
        lost = -(chance * scores).sum() / known.mean()
        up.zero_grad()
        lost.backward()
        up.step()
        fall.step()
    return game.worst_ratio(first.double().numpy()), game.worst_ratio(kept.double().numpy())


FARTHEST = 15.0  # nats: sequences better for the rule are all as unlikely
FLOOR = 0.02  # of a score, below which temperatures fall no further


class SalesGame:
    """The share to sell at every new highest level; the adversary says where prices stop.

    With `thresholds` the shares become one reservation price for every unit of the problem.
    """

    def __init__(self, problem: PricingProblem, *, thresholds: bool) -> None:
        self.problem, self._thresholds = problem, thresholds
        self.decisions = self.sequences = _places(len(problem.prices))
        self._prices = torch.as_tensor(problem.prices, dtype=torch.float32)

    def scores(self, logits: Tensor) -> Tensor:
        share = torch.softmax(logits, 0)
        left = 1.0 - torch.cumsum(share, 0)
        return (torch.cumsum(share * self._prices, 0) + self.problem.salvage * left) / self._prices

    def worst_ratio(self, logits: FloatArray) -> float:
        share = softmax(logits)
        if not self._thresholds:
            return worst_sales_ratio(self.problem, share)
        gone = np.arange(self.problem.capacity[0]) / self.problem.capacity[0]
        reserve = np.searchsorted(np.cumsum(share)[:-1], gone, side="right")
        return worst_reserve_ratio(self.problem, reserve)


class ReserveGame:
    """One reservation price for every unit, deterministic; what is left goes at the lowest price.

    The adversary sells the rule i units, each at its reservation price, and then shows the highest
    price refused so far without end.
    """

    def __init__(self, problem: PricingProblem) -> None:
        self.problem, self._units = problem, problem.capacity[0]
        self.decisions, self.sequences = _places(self._units), _places(self._units + 1)
        self._low, high = problem.prices[[0, -1]].tolist()
        self._spread, self._last = float(np.log(high / self._low)), torch.tensor([high])
        self._left = problem.salvage * torch.arange(self._units, -1, -1)

    def scores(self, logits: Tensor) -> Tensor:
        price = self._low * torch.exp(torch.sigmoid(logits) * self._spread)
        refused = torch.cummax(torch.cat([price, self._last]), 0).values
        own = torch.cat([torch.zeros(1), torch.cumsum(price, 0)]) + self._left
        return own / (self._units * refused)

    def worst_ratio(self, logits: FloatArray) -> float:
        price = self._low * np.exp(self._spread * expit(logits))
        return worst_reserve_ratio(self.problem, reserve_levels(self.problem, price))


class RentalGame:
    """The chance to take a request, by all requests so far and by what is in use."""

    def __init__(self, tree: RequestTree) -> None:
        self.tree, q, rounds = tree, tree.problem.requests, tree.problem.rounds
        # of each round: (sequences, Q rounds), the requests so far one-hot
        shown = [
            functional.pad(torch.eye(q)[sequences].flatten(1), (0, q * (rounds - played)))
            for played in range(1, rounds + 1)
            for sequences in (torch.tensor([*itertools.product(range(q), repeat=played)]),)
        ]
        self.sequences = torch.cat(shown)
        # rounds, nodes, requests, states that can be met
        self._met = [
            torch.as_tensor(reachable[:, None, :] & tree.fits).nonzero(as_tuple=True)
            for reachable in tree.reachable
        ]
        self.decisions = torch.cat(
            [
                torch.cat([x[node * q + request], torch.eye(len(tree.wait))[state]], 1)
                for x, (node, request, state) in zip(shown, self._met, strict=True)
            ]
        )
        wait, take, gain, self._best = (
            torch.as_tensor(x, dtype=torch.float32)
            for x in (tree.wait, tree.take, tree.gain, np.concatenate(tree.optimum))
        )
        self._tables = wait, take, gain

    def _taken(self, logits: Tensor) -> list[Tensor]:
        parts = torch.split(torch.sigmoid(logits), [len(met[0]) for met in self._met])
        sizes = [(len(x), *self.tree.fits.shape) for x in self.tree.reachable]
        return [
            torch.zeros(size, dtype=part.dtype).index_put(met, part)
            for size, met, part in zip(sizes, self._met, parts, strict=True)
        ]

    def scores(self, logits: Tensor) -> Tensor:
        return torch.cat(self.tree.values(self._taken(logits), self._tables)) / self._best

    def worst_ratio(self, logits: FloatArray) -> float:
        return self.tree.worst_ratio([x.numpy() for x in self._taken(torch.as_tensor(logits))])


Game = SalesGame | ReserveGame | RentalGame


def _network(inputs: Tensor, settings: PlaySettings) -> nn.Module:
    hidden = settings.hidden
    into = nn.Linear(inputs.shape[1], hidden)
    return nn.Sequential(into, nn.Tanh(), nn.Linear(hidden, 1), nn.Flatten(0))


def _places(count: int) -> Tensor:
    """(count, HATS + 3) features of places on a line: where, near which of some, whether an end."""
    place = torch.linspace(0.0, 1.0, count) if count > 1 else torch.zeros(1)
    hats = torch.exp(-(((place[:, None] - torch.linspace(0, 1, HATS)) * (HATS - 1)) ** 2) / 2.0)
    ends = 2.0 * torch.stack([place == 0.0, place == 1.0], 1)
    return torch.cat([2.0 * place[:, None] - 1.0, hats, ends], 1)
