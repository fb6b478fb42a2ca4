"""RLlib's own algorithms get better at `Placement-v0`."""

from __future__ import annotations

import numpy as np
import pytest

from examples.rllib_placement import train


def test_ppo_learns() -> None:
    returns = train("PPO", iterations=8)
    assert np.mean(returns[-2:]) > np.mean(returns[:2]) + 0.1


@pytest.mark.proof
def test_impala_learns() -> None:
    returns = train("IMPALA", iterations=20)
    assert np.mean(returns[-4:]) > np.mean(returns[:4]) + 0.1
