"""`PaddedGraph`: the one observation format, a graph on a set of devices with constant shapes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
from gymnasium import error, spaces
from numpy.typing import NDArray

from envs.bounds import Count, bounded
from envs.errors import InputError

PaddedGraph = dict[str, NDArray[Any]]
Begun = TypeVar("Begun")


@dataclass(frozen=True)
class FeatureWidths:
    """How many features a node, a node on a device, an edge, ... has."""

    node: int
    node_device: int
    edge: int
    device: int
    link: int
    candidate: int


@bounded
@dataclass(frozen=True)
class PaddedGraphLayout:
    """The shapes of a `PaddedGraph` of at most N nodes and E edges on D devices.

    | key                  | dtype, shape                  | padding |
    |----------------------|-------------------------------|---------|
    | node_features        | float32 (N, widths.node)      | 0       |
    | node_mask            | int8 (N,): 1 = a node         | 0       |
    | node_device_features | float32 (N, D, widths.node_device) | 0  |
    | edge_index           | int64 (2, E): source, target  | N, the sink node a model appends |
    | edge_features        | float32 (E, widths.edge)      | 0       |
    | edge_mask            | int8 (E,): 1 = an edge        | 0       |
    | device_features      | float32 (D, widths.device)    | none    |
    | link_features        | float32 (D, D, widths.link)   | none    |
    | placement            | int64 (N,): device of each node | 0     |
    | placed               | int8 (N,): 1 = decided        | 0       |
    | current              | int64 (1,): the node to decide now | none |
    | candidate_features   | float32 (D, widths.candidate): the current node on each device | none |
    | action_mask          | int8 (D,): 1 = allowed; at least one | none |

    All features lie in [`low`, `high`].
    """

    max_nodes: Count  # N
    max_edges: Count  # E
    num_devices: Count  # D
    widths: FeatureWidths
    low: float = -1.0
    high: float = 4.0

    def space(self) -> spaces.Dict:
        """The Gymnasium space of such graphs."""
        n, e, d, w = self.max_nodes, self.max_edges, self.num_devices, self.widths
        return spaces.Dict(
            {
                "node_features": self._features(n, w.node),
                "node_mask": flags(n),
                "node_device_features": self._features(n, d, w.node_device),
                "edge_index": _indices(n, 2, e),
                "edge_features": self._features(e, w.edge),
                "edge_mask": flags(e),
                "device_features": self._features(d, w.device),
                "link_features": self._features(d, d, w.link),
                "placement": _indices(d - 1, n),
                "placed": flags(n),
                "current": _indices(n - 1, 1),
                "candidate_features": self._features(d, w.candidate),
                "action_mask": flags(d),
            }
        )

    def empty(self) -> PaddedGraph:
        """A graph of padding alone: every edge leads from the sink to itself."""
        graph = padding(self.space())
        graph["edge_index"][:] = self.max_nodes
        return graph

    def check_fits(self, name: str, nodes: int, edges: int, devices: int) -> None:
        """Raise where a graph called `name` does not fit.

        Raises:
            InputError: naming the size that is too small.
        """
        check_sizes(self, f"graph {name}", max_nodes=nodes, max_edges=edges)
        if devices != self.num_devices:
            raise InputError(
                f"{devices} devices, the observation has {self.num_devices}",
                file=f"graph {name}",
                field="num_devices",
            )

    def clip(self, values: NDArray[np.float64]) -> NDArray[np.float32]:
        """Features inside the bounds; not finite = above all."""
        return clipped(values, self.low, self.high)

    def _features(self, *shape: int) -> spaces.Box:
        return spaces.Box(self.low, self.high, shape, np.float32)


def padding(space: spaces.Dict) -> PaddedGraph:
    """Arrays of the boxes of `space`, all zeros."""
    return {key: np.zeros(box.shape or (), box.dtype) for key, box in space.items()}


def clipped(values: NDArray[np.float64], low: float, high: float) -> NDArray[np.float32]:
    """Values inside the bounds; not finite = above all."""
    inside = np.fmax(np.fmin(values, high), low)  # fmin takes the number beside nan
    return inside.astype(np.float32)


def check_sizes(limits: object, file: str | None, **sizes: int) -> None:
    """Raise where a size is beyond the attribute of that name of `limits`.

    Raises:
        InputError: naming the size that is too small.
    """
    for field, size in sizes.items():
        if size > (limit := getattr(limits, field)):
            message = f"{size} needed, the observation has {limit}"
            raise InputError(message, file=file, field=field)


def begun(episode: Begun | None) -> Begun:
    """What `reset` made.

    Raises:
        gymnasium.error.ResetNeeded: nothing yet.
    """
    if episode is None:
        raise error.ResetNeeded("reset() comes before anything else")
    return episode


def checked_actions(
    actions: Mapping[str, Any], space: Mapping[str, spaces.Discrete[np.int64]]
) -> dict[str, int]:
    """The action of every agent of `space`.

    Raises:
        InputError: an agent has no action, or one that is not in its space.
    """
    chosen = {}
    for agent, allowed in space.items():
        if agent not in actions:
            raise InputError("has no action", record=agent, field="actions")
        value = actions[agent]
        if np.size(value) != 1 or value not in range(int(allowed.n)):
            raise InputError(f"{value} is not in {allowed}", record=agent, field="actions")
        chosen[agent] = int(value)
    return chosen


def flags(size: int) -> spaces.Box:
    return spaces.Box(0, 1, (size,), np.int8)


def _indices(highest: int, *shape: int) -> spaces.Box:
    return spaces.Box(0, highest, shape, np.int64)
