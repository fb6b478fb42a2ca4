"""Random observations in the policy's layout."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.spaces import FeatureWidths, PaddedGraphLayout
from models.step.policy import PolicyConfig


def policy_config(**chosen: Any) -> PolicyConfig:
    """A small placement policy; what is chosen instead of that."""
    values: dict[str, Any] = {
        "hidden": 16,
        "operator_rounds": 1,
        "device_rounds": 1,
        "initial_scale": 0.01,
        "initial_candidate_weights": {},
    }
    return PolicyConfig(**{**values, **chosen})


WIDTHS = FeatureWidths(node=12, node_device=2, edge=2, device=8, link=3, candidate=6)


def random_observation(
    rng: np.random.Generator, nodes: int, edges: int, devices: int
) -> dict[str, NDArray[Any]]:
    """A graph without padding."""
    space = PaddedGraphLayout(nodes, edges, devices, WIDTHS).space()
    out: dict[str, NDArray[Any]] = {
        name: rng.uniform(-1.0, 4.0, box.shape).astype(np.float32)
        for name, box in space.items()
        if box.dtype == np.float32
    }
    out["node_mask"] = np.ones(nodes, np.int8)
    out["edge_mask"] = np.ones(edges, np.int8)
    out["edge_index"] = np.sort(rng.integers(0, nodes, (2, edges)), axis=0)
    out["placement"] = rng.integers(0, devices, nodes)
    out["placed"] = rng.integers(0, 2, nodes).astype(np.int8)
    out["current"] = rng.integers(0, nodes, 1)
    out["action_mask"] = rng.integers(0, 2, devices).astype(np.int8)
    out["action_mask"][rng.integers(devices)] = 1
    return out


def padded(observation: dict[str, NDArray[Any]], nodes: int, edges: int) -> dict[str, NDArray[Any]]:
    """The same graph with that many nodes and edges, the rest padding."""
    n, e = len(observation["node_mask"]), len(observation["edge_mask"])
    out = dict(observation)
    for name in ("node_features", "node_mask", "node_device_features", "placement", "placed"):
        array = observation[name]
        out[name] = np.concatenate([array, np.zeros((nodes - n, *array.shape[1:]), array.dtype)])
    for name in ("edge_features", "edge_mask"):
        array = observation[name]
        out[name] = np.concatenate([array, np.zeros((edges - e, *array.shape[1:]), array.dtype)])
    sink = np.full((2, edges - e), nodes)
    out["edge_index"] = np.concatenate([observation["edge_index"], sink], axis=1)
    return out
