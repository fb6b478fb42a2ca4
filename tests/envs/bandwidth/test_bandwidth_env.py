"""`BandwidthEnv` does what its docstring says."""

from __future__ import annotations

import itertools
from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest
from hydra.utils import instantiate
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from numpy.typing import NDArray

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
from tests.envs.bandwidth.actions import weights_of
from tests.envs.episodes import play
from tests.refusal import refusal
from tests.strength import examples

TOP = 20  # level


def levels_of(*level: int) -> NDArray[np.int64]:
    return np.array([*level, *[0] * 9])


def test_the_closed_form_is_reached() -> None:
    env = continuous_toy_environment()
    infos = play(env, [weights_of(*np.sqrt(SERIAL)), weights_of(*TOGETHER)])
    assert infos[1]["step_time_s"] == pytest.approx(SERIAL_OPTIMUM_S, rel=1e-12)
    assert infos[2]["step_time_s"] == pytest.approx(OPTIMUM_S, rel=1e-12)
    assert sum(np.sqrt(SERIAL)) ** 2 + sum(TOGETHER) == pytest.approx(OPTIMUM_S, rel=1e-12)
    assert infos[0]["reference_step_time_s"] == pytest.approx(UNIFORM_S, rel=1e-12)
    assert infos[2]["feasible"]
    assert infos[2]["ended"]
    assert env.plan_outcome() == (infos[2]["step_time_s"], True)
    with pytest.raises(gym.error.ResetNeeded):
        env.step(weights_of(1, 1, 1))


@examples(60)
@given(st.lists(st.floats(-1.0, 1.0), min_size=6, max_size=6))
def test_no_weights_beat_the_closed_form(actions: list[float]) -> None:
    padding = np.zeros(9)
    both = np.append(actions[:3], padding), np.append(actions[3:], padding)
    infos = play(continuous_toy_environment(), both)
    assert infos[1]["step_time_s"] >= SERIAL_OPTIMUM_S * (1 - 1e-12)
    assert infos[2]["step_time_s"] >= OPTIMUM_S * (1 - 1e-12)


@pytest.mark.slow
def test_the_optimum_of_the_levels_is_the_best_of_all_of_them() -> None:
    """A common factor of the weights changes nothing: the largest level may be fixed."""
    env = toy_environment()
    tried = [levels for levels in itertools.product(range(TOP + 1), repeat=3) if max(levels) == TOP]
    rows = [play(env, [levels_of(*levels)] * 2)[1:] for levels in tried]
    seconds = np.array([[info["phase_s"] for info in row] for row in rows])
    best = [tried[number] for number in seconds.argmin(axis=0)]
    assert best == [(17, 19, 20), (16, 18, 20)]
    last = play(env, [levels_of(*levels) for levels in best])[-1]
    assert last["step_time_s"] == pytest.approx(LEVELS_OPTIMUM_S, rel=1e-12)
    assert seconds.min(axis=0).sum() == pytest.approx(LEVELS_OPTIMUM_S, rel=1e-12)
    assert OPTIMUM_S < LEVELS_OPTIMUM_S < 1.001 * OPTIMUM_S


def test_a_common_factor_of_the_weights_changes_nothing() -> None:
    env = toy_environment()
    actions = [levels_of(3 + k, 5 + k, 4 + k) for k in (0, 7, 15)]
    times = [play(env, [action, action])[-1]["step_time_s"] for action in actions]
    assert times == pytest.approx([times[0]] * 3, rel=1e-12)


def test_rewards_are_those_of_the_worked_example() -> None:
    infos = play(continuous_toy_environment(), [weights_of(1, 2, 3), weights_of(1, 1, 1)])
    assert infos[1]["phase_s"] == pytest.approx(36)
    assert infos[1]["reward_time_saved"] == pytest.approx((42 - 36) / 54)
    assert infos[2]["phase_s"] == pytest.approx(12)
    assert infos[2]["reward_time_saved"] == pytest.approx(0, abs=1e-12)
    assert infos[2]["return"] == pytest.approx((54 - 48) / 54)
    assert [info["phase"] for info in infos] == [0, 1, 2]


