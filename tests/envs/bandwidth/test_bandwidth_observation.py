"""The features say what their table says."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from envs.bandwidth.env import BandwidthEnv, continuous_environment, continuous_toy_environment
from envs.bandwidth.types import BandwidthBounds, BandwidthObservation
from tests.refusal import refusal

U = 54.0  # seconds with uniform shares
Observation = dict[str, np.ndarray[Any, Any]]


@pytest.fixture
def env() -> BandwidthEnv:
    return continuous_toy_environment()


def proportions(*share: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    action = np.zeros(12)
    action[:3] = np.log2(np.array(share) / max(share)) / 5.0
    return action


def test_channels_see_the_traffic_of_their_pipe(env: BandwidthEnv) -> None:
    observation, _ = env.reset(seed=0)
    own = observation["channel_features"][:3]
    volume, later = np.array([1.0, 4.0, 9.0]), np.array([1.0, 2.0, 4.0])
    assert_allclose(own[:, :4], [[1 / 3, 1 / 3, 1, 1]] * 3, rtol=1e-6)
    assert_allclose(own[:, 4], volume * 3 / U, rtol=1e-6)
    assert_allclose(own[:, 5], (volume + later) * 3 / U, rtol=1e-6)
    assert own[:, 6].tolist() == [0, 0, 0]
    assert_allclose(own[:, 7], volume / 9, rtol=1e-6)
    assert_allclose(own[:, 8], np.log(volume / 9) / np.log(1024), rtol=1e-5)
    assert own[:, 9].tolist() == [1, 1, 1]
    assert_allclose(own[:, 10], [0, 3 / 42, 15 / 42], rtol=1e-6)
    assert_allclose(own[:, 11], [3 / 42, 15 / 42, 1], rtol=1e-6)
    assert_allclose(own[:, 12], volume * 3 / 42, rtol=1e-6)
    assert own[:, 13].tolist() == [1, 1, 1]
    others = observation["channel_features"][3:]
    assert (others[:, 8] == -1).all()
    assert not others[:, [4, 5, 6, 7, 9, 10, 11, 12, 13]].any()


def test_serial_and_concurrent_sends_look_different(env: BandwidthEnv) -> None:
    first, _ = env.reset(seed=0)
    second, *_ = env.step(proportions(1, 2, 3))
    own = second["channel_features"][:3]
    assert_allclose(own[:, 0], [1 / 6, 2 / 6, 3 / 6], rtol=1e-6)
    assert own[:, 10].tolist() == [0, 0, 0]
    assert_allclose(own[:, 11], [3 / 12, 6 / 12, 1], rtol=1e-6)
    assert (first["channel_features"][:3, 10] > 0).any()


def test_the_phase_and_its_links(env: BandwidthEnv) -> None:
    observation, _ = env.reset(seed=0)
    expected = [0, 1 / 2, 0, 0, 42 / U, 0, 0, 14 / 21, 42 / 3 / U]
    assert_allclose(observation["phase_features"], expected, rtol=1e-6)
    sender, receiver = observation["link_features"][[0, 5]]  # server 0 sends, server 1 receives
    assert_allclose(sender, [1, 1 / 3, 1, 14 / U, 21 / U], rtol=1e-6)
    assert_allclose(receiver, [1, 1 / 3, 1, 1 / U, 2 / U], rtol=1e-6)
    observation, *_ = env.step(proportions(1, 2, 3))
    expected = [1 / 2, 1 / 2, 36 / U, 42 / U, 12 / U, 6 / 12, 0, 7 / 21, 7 / U]
    assert_allclose(observation["phase_features"], expected, rtol=1e-6)
    assert observation["link_features"][5, 2] == pytest.approx(1 / 6)


def test_the_end_has_no_traffic(env: BandwidthEnv) -> None:
    env.reset(seed=0)
    env.step(proportions(1, 2, 3))
    observation, *_ = env.step(proportions(1, 2, 4))
    assert not observation["channel_features"][:, [4, 5, 6, 7, 9, 10, 11, 12, 13]].any()
    expected = [1, 1 / 2, 43 / U, 1, 0, 1, 0, 0, 0]
    assert_allclose(observation["phase_features"], expected, rtol=1e-6)


def test_incidence_is_the_networks(env: BandwidthEnv) -> None:
    observation, _ = env.reset(seed=0)
    network = env.instance.problem.topology.network
    matrix = np.zeros((network.num_links, network.num_channels))
    matrix[observation["incidence"][1], observation["incidence"][0]] = 1
    assert_array_equal(matrix, network.incidence)
    assert_array_equal(
        observation["channel_ends"], [network.channel_source, network.channel_destination]
    )


def test_larger_bounds_are_padded_and_smaller_ones_refused(env: BandwidthEnv) -> None:
    bounds = BandwidthBounds(channels=15, links=10, incidences=30, servers=6, phases=3)
    padded = continuous_toy_environment(observation=BandwidthObservation(bounds))
    plain, _ = env.reset(seed=0)
    seen, _ = padded.reset(seed=0)
    assert padded.action_space.shape == (15,)
    assert seen["channel_mask"].tolist() == [1] * 12 + [0] * 3
    assert (seen["channel_ends"][:, 12:] == 6).all()
    assert (seen["incidence"][:, 24:] == [[15], [10]]).all()
    assert not seen["channel_features"][12:].any()
    assert_array_equal(seen["channel_features"][:12], plain["channel_features"])
    for field in ("channels", "links", "incidences", "servers", "phases"):
        small = replace(bounds, **{field: 1})
        with refusal("needed") as refused:
            continuous_toy_environment(observation=BandwidthObservation(small)).reset()
        assert refused.value.field == field
        with refusal("below 1"):
            replace(bounds, **{field: 0})


def test_what_waits_is_what_has_not_been_carried() -> None:
    env = continuous_environment()
    env.action_space.seed(0)
    waited = 0.0
    for seed in range(6):
        observation, _ = env.reset(seed=seed)
        ended = False
        while not ended:
            observation, _, ended, _, _ = env.step(env.action_space.sample())
            features = observation["channel_features"]
            assert (features[:, 6] <= features[:, 4] + 1e-6).all()
            assert (features[:, 4] <= features[:, 5] + 1e-6).all()
            assert_array_equal(observation["active"] > 0, features[:, 5] > 0)
            waited += float(features[:, 6].sum())
        assert not features[:, 5].any()
    assert waited > 0
