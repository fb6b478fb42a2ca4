"""The Gittins index of a learned posterior over the work left, in numpy: quick for few rows."""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from math import exp, expm1, log, log1p
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from envs.arrays import FloatArray
from envs.cluster.environment.duration_features import NEAR_WIDTH
from envs.compilation import compiled, compiled_inner, pasted
from models.artifacts import read_json_object, sha256_of
from models.durations.bins import (
    ALIKE,
    EVIDENCE_WIDTH,
    FAR,
    LEAST_CHANCE,
    SELF_WIDTH,
    SHORTEST_WORK_S,
    SPEC_FILE,
    SPREADS,
    FloatRows,
    gittins_tables,
    middles,
    read_durations,
    upper_edges_s,
)

ROWS_AT_ONCE = 128
CERTAIN = -37.0  # deviations below which 1 + exp(deviations) is 1 in float64
NOTHING_LEFT = 1.0 / (1.0 + exp(FAR))


class GittinsPriority:
    """Log Gittins indices, mean and deviation by the weights of a `DurationPosterior`.

    Args:
        weights: by the names of the network's parameters.
    """

    def __init__(self, weights: Mapping[str, FloatRows]) -> None:
        self.weights = {name: np.asarray(array, np.float32) for name, array in weights.items()}
        self._reached, self._spent = gittins_tables()
        self._middles = middles().astype(np.float32)
        self._edges_s, self._spreads = upper_edges_s(), np.array(SPREADS)
        self._hidden = np.zeros((2, 0, 0), np.float32)  # memory of `_neighbours`

    def __call__(self, rows: FloatRows) -> FloatRows:
        """(A, 3) of (A, width) rows: ln of the index in 1/s; mean, deviation of ln remaining s."""
        if len(rows) == 0:
            return np.zeros((0, 3), np.float32)
        chance = self.chances(rows)
        reached = np.maximum(chance @ self._reached, np.finfo(np.float32).tiny)
        index = (np.log(reached) - np.log(chance @ self._spent)).max(axis=1)
        mean = chance @ self._middles
        away = self._middles - mean[:, None]
        summary: FloatRows = np.stack([index, mean, np.sqrt((chance * away * away).sum(axis=1))], 1)
        return summary

    def chances(self, rows: FloatRows) -> FloatRows:
        """(A, 26) of the bins, of (A, width) rows."""
        own = rows[:, :SELF_WIDTH]
        near = np.ascontiguousarray(rows[:, SELF_WIDTH:]).reshape(len(rows), -1, NEAR_WIDTH)
        finished = (near[:, :, 0] > 0.0) & (near[:, :, 2] > 0.0)
        evidence = np.zeros((int(finished.sum()), EVIDENCE_WIDTH), np.float32)
        write_evidence(rows, near, evidence)
        pooled, copied = self._neighbours(own, near, finished, evidence)
        alone = np.maximum(self._linear("own", own), 0.0)
        read = np.maximum(self._linear("readout", np.concatenate([alone, pooled], axis=1)), 0.0)
        logits = self._linear("bins", read)
        chance: FloatRows = np.exp(logits - logits.max(axis=1, keepdims=True))
        chance /= chance.sum(axis=1, keepdims=True)
        copies = self._linear("copies_again", np.maximum(self._linear("copies", copied), 0.0))
        no_copy = self._linear("no_copy", read).ravel()
        mix(rows, near, no_copy, copies, self._edges_s, self._spreads, chance)
        return chance

    def _neighbours(
        self, own: FloatRows, near: FloatRows, finished: NDArray[np.bool_], evidence: FloatRows
    ) -> tuple[FloatRows, FloatRows]:
        """(A, heads H) states of the neighbours, pooled; (P, H) of the finished ones, without sign.

        Few rows at a time: their states stay in the processor's cache.
        """
        weight, sides = self.weights["near.weight"], near.shape[1]
        seen = NEAR_WIDTH + EVIDENCE_WIDTH
        # Matrix products for neighbours, their evidence and the job, instead of a joined array.
        of_near, of_evidence = weight[:, :NEAR_WIDTH].T, weight[:, NEAR_WIDTH:seen].T
        beside = own @ weight[:, seen:-1].T + self.weights["near.bias"]
        later = np.ascontiguousarray(weight[:, -1])
        heads, width = self.weights["attention.weight"].shape
        pooled = np.empty((len(own), heads, width), np.float32)
        copied = np.empty((len(evidence), width), np.float32)
        if self._hidden.shape[1:] != (ROWS_AT_ONCE * sides, width):
            self._hidden = np.empty((2, ROWS_AT_ONCE * sides, width), np.float32)
        past = 0  # finished neighbours of the rows before
        for first in range(0, len(own), ROWS_AT_ONCE):
            part = near[first : first + ROWS_AT_ONCE]
            inputs, states = self._hidden[:, : len(part) * sides]
            over = finished[first : first + ROWS_AT_ONCE]
            following = past + int(over.sum())
            np.matmul(part.reshape(-1, NEAR_WIDTH), of_near, out=inputs)
            by_side = inputs.reshape(len(part), sides, width)
            join(by_side, over, evidence[past:following] @ of_evidence, beside[first:], later)
            np.matmul(inputs, self.weights["near_again.weight"].T, out=states)
            states += self.weights["near_again.bias"]
            scores = self._linear("attention", states).reshape(len(part), sides, heads)
            by_side = states.reshape(len(part), sides, width)
            attend(scores, part, by_side, pooled[first:])
            copied[past:following] = np.maximum(by_side[over], 0.0)
            past = following
        return pooled.reshape(len(own), -1), copied

    def _linear(self, name: str, inputs: FloatRows) -> FloatRows:
        product: FloatRows = (
            inputs @ self.weights[f"{name}.weight"].T + self.weights[f"{name}.bias"]
        )
        return product


