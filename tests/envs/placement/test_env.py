"""`PlacementEnv` does what its docstring says."""

from __future__ import annotations

import itertools
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hydra.utils import instantiate
from omegaconf import OmegaConf

from envs.placement.env import PlacementEnv, toy_environment
from envs.placement.generator import OPTIMUM_S, toy_pipeline
from envs.placement.types import PlacementInstance
from envs.step.step import NO_COMMUNICATION, StepSimulator
from experiments.config.config_source import SHIPPED_CONFIGS
from tests.refusal import refusal


def play(env: PlacementEnv, actions: list[int]) -> list[dict[str, Any]]:
    """Infos of one episode; the last has the sum of rewards as `return`."""
    _, first = env.reset(seed=0)
    infos, total = [first], 0.0
    for action in actions:
        _, reward, _, truncated, info = env.step(action)
        assert not truncated
        total += reward
        infos.append(info)
    infos[-1]["return"] = total
    return infos


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
    last = play(env, list(best))[-1]
    assert last["step_time_s"] == pytest.approx(OPTIMUM_S)
    assert last["feasible"]


def test_the_toys_fused_pieces_take_as_long_as_its_operators() -> None:
    env = toy_environment()
    env.reset(seed=0)
    whole, rng = StepSimulator(env.instance.problem), np.random.default_rng(0)
    for _ in range(20):
        devices = rng.integers(0, 3, 6)
        expanded = env.instance.fusion.expand(devices)
        pieces = env.instance.fusion.expand_pieces(devices)
        assert StepSimulator(env.instance.fused).step_time(pieces) == pytest.approx(
            whole.step_time(expanded)
        )


def test_rewards_telescope_to_the_improvement_over_the_start() -> None:
    infos = play(toy_environment(), [0, 1, 0, 1, 0, 1])
    start, end = infos[0]["step_time_s"], infos[-1]["step_time_s"]
    assert infos[-1]["return"] == pytest.approx((start - end) / start)
    assert infos[1]["reward_step_time_improvement"] == pytest.approx(
        (start - infos[1]["step_time_s"]) / start
    )
    assert [info["placed"] for info in infos] == list(range(7))


def test_a_full_device_is_masked() -> None:
    env = toy_environment()
    infos = play(env, [2, 2, 0, 0, 0])
    assert [info["action_mask"].tolist() for info in infos] == [
        [1, 1, 1],
        [1, 1, 1],
        [1, 1, 0],
        [1, 1, 0],
        [1, 1, 0],
        [1, 1, 0],
    ]


def test_an_overfull_device_ends_the_episode_below_every_plan_that_fits() -> None:
    env = toy_environment()
    infos = play(env, [2, 2, 2])
    assert not infos[-1]["feasible"]
    assert infos[-1]["reward_memory_violation"] == pytest.approx(-(1 + 0.5))  # 12 of 8 bytes
    assert infos[-1]["peak_memory_bytes"] == 12
    with pytest.raises(gym.error.ResetNeeded):
        env.step(0)


def test_where_nothing_fits_the_device_with_most_free_memory_is_allowed_and_the_episode_ends() -> (
    None
):
    problem = toy_pipeline()
    tight = replace(problem, capacity=np.array([4.0, 6.0, 5.0]))  # three layers fit, not six
    env = PlacementEnv.of_problem(tight, max_groups=6)
    env.reset(seed=0)
    for device in (0, 1, 2):
        observation, _, terminated, _, _ = env.step(device)
        assert not terminated
    assert observation["action_mask"].tolist() == [0, 1, 0]
    _, _, terminated, _, info = env.step(1)
    assert terminated
    assert not info["feasible"]
    assert info["reward_memory_violation"] < -1


def test_a_device_that_cannot_run_a_group_is_masked_and_choosing_it_ends_the_episode() -> None:
    problem = toy_pipeline()
    seconds = problem.op_seconds.copy()
    seconds[problem.graph.colocation == 1, 2] = np.inf
    env = PlacementEnv.of_problem(replace(problem, op_seconds=seconds), max_groups=6)
    env.reset(seed=0)
    observation, *_ = env.step(2)
    assert observation["action_mask"].tolist() == [1, 1, 0]
    _, reward, terminated, _, info = env.step(2)
    assert terminated
    assert np.isfinite(reward)
    assert info["reward_unsupported_device"] == -1
    assert not info["feasible"]


def test_activations_beyond_a_capacity_are_found_at_the_end() -> None:
    problem = toy_pipeline()
    heavy = replace(problem.graph, tensor_bytes=np.full(problem.graph.num_tensors, 100.0))
    env = PlacementEnv.of_problem(replace(problem, graph=heavy), max_groups=6)
    last = play(env, [0, 1, 0, 1, 0, 1])[-1]
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


def test_the_plan_covers_every_operator_without_violations() -> None:
    env = gym.make("meshwright/Placement-v0").unwrapped
    assert isinstance(env, PlacementEnv)
    observation, _ = env.reset(seed=4)
    terminated = False
    rng = np.random.default_rng(0)
    while not terminated:
        action = rng.choice(np.flatnonzero(observation["action_mask"]))
        observation, _, terminated, _, info = env.step(action)
    assert info["feasible"]
    assert env.placement.violations(env.instance.problem) == []


def test_the_simulator_is_replaceable() -> None:
    free = toy_environment(simulator=partial(StepSimulator, communication=NO_COMMUNICATION))
    assert (
        play(free, [0, 1, 2])[-1]["step_time_s"]
        < play(toy_environment(), [0, 1, 2])[-1]["step_time_s"]
    )


def test_bad_arguments_are_input_errors() -> None:
    with refusal("passes"):
        toy_environment(passes=0)
    with refusal("max_edges"):
        PlacementEnv.of_problem(toy_pipeline(), max_groups=6, max_edges=1).reset()
    env = toy_environment()
    env.reset()
    with refusal("action"):
        env.step(3)
    with refusal("action"):
        env.step(0.5)  # type: ignore[arg-type]
    with refusal("one_problem"):
        PlacementEnv("bert_large")  # type: ignore[arg-type]


def test_instances_may_vary_within_the_bounds() -> None:
    env = gym.make("meshwright/Placement-v0").unwrapped
    assert isinstance(env, PlacementEnv)
    shapes = set()
    for seed in range(6):
        env.reset(seed=seed)
        assert isinstance(env.instance, PlacementInstance)
        shapes.add((env.instance.fusion.num_groups, env.instance.fused.graph.num_operators))
    assert len(shapes) > 1


def test_the_configs_make_the_environments() -> None:
    chosen = OmegaConf.create(SHIPPED_CONFIGS.node("env/placement"))
    env = instantiate(chosen)(toy_pipeline())
    assert isinstance(env, PlacementEnv)
    assert env.observation.layout.max_nodes == chosen.max_groups
    assert env.passes == chosen.passes
    toy = instantiate(SHIPPED_CONFIGS.node("env/placement_toy"))
    assert play(toy, [0, 1, 0, 1, 0, 1])[-1]["feasible"]
