"""Random observations of schedulers, by their layout alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envs.cluster.environment.observation import (
    CLUSTER_WIDTH,
    JOB_BASE,
    PEER_BASE,
    RACK_WIDTH,
    SERVER_BASE,
    SHARE_WIDTH,
)
from models.cluster.hierarchical import HierarchicalConfig

CONFIG = HierarchicalConfig(
    hidden=16,
    rounds=2,
    heads=2,
    initial_scale=1.0,
    initial_index_weight=0.5,
    initial_speed_weight=2.0,
    initial_expert_weight=3.0,
)

Observation = dict[str, NDArray[Any]]
# Arrays with a mask, and what `Sizes` calls how many there are.
MASKED = {
    "rack": "racks", "server": "servers", "running": "running", "pending": "pending",
    "share": "shares",
}  # fmt: skip


@dataclass(frozen=True)
class Sizes:
    """Nodes of each kind; `types` GPU types, columns of history and of the state."""

    servers: int = 7
    racks: int = 3
    running: int = 5
    pending: int = 4
    shares: int = 9
    peers: int = 0
    types: int = 3
    history: int = 13
    state: int = 0
    preemption: bool = True

    @property
    def actions(self) -> int:
        """A."""
        groups = self.servers + self.racks + 1
        return self.pending * (groups + self.peers) + self.preemption * self.running + 1

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the arrays of features."""
        job = JOB_BASE + self.types + self.history
        shapes: dict[str, tuple[int, ...]] = {
            "cluster_features": (CLUSTER_WIDTH,),
            "rack_features": (self.racks, RACK_WIDTH),
            "server_features": (self.servers, SERVER_BASE + self.types),
            "running_features": (self.running, job),
            "pending_features": (self.pending, job),
            "share_features": (self.shares, SHARE_WIDTH),
        }
        if self.peers:
            shapes["peer_features"] = (self.peers, PEER_BASE + self.types)
        if self.state:
            shapes["state_features"] = (self.state,)
        return shapes

    def spaces(self) -> tuple[spaces.Dict, spaces.Discrete[np.int64]]:
        """Of observations and actions."""
        masks = {f"{name}_mask": getattr(self, count) for name, count in MASKED.items()}
        sinks = np.repeat([[self.running], [self.servers]], self.shares, axis=1)
        space: dict[str, spaces.Space[Any]] = {
            **{k: spaces.Box(-1.0, 4.0, shape, np.float32) for k, shape in self.shapes().items()},
            **{name: spaces.Box(0, 1, (size,), np.int8) for name, size in masks.items()},
            "server_rack": spaces.Box(0, self.racks, (self.servers,), np.int64),
            "share_index": spaces.Box(0, sinks, (2, self.shares), np.int64),
            "action_mask": spaces.Box(0, 1, (self.actions,), np.int8),
        }
        return spaces.Dict(space), spaces.Discrete(self.actions)


def random_cluster(rng: np.random.Generator, sizes: Sizes) -> Observation:
    """An observation without padding; about half the actions are allowed, to wait always."""
    seen: Observation = {
        name: rng.uniform(0.0, 1.0, shape).astype(np.float32)
        for name, shape in sizes.shapes().items()
    }
    types = rng.integers(0, sizes.types, sizes.servers)
    seen["server_features"][:, SERVER_BASE:] = np.eye(sizes.types)[types]
    for name, count in MASKED.items():
        seen[f"{name}_mask"] = np.ones(getattr(sizes, count), np.int8)
    seen["server_rack"] = rng.integers(0, sizes.racks, sizes.servers)
    ends = sizes.running, sizes.servers
    seen["share_index"] = np.stack([rng.integers(0, end, sizes.shares) for end in ends])
    seen["action_mask"] = rng.integers(0, 2, sizes.actions).astype(np.int8)
    seen["action_mask"][-1] = 1
    return seen


def padded_cluster(seen: Observation, sizes: Sizes, larger: Sizes) -> Observation:
    """The same observation with room for more nodes; sinks and masks moved accordingly."""
    out: Observation = dict(seen)
    for name, count in MASKED.items():
        for key in (f"{name}_features", f"{name}_mask"):
            out[key] = _longer(seen[key], getattr(larger, count), 0)
    out["server_rack"] = _longer(seen["server_rack"], larger.servers, larger.racks)
    sinks = (larger.running, larger.servers)
    out["share_index"] = np.stack(
        [_longer(seen["share_index"][end], larger.shares, sinks[end]) for end in (0, 1)]
    )
    out["action_mask"] = np.zeros(larger.actions, np.int8)
    out["action_mask"][moved_actions(sizes, larger)] = seen["action_mask"]
    return out


def moved_actions(sizes: Sizes, larger: Sizes) -> NDArray[np.int64]:
    """(A,) number of every action in the larger observation."""
    servers, racks = np.arange(sizes.servers), larger.servers + np.arange(sizes.racks)
    groups = np.concatenate([servers, racks, [larger.servers + larger.racks]])
    count = larger.servers + larger.racks + 1
    window = np.arange(sizes.pending)[:, None]
    start = (window * count + groups).ravel()
    forward = (larger.pending * count + window * larger.peers + np.arange(sizes.peers)).ravel()
    first = larger.pending * (count + larger.peers)
    preempt = first + np.arange(sizes.running * sizes.preemption)
    return np.concatenate([start, forward, preempt, [larger.actions - 1]])


def _longer(array: NDArray[Any], size: int, value: int) -> NDArray[Any]:
    rest = np.full((size - len(array), *array.shape[1:]), value, array.dtype)
    return np.concatenate([array, rest])