def read_posterior(folder: Path) -> tuple[GittinsPriority, int]:
    """The posterior in a folder, and K; read again only where the folder was written anew.

    Raises:
        InputError: the folder holds none.
    """
    read_json_object(folder / SPEC_FILE)  # before its hash: says what is wrong with it
    return _read(folder, sha256_of(folder / SPEC_FILE))


@lru_cache(maxsize=4)
def _read(folder: Path, spec_sha256: str) -> tuple[GittinsPriority, int]:
    del spec_sha256
    config, weights = read_durations(folder)
    return GittinsPriority(weights), config.history


@pasted
def seconds(feature: float) -> float:
    return 60.0 * expm1(4.0 * feature)


@pasted
def has_finished(neighbour: NDArray[np.float32]) -> bool:
    return bool(neighbour[0] > 0.0 and neighbour[2] > 0.0)


@compiled
def write_evidence(rows: FloatRows, near: FloatRows, evidence: FloatRows) -> None:
    """Write (P, 3) `models.durations.network.evidence_of` of the finished among all `near`."""
    sides = near.shape[1]
    logs, past = np.zeros(sides), 0
    for row in range(len(rows)):
        done, first = 0.0, past
        for one in range(sides):
            if has_finished(near[row, one]):
                if past == first:
                    done = seconds(rows[row, 2])
                took = max(seconds(near[row, one, 1]), SHORTEST_WORK_S)
                logs[past - first] = log(took)
                evidence[past, 0] = log1p(max(took - done, 0.0) / 60.0) / 4.0
                past += 1
        for one in range(past - first):
            for other in range(one):
                apart = abs(logs[one] - logs[other])
                for k in range(len(ALIKE)):
                    if apart < ALIKE[k]:
                        evidence[first + one, 1 + k] += np.float32(0.25)
                        evidence[first + other, 1 + k] += np.float32(0.25)


