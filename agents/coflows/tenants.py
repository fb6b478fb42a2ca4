"""Which tenant's gradient goes first through a switch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from agents.coflows.bssi import bssi
from envs.arrays import FloatArray, IntArray
from envs.coflows.tenants import Ranks, Tenancy
from envs.errors import require_one_of

CLAIRVOYANT = "clairvoyant"
UNTOUCHED = 1e-9  # the weight of a tensor of which nothing was sent: such ones go by their size
WEIGHTINGS = ("none", "layer", "remaining", "idle", CLAIRVOYANT)


def fair(state: Tenancy, senders: IntArray, clock: float) -> IntArray:
    """All alike: max-min fair."""
    return np.zeros(len(senders), dtype=np.int64)


def fifo(state: Tenancy, senders: IntArray, clock: float) -> IntArray:
    """The gradient that was there first."""
    return _ranked(state.ready[senders, state.current[senders]])


def smallest(state: Tenancy, senders: IntArray, clock: float) -> IntArray:
    """The gradient with the least left, as SEBF would: it has as much at each of its ports."""
    return _ranked(state.left[senders, state.current[senders]])


def _ranked(key: FloatArray) -> IntArray:
    rank = np.zeros(len(key), dtype=np.int64)
    rank[np.argsort(key, kind="stable")] = np.arange(len(key))
    return rank


@dataclass(frozen=True)
class CoInNetFlow:
    """Sincronia's order of the jobs' front tensors at the racks' ports, as strict priorities.

    Jobs weigh, by `weighting`: `none` 1; `layer` more, the sooner the forward pass needs the
    tensor; `remaining` one less the part of the tensor that is left; `idle` the share of its time
    that the job has waited. `clairvoyant` is a yardstick: one over the bytes that the job has yet
    to sum until it ends, for which its iterations must be known.

    Guarantees:
        None for training jobs: BSSI's factor of 4 is of one front tensor each.

    Source:
        Ho, *Efficient and Scalable Deep Learning Through In-Network Aggregation*, dissertation,
        KAUST 2023, reconstructed from its outline. `remaining` is its formula; the others are this
        project's.
    """

    weighting: str = "none"

    def __post_init__(self) -> None:
        require_one_of(self.weighting, WEIGHTINGS, field="weighting")

    def __call__(self, state: Tenancy, senders: IntArray, clock: float) -> IntArray:
        layer = state.current[senders]
        ports = state.links[senders, :-1]
        rows, columns = np.nonzero(ports >= 0)
        if not len(rows):
            return np.zeros(len(senders), dtype=np.int64)
        used = ports[rows, columns]
        times = np.zeros((len(senders), int(used.max()) + 1))
        times[rows, used] = state.left[senders, layer][rows]
        order, _ = bssi(times, self._weights(state, senders, layer, clock))
        rank = np.zeros(len(senders), dtype=np.int64)
        rank[order] = np.arange(len(senders))
        return rank

    def _weights(
        self, state: Tenancy, senders: IntArray, layer: IntArray, clock: float
    ) -> FloatArray:
        if self.weighting == "layer":
            weight: FloatArray = 1.0 - layer / state.layers[senders]
            return weight
        if self.weighting == "remaining":
            rest: FloatArray = state.left[senders, layer] / state.size[senders, layer]
            return 1.0 - rest + UNTOUCHED
        if self.weighting == CLAIRVOYANT:
            whole = state.size[senders].sum(axis=1)
            ahead: FloatArray = state.iterations[senders] * whole + state.left[senders].sum(axis=1)
            return 1.0 / ahead
        if self.weighting == "idle":
            waiting = np.isinf(state.busy[senders]) * (clock - state.since[senders])
            share: FloatArray = 1e-3 + (state.idle[senders] + waiting) / max(clock, 1e-9)
            return share
        return np.ones(len(senders))


BASELINES: Mapping[str, Ranks] = {"fifo": fifo, "fair": fair, "smallest": smallest}
