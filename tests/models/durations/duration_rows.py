"""Made-up rows of what is known of how long jobs take."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.cluster.environment.duration_features import MEANS_WIDTH, NEAR_WIDTH, OWN_WIDTH, width
from models.durations.index import GittinsPriority
from models.durations.network import DurationConfig, DurationPosterior

SMALL = DurationConfig(
    history=2, hidden=8, readout=16, heads=2, dropout=0.0, stretch=2.0, epochs=2, batch=64,
    learning_rate=1e-2, weight_decay=0.0,
)  # fmt: skip


def feature(seconds: NDArray[np.float64] | float) -> NDArray[np.float64] | float:
    """What a column has for a time."""
    return np.log1p(seconds / 60.0) / 4.0


def seconds(feature: float) -> float:
    return 60.0 * np.expm1(4.0 * float(feature))


def near_of(rows: Any) -> Any:
    """(A, 2 K, 4) neighbours in rows, the same memory."""
    return rows[:, OWN_WIDTH + MEANS_WIDTH :].reshape(len(rows), -1, NEAR_WIDTH)


def random_rows(seed: int, count: int, history: int) -> NDArray[np.float32]:
    """Any values; a part of the neighbours is absent, some jobs have none."""
    rng = np.random.default_rng(seed)
    rows = rng.uniform(0.0, 2.5, (count, width(history))).astype(np.float32)
    near = near_of(rows)
    near[:, :, (0, 2)] = rng.random((count, 2 * history, 2)) < 0.6
    near[rng.random(count) < 0.2] = 0.0
    near *= near[:, :, :1] > 0.0
    return rows


def like_their_neighbours(
    seed: int, count: int, history: int
) -> tuple[NDArray[np.float32], NDArray[np.float64]]:
    """New jobs whose neighbours have finished and took as long as they will, and that work."""
    rng = np.random.default_rng(seed)
    work = np.exp(rng.uniform(np.log(60.0), np.log(600_000.0), count))
    rows = np.zeros((count, width(history)), np.float32)
    near = near_of(rows)
    near[:, :, 0] = near[:, :, 2] = 1.0
    near[:, :, 1] = feature(work)[:, None]
    return rows, work


def priority_of(posterior: DurationPosterior) -> GittinsPriority:
    """The same in numpy."""
    state = posterior.state_dict()
    return GittinsPriority({name: tensor.detach().numpy() for name, tensor in state.items()})
