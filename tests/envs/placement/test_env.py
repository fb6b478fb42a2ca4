"""`PlacementEnv` does what its docstring says."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial

import gymnasium as gym
import numpy as np
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from envs.placement.env import PlacementEnv, PlacementReward, toy_environment
from envs.placement.generator import OPTIMUM_S, FixedInstance, RandomStarts, toy_pipeline
from envs.step.step import NO_COMMUNICATION, StepSimulator
from experiments.config.config_source import SHIPPED_CONFIGS
from tests.envs.episodes import play
from tests.refusal import refusal

TOY = toy_pipeline()
SPREAD = [0, 1, 0, 1, 0, 1]


def test_the_toys_optimum_is_the_best_of_all_its_placements() -> None:
    env = toy_environment()
    env.reset(seed=0)
    instance = env.instance
    assert instance.fusion.num_groups == 6
    simulator = StepSimulator(instance.problem)
    times = {
        devices: simulator.step_time(instance.fusion.expand(np.array(devices)))
        for devices in itertools.product(range(3), repeat=6)
        if (np.bincount(devices, minlength=3) <= [4, 4, 2]).all()
    }
    best = min(times, key=lambda devices: times[devices])
    assert times[best] == pytest.approx(OPTIMUM_S)
    last = play(env, best)[-1]
    assert last["step_time_s"] == pytest.approx(OPTIMUM_S)
    assert last["feasible"]


def test_the_worked_example_of_the_docstring() -> None:
    terms = PlacementReward().terms(0.6, 0.5, 0.8, 4 / 16, supported=True)
    assert terms == {
        "step_time_improvement": pytest.approx(0.125),
        "memory_violation": -1.25,
        "unsupported_device": 0.0,
    }
    weighted = PlacementReward({"step_time_improvement": 2.0})
    assert sum(weighted.terms(2.0, 1.0, 4.0, 0.5, supported=False).values()) == 0.5
    with refusal("step_tme"):
        PlacementReward({"step_tme": 1.0})


def test_rewards_telescope_to_the_improvement_over_the_start() -> None:
    infos = play(toy_environment(), SPREAD)
    start, end = infos[0]["step_time_s"], infos[-1]["step_time_s"]
    assert infos[-1]["return"] == pytest.approx((start - end) / start)
    assert infos[1]["reward_step_time_improvement"] == pytest.approx(
        (start - infos[1]["step_time_s"]) / start
    )
    assert [info["placed"] for info in infos] == list(range(7))


def test_an_overfull_device_ends_the_episode_below_every_plan_that_fits() -> None:
    env = toy_environment()
    infos = play(env, [2, 2, 2])
    assert infos[2]["action_mask"].tolist() == [1, 1, 0]
    assert not infos[-1]["feasible"]
    assert infos[-1]["reward_memory_violation"] == pytest.approx(-(1 + 0.5))  # 12 of 8 bytes
    assert infos[-1]["peak_memory_bytes"] == 12
    with pytest.raises(gym.error.ResetNeeded):
        env.step(0)


def test_where_nothing_fits_the_device_with_most_free_memory_is_allowed_and_the_episode_ends() -> (
    None
):
    tight = replace(TOY, capacity=np.array([4.0, 6.0, 5.0]))  # three layers fit, not six
    infos = play(PlacementEnv.of_problem(tight, max_groups=6), [0, 1, 2, 1])
    assert infos[3]["action_mask"].tolist() == [0, 1, 0]
    assert infos[4]["ended"]
    assert not infos[4]["feasible"]
    assert infos[4]["reward_memory_violation"] < -1


def test_a_device_that_cannot_run_a_group_is_masked_and_choosing_it_ends_the_episode() -> None:
    seconds = TOY.op_seconds.copy()
    seconds[TOY.graph.colocation == 1, 2] = np.inf
    env = PlacementEnv.of_problem(replace(TOY, op_seconds=seconds), max_groups=6)
    infos = play(env, [2, 2])
    assert infos[1]["action_mask"].tolist() == [1, 1, 0]
    assert infos[2]["ended"]
    assert np.isfinite(infos[2]["return"])
    assert infos[2]["reward_unsupported_device"] == -1
    assert not infos[2]["feasible"]


def test_activations_beyond_a_capacity_are_found_at_the_end() -> None:
    heavy = replace(TOY.graph, tensor_bytes=np.full(TOY.graph.num_tensors, 100.0))
    env = PlacementEnv.of_problem(replace(TOY, graph=heavy), max_groups=6)
    last = play(env, SPREAD)[-1]
    assert not last["feasible"]
    assert last["peak_memory_bytes"] > 100
    assert last["reward_memory_violation"] < -1


def test_a_second_pass_moves_groups_and_never_finds_its_own_device_full() -> None:
    env = toy_environment(passes=2)
    infos = play(env, [0, 0, 0, 0, 1, 1, 1, 0, 0, 0, 1, 1])
    assert infos[6]["action_mask"].tolist() == [1, 1, 1]  # group 0 stands on the full device 0
    assert infos[-1]["placed"] == 6
    assert infos[-1]["feasible"]
    assert env.group_device.tolist() == [1, 0, 0, 0, 1, 1]
    with pytest.raises(gym.error.ResetNeeded):
        env.step(0)


def test_instances_vary_and_plans_cover_every_operator_without_violations() -> None:
    env, rng, shapes = PlacementEnv(), np.random.default_rng(0), set()
    for seed in range(4):
        observation, _ = env.reset(seed=seed)
        terminated = False
        while not terminated:
            action = rng.choice(np.flatnonzero(observation["action_mask"]))
            observation, _, terminated, _, info = env.step(action)
        assert info["feasible"]
        assert env.placement.violations(env.instance.problem) == []
        shapes.add((env.instance.fusion.num_groups, env.instance.fused.graph.num_operators))
    assert len(shapes) > 1


def test_the_simulator_is_replaceable() -> None:
    free = toy_environment(simulator=partial(StepSimulator, communication=NO_COMMUNICATION))
    seconds = [play(env, [0, 1, 2])[-1]["step_time_s"] for env in (free, toy_environment())]
    assert seconds[0] < seconds[1]


@pytest.mark.parametrize("start", [[0, 0], [0, 0, 0, 0, 0, 3], [0, 0, 0, 0, 0, -1]])
def test_a_start_that_is_no_placement_is_refused(start: list[int]) -> None:
    with refusal(r"options\.start"):
        toy_environment().reset(options={"start": start})


def test_bad_arguments_are_input_errors() -> None:
    with refusal("passes"):
        toy_environment(passes=0)
    with refusal("max_edges"):
        PlacementEnv.of_problem(TOY, max_groups=6, max_edges=1).reset()
    env = toy_environment()
    env.reset()
    for action in (3, 0.5):
        with refusal("action"):
            env.step(action)  # type: ignore[arg-type]
    with refusal("one_problem"):
        PlacementEnv("bert_large")  # type: ignore[arg-type]


def test_the_configs_make_the_environments() -> None:
    chosen = OmegaConf.create(SHIPPED_CONFIGS.node("env/placement"))
    env = instantiate(chosen)(TOY)
    assert isinstance(env, PlacementEnv)
    assert env.observation.layout.max_nodes == chosen.max_groups
    assert env.passes == chosen.passes
    assert play(instantiate(SHIPPED_CONFIGS.node("env/placement_toy")), SPREAD)[-1]["feasible"]


def test_episodes_start_where_they_are_told_or_at_random_where_the_state_fits() -> None:
    env = PlacementEnv(RandomStarts(FixedInstance(TOY, max_groups=6)))
    starts = []
    for seed in (1, 2, 1):
        env.reset(seed=seed)
        starts.append(env.group_device.tolist())
        used = np.bincount(env.group_device, minlength=3) * 4.0
        assert (used <= env.instance.fused.capacity).all()
    assert starts[0] == starts[2] != starts[1]
    observation, info = env.reset(seed=0, options={"start": [0, 0, 1, 1, 2, 2]})
    assert observation["placement"][:6].tolist() == [0, 0, 1, 1, 2, 2]
    assert info["placed"] == 0


def test_the_look_ahead_foretells_every_decision() -> None:
    env = PlacementEnv(RandomStarts(FixedInstance(TOY, max_groups=6)), passes=2)
    rng, ended = np.random.default_rng(3), False
    observation, info = env.reset(seed=5)
    simulator = StepSimulator(env.instance.fused)
    while not ended:
        shown = np.expm1(2.0 * observation["candidate_features"][:, 6]) / 1000.0 + 1.0
        action = int(rng.choice(np.flatnonzero(observation["action_mask"])))
        moved = np.repeat(env.group_device[None], 3, axis=0)
        moved[:, observation["current"][0]] = np.arange(3)
        seconds = [simulator.step_time(env.instance.fusion.expand_pieces(row)) for row in moved]
        most = np.expm1(8.0) / 1000 + 1
        assert np.minimum(np.array(seconds) / min(seconds), most) == pytest.approx(shown, rel=1e-4)
        observation, _, ended, _, info = env.step(action)
        assert info["step_time_s"] == pytest.approx(seconds[action])