def test_any_actions_give_feasible_allocations_and_rewards_telescope_to_the_time_saved() -> None:
    env = BandwidthEnv()
    env.action_space.seed(1)
    for seed in range(5):
        _, info = env.reset(seed=seed)
        reference = info["reference_step_time_s"]
        # nothing is decided: the step goes on with uniform shares, which save nothing
        assert env.plan_outcome() == (pytest.approx(reference, rel=1e-12), True)
        assert_allclose(env.instance.uniform_phase_s.sum(), reference)
        total, ended = 0.0, False
        while not ended:
            _, reward, ended, _, info = env.step(env.action_space.sample())
            total += reward
        assert total == pytest.approx((reference - info["step_time_s"]) / reference)
        network = env.instance.problem.topology.network
        assert len(env.allocations) == info["phases"]
        assert all(not allocation.violations(network) for allocation in env.allocations)


def test_channels_of_pipes_that_have_carried_everything_get_nothing() -> None:
    env = continuous_toy_environment()
    observation, _ = env.reset(seed=0)
    assert observation["active"].tolist() == [1] * 3 + [0] * 9
    for _ in range(2):
        observation, *_ = env.step(np.ones(12))
    assert not observation["active"].any()
    for allocation in env.allocations:
        assert_allclose(allocation.rate, [1 / 3] * 3 + [0] * 9)


def test_one_phase_is_the_static_allocation() -> None:
    problem, plan, _ = toy_sends()
    env = BandwidthEnv.of_plan(problem, plan, phases=FixedCut((0,)), actions=ContinuousWeights())
    last = play(env, [weights_of(1, 3, 2)])[-1]
    static = StepSimulator(allocated_problem(problem, env.allocations[0]))
    seconds = static.step_time(plan.placement.device, plan.order)
    assert last["step_time_s"] == pytest.approx(seconds, rel=1e-12)


def test_a_step_that_does_not_fit_is_charged_at_its_end() -> None:
    problem, plan, cut = toy_sends()
    tight = replace(problem, capacity=np.array([1.0, np.inf, np.inf, np.inf]))
    env = BandwidthEnv.of_plan(tight, plan, phases=cut, actions=ContinuousWeights())
    _, first, last = play(env, [weights_of(1, 1, 1)] * 2)
    assert first["reward_memory_violation"] == 0
    assert last["reward_memory_violation"] == pytest.approx(-last["peak_memory_bytes"])
    assert not last["feasible"]


def test_bad_actions_and_instances_are_input_errors() -> None:
    env, continuous = toy_environment(), continuous_toy_environment()
    with pytest.raises(gym.error.ResetNeeded):
        env.step(levels_of(1, 1, 1))
    env.reset(seed=0)
    continuous.reset(seed=0)
    with refusal("shape"):
        env.step(levels_of(1, 2, 1)[:3])
    with refusal("level outside"):
        env.step(levels_of(1, 21, 1))
    with refusal("outside -1"):
        continuous.step(np.full(12, 1.5))
    problem, plan, cut = toy_sends()
    alone = replace(plan, placement=replace(plan.placement, device=np.zeros(12, dtype=np.int64)))
    with refusal("nothing is sent"):
        BandwidthEnv.of_plan(problem, alone, phases=cut)


@pytest.mark.parametrize(
    ("kind", "space"), [("", gym.spaces.MultiDiscrete), ("_continuous", gym.spaces.Box)]
)
def test_the_configs_make_the_environments(kind: str, space: type) -> None:
    problem, plan, _ = toy_sends()
    env = instantiate(SHIPPED_CONFIGS.node(f"env/bandwidth{kind}"))(problem, plan)
    toy = instantiate(SHIPPED_CONFIGS.node(f"env/bandwidth_toy{kind}"))
    for made in (env, toy, continuous_environment() if kind else BandwidthEnv()):
        assert isinstance(made, BandwidthEnv)
        assert isinstance(made.action_space, space)
        made.reset(seed=0)
    assert toy.instance.num_phases == 2
