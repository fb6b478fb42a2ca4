"""Starts of an episode, and the look-ahead that every decision offers."""

from __future__ import annotations

import numpy as np
import pytest

from envs.placement.env import PlacementEnv
from envs.placement.generator import FixedInstance, RandomStarts, toy_pipeline
from tests.refusal import refusal


def fixed() -> FixedInstance:
    return FixedInstance(toy_pipeline(), max_groups=6)


def test_an_episode_can_start_from_a_given_placement():
    env = PlacementEnv(fixed())
    start = np.array([0, 0, 1, 1, 2, 2])
    observation, info = env.reset(seed=0, options={"start": start})
    assert observation["placement"][:6].tolist() == start.tolist()
    assert info["placed"] == 0
    assert env.group_device.tolist() == start.tolist()


@pytest.mark.parametrize("start", [[0, 0], [0, 0, 0, 0, 0, 3], [0, 0, 0, 0, 0, -1]])
def test_a_start_that_is_no_placement_is_refused(start):
    with refusal(r"options\.start"):
        PlacementEnv(fixed()).reset(seed=0, options={"start": start})


def test_random_starts_differ_fit_and_follow_the_seed():
    env = PlacementEnv(RandomStarts(fixed()))
    starts = []
    for seed in (1, 2, 1):
        env.reset(seed=seed)
        starts.append(env.group_device.tolist())
        used = np.bincount(env.group_device, minlength=3) * 4.0
        assert (used <= env.instance.fused.capacity).all()
    assert starts[0] == starts[2] != starts[1]


def test_the_look_ahead_foretells_every_decision():
    env = PlacementEnv(RandomStarts(fixed()), passes=2)
    rng = np.random.default_rng(3)
    observation, info = env.reset(seed=5)
    ended = False
    while not ended:
        ahead = observation["candidate_features"][:, 6]
        best = np.expm1(2.0 * ahead) / 1000.0 + 1.0
        action = rng.choice(np.flatnonzero(observation["action_mask"]))
        seconds = {}
        for device in range(3):
            moved = env.group_device
            moved[observation["current"][0]] = device
            pieces = env.instance.fusion.expand_pieces(moved)
            seconds[device] = env._make_simulator(env.instance.fused).step_time(pieces)
        fastest = min(seconds.values())
        for device, value in seconds.items():
            assert min(value / fastest, np.expm1(8.0) / 1000 + 1) == pytest.approx(
                best[device], rel=1e-4
            )
        observation, _, ended, _, info = env.step(action)
        assert info["step_time_s"] == pytest.approx(seconds[int(action)])
