"""The one action that a scheduler's logits come to, and observations without padding."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from envs.cluster.environment.actions import ActionTable
from envs.cluster.environment.observation import ADVISED, ClusterGraph

FloatArray = NDArray[np.float32]


class Greedy(Protocol):
    """Logits to an action."""

    def __call__(self, logits: FloatArray, window: int, groups: int) -> int:
        """The action, in the numbering of `envs.cluster.environment.actions.ClusterActions`.

        Args:
            logits: (A,), very low where the mask forbids.
            window: W.
            groups: G.
        """


class MostProbableAction:
    """The largest logit; the job and its server group are one action."""

    def __call__(self, logits: FloatArray, window: int, groups: int) -> int:
        """Of equals the first."""
        return int(logits.argmax())


class MostProbableJob:
    """First what is done, a job counted over all server groups it could start on; then where."""

    def __call__(self, logits: FloatArray, window: int, groups: int) -> int:
        """Of equals the first."""
        starts = logits[: window * groups].reshape(window, groups)
        weights = np.exp(logits - logits.max())
        jobs = weights[: window * groups].reshape(window, groups).sum(axis=1)
        others = weights[window * groups :]
        job = int(jobs.argmax())
        if jobs[job] >= others.max():
            return job * groups + int(starts[job].argmax())
        return window * groups + int(others.argmax())


class Trimmed:
    """An observation without padding among jobs and shares, at least one row of each.

    Args:
        graph: an observation.
        mask: (A,) of actions.
        table: how they are numbered.

    Attributes:
        observation: the same with fewer rows, and its `action_mask` (B,).
        actions: (B,) the action in the numbering of `table` of each that is left.
        window: pending jobs left.
    """

    def __init__(self, graph: ClusterGraph, mask: NDArray[np.int8], table: ActionTable) -> None:
        kept = {name: max(int(graph[f"{name}_mask"].sum()), 1) for name in _TRIMMED}
        self.window = kept["pending"]
        starts = np.arange(self.window * table.groups)
        first = table.window * table.groups
        forwards = first + np.arange(self.window * table.peers)
        first += table.window * table.peers
        preempts = first + np.arange(min(kept["running"], table.preemptible))
        self.actions = np.concatenate([starts, forwards, preempts, [table.size - 1]])
        self.observation: dict[str, NDArray[Any]] = dict(graph)
        for name, rows in kept.items():
            for key in (f"{name}_features", f"{name}_mask"):
                self.observation[key] = graph[key][:rows]
        share = graph["share_index"][:, : kept["share"]].copy()
        share[0] = np.minimum(share[0], kept["running"])  # padding points behind the last row
        self.observation["share_index"] = share
        self.observation["action_mask"] = mask[self.actions]
        if ADVISED in graph:
            advised = np.searchsorted(self.actions, graph[ADVISED])  # actions ascend
            assert self.actions[advised] == graph[ADVISED], "advice about what is not shown"
            self.observation[ADVISED] = advised


_TRIMMED = ("pending", "running", "share")


def masked(logits: FloatArray, observation: Mapping[str, NDArray[Any]]) -> FloatArray:
    """Logits, minus infinity where the mask forbids."""
    allowed: FloatArray = np.where(observation["action_mask"] == 1, logits, -np.inf)
    return allowed
