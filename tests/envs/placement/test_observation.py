"""The features say what their table says."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.testing import assert_allclose

from envs.placement.env import PlacementEnv, toy_environment
from envs.placement.generator import FAR_S, NEAR_S, toy_pipeline
from envs.spaces import PaddedGraph

LAYER_S = 3 * (1.0 + 2.0) + 0.5  # a layer's compute seconds at speed 1
MEAN_S = LAYER_S * (1 + 1 + 2) / 3  # on the mean device
EDGE_S = 3 * NEAR_S  # three tensors between neighbours, each way


@pytest.fixture
def env() -> PlacementEnv:
    made = toy_environment()
    made.reset(seed=0)
    return made


def after(env: PlacementEnv, *actions: int) -> PaddedGraph:
    for action in actions:
        observation, *_ = env.step(action)
    return observation


def test_nodes_are_the_layers_and_edges_go_both_ways(env: PlacementEnv) -> None:
    seen = after(env, 0)
    nodes = seen["node_features"]
    assert_allclose(nodes[:, 0], 3 * 1.0 * (4 / 3) / MEAN_S, rtol=1e-6)
    assert_allclose(nodes[:, :3].sum(axis=1), 1.0, rtol=1e-6)
    assert_allclose(nodes[:, 3], 1.0)
    assert_allclose(nodes[:, 4], 6 * 4 / 40, rtol=1e-6)
    assert_allclose(nodes[:, 8], np.arange(6) / 5, rtol=1e-6)
    assert nodes[:, 9].tolist() == [0] * 6
    assert nodes[:, 10].tolist() == [1, 0, 0, 0, 0, 0]
    assert nodes[:, 11].tolist() == [0, 1, 0, 0, 0, 0]
    pairs = set(zip(*seen["edge_index"].tolist(), strict=True))
    assert pairs == {(i, i + 1) for i in range(5)} | {(i + 1, i) for i in range(5)}
    assert seen["edge_mask"].all()
    assert_allclose(seen["edge_features"][:, 0], 1.0, rtol=1e-6)


def test_groups_on_devices_show_seconds_and_room(env: PlacementEnv) -> None:
    seen = after(env, 2, 2)  # device 2 is full
    per_device = seen["node_device_features"]
    assert_allclose(per_device[0, :, 0] * MEAN_S, LAYER_S * np.array([1, 1, 2]), 1e-6)
    assert per_device[:, 2, 1].tolist() == [1, 1, 0, 0, 0, 0]
    assert per_device[:, :2, 1].all()


def test_devices_show_speed_memory_load_and_traffic(env: PlacementEnv) -> None:
    start = env.reset(seed=0)[1]["step_time_s"]
    seen = after(env, 0, 2)  # then: 0, 2, 0, 0, 1, 1 by completion
    devices = seen["device_features"]
    assert env.group_device.tolist() == [0, 2, 0, 0, 1, 1]
    assert_allclose(devices[:, 0], [1, 1, 0.5])
    assert_allclose(devices[:, 1], [1, 1, 0.5])
    assert_allclose(devices[:, 2], [0.75, 1, 0.5])
    assert_allclose(devices[:, 3] * start, LAYER_S * np.array([3, 2, 2]), rtol=1e-6)
    assert_allclose(devices[:, 4] * start, LAYER_S * np.array([1, 0, 2]), rtol=1e-6)
    far, near = 3 * FAR_S, 3 * NEAR_S
    assert_allclose(devices[:, 5] * start, [2 * far + near, near, 2 * far], rtol=1e-6)
    assert_allclose(devices[:, 6], devices[:, 5])
    assert devices[:, 7].tolist() == [1, 1, 0]


def test_candidates_show_what_each_device_would_mean(env: PlacementEnv) -> None:
    start = env.reset(seed=0)[1]["step_time_s"]
    seen = after(env, 1)  # group 1 between group 0 on 1 and group 2 on 0, itself on 0
    candidates = seen["candidate_features"]
    assert_allclose(candidates[:, 0] * MEAN_S, LAYER_S * np.array([1, 1, 2]), rtol=1e-6)
    both_ways = 2 * 3
    assert_allclose(
        candidates[:, 1] * MEAN_S, both_ways * np.array([NEAR_S, NEAR_S, 2 * FAR_S]), rtol=1e-6
    )
    assert_allclose(candidates[:, 2], [0.5, 0.5, 0.0])
    assert candidates[:, 3].tolist() == [1, 0, 0]
    assert candidates[:, 4].tolist() == [1, 1, 1]
    assert_allclose(candidates[:, 5] * start, LAYER_S * np.array([3, 4, 2]), rtol=1e-6)


def test_links_show_latency_seconds_and_servers(env: PlacementEnv) -> None:
    links = after(env, 0)["link_features"]
    assert_allclose(links[0, :, 0], [0, NEAR_S / FAR_S, 1])
    assert_allclose(links[0, :, 1], [0, NEAR_S / FAR_S, 1])
    assert links[:, :, 2].tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]


def test_padding_is_empty_and_points_at_the_sink() -> None:
    env = PlacementEnv.of_problem(toy_pipeline(), max_groups=9, max_edges=20)
    seen, _ = env.reset(seed=0)
    assert seen["node_mask"].tolist() == [1] * 6 + [0] * 3
    assert seen["edge_mask"].sum() == 10
    assert (seen["edge_index"][:, 10:] == 9).all()
    for key in ("node_features", "node_device_features", "placement", "placed"):
        assert not seen[key][6:].any(), key
