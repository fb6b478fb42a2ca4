"""RLlib's own algorithms get better at `ClusterParallel-v0`."""

from __future__ import annotations

import numpy as np
import pytest

from examples.rllib_cluster import train

pytestmark = pytest.mark.proof


def gain(returns: list[float]) -> float:
    """Of the last third over the first three iterations."""
    return float(np.mean(returns[-(len(returns) // 3) :]) - np.mean(returns[:3]))


def test_ppo_learns_a_policy_for_all_schedulers() -> None:
    assert gain(train("PPO", iterations=10)) > 0.5


def test_ppo_learns_a_policy_for_each_scheduler() -> None:
    assert gain(train("PPO", "separate")) > 0.5


def test_impala_learns() -> None:
    assert gain(train("IMPALA", iterations=30)) > 0.5
