"""Steps whose network is shared, the actions on it, and features that say what their table says."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from envs.bandwidth.env import BandwidthEnv, continuous_toy_environment, toy_environment
from envs.bandwidth.generator import (
    SERIAL,
    TOGETHER,
    FixedCut,
    SyntheticSteps,
    default_generator,
)
from envs.bandwidth.types import (
    BandwidthBounds,
    BandwidthObservation,
    ContinuousWeights,
    PassBoundaries,
    WeightLevels,
)
from envs.cost import RooflineCost
from envs.graphs.op_graph import Phase
from envs.hardware.builders import single_server
from envs.hardware.servers import PcieServer
from envs.placement.generator import PCIE, toy_pipeline
from envs.step.order import OneFOneB
from envs.step.phased import PhasedSimulator
from envs.step.plans import Placement, Plan
from tests.envs.bandwidth.actions import weights_of
from tests.refusal import refusal

U = 54.0  # seconds with uniform shares


def test_levels_are_equal_factors_from_the_smallest_weight_to_the_largest() -> None:
    weights = WeightLevels(levels=21, octaves=5.0).weights(np.arange(21))
    assert weights[0] == pytest.approx(1 / 32)
    assert weights[10] == 1.0
    assert weights[-1] == pytest.approx(32)
    assert_allclose(weights[1:] / weights[:-1], np.sqrt(2))


def test_the_two_kinds_of_action_agree() -> None:
    levels, continuous = WeightLevels(levels=5, octaves=2.0), ContinuousWeights(octaves=2.0)
    assert_allclose(levels.weights(np.arange(5)), continuous.weights(np.linspace(-1, 1, 5)))


def test_a_channel_whose_weight_does_not_count_has_level_0_alone() -> None:
    mask = WeightLevels(levels=3).masks(np.array([True, False]))["action_mask"]
    assert mask.tolist() == [[1, 1, 1], [1, 0, 0]]
    assert ContinuousWeights().masks(np.array([True])) == {}


def test_bad_weights_are_input_errors() -> None:
    with refusal("levels"):
        WeightLevels(levels=1)
    for octaves in (0.0, np.inf):
        with refusal("octaves"):
            ContinuousWeights(octaves=octaves)
    for action in ([0, 21], [-1, 0], [0.0, 3.5], [0.0, np.nan]):
        with refusal("level outside"):
            WeightLevels().weights(np.array(action))
    with refusal("outside -1"):
        ContinuousWeights().weights(np.array([0.0, np.nan]))


@pytest.mark.parametrize("seed", range(4))
def test_drawn_plans_use_all_devices_and_their_traffic_is_what_the_simulators_move(
    seed: int,
) -> None:
    generator = default_generator()
    instance = generator(np.random.default_rng(seed))
    plan, topology = instance.plan, instance.problem.topology
    device = plan.placement.device
    assert plan.violations(instance.problem) == []
    assert set(device) == set(range(4))
    assert instance.num_phases <= generator.bounds.phases
    assert (np.diff(instance.begins) > 0).all()
    other = generator(np.random.default_rng(seed + 1)).plan.placement.device
    assert device.tolist() != other.tolist()
    timeline, servers, server = instance.uniform, topology.num_servers, topology.server
    source, target = timeline.transfer_source, timeline.transfer_destination
    pipe = (server[source] * servers + server[target])[timeline.transfer_finish > 0]
    moved = np.bincount(pipe, minlength=servers * servers)
    moved[:: servers + 1] = 0  # inside a server
    assert_array_equal(instance.traffic.count.sum(axis=0), moved)
    step = PhasedSimulator(instance.problem).begin(device, plan.order, instance.begins)
    volume = step.traffic.reshape(instance.num_phases, -1)
    assert_allclose(instance.traffic.volume, volume, rtol=1e-9)


def test_what_cannot_be_shared_is_refused() -> None:
    lonely = single_server("one", PcieServer("V100-16GB", 2, PCIE))
    with refusal("no network to share"):
        SyntheticSteps(lonely, RooflineCost(), FixedCut((0,)))
    with refusal("max_groups"):
        SyntheticSteps(default_generator().topology, RooflineCost(), FixedCut((0,)), max_groups=3)


def test_the_toys_traffic_is_its_sends() -> None:
    env = toy_environment()
    env.reset(seed=0)
    instance = env.instance
    assert instance.begins.tolist() == [0, 6]
    assert instance.traffic.volume[:, 1:4].tolist() == [list(SERIAL), list(TOGETHER)]
    assert instance.traffic.count[:, 1:4].tolist() == [[1, 1, 1], [1, 1, 1]]
    assert not instance.traffic.volume[:, [0, *range(4, 16)]].any()


def test_an_order_is_cut_into_filling_steady_state_draining_and_update_where_it_has_them() -> None:
    problem = toy_pipeline()  # six layers over three devices, three micro-batches, 1F1B
    device = np.repeat([0, 1, 2], 2)[problem.graph.colocation].astype(np.int64)
    plan = Plan(Placement(device), OneFOneB()(problem.graph, device))
    begins = PassBoundaries()(problem, plan)
    assert len(begins) == PassBoundaries().most == 4
    filling, steady, draining, update = np.split(problem.graph.phase[plan.order], begins[1:])
    assert (filling == Phase.FORWARD).all()
    assert (steady[0], steady[-1]) == (Phase.BACKWARD, Phase.FORWARD)
    assert (draining == Phase.BACKWARD).all()
    assert update[0] == Phase.OPTIMIZER
    assert (update != Phase.FORWARD).all()
    forward = np.full_like(problem.graph.phase, Phase.FORWARD)
    inference = replace(problem, graph=replace(problem.graph, phase=forward))
    assert PassBoundaries()(inference, plan).tolist() == [0]


@pytest.fixture
def env() -> BandwidthEnv:
    return continuous_toy_environment()


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
    second, *_ = env.step(weights_of(1, 2, 3))
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
    observation, *_ = env.step(weights_of(1, 2, 3))
    expected = [1 / 2, 1 / 2, 36 / U, 42 / U, 12 / U, 6 / 12, 0, 7 / 21, 7 / U]
    assert_allclose(observation["phase_features"], expected, rtol=1e-6)
    assert observation["link_features"][5, 2] == pytest.approx(1 / 6)


def test_the_end_has_no_traffic(env: BandwidthEnv) -> None:
    env.reset(seed=0)
    env.step(weights_of(1, 2, 3))
    observation, *_ = env.step(weights_of(1, 2, 4))
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
    env = BandwidthEnv(actions=ContinuousWeights())
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
