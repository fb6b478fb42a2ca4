"""When nodes fail and when they come back."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from envs.bounds import Positive, bounded
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster_state import INCIDENT


@bounded
@dataclass(frozen=True)
class Failures:
    """Every node fails and comes back on its own, after times drawn from exponentials.

    Args:
        mean_time_to_failure_s: seconds a node is up, on average.
        mean_time_to_repair_s: seconds it is down, on average.
        until_s: no node fails after this; those that are down still come back.
        seed: of the draws. A node's draws do not depend on how many nodes there are.
    """

    mean_time_to_failure_s: Positive
    mean_time_to_repair_s: Positive
    until_s: Positive
    seed: int

    def incidents(self, cluster: Cluster) -> NDArray[np.void]:
        """`INCIDENT` records of all nodes, by time."""
        entries: list[tuple[float, int, int]] = []
        for node in range(cluster.num_nodes):
            rng, time = np.random.default_rng([self.seed, node]), 0.0
            while (time := time + rng.exponential(self.mean_time_to_failure_s)) <= self.until_s:
                entries.append((time, node, 0))
                time += rng.exponential(self.mean_time_to_repair_s)
                entries.append((time, node, 1))
        return np.array(sorted(entries), INCIDENT)
