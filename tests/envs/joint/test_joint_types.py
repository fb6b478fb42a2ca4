"""The features say what their table says."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from envs.joint.env import PLACER, JointEnv, toy_environment
from envs.joint.piped import off_diagonal

T = 41.0  # seconds of the start: layers on 0 0 1 1 2, equal weights
START = {"start": [0, 0, 1, 1, 2]}
LEVELS = [[0, 1, -1], [1, 0, 0], [0, 0, 0]]
KEEP = {f"allocator_{s}": 0 for s in range(3)} | {PLACER: 0}
Observations = dict[str, dict[str, np.ndarray[Any, Any]]]


@pytest.fixture
def env() -> JointEnv:
    return toy_environment(octaves=1, levels_per_octave=1)


@pytest.fixture
def start(env: JointEnv) -> Observations:
    return env.reset(seed=0, options=START)[0]


def test_an_allocator_sees_the_traffic_of_its_pipes(start: Observations) -> None:
    """Server 0 sends 2 x 1 byte to 1, 2 x 6 to 2; 1 sends 2 x 1 to each other; 2 2 x 1 to 1."""
    expected = [[0, 0], [1 / 2] * 2, [1 / 2] * 2, [4 / T, 24 / T], [2 / T, 12 / T], [1, 1],
                [2 / 14, 12 / 14], [2 / 4, 12 / 14]]  # fmt: skip
    assert_allclose(start["allocator_0"]["pipe_features"][:, :8].T, expected, rtol=1e-6)


def test_the_look_ahead_is_what_changes_do(env: JointEnv, start: Observations) -> None:
    pipes = start["allocator_0"]["pipe_features"]
    for action in range(1, 5):
        env.reset(seed=0, options=START)
        *_, infos = env.step(KEEP | {"allocator_0": action})
        change = infos[PLACER]["step_time_s"] / T - 1
        shown = np.sign(change) * np.log1p(1000 * abs(change)) / 2
        lower, index = divmod(action - 1, 2)
        assert pipes[index, 8 + lower] == pytest.approx(shown, rel=1e-4, abs=1e-4)
    gain = np.minimum(pipes[:, 8], pipes[:, 9])
    assert gain.min() < 0
    assert_array_equal(pipes[:, 10], gain == gain.min())


def test_levels_and_rates_are_shown(env: JointEnv) -> None:
    seen, _ = env.reset(seed=0, options={**START, "levels": LEVELS})
    rate = env.allocation.pipes(env.instance.problem.topology.network)
    tables = [seen[f"allocator_{server}"] for server in range(3)]
    pipes = np.array([table["pipe_features"] for table in tables])
    assert_allclose(pipes[:, :, 0], off_diagonal(np.array(LEVELS)), rtol=1e-6)
    assert_allclose(pipes[:, :, 1], off_diagonal(rate), rtol=1e-6)
    assert [table["server_features"][7] for table in tables] == pytest.approx(rate.sum(axis=1))
    assert pipes[0, 0, 8] == pipes[0, 1, 9] == 4  # no such level


def test_an_allocator_sees_its_server(env: JointEnv, start: Observations) -> None:
    sent, received = np.array([14, 4, 2]) / 20, np.array([2, 4, 14]) / 20
    compute = np.array([2, 2, 1]) * (2 * 3 + 0.5)
    for server in range(3):
        expected = [0, 0, 1, compute[server] / T, sent[server], received[server], server == 0, 1]
        assert_allclose(start[f"allocator_{server}"]["server_features"], expected, rtol=1e-6)
    after, *_ = env.step(KEEP)
    assert after["allocator_0"]["server_features"][:2].tolist() == pytest.approx([0.2, 0.2])


def test_the_placers_links_follow_the_rates(env: JointEnv) -> None:
    seen, _ = env.reset(seed=0, options={"levels": LEVELS})
    rate = off_diagonal(env.allocation.pipes(env.instance.problem.topology.network))
    links = seen[PLACER]["link_features"][:, :, 1]
    assert_allclose(off_diagonal(links), rate.min() / rate, rtol=1e-6)
    assert not links.diagonal().any()
