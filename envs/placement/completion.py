"""Completion rules: where the groups stand that nobody has placed yet."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from envs.errors import InputError
from envs.graphs.contraction import Fusion, sum_rows
from envs.step.problem import StepProblem

IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]


class CompletionRule(Protocol):
    """Says where every group of a fused problem stands before it is decided."""

    def __call__(self, fused: StepProblem, fusion: Fusion) -> IntArray:
        """(G,) a device that can run it for every group."""


class FastestDevice:
    """Everything on the fastest single device that can run it all and hold its state.

    Where there is none, the groups fill the devices front to back: each goes to the fastest device
    that can run it and has room for its parameters, gradients and optimizer state; when none has,
    to the one with the most room left.
    """

    def __call__(self, fused: StepProblem, fusion: Fusion) -> IntArray:
        """(G,) devices.

        Raises:
            InputError: no device can run some group.
        """
        seconds = group_seconds(fused, fusion)
        state = group_state_bytes(fused, fusion)
        total = np.where(state.sum() <= fused.capacity, seconds.sum(axis=0), np.inf)
        if np.isfinite(total).any():
            return np.full(fusion.num_groups, np.argmin(total), dtype=np.int64)
        free = fused.capacity.copy()
        device = np.empty(fusion.num_groups, dtype=np.int64)
        for group in range(fusion.num_groups):
            able = np.isfinite(seconds[group])
            if not able.any():
                raise InputError(
                    "no device can run it",
                    file=f"graph {fused.graph.name}",
                    record=f"group {group}",
                )
            roomy = able & (state[group] <= free)
            if roomy.any():
                chosen = np.argmin(np.where(roomy, seconds[group], np.inf))
            else:
                chosen = np.argmax(np.where(able, free, -np.inf))
            device[group] = chosen
            free[chosen] -= state[group]
        return device


def group_seconds(fused: StepProblem, fusion: Fusion) -> FloatArray:
    """(G, D) compute seconds of each group's pieces, inf where the device cannot run one."""
    return sum_rows(fused.op_seconds, fusion.piece_group, fusion.num_groups)


def group_state_bytes(fused: StepProblem, fusion: Fusion) -> FloatArray:
    """(G,) bytes of parameters, gradients and optimizer state of each group."""
    return sum_rows(fused.graph.state_bytes, fusion.piece_group, fusion.num_groups)
