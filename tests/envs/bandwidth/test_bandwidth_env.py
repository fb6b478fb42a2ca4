"""`BandwidthEnv` does what its docstring says."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from hydra.utils import instantiate
from hypothesis import given
from hypothesis import strategies as st

from envs.bandwidth.env import (
    BandwidthEnv,
    continuous_environment,
    continuous_toy_environment,
    toy_environment,
)
from envs.bandwidth.generator import (
    LEVELS_OPTIMUM_S,
    OPTIMUM_S,
    SERIAL,
    SERIAL_OPTIMUM_S,
    TOGETHER,
    UNIFORM_S,
    FixedCut,
    toy_sends,
)
from envs.bandwidth.types import ContinuousWeights
from envs.step.allocated import allocated_problem
from envs.step.step import StepSimulator
from experiments.config.config_source import SHIPPED_CONFIGS
from tests.refusal import refusal
from tests.strength import examples

TOP = 20  # level


def weights_of(*share: float) -> np.ndarray[Any, np.dtype[np.float64]]:
    """(12,) continuous action: the three channels of server 0 in proportion to `share`."""
    action = np.zeros(12)
    action[:3] = np.log2(np.array(share) / max(share)) / 5.0
    return action


def levels_of(*level: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    action = np.zeros(12, dtype=np.int64)
    action[:3] = level
    return action


def play(env: BandwidthEnv, *actions: Any) -> list[dict[str, Any]]:
    """Infos of one episode; the last has the sum of rewards as `return`."""
    _, first = env.reset(seed=0)
    infos, total = [first], 0.0
    for number, action in enumerate(actions):
        _, reward, terminated, truncated, info = env.step(action)
        assert terminated == (number == len(actions) - 1)
        assert not truncated
        total += reward
        infos.append(info)
    infos[-1]["return"] = total
    return infos


def test_the_closed_form_is_reached() -> None:
    env = continuous_toy_environment()
    infos = play(env, weights_of(*np.sqrt(SERIAL)), weights_of(*TOGETHER))
    assert infos[1]["step_time_s"] == pytest.approx(SERIAL_OPTIMUM_S, rel=1e-12)
    assert infos[2]["step_time_s"] == pytest.approx(OPTIMUM_S, rel=1e-12)
    assert sum(np.sqrt(SERIAL)) ** 2 + sum(TOGETHER) == pytest.approx(OPTIMUM_S, rel=1e-12)
    assert infos[0]["reference_step_time_s"] == pytest.approx(UNIFORM_S, rel=1e-12)
    assert infos[2]["feasible"]


@examples(60)
@given(st.lists(st.floats(-1.0, 1.0), min_size=6, max_size=6))
def test_no_weights_beat_the_closed_form(actions: list[float]) -> None:
    env = continuous_toy_environment()
    padding = np.zeros(9)
    first, second = np.append(actions[:3], padding), np.append(actions[3:], padding)
    infos = play(env, first, second)
    assert infos[1]["step_time_s"] >= SERIAL_OPTIMUM_S * (1 - 1e-12)
    assert infos[2]["step_time_s"] >= OPTIMUM_S * (1 - 1e-12)


@pytest.mark.slow
def test_the_optimum_of_the_levels_is_the_best_of_all_of_them() -> None:
    """A common factor of the weights changes nothing: the largest level may be fixed."""
    env = toy_environment()
    tried = [levels for levels in itertools.product(range(TOP + 1), repeat=3) if max(levels) == TOP]
    serial, together = [], []
    for levels in tried:
        env.reset(seed=0)
        serial.append(env.step(levels_of(*levels))[-1]["phase_s"])
        together.append(env.step(levels_of(*levels))[-1]["phase_s"])
    best = tried[int(np.argmin(serial))], tried[int(np.argmin(together))]
    assert best == ((17, 19, 20), (16, 18, 20))
    last = play(env, *(levels_of(*levels) for levels in best))[-1]
    assert last["step_time_s"] == pytest.approx(LEVELS_OPTIMUM_S, rel=1e-12)
    assert min(serial) + min(together) == pytest.approx(LEVELS_OPTIMUM_S, rel=1e-12)
    assert OPTIMUM_S < LEVELS_OPTIMUM_S < 1.001 * OPTIMUM_S


def test_a_common_factor_of_the_weights_changes_nothing() -> None:
    env = toy_environment()
    actions = [levels_of(3 + k, 5 + k, 4 + k) for k in (0, 7, 15)]
    times = [play(env, action, action)[-1]["step_time_s"] for action in actions]
    assert times == pytest.approx([times[0]] * 3, rel=1e-12)


def test_rewards_are_those_of_the_worked_example() -> None:
    infos = play(continuous_toy_environment(), weights_of(1, 2, 3), weights_of(1, 1, 1))
    assert infos[1]["phase_s"] == pytest.approx(36)
    assert infos[1]["reward_time_saved"] == pytest.approx((42 - 36) / 54)
    assert infos[2]["phase_s"] == pytest.approx(12)
    assert infos[2]["reward_time_saved"] == pytest.approx(0, abs=1e-12)
    assert infos[2]["return"] == pytest.approx((54 - 48) / 54)
    assert [info["phase"] for info in infos] == [0, 1, 2]


def test_rewards_telescope_to_the_time_saved() -> None:
    env = continuous_environment()
    env.action_space.seed(0)
    for seed in range(4):
        _, info = env.reset(seed=seed)
        total, ended = 0.0, False
        while not ended:
            _, reward, ended, _, info = env.step(env.action_space.sample())
            total += reward
        reference = info["reference_step_time_s"]
        assert total == pytest.approx((reference - info["step_time_s"]) / reference)


def test_channels_of_pipes_that_have_carried_everything_get_nothing() -> None:
    env = continuous_toy_environment()
    observation, _ = env.reset(seed=0)
    assert observation["active"].tolist() == [1] * 3 + [0] * 9
    env.step(np.ones(12))
    observation, *_ = env.step(np.ones(12))
    assert not observation["active"].any()
    for allocation in env.allocations:
        np.testing.assert_allclose(allocation.rate, [1 / 3] * 3 + [0] * 9)
        assert allocation.violations(env.instance.problem.topology.network) == []


def test_any_action_gives_a_feasible_allocation_in_every_phase() -> None:
    env = gym.make("meshwright/Bandwidth-v0").unwrapped
    assert isinstance(env, BandwidthEnv)
    env.action_space.seed(1)
    for seed in range(5):
        env.reset(seed=seed)
        ended = False
        while not ended:
            *_, ended, _, info = env.step(env.action_space.sample())
        network = env.instance.problem.topology.network
        assert len(env.allocations) == info["phases"]
        assert all(not allocation.violations(network) for allocation in env.allocations)


def test_one_phase_is_the_static_allocation() -> None:
    problem, plan, _ = toy_sends()
    env = BandwidthEnv.of_plan(problem, plan, phases=FixedCut((0,)), actions=ContinuousWeights())
    last = play(env, weights_of(1, 3, 2))[-1]
    static = allocated_problem(problem, env.allocations[0])
    assert last["step_time_s"] == pytest.approx(
        StepSimulator(static).step_time(plan.placement.device, plan.order), rel=1e-12
    )


def test_uniform_shares_in_every_phase_save_nothing() -> None:
    env = continuous_environment()
    for seed in range(4):
        _, info = env.reset(seed=seed)
        step_time, fits = env.plan_outcome()
        assert step_time == pytest.approx(info["reference_step_time_s"], rel=1e-12)
        assert fits
        np.testing.assert_allclose(
            env.instance.uniform_phase_s.sum(), env.instance.uniform.step_time
        )


def test_the_outcome_of_an_ended_step_is_its_own() -> None:
    env = continuous_toy_environment()
    info = play(env, weights_of(1, 2, 2), weights_of(3, 2, 1))[-1]
    assert env.plan_outcome() == (info["step_time_s"], True)


def test_a_step_that_does_not_fit_is_charged_at_its_end() -> None:
    problem, plan, cut = toy_sends()
    tight = replace(problem, capacity=np.array([1.0, np.inf, np.inf, np.inf]))
    env = BandwidthEnv.of_plan(tight, plan, phases=cut, actions=ContinuousWeights())
    infos = play(env, weights_of(1, 1, 1), weights_of(1, 1, 1))
    assert infos[1]["reward_memory_violation"] == 0
    assert infos[2]["reward_memory_violation"] == pytest.approx(
        -(1 + infos[2]["peak_memory_bytes"] - 1.0)
    )
    assert not infos[2]["feasible"]


def test_bad_actions_and_instances_are_input_errors() -> None:
    env = toy_environment()
    with pytest.raises(gym.error.ResetNeeded):
        env.step(levels_of(1, 1, 1))
    env.reset(seed=0)
    with refusal("shape"):
        env.step(levels_of(1, 2, 1)[:3])
    with refusal("level outside"):
        env.step(levels_of(1, 21, 1))
    continuous = continuous_toy_environment()
    continuous.reset(seed=0)
    with refusal("outside -1"):
        continuous.step(np.full(12, 1.5))
    play(env, levels_of(1, 1, 1), levels_of(1, 1, 1))
    with pytest.raises(gym.error.ResetNeeded):
        env.step(levels_of(1, 1, 1))
    problem, plan, cut = toy_sends()
    alone = replace(plan, placement=replace(plan.placement, device=np.zeros(12, dtype=np.int64)))
    with refusal("nothing is sent"):
        BandwidthEnv.of_plan(problem, alone, phases=cut)


def test_the_configs_make_the_environments() -> None:
    problem, plan, _ = toy_sends()
    for kind, space in (("", gym.spaces.MultiDiscrete), ("_continuous", gym.spaces.Box)):
        env = instantiate(SHIPPED_CONFIGS.node(f"env/bandwidth{kind}"))(problem, plan)
        toy = instantiate(SHIPPED_CONFIGS.node(f"env/bandwidth_toy{kind}"))
        for made in (env, toy):
            assert isinstance(made, BandwidthEnv)
            assert isinstance(made.action_space, space)
            made.reset(seed=0)
        assert toy.instance.num_phases == 2
