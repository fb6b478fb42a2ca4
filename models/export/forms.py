"""What the exporter must know of a kind of policy: what it takes, what it gives."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from torch import Tensor, nn

from envs.errors import InputError
from models.cluster.hierarchical import HierarchicalPolicy
from models.export.checkpoint import CLUSTER, PLACEMENT, AdviserSpec
from models.layout import (
    FieldLayout,
    Observation,
    cluster_layout,
    num_cluster_actions,
    observation_layout,
)
from models.step.graph_batch import GraphBatch
from models.step.policy import PlacementPolicy


class ExportForm(Protocol):
    """A policy and its layout.

    Attributes:
        policy: what is exported, with `config` and `widths`.
        kind: which observations it reads.
        subject, takes: for its card.
        layout: the arrays of an observation, in order.
        sizes: letter of the layout -> what it counts.
        actions: the letter that counts logits.
        action: what the spec says about them beside their shape.
        more: what else the spec says.
        folders: name in the checkpoint -> a folder that goes with the policy.
    """

    policy: Any
    kind: str
    subject: str
    takes: str
    layout: tuple[FieldLayout, ...]
    sizes: dict[str, str]
    actions: str
    action: dict[str, Any]
    more: Mapping[str, Any]
    folders: Mapping[str, Path]

    def sample(self) -> Observation:
        """A small valid observation, only to trace the policy with."""

    def decide(self, observation: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(1, A) logits and (1,) values of (1, ...) arrays; no shape depends on values."""


class PlacementForm:
    """A placement policy."""

    kind = PLACEMENT
    subject = "A placement policy"
    takes = "graphs of any number of operators, edges and devices"
    actions = "D"

    def __init__(self, policy: PlacementPolicy) -> None:
        self.policy = policy
        self.layout = observation_layout(policy.widths)
        self.sizes = {"N": "nodes, >= 1", "E": "edges, >= 1", "D": "devices, >= 1"}
        self.action: dict[str, Any] = {
            "decision": "argmax of logits: the device of the current node"
        }
        self.more: Mapping[str, Any] = {}
        self.folders: Mapping[str, Path] = {}

    def sample(self) -> Observation:
        """A small valid observation."""
        return _sample(self.layout, {"N": 7, "E": 11, "D": 3})

    def decide(self, observation: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(1, D) logits and (1,) values."""
        logits, value = self.policy(GraphBatch.of(observation))
        return logits, value


class ClusterForm:
    """The policy of a cluster's scheduler, with or without others to forward jobs to.

    Args:
        policy: it.
        adviser: whose action it is shown; None: nobody's, or another program's.

    Raises:
        InputError: there is an adviser, and the policy has no input for its action.
    """

    kind = CLUSTER
    subject = "The policy of a cluster's scheduler"
    takes = "clusters of any number of racks, servers, jobs and other schedulers"
    actions = "A"

    def __init__(self, policy: HierarchicalPolicy, adviser: AdviserSpec | None = None) -> None:
        if adviser is not None and not policy.widths.advised:
            raise InputError("the policy is shown nobody's advice", field="adviser")
        self.policy = policy
        if adviser is not None:
            self.takes = f"{type(self).takes}, and an adviser's action, by `spec.json`"
        self.more: Mapping[str, Any] = {} if adviser is None else {"adviser": adviser.document}
        self.folders: Mapping[str, Path] = {} if adviser is None else adviser.folders
        self.layout = cluster_layout(policy.widths)
        self.sizes = {
            "N": "servers, >= 1",
            "R": "racks, >= 1",
            "M": "running jobs, >= 1",
            "W": "pending jobs, >= 1",
            "E": "shares of running jobs, >= 1",
            **({"F": "other schedulers, >= 0"} if policy.widths.peer else {}),
            "A": f"actions, W (N + R + 1{' + F' if policy.widths.peer else ''})"
            f"{' + M' if policy.preemption else ''} + 1",
        }
        self.action: dict[str, Any] = {
            "decision": "argmax of logits"
            if policy.widths.advised
            else "the most probable of: start job w (the sum over its server groups), "
            "forward job w to f, preempt p, wait; of the job to start the most probable group",
            "numbering": "w (N + R + 1) + g; then forwards, preemptions, wait",
            "preemption": policy.preemption,
            "value": "of the scheduler's own observation"
            + (", without the critic's part that sees all schedulers" * bool(policy.widths.state)),
        }

    def sample(self) -> Observation:
        """A small valid observation."""
        sizes = {"N": 7, "R": 3, "M": 5, "W": 4, "E": 11}
        if self.policy.widths.peer:
            sizes["F"] = 2
        return _sample(
            self.layout, {**sizes, "A": num_cluster_actions(sizes, self.policy.preemption)}
        )

    def decide(self, observation: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        """(1, A) logits and (1,) values."""
        outlook = self.policy.assess(observation, packed=False)
        return outlook.logits, outlook.value


class SingleObservation(nn.Module):
    """The policy on one observation: arrays in layout order, (A,) logits and () value out."""

    def __init__(self, form: ExportForm) -> None:
        super().__init__()
        self.policy = form.policy
        self._decide = form.decide
        self._names = [item.name for item in form.layout]

    def forward(self, *arrays: Tensor) -> tuple[Tensor, Tensor]:
        """Logits and value."""
        named = zip(self._names, arrays, strict=True)
        logits, value = self._decide({name: array.unsqueeze(0) for name, array in named})
        return logits.squeeze(0), value.squeeze(0)


def _sample(layout: tuple[FieldLayout, ...], sizes: Mapping[str, int]) -> Observation:
    """Zeros, all masks 1; distinct sizes, so that tracing ties no two together."""
    arrays: dict[str, np.ndarray[Any, Any]] = {}
    for item in layout:
        shape = tuple(sizes[n] if isinstance(n, str) else n for n in item.shape)
        filled = np.ones if item.name.endswith("mask") else np.zeros
        arrays[item.name] = filled(shape, dtype=item.dtype)
    return arrays
