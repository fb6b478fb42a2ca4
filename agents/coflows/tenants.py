"""Which tenant's gradient goes first through a switch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from agents.coflows.bssi import bssi
from envs.coflows.problem import FloatArray, IntArray
from envs.coflows.tenants import Ranks, Tenancy
from envs.errors import InputError

WEIGHTINGS = ("none", "layer", "remaining_more", "remaining_less", "idle")


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
    tensor; `remaining_more` and `remaining_less` as the bytes the job has yet to sum, or one over
    them; `idle` the share of its time that the job has waited.

    Guarantees:
        None for training jobs: BSSI's factor of 4 is of one front tensor each.

    Source:
        Ho, *Efficient and Scalable Deep Learning Through In-Network Aggregation*, dissertation,
        KAUST 2023, reconstructed from its outline: the formulas of the weightings are this
        project's.
    """

    weighting: str = "none"

    def __post_init__(self) -> None:
        if self.weighting not in WEIGHTINGS:
            fault = f"{self.weighting!r} is none of {', '.join(WEIGHTINGS)}"
            raise InputError(fault, field="weighting")

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
        if self.weighting.startswith("remaining"):
            whole = state.size[senders].sum(axis=1)
            bytes_left = state.iterations[senders] * whole + state.left[senders].sum(axis=1)
            more: FloatArray = (
                bytes_left if self.weighting == "remaining_more" else 1.0 / bytes_left
            )
            return more
        if self.weighting == "idle":
            waiting = np.isinf(state.busy[senders]) * (clock - state.since[senders])
            share: FloatArray = 1e-3 + (state.idle[senders] + waiting) / max(clock, 1e-9)
            return share
        return np.ones(len(senders))


BASELINES: Mapping[str, Ranks] = {"fifo": fifo, "fair": fair, "smallest": smallest}
