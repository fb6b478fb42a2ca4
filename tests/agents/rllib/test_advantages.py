"""Advantages against their definition, step by step, and against integrals."""

from __future__ import annotations

import json
from typing import Any

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
    less_group_mean,
    standardised,
)
from tests.strength import SEEDS, examples

CLOCK, STEPS = PerTime(tau=100.0, credit=30.0), PerStep(gamma=0.9, gae_lambda=0.7)
T = 12


def random_steps(seed: int, agents: int = 3) -> dict[str, Any]:
    """Arguments of `advantages`."""
    rng, shape = default_rng(seed), (T, agents)
    return {
        **{name: rng.normal(size=shape) for name in ("rewards", "values", "next_values")},
        "elapsed": rng.choice([0.0, 1.0, 40.0], shape),
        "ends": rng.random(shape) < 0.15,
        "decides": np.ones(shape, np.bool_),
    }


def by_definition(steps: dict[str, Any], agent: int, t: int, discounting: Discounting) -> float:
    """Sum over what follows t of the one-step errors, each as it counts at t."""
    own, counts, total = {name: x[:, agent] for name, x in steps.items()}, 1.0, 0.0
    for k in range(t, T):
        dt, ends = own["elapsed"][k], own["ends"][k]
        discount, kept = 0.9, 0.7
        if discounting is CLOCK:
            discount, kept = np.exp(-dt / 100.0), np.exp(-dt / 30.0)
        later = own["next_values"][k] if ends or k + 1 == T else own["values"][k + 1]
        total += counts * (own["rewards"][k] - own["values"][k] + discount * later)
        if ends:
            break
        counts *= discount * kept
    return total


@pytest.mark.parametrize("discounting", [CLOCK, STEPS])
@pytest.mark.parametrize("seed", range(5))
def test_advantages_are_what_the_definition_says(seed: int, discounting: Discounting) -> None:
    steps = random_steps(seed)
    gains, expected = advantages(**steps, discounting=discounting)
    assert_array_equal(expected, steps["values"])
    by_hand = [
        [by_definition(steps, agent, t, discounting) for agent in range(3)] for t in range(T)
    ]
    assert_allclose(gains, by_hand, rtol=1e-9)


