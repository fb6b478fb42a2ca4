"""The Gittins index of a learned posterior over the work left, in numpy: quick for few rows."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, expm1, log, log1p

import numpy as np
from numba import njit
from numpy.typing import NDArray

from envs.cluster.environment.duration_features import NEAR_WIDTH
from models.durations.network import (
    ALIKE,
    FAR,
    LEAST_CHANCE,
    SELF_WIDTH,
    SHORTEST_WORK_S,
    SPREADS,
    TOLD_WIDTH,
    DurationPosterior,
    GittinsIndex,
    edges_s,
    log_middles,
)

FloatArray = NDArray[np.float64]
FloatRows = NDArray[np.float32]


class GittinsPriority:
    """Log Gittins indices, mean and deviation by the weights of a `DurationPosterior`.

    Args:
        weights: by the names of the network's parameters.
    """

    def __init__(self, weights: Mapping[str, FloatRows]) -> None:
        self.weights = {name: np.asarray(array, np.float32) for name, array in weights.items()}
        index = GittinsIndex()
        self._reached, self._spent = index.reached.numpy(), index.spent.numpy()
        self._middles = log_middles().float().numpy()
        self._edges_s, self._spreads = edges_s().numpy(), np.array(SPREADS)

    @classmethod
    def of(cls, posterior: DurationPosterior) -> GittinsPriority:
        """With the weights of a network."""
        state = posterior.state_dict()
        return cls({name: tensor.detach().numpy() for name, tensor in state.items()})

    def __call__(self, rows: FloatRows) -> FloatRows:
        """(A, 3) of (A, width) rows: ln of the index in 1/s; mean, deviation of ln remaining s."""
        if len(rows) == 0:
            return np.zeros((0, 3), np.float32)
        chance = self.chances(rows)
        reached = np.maximum(chance @ self._reached, np.finfo(np.float32).tiny)
        index = (np.log(reached) - np.log(chance @ self._spent)).max(axis=1)
        mean = chance @ self._middles
        away = self._middles - mean[:, None]
        told: FloatRows = np.stack([index, mean, np.sqrt((chance * away * away).sum(axis=1))], 1)
        return told

    def chances(self, rows: FloatRows) -> FloatRows:
        """(A, 26) of the bins, of (A, width) rows."""
        own = rows[:, :SELF_WIDTH]
        near = np.ascontiguousarray(rows[:, SELF_WIDTH:]).reshape(len(rows), -1, NEAR_WIDTH)
        sides = near.shape[1]
        told = np.zeros((len(rows), sides, TOLD_WIDTH), np.float32)
        tell(rows, near, told)
        weight, bias = self.weights["near.weight"], self.weights["near.bias"]
        # One matrix product for the neighbours and one for the job, instead of a joined array.
        seen = NEAR_WIDTH + TOLD_WIDTH
        hidden = near @ weight[:, :NEAR_WIDTH].T + told @ weight[:, NEAR_WIDTH:seen].T
        hidden += (own @ weight[:, seen:-1].T + bias)[:, None]
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
        logits = self._linear("bins", read)
        chance: FloatRows = np.exp(logits - logits.max(axis=1, keepdims=True))
        chance /= chance.sum(axis=1, keepdims=True)
        finished = (near[:, :, 0] > 0.0) & (near[:, :, 2] > 0.0)
        copied = np.maximum(states[finished], 0.0)
        copies = self._linear("copies_again", np.maximum(self._linear("copies", copied), 0.0))
        no_copy = self._linear("no_copy", read).ravel()
        mix(rows, near, no_copy, copies, self._edges_s, self._spreads, chance)
        return chance

    def _linear(self, name: str, inputs: FloatRows) -> FloatRows:
        product: FloatRows = (
            inputs @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]
        )
        return product


@njit(cache=True, inline="always")
def seconds(feature: float) -> float:
    """The time that a feature is of."""
    return 60.0 * expm1(4.0 * feature)


@njit(cache=True, inline="always")
def has_finished(neighbour: NDArray[np.float32]) -> bool:
    """Whether a neighbour has arrived, and finished."""
    return bool(neighbour[0] > 0.0 and neighbour[2] > 0.0)


@njit(cache=True)
def tell(rows: FloatRows, near: FloatRows, told: FloatRows) -> None:
    """Write `models.durations.network.told_of` of every row; `near` are its neighbours."""
    sides = near.shape[1]
    logs = np.zeros(sides)
    for row in range(len(rows)):
        done = seconds(rows[row, 2])
        for one in range(sides):
            if has_finished(near[row, one]):
                took = max(seconds(near[row, one, 1]), SHORTEST_WORK_S)
                logs[one] = log(took)
                told[row, one, 0] = log1p(max(took - done, 0.0) / 60.0) / 4.0
        for one in range(sides):
            for other in range(one):
                if has_finished(near[row, one]) and has_finished(near[row, other]):
                    apart = abs(logs[one] - logs[other])
                    for place in range(len(ALIKE)):
                        if apart < ALIKE[place]:
                            told[row, one, 1 + place] += np.float32(0.25)
                            told[row, other, 1 + place] += np.float32(0.25)


@njit(cache=True)
def mix(
    rows: FloatRows,
    near: FloatRows,
    no_copy: FloatRows,
    copies: FloatRows,
    edges_s: FloatArray,
    spreads: FloatArray,
    chance: FloatRows,
) -> None:
    """Mix copies into the (A, 26) chances of bins: `DurationPosterior`.

    Args:
        rows: (A, width).
        near: (A, 2 K, 4) their neighbours.
        no_copy: (A,) logit of the bins.
        copies: (P, S) logits of the copies of all finished neighbours, row by row.
        edges_s: (25,) of the bins.
        spreads: (S,).
        chance: in and out.
    """
    in_all, past = np.zeros(len(edges_s)), 0  # past: finished neighbours of the rows before
    mixed = np.zeros(chance.shape[1])
    for row in range(len(rows)):
        done = max(seconds(rows[row, 2]), SHORTEST_WORK_S)
        begun = log(done)
        for edge in range(len(edges_s)):
            in_all[edge] = log(done + edges_s[edge])
        most, first = float(no_copy[row]), past
        for side in range(near.shape[1]):
            if has_finished(near[row, side]):
                for place in range(len(spreads)):
                    most = max(most, copies[past, place])
                past += 1
        share = exp(no_copy[row] - most)
        whole = share
        for bin_ in range(len(mixed)):
            mixed[bin_] = share * chance[row, bin_]
        past = first
        for side in range(near.shape[1]):
            if not has_finished(near[row, side]):
                continue
            took = log(max(seconds(near[row, side, 1]), SHORTEST_WORK_S))
            for place in range(len(spreads)):
                survived = beyond(begun - took, spreads[place])
                share = exp(copies[past, place] - most)
                whole += share * survived
                left = survived
                for edge in range(len(edges_s)):
                    then = beyond(in_all[edge] - took, spreads[place])
                    mixed[edge] += share * (left - then)
                    left = then
                mixed[len(edges_s)] += share * left
            past += 1
        for bin_ in range(len(mixed)):
            chance[row, bin_] = mixed[bin_] / whole + LEAST_CHANCE


@njit(cache=True, inline="always")
def beyond(over: float, spread: float) -> float:
    """Chance that a logistic variable of mean 0 is above `over`."""
    return 1.0 / (1.0 + exp(min(max(over / spread, -FAR), FAR)))
