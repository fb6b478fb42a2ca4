from __future__ import annotations

import numpy as np
import pytest

from envs.cluster.nodes import Cluster
from envs.cluster.simulation.incidents import Failures


def test_nodes_alternate_and_the_means_are_those_asked_for() -> None:
    cluster = Cluster.uniform(20, 8)
    incidents = Failures(1000.0, 100.0, 200_000.0, seed=3).incidents(cluster)
    assert (np.diff(incidents["time"]) >= 0).all()
    up, down = [], []
    for node in range(20):
        own = incidents[incidents["node"] == node]
        assert list(own["up"]) == [0, 1] * (len(own) // 2)
        spans = np.diff(own["time"], prepend=0.0)
        up.extend(spans[::2])
        down.extend(spans[1::2])
    assert np.mean(up) == pytest.approx(1000, rel=0.06)
    assert np.mean(down) == pytest.approx(100, rel=0.06)


def test_a_node_does_not_depend_on_the_others() -> None:
    failures = Failures(50.0, 5.0, 1000.0, seed=1)
    few, many = (failures.incidents(Cluster.uniform(n, 1)) for n in (1, 3))
    assert (many[many["node"] == 0] == few).all()