@compiled
def join(
    hidden: FloatRows,
    finished: NDArray[np.bool_],
    evidence: FloatRows,
    beside: FloatRows,
    later: FloatRows,
) -> None:
    """Add to (A, 2 K, H) inputs of neighbours all that is not their own, and cut them off at 0.

    Args:
        hidden: in and out.
        finished: (A, 2 K) whose `evidence` (P, H) there is.
        evidence: of the finished ones, in order.
        beside: (A, H) of the job itself.
        later: (H,) of those after it.
    """
    zero, past, half = np.float32(0.0), 0, hidden.shape[1] // 2
    base = np.empty_like(later)
    for row in range(hidden.shape[0]):
        for side in range(hidden.shape[1]):
            if finished[row, side]:
                for column in range(hidden.shape[2]):
                    hidden[row, side, column] += evidence[past, column]
                past += 1
        for column in range(hidden.shape[2]):
            base[column] = beside[row, column]
        for side in range(half):
            for column in range(hidden.shape[2]):
                hidden[row, side, column] = max(hidden[row, side, column] + base[column], zero)
        for side in range(half, hidden.shape[1]):
            for column in range(hidden.shape[2]):
                after = hidden[row, side, column] + base[column] + later[column]
                hidden[row, side, column] = max(after, zero)


@compiled
def attend(scores: FloatRows, near: FloatRows, states: FloatRows, pooled: FloatRows) -> None:
    """Write (A, heads, H) means of (A, 2 K, H) by the softmax of (A, 2 K, heads) scores.

    An empty entry, with score 0 and no state, is always there as well.
    """
    for row in range(scores.shape[0]):
        for head in range(scores.shape[2]):
            most = np.float32(0.0)
            for side in range(scores.shape[1]):
                if near[row, side, 0] != 0.0:
                    most = max(most, scores[row, side, head])
            mean, whole = pooled[row, head], exp(-most)
            mean[:] = 0.0
            for side in range(scores.shape[1]):
                if near[row, side, 0] != 0.0:
                    weight = exp(scores[row, side, head] - most)
                    whole += weight
                    for column in range(states.shape[2]):
                        mean[column] += weight * states[row, side, column]
            for column in range(states.shape[2]):
                mean[column] /= whole


@compiled
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
        most, first = float(no_copy[row]), past
        for side in range(near.shape[1]):
            if has_finished(near[row, side]):
                for k in range(len(spreads)):
                    most = max(most, copies[past, k])
                past += 1
        if past == first:
            chance[row] += LEAST_CHANCE
            continue
        done = max(seconds(rows[row, 2]), SHORTEST_WORK_S)
        begun = log(done)
        for edge in range(len(edges_s)):
            in_all[edge] = log(done + edges_s[edge])
        share = exp(no_copy[row] - most)
        whole = share
        mixed[:] = share * chance[row]
        past = first
        for side in range(near.shape[1]):
            if not has_finished(near[row, side]):
                continue
            took = log(max(seconds(near[row, side, 1]), SHORTEST_WORK_S))
            for k in range(len(spreads)):
                survived = beyond(begun - took, spreads[k])
                share = exp(copies[past, k] - most)
                whole += share * survived
                add_copy(in_all, took, spreads[k], share, survived, mixed)
            past += 1
        chance[row] = mixed / whole + LEAST_CHANCE


@compiled_inner
def add_copy(
    in_all: FloatArray, took: float, spread: float, share: float, left: float, mixed: FloatArray
) -> None:
    """Add the share of a copy of `took`, ln seconds, to the (26,) bins of a row in `mixed`.

    It lasts into the first bin with the chance `left`; the others but the last end at `in_all`.
    """
    for edge in range(len(in_all)):
        if in_all[edge] < took + CERTAIN * spread:
            continue  # all of it is left, as before
        then = beyond(in_all[edge] - took, spread)
        mixed[edge] += share * (left - then)
        left = then
        if in_all[edge] >= took + FAR * spread:
            break  # as little is left afterwards
    mixed[len(in_all)] += share * left


@pasted
def beyond(over: float, spread: float) -> float:
    """Chance that a logistic variable of mean 0 is above `over`; exponentials where they count."""
    deviations = over / spread
    if deviations < CERTAIN:
        return 1.0
    return NOTHING_LEFT if deviations >= FAR else 1.0 / (1.0 + exp(deviations))
