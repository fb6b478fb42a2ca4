"""Where groups may go, what devices hold, and what is seen of it."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from envs.joint.generator import toy_stages
from envs.placement.env import PlacementEnv, toy_environment
from envs.placement.generator import FAR_S, NEAR_S, toy_pipeline
from envs.placement.types import FastestDevice, GroupPlacement
from envs.spaces import PaddedGraph
from envs.step.fusion import fuse, fused_problem
from envs.step.problem import StepProblem
from tests.refusal import refusal

START = [0, 0, 1, 1, 2]  # devices hold two layers each
STAGES, PIPELINE = toy_stages(), toy_pipeline()
LAYER_S = 3 * (1.0 + 2.0) + 0.5  # a layer's compute seconds at speed 1
MEAN_S = LAYER_S * (1 + 1 + 2) / 3  # on the mean device


def groups_of(problem: StepProblem, *devices: int) -> GroupPlacement:
    """Each group decided in its turn."""
    fusion = fuse(problem, 5)
    groups = GroupPlacement(fused_problem(problem, fusion), fusion)
    groups.start(START)
    for device in devices:
        groups.place(device)
        groups.look((groups.current + 1) % 5)
    return groups


def test_a_full_device_is_masked_until_it_has_room() -> None:
    for devices, used, mask in (
        ((), [0, 0, 0], [1, 1, 1]),
        ((2, 2), [0, 0, 8], [1, 1, 0]),
        ((2, 2, 0, 0, 1), [8, 4, 8], [0, 1, 1]),  # device 2 is full of group 0 itself
        ((2, 2, 0, 0, 1, 1), [8, 8, 4], [0, 0, 1]),
    ):
        groups = groups_of(STAGES, *devices)
        assert (groups.used.tolist(), groups.mask.tolist()) == (used, mask)
        assert groups.current == len(devices) % 5


def test_a_group_stays_where_no_other_device_can_run_it() -> None:
    seconds = STAGES.op_seconds.copy()
    seconds[STAGES.graph.colocation == 0, 1:] = np.inf
    groups = groups_of(replace(STAGES, op_seconds=seconds))
    assert groups.mask.tolist() == [True, False, False]
    devices, variants = groups.variants()
    assert devices.tolist() == [0]
    assert_array_equal(variants[0], groups.pieces)
    groups.place(1)
    assert groups.device.tolist() == START
    assert not groups.placed.any()
    with refusal("cannot run"):
        groups.start([1, 0, 1, 1, 2])


def test_variants_move_the_current_group_alone() -> None:
    groups = groups_of(STAGES, 0)
    devices, variants = groups.variants()
    assert devices.tolist() == [0, 1, 2]
    own = groups.fusion.piece_group == 1
    for device, pieces in zip(devices, variants, strict=True):
        assert_array_equal(pieces, np.where(own, device, groups.pieces))


def test_compute_seconds_are_those_of_the_layers() -> None:
    layer = 2 * (1.0 + 2.0) + 0.5
    assert groups_of(STAGES).compute_seconds().tolist() == [2 * layer, 2 * layer, layer]


@pytest.mark.parametrize(
    ("capacity", "device"),
    [
        ((23, 24, 99), [1] * 6),  # the fastest that holds everything
        ((23, 23, 99), [2] * 6),
        ((16, 16, 8), [0, 0, 0, 0, 1, 1]),  # filled front to back
        ((4, 6, 3), [0, 1, 2, 1]),  # then where most room is left
    ],
)
def test_undecided_groups_stand_on_the_fastest_device_that_has_room(
    capacity: tuple[float, ...], device: list[int]
) -> None:
    problem, fusion = replace(PIPELINE, capacity=np.array(capacity, float)), fuse(PIPELINE, 6)
    found = FastestDevice()(fused_problem(problem, fusion), fusion)
    assert found.tolist()[: len(device)] == device


def test_a_group_that_no_device_can_run_is_an_input_error() -> None:
    seconds, fusion = PIPELINE.op_seconds.copy(), fuse(PIPELINE, 6)
    seconds[0] = np.inf
    with refusal("group 0"):
        FastestDevice()(fused_problem(replace(PIPELINE, op_seconds=seconds), fusion), fusion)


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
    per_device = after(env, 2, 2)["node_device_features"]  # device 2 is full
    assert_allclose(per_device[0, :, 0] * MEAN_S, LAYER_S * np.array([1, 1, 2]), 1e-6)
    assert per_device[:, :, 1].tolist() == [[1, 1, 1]] * 2 + [[1, 1, 0]] * 4


def test_devices_show_speed_memory_load_and_traffic(env: PlacementEnv) -> None:
    start = env.reset(seed=0)[1]["step_time_s"]
    devices = after(env, 0, 2)["device_features"]
    assert env.group_device.tolist() == [0, 2, 0, 0, 1, 1]  # the last four by completion
    far, near, layers = 3 * FAR_S / start, 3 * NEAR_S / start, LAYER_S / start
    passing = [2 * far + near, near, 2 * far]
    expected = [
        [1, 1, 0.5], [1, 1, 0.5], [0.75, 1, 0.5],
        [3 * layers, 2 * layers, 2 * layers], [layers, 0, 2 * layers],
        passing, passing, [1, 1, 0],
    ]  # fmt: skip
    assert_allclose(devices.T, expected, rtol=1e-6)


def test_candidates_show_what_each_device_would_mean(env: PlacementEnv) -> None:
    start = env.reset(seed=0)[1]["step_time_s"]
    seen = after(env, 1)  # group 1 between group 0 on 1 and group 2 on 0, itself on 0
    there_and_back = 2 * 3 / MEAN_S
    expected = [
        [LAYER_S / MEAN_S, LAYER_S / MEAN_S, 2 * LAYER_S / MEAN_S],
        [there_and_back * NEAR_S, there_and_back * NEAR_S, there_and_back * 2 * FAR_S],
        [0.5, 0.5, 0.0], [1, 0, 0], [1, 1, 1],
        [3 * LAYER_S / start, 4 * LAYER_S / start, 2 * LAYER_S / start],
    ]  # fmt: skip
    assert_allclose(seen["candidate_features"][:, :6].T, expected, rtol=1e-6)


def test_links_show_latency_seconds_and_servers(env: PlacementEnv) -> None:
    links = after(env, 0)["link_features"]
    assert_allclose(links[0, :, :2].T, [[0, NEAR_S / FAR_S, 1]] * 2)
    assert links[:, :, 2].tolist() == [[1, 1, 0], [1, 1, 0], [0, 0, 1]]


def test_padding_is_empty_and_points_at_the_sink() -> None:
    seen, _ = PlacementEnv.of_problem(PIPELINE, max_groups=9, max_edges=20).reset(seed=0)
    assert seen["node_mask"].tolist() == [1] * 6 + [0] * 3
    assert seen["edge_mask"].sum() == 10
    assert (seen["edge_index"][:, 10:] == 9).all()
    for key in ("node_features", "node_device_features", "placement", "placed"):
        assert not seen[key][6:].any(), key