@examples(50)
@given(SEEDS, st.floats(0.0, 1.0), st.floats(0.0, 1.0))
def test_with_steps_that_count_alike_targets_are_rllibs(
    seed: int, gamma: float, gae_lambda: float
) -> None:
    """RLlib puts the value of a last observation into a row after the episode."""
    steps = random_steps(seed, agents=1)
    over = steps["ends"] & (default_rng(seed).random((T, 1)) < 0.5)  # the others are truncated
    steps["next_values"][over] = 0.0
    gains, expected = advantages(**steps, discounting=PerStep(gamma, gae_lambda))
    rows, real = [], []  # value, reward, terminated, truncated
    for t in range(T):
        real.append(len(rows))
        ended, last = over[t, 0], steps["ends"][t, 0] or t + 1 == T
        rows.append((steps["values"][t, 0], steps["rewards"][t, 0], ended, last and not ended))
        if last:
            rows.append((steps["next_values"][t, 0], 0.0, 1.0, 0.0))
    columns = np.array(rows, np.float64).T
    targets = compute_value_targets(*columns, gamma=gamma, lambda_=gae_lambda)
    assert_allclose((gains + expected)[:, 0], targets[real], rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("discounting", [CLOCK, STEPS])
def test_what_was_observed_does_not_depend_on_the_critic(discounting: Discounting) -> None:
    steps = random_steps(1)
    steps["decides"] = default_rng(0).random((T, 3)) < 0.6
    targets = []
    for factor in (1.0, 0.0):
        steps["values"] *= factor
        targets.append(sum(advantages(**steps, discounting=discounting, observed=True)))
    assert_allclose(*targets, rtol=1e-9)
    total = steps["next_values"][-1]
    for t in reversed(range(T)):
        ahead = np.where(steps["ends"][t], steps["next_values"][t], total)
        total = steps["rewards"][t] + discounting.discounts(steps["elapsed"][t]) * ahead
        assert_allclose(targets[0][t], total, rtol=1e-9)


def of_one(
    rewards: Any, values: Any, elapsed: Any, last: float, observed: bool = False
) -> np.ndarray[Any, Any]:
    """Advantages of one agent that decides in every step of an episode that goes on."""
    arrays = [np.array(x, np.float64)[:, None] for x in (rewards, values, elapsed)]
    shape = arrays[0].shape
    after, no = np.full(shape, last), np.zeros(shape, np.bool_)
    found = advantages(arrays[0], arrays[1], after, arrays[2], no, ~no, CLOCK, observed)
    return found[0][:, 0]


@examples(50)
@given(SEEDS)
def test_steps_without_a_choice_are_part_of_the_one_before(seed: int) -> None:
    """The same process with such steps merged has the same advantages and targets."""
    steps = random_steps(seed, agents=1)
    steps["ends"][:] = False
    steps["decides"] = default_rng(seed).random((T, 1)) < 0.5
    steps["decides"][0] = True
    # a merged step has one value after it, not several: none of them is to count
    gains, expected = advantages(**steps, discounting=CLOCK, observed=True)
    starts = np.flatnonzero(steps["decides"])
    rewards, elapsed = np.zeros((2, len(starts)))
    for own, (start, stop) in enumerate(zip(starts, [*starts[1:], T], strict=True)):
        for t in range(start, stop):
            rewards[own] += np.exp(-elapsed[own] / 100.0) * steps["rewards"][t, 0]
            elapsed[own] += steps["elapsed"][t, 0]
    values, last = steps["values"][starts, 0], steps["next_values"][-1, 0]
    whole = of_one(rewards, values, elapsed, last, observed=True)
    assert_allclose(gains[starts, 0], whole, rtol=1e-9, atol=1e-12)
    assert_array_equal(expected[starts, 0], values)


def test_how_many_parts_an_instant_has_does_not_matter() -> None:
    """A start more in the same second leaves the advantage of the first decision as it was."""
    one = of_one([-5, -7], [1, 2], [10, 20], 3)
    parts = of_one([0, 0, -5, -7], [1, 9, -4, 2], [0, 0, 10, 20], 3)
    assert parts[0] == pytest.approx(one[0], rel=1e-12)


def test_the_future_of_an_ended_episode_is_not_carried_over() -> None:
    steps = random_steps(0)
    steps["ends"][:] = np.arange(T)[:, None] == 5
    before, _ = advantages(**steps, discounting=CLOCK)
    steps["rewards"][6:] += 100.0
    steps["values"][6:] -= 50.0
    later, _ = advantages(**steps, discounting=CLOCK)
    assert_array_equal(before[:6], later[:6])
    assert not np.allclose(before[6:], later[6:])


@pytest.mark.parametrize("elapsed", [0.0, 1e-6, 1.0, 50.0, 1e4])
def test_rewards_accrue_as_their_integral(elapsed: float) -> None:
    """Those of an instant stay as they are."""
    accrued = CLOCK.accrued(np.array([-3.0]), np.array([elapsed]))
    until = min(elapsed, 4000.0)
    exact, _ = integrate.quad(lambda t: np.exp(-t / 100.0), 0.0, until, epsabs=0.0)
    assert_allclose(accrued, -3.0 * (exact / elapsed if elapsed else 1.0), rtol=1e-9)


def test_the_reward_scale_is_the_deviation_of_all_discounted_sums() -> None:
    rng = default_rng(0)
    rewards, discounts = rng.normal(5.0, 2.0, (40, 3)), rng.uniform(0.5, 1.0, (40, 3))
    ends = rng.random((40, 3)) < 0.1
    sums, running = [], np.zeros(3)
    for t in range(40):
        sums.append(running + rewards[t])
        running = np.where(ends[t], 0.0, sums[-1] * discounts[t])
    scale = RewardScale(3)
    assert scale.deviation == 1.0
    for part in (slice(0, 7), slice(7, 40)):
        scale.add(rewards[part], discounts[part], ends[part])
    assert scale.deviation == pytest.approx(np.std(sums), rel=1e-12)


def test_the_value_scale_of_one_batch_is_that_of_the_batch_and_it_forgets() -> None:
    rng, scale = default_rng(0), ValueScale(5.0)
    assert (scale.mean, scale.deviation) == (0.0, 1.0)
    targets = rng.normal(-300.0, 7.0, (16, 4))
    scale.add(targets)
    assert (scale.mean, scale.deviation) == pytest.approx((targets.mean(), targets.std()))
    assert_allclose(scale.values(scale.scored(targets)), targets)
    assert scale.scored(targets).std() == pytest.approx(1.0)
    for _ in range(100):
        scale.add(rng.normal(3.0, 2.0, 1000))
    assert scale.mean == pytest.approx(3.0, abs=0.2)
    assert scale.deviation == pytest.approx(2.0, rel=0.1)
    equal = ValueScale(5.0)  # which do not divide by nothing
    equal.add(np.full(9, -4.0))
    assert_array_equal(equal.scored(np.full(2, -4.0)), [0.0, 0.0])


@pytest.mark.parametrize("kind", [RewardScale, ValueScale])
def test_scales_go_through_json(kind: Any) -> None:
    first, second = kind(2), kind(2)
    arguments = [default_rng(0).normal(size=(5, 2))]
    if kind is RewardScale:
        arguments += [np.full((5, 2), 0.9), np.zeros((5, 2), np.bool_)]
    first.add(*arguments)
    second.load(json.loads(json.dumps(first.state())))
    first.add(*arguments)
    second.add(*arguments)
    assert first.state() == second.state()


def test_advantages_are_standardised() -> None:
    found = standardised(default_rng(0).normal(10.0, 3.0, 300))
    assert (found.mean(), found.std()) == pytest.approx((0.0, 1.0), abs=1e-9)
    assert_array_equal(standardised(np.full(4, 3.0)), np.zeros(4))
    assert len(standardised(np.zeros(0))) == 0


def plain(gains: Any, time: Any, episode: Any, group_size: int, schedulers: int) -> Any:
    """`less_group_mean`, one number after another."""
    found, rows = gains.copy(), group_size * schedulers
    for t, column in np.ndindex(gains.shape):
        levels = []
        for other in range(column // rows * rows, (column // rows + 1) * rows):
            if other == column or (other - column) % schedulers:
                continue
            theirs = np.flatnonzero(episode[:, other] == episode[t, column])
            before = [u for u in theirs if time[u, other] <= time[t, column]]
            if before and any(time[u, other] >= time[t, column] for u in theirs):
                levels.append(gains[before[-1], other])
        found[t, column] -= np.mean(levels) if levels else 0.0
    return found


@pytest.mark.parametrize("seed", range(4))
def test_it_is_the_mean_of_the_others_at_the_same_time(seed: int) -> None:
    rng, group_size, schedulers, shape = default_rng(seed), 3, 2, (14, 6)
    begins = rng.random(shape) < 0.15
    passed = rng.integers(0, 4, shape).astype(np.float64)
    time = np.zeros(shape)
    for t in range(1, len(time)):
        time[t] = np.where(begins[t], 0.0, time[t - 1] + passed[t])
    wide = [np.repeat(x, schedulers, axis=1) for x in (time, np.cumsum(begins, axis=0))]
    gains = rng.normal(size=wide[0].shape)
    found = less_group_mean(gains, *wide, rows=group_size * schedulers, group_size=group_size)
    assert_allclose(found, plain(gains, *wide, group_size, schedulers), rtol=1e-12)
    assert not np.allclose(found, gains)
    common = np.repeat(gains[:, :1], 4, axis=1)  # what befalls all of a group is taken away
    same = np.repeat(np.arange(14.0)[:, None], 4, axis=1), np.ones((14, 4), np.int64)
    assert_allclose(less_group_mean(common, *same, rows=4, group_size=4), 0.0, atol=1e-12)
