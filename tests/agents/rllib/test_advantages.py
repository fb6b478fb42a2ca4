"""Advantages against their definition, step by step, and against integrals."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng
from numpy.testing import assert_allclose, assert_array_equal
from ray.rllib.utils.postprocessing.value_predictions import compute_value_targets
from scipy import integrate

from agents.rllib.advantages import (
    Discounting,
    PerStep,
    PerTime,
    RewardScale,
    ValueScale,
    advantages,
    standardised,
    without_shared,
)
from tests.strength import SEEDS, examples

CLOCK, STEPS = PerTime(tau=100.0, credit=30.0), PerStep(gamma=0.9, gae_lambda=0.7)


def random_steps(seed: int, steps: int = 12, agents: int = 3) -> dict[str, np.ndarray]:
    rng = default_rng(seed)
    shape = (steps, agents)
    return {
        "rewards": rng.normal(size=shape),
        "values": rng.normal(size=shape),
        "after": rng.normal(size=shape),
        "times": rng.choice([0.0, 1.0, 40.0], shape),
        "ends": rng.random(shape) < 0.15,
    }


def by_definition(
    steps: dict[str, np.ndarray], agent: int, t: int, discounting: Discounting
) -> float:
    """Sum over what follows t of the one-step errors, each as it counts at t."""
    counts, total = 1.0, 0.0
    for k in range(t, len(steps["rewards"])):
        dt, last = steps["times"][k, agent], k + 1 == len(steps["rewards"])
        discount, kept = 0.9, 0.7
        if discounting is CLOCK:
            discount, kept = np.exp(-dt / 100.0), np.exp(-dt / 30.0)
        over = steps["ends"][k, agent]
        after = steps["after"][k, agent] if over or last else steps["values"][k + 1, agent]
        error = steps["rewards"][k, agent] - steps["values"][k, agent]
        total += counts * (error + discount * after)
        if over:
            break
        counts *= discount * kept
    return total


@pytest.mark.parametrize("discounting", [CLOCK, STEPS])
@pytest.mark.parametrize("seed", range(5))
def test_advantages_are_what_the_definition_says(seed: int, discounting: Discounting) -> None:
    steps = random_steps(seed)
    all_decide = np.ones(steps["rewards"].shape, np.bool_)
    gains, expected = advantages(**steps, decides=all_decide, discounting=discounting)
    assert_array_equal(expected, steps["values"])
    for agent in range(3):
        for t in range(len(gains)):
            by_hand = by_definition(steps, agent, t, discounting)
            assert gains[t, agent] == pytest.approx(by_hand, rel=1e-9)


@examples(50)
@given(SEEDS, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_with_steps_that_count_alike_targets_are_rllibs(
    seed: int, gamma: float, gae_lambda: float
) -> None:
    """RLlib puts the value of a last observation into a row after the episode."""
    rng = default_rng(seed)
    steps = random_steps(seed, agents=1)
    over = steps["ends"] & (rng.random(steps["ends"].shape) < 0.5)  # the others are cut
    steps["after"][over] = 0.0
    discounting, decides = PerStep(gamma, gae_lambda), np.ones((12, 1), np.bool_)
    gains, expected = advantages(**steps, decides=decides, discounting=discounting)
    rows: list[tuple[float, float, float, float]] = []  # value, reward, terminated, truncated
    real = []
    for t in range(12):
        real.append(len(rows))
        value, reward = steps["values"][t, 0], steps["rewards"][t, 0]
        ends, last = bool(steps["ends"][t, 0]), t == 11
        cut = (ends or last) and not over[t, 0]
        rows.append((value, reward, float(over[t, 0]), float(cut)))
        if ends or last:
            rows.append((steps["after"][t, 0], 0.0, 1.0, 0.0))
    targets = compute_value_targets(*np.array(rows).T, gamma=gamma, lambda_=gae_lambda)
    assert_allclose((gains + expected)[:, 0], targets[real], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("discounting", [CLOCK, STEPS])
def test_what_was_observed_does_not_depend_on_the_critic(discounting: Discounting) -> None:
    steps = random_steps(1)
    decides = default_rng(0).random(steps["ends"].shape) < 0.6
    targets = []
    for _ in range(2):
        gains, expected = advantages(
            **steps, decides=decides, discounting=discounting, observed=True
        )
        targets.append(gains + expected)
        steps["values"] = np.zeros_like(steps["values"])
    assert_allclose(*targets, rtol=1e-9)
    total = steps["after"][-1]
    for t in reversed(range(12)):
        ahead = np.where(steps["ends"][t], steps["after"][t], total)
        total = steps["rewards"][t] + discounting.discounts(steps["times"][t]) * ahead
        assert_allclose(targets[0][t], total, rtol=1e-9)


@examples(50)
@given(SEEDS)
def test_steps_without_a_choice_are_part_of_the_one_before(seed: int) -> None:
    """The same process with such steps merged has the same advantages and targets."""
    rng = default_rng(seed)
    steps = random_steps(seed, agents=1)
    steps["ends"][:] = False
    decides = rng.random(steps["rewards"].shape) < 0.5
    decides[0] = True
    # a merged step has one value after it, not several: none of them is to count
    gains, expected = advantages(**steps, decides=decides, discounting=CLOCK, observed=True)
    starts = np.flatnonzero(decides[:, 0])
    merged: dict[str, list[float]] = {"rewards": [], "times": []}
    for start, stop in zip(starts, [*starts[1:], len(decides)], strict=True):
        passed, reward = 0.0, 0.0
        for t in range(start, stop):
            reward += np.exp(-passed / 100.0) * steps["rewards"][t, 0]
            passed += steps["times"][t, 0]
        merged["rewards"].append(reward)
        merged["times"].append(passed)
    column = {name: np.array(values)[:, None] for name, values in merged.items()}
    after = np.zeros(column["rewards"].shape)
    after[-1] = steps["after"][-1]
    whole, _ = advantages(
        column["rewards"],
        steps["values"][starts],
        after,
        column["times"],
        np.zeros(after.shape, np.bool_),
        np.ones(after.shape, np.bool_),
        CLOCK,
        observed=True,
    )
    assert_allclose(gains[starts], whole, rtol=1e-9, atol=1e-12)
    assert_array_equal(expected[starts], steps["values"][starts])


def test_how_many_parts_an_instant_has_does_not_matter() -> None:
    """A start more in the same second leaves the advantage of the first decision as it was."""
    one = advantages(
        rewards=np.array([[-5.0], [-7.0]]),
        values=np.array([[1.0], [2.0]]),
        after=np.array([[0.0], [3.0]]),
        times=np.array([[10.0], [20.0]]),
        ends=np.zeros((2, 1), np.bool_),
        decides=np.ones((2, 1), np.bool_),
        discounting=CLOCK,
    )[0][0]
    parts = advantages(
        rewards=np.array([[0.0], [0.0], [-5.0], [-7.0]]),
        values=np.array([[1.0], [9.0], [-4.0], [2.0]]),
        after=np.array([[0.0], [0.0], [0.0], [3.0]]),
        times=np.array([[0.0], [0.0], [10.0], [20.0]]),
        ends=np.zeros((4, 1), np.bool_),
        decides=np.ones((4, 1), np.bool_),
        discounting=CLOCK,
    )[0][0]
    assert_allclose(one, parts, rtol=1e-12)


def test_the_future_of_an_ended_episode_is_not_carried_over() -> None:
    steps = random_steps(0)
    steps["ends"][:] = False
    steps["ends"][5] = True
    decides = np.ones(steps["ends"].shape, np.bool_)
    before, _ = advantages(**steps, decides=decides, discounting=CLOCK)
    steps["rewards"][6:] += 100.0
    steps["values"][6:] -= 50.0
    later, _ = advantages(**steps, decides=decides, discounting=CLOCK)
    assert_array_equal(before[:6], later[:6])
    assert not np.allclose(before[6:], later[6:])


@pytest.mark.parametrize("times", [1e-6, 1.0, 50.0, 1e4])
def test_rewards_accrue_as_their_integral(times: float) -> None:
    rate = -3.0
    exact, _ = integrate.quad(
        lambda t: rate * np.exp(-t / 100.0), 0.0, min(times, 4000.0), epsabs=0.0
    )
    accrued = CLOCK.accrued(np.array([rate * times]), np.array([times]))
    assert_allclose(accrued, exact, rtol=1e-9)


def test_rewards_of_an_instant_stay_as_they_are() -> None:
    assert_array_equal(CLOCK.accrued(np.array([-2.0]), np.zeros(1)), [-2.0])


def test_the_reward_scale_is_the_deviation_of_all_discounted_sums() -> None:
    rng = default_rng(0)
    rewards, discounts = rng.normal(5.0, 2.0, (40, 3)), rng.uniform(0.5, 1.0, (40, 3))
    ends = rng.random((40, 3)) < 0.1
    sums, running = [], np.zeros(3)
    for t in range(40):
        running = running + rewards[t]
        sums.append(running)
        running = np.where(ends[t], 0.0, running * discounts[t])
    scale = RewardScale(3)
    assert scale.deviation == 1.0
    for part in (slice(0, 7), slice(7, 40)):
        scale.add(rewards[part], discounts[part], ends[part])
    assert scale.deviation == pytest.approx(np.std(sums), rel=1e-12)


def test_the_value_scale_of_one_batch_is_that_of_the_batch() -> None:
    rng = default_rng(0)
    targets = rng.normal(-300.0, 7.0, (16, 4))
    scale = ValueScale(10.0)
    assert (scale.mean, scale.deviation) == (0.0, 1.0)
    scale.add(targets)
    assert scale.mean == pytest.approx(targets.mean())
    assert scale.deviation == pytest.approx(targets.std())
    assert_allclose(scale.values(scale.scored(targets)), targets)
    assert scale.scored(targets).std() == pytest.approx(1.0)


def test_the_value_scale_forgets() -> None:
    rng = default_rng(0)
    scale = ValueScale(5.0)
    scale.add(rng.normal(1000.0, 1.0, 100))
    for _ in range(100):
        scale.add(rng.normal(3.0, 2.0, 1000))
    assert scale.mean == pytest.approx(3.0, abs=0.2)
    assert scale.deviation == pytest.approx(2.0, rel=0.1)


def test_equal_targets_do_not_divide_by_nothing() -> None:
    scale = ValueScale(5.0)
    scale.add(np.full(9, -4.0))
    assert_array_equal(scale.scored(np.full(2, -4.0)), [0.0, 0.0])


@pytest.mark.parametrize("kind", [lambda: RewardScale(2), lambda: ValueScale(4.0)])
def test_scales_go_through_json(kind: object) -> None:
    rng = default_rng(0)
    first, second = kind(), kind()  # type: ignore[operator]
    arguments = [rng.normal(size=(5, 2))]
    if isinstance(first, RewardScale):
        arguments += [np.full((5, 2), 0.9), np.zeros((5, 2), np.bool_)]
    first.add(*arguments)
    second.restore(json.loads(json.dumps(first.document())))
    first.add(*arguments)
    second.add(*arguments)
    assert first.document() == second.document()


def test_advantages_are_standardised() -> None:
    found = standardised(default_rng(0).normal(10.0, 3.0, 300))
    assert (found.mean(), found.std()) == pytest.approx((0.0, 1.0), abs=1e-9)
    assert_array_equal(standardised(np.full(4, 3.0)), np.zeros(4))
    assert len(standardised(np.zeros(0))) == 0


def plain(
    gains: np.ndarray, now: np.ndarray, episode: np.ndarray, alike: int, schedulers: int
) -> np.ndarray:
    found = gains.copy()
    steps, columns = gains.shape
    for column in range(columns):
        group, scheduler = column // (alike * schedulers), column % schedulers
        for t in range(steps):
            levels = []
            for k in range(alike):
                other = (group * alike + k) * schedulers + scheduler
                if other == column:
                    continue
                theirs = [u for u in range(steps) if episode[u, other] == episode[t, column]]
                before = [u for u in theirs if now[u, other] <= now[t, column]]
                if before and any(now[u, other] >= now[t, column] for u in theirs):
                    levels.append(gains[before[-1], other])
            if levels:
                found[t, column] -= np.mean(levels)
    return found


@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_mean_of_the_others_at_the_same_time(seed: int) -> None:
    rng = default_rng(seed)
    steps, alike, schedulers, groups = 14, 3, 2, 2
    envs = alike * groups
    episode = 1 + np.cumsum(rng.random((steps, envs)) < 0.15, axis=0)
    now = np.zeros((steps, envs))
    for env in range(envs):
        for t in range(1, steps):
            fresh = episode[t, env] != episode[t - 1, env]
            now[t, env] = 0.0 if fresh else now[t - 1, env] + rng.integers(0, 4)
    wide = [np.repeat(array, schedulers, axis=1) for array in (now, episode)]
    gains = rng.normal(size=wide[0].shape)
    found = without_shared(gains, *wide, rows=alike * schedulers, alike=alike)
    assert_allclose(found, plain(gains, *wide, alike, schedulers), rtol=1e-12)
    assert not np.allclose(found, gains)


def test_what_befalls_all_alike_is_taken_away() -> None:
    rng = default_rng(0)
    now = np.repeat(np.arange(10.0)[:, None], 4, axis=1)
    episode = np.ones((10, 4), np.int64)
    common = np.repeat(rng.normal(size=(10, 1)), 4, axis=1)
    found = without_shared(common, now, episode, rows=4, alike=4)
    assert_allclose(found, 0.0, atol=1e-12)
