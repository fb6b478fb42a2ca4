"""Upward ranks worked by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agents.placement.list_scheduling.rank import mean_compute, mean_transfer, upward_rank
from tests.agents.placement.random_problems import cluster, pipeline


def test_upward_ranks_are_the_longest_mean_paths() -> None:
    problem = pipeline([1.0, 2.0], 1, cluster([0, 0], [100.0] * 2), [1, 2])
    rank = upward_rank(problem)
    # forward 1 and 2, backward 4 and 2, on average 3/4 of that; each of three tensors 0.01 s; an
    # update of 0.1 behind a gradient without bytes
    assert rank.max() == pytest.approx(0.75 * (1 + 2 + 4 + 2 + 0.1) + 3 * 0.01)
    assert rank.min() == pytest.approx(0.75 * 0.1)


def test_devices_and_links_that_cannot_serve_do_not_count() -> None:
    problem = pipeline([1.0], 1, cluster([0, 0, 1], [100.0] * 3), [1, 2, 4])
    seconds, transfers = problem.op_seconds.copy(), problem.transfer_seconds.copy()
    assert mean_transfer(problem)[0] == pytest.approx((2 * 0.01 + 4 * 0.05) / 6)
    seconds[:, 2], transfers[:, 2] = np.inf, np.inf
    problem = replace(problem, op_seconds=seconds, transfer_seconds=transfers)
    assert mean_compute(problem)[0] == 0.75
    assert mean_transfer(problem)[0] == pytest.approx(0.01)
