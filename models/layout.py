"""The layout of one observation: names, dtypes and shapes in the order exported policies take."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from envs.spaces import FeatureWidths

Observation = Mapping[str, NDArray[Any]]


@dataclass(frozen=True)
class FieldLayout:
    """One array of the observation: its name, dtype and symbolic shape.

    A dimension is a letter (N nodes, E edges, D devices: any size) or a fixed number.
    """

    name: str
    dtype: str
    shape: tuple[str | int, ...]


def widths_of(observation: Observation) -> FeatureWidths:
    """The feature widths of one observation."""
    return FeatureWidths(
        node=observation["node_features"].shape[-1],
        node_device=observation["node_device_features"].shape[-1],
        edge=observation["edge_features"].shape[-1],
        device=observation["device_features"].shape[-1],
        link=observation["link_features"].shape[-1],
        candidate=observation["candidate_features"].shape[-1],
    )


def observation_layout(widths: FeatureWidths) -> tuple[FieldLayout, ...]:
    """The arrays of one observation in the order in which every exported policy takes them."""
    return (
        FieldLayout("node_features", "float32", ("N", widths.node)),
        FieldLayout("node_mask", "int8", ("N",)),
        FieldLayout("node_device_features", "float32", ("N", "D", widths.node_device)),
        FieldLayout("edge_index", "int64", (2, "E")),
        FieldLayout("edge_features", "float32", ("E", widths.edge)),
        FieldLayout("edge_mask", "int8", ("E",)),
        FieldLayout("device_features", "float32", ("D", widths.device)),
        FieldLayout("link_features", "float32", ("D", "D", widths.link)),
        FieldLayout("placement", "int64", ("N",)),
        FieldLayout("placed", "int8", ("N",)),
        FieldLayout("current", "int64", (1,)),
        FieldLayout("candidate_features", "float32", ("D", widths.candidate)),
        FieldLayout("action_mask", "int8", ("D",)),
    )
