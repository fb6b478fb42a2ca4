"""The baseline of environments with the same jobs, against a plain loop."""

from __future__ import annotations

import numpy as np
import pytest

from agents.rllib.cluster.shared_jobs import without_shared


def plain(
    gains: np.ndarray, now: np.ndarray, episode: np.ndarray, alike: int, schedulers: int
) -> np.ndarray:
    found = gains.copy()
    steps, columns = gains.shape
    for column in range(columns):
        group, scheduler = column // (alike * schedulers), column % schedulers
        for t in range(steps):
            levels = []
            for k in range(alike):
                other = (group * alike + k) * schedulers + scheduler
                if other == column:
                    continue
                theirs = [u for u in range(steps) if episode[u, other] == episode[t, column]]
                before = [u for u in theirs if now[u, other] <= now[t, column]]
                if before and any(now[u, other] >= now[t, column] for u in theirs):
                    levels.append(gains[before[-1], other])
            if levels:
                found[t, column] -= np.mean(levels)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_mean_of_the_others_at_the_same_time(seed: int) -> None:
    rng = np.random.default_rng(seed)
    steps, alike, schedulers, groups = 14, 3, 2, 2
    envs = alike * groups
    episode = 1 + np.cumsum(rng.random((steps, envs)) < 0.15, axis=0)
    now = np.zeros((steps, envs))
    for env in range(envs):
        for t in range(1, steps):
            fresh = episode[t, env] != episode[t - 1, env]
            now[t, env] = 0.0 if fresh else now[t - 1, env] + rng.integers(0, 4)
    wide = [np.repeat(array, schedulers, axis=1) for array in (now, episode)]
    gains = rng.normal(size=wide[0].shape)
    found = without_shared(gains, *wide, rows=alike * schedulers, alike=alike)
    np.testing.assert_allclose(found, plain(gains, *wide, alike, schedulers), rtol=1e-12)
    assert not np.allclose(found, gains)


def test_what_befalls_all_alike_is_taken_away() -> None:
    rng = np.random.default_rng(0)
    now = np.repeat(np.arange(10.0)[:, None], 4, axis=1)
    episode = np.ones((10, 4), np.int64)
    common = np.repeat(rng.normal(size=(10, 1)), 4, axis=1)
    found = without_shared(common, now, episode, rows=4, alike=4)
    np.testing.assert_allclose(found, 0.0, atol=1e-12)
