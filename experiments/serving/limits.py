"""What one decision may ask of the machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass
class ClusterLimits:
    """Of a cluster's scheduler: `agents.cluster.live.ClusterDecider`."""

    window: int
    most_actions: int
    most_nodes: int
    most_jobs: int


@dataclass
class PlacementLimits:
    """Of a placement policy: `agents.placement.live.PlacementDecider`."""

    most_operators: int
    most_devices: int


@dataclass
class DecisionLimits:
    """By what the policy decides on."""

    cluster: ClusterLimits
    placement: PlacementLimits
