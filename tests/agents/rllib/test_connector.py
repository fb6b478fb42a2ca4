"""From rollouts to rows: whatever the rollouts and learners are, the same decisions."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal
from ray.rllib.core.columns import Columns
from ray.rllib.evaluation.postprocessing import Postprocessing

from agents.rllib.advantages import (
    PerStep,
    PerTime,
    advantages,
    less_group_mean,
    standardised,
)
from agents.rllib.connector import LearnerBatches, LearnerConnector
from agents.rllib.module import EXPERT_ACTIONS, LABELS
from agents.rllib.runner import ModuleRollout, Rollout
from tests.agents.rllib.toys import small_ppo
from tests.strength import SEEDS, examples

STEPS, ENVS = 6, 8
AGENTS = {"a": 2, "b": 1}  # of an environment
GOES_ON = {"normalise_rewards": True, "steps": STEPS, "episodes": None}
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scales": {"value_memory": 3.0, **GOES_ON},
    "time": {"discounting": PerTime(10.0, 5.0), "group_size": 2},
}
EXPERT = pytest.mark.parametrize("expert", [False, True])
TARGETS, GAINS = Postprocessing.VALUE_TARGETS, Postprocessing.ADVANTAGES


def random_rollout(seed: int, expert: bool = False) -> Rollout:
    rng = np.random.default_rng(seed)
    over = rng.integers(0, 12, (STEPS, ENVS))
    modules = {}
    for name, count in AGENTS.items():
        shape = (STEPS, ENVS * count)
        modules[name] = ModuleRollout(
            env_index=np.repeat(np.arange(ENVS), count),
            observations={
                "number": np.arange(STEPS * ENVS * count).reshape(shape),
                "seen": rng.normal(size=(*shape, 3)),
            },
            labels=rng.integers(-1, 4, (*shape, 2)),
            decides=rng.random(shape) < 0.7,
            actions=rng.integers(0, 4, (*shape, 2)),
            expert_actions=rng.integers(0, 4, shape) if expert else None,
            log_probabilities=rng.normal(size=shape).astype(np.float32),
            values=rng.normal(size=shape),
            next_values=rng.normal(size=shape),
            rewards=rng.normal(3.0, 2.0, shape),
        )
    begins = np.concatenate([np.zeros((1, ENVS), np.bool_), over[:-1] < 2])
    return Rollout(
        modules=modules,
        env_index=np.arange(ENVS),
        elapsed=rng.uniform(0.1, 3.0, (STEPS, ENVS)),
        time=np.arange(STEPS)[:, None] + rng.random((STEPS, ENVS)),
        episode=1 + np.cumsum(begins, axis=0),
        terminated=over == 0,
        truncated=over == 1,
    )


def part_of(rollout: Rollout, first: int, last: int) -> Rollout:
    """The same for some of its environments."""

    def cut(value: Any, count: int) -> Any:
        if isinstance(value, dict):
            return {key: cut(x, count) for key, x in value.items()}
        own = (slice(None), slice(first * count, last * count))
        return value[own[-value.ndim :]] if isinstance(value, np.ndarray) else value

    def of(one: Any, count: int, **changed: Any) -> Any:
        own = {x.name: cut(getattr(one, x.name), count) for x in fields(one)}
        return replace(one, **own | changed)

    modules = {name: of(own, AGENTS[name]) for name, own in rollout.modules.items()}
    whole: Rollout = of(rollout, 1, modules=modules)
    return whole


def table(batches: LearnerBatches, module: str) -> dict[str, Any]:
    """The columns of all learners' decisions, ordered by their number."""
    found: dict[str, list[Any]] = {}
    for batch in batches.batches:
        own = dict(batch.policy_batches[module])
        kept, seen = own[Columns.LOSS_MASK], own.pop(Columns.OBS)
        for name, column in (own | seen).items():
            found.setdefault(name, []).append(column[kept])
    joined = {name: np.concatenate(columns) for name, columns in found.items()}
    order = np.argsort(joined["number"])
    return {name: column[order] for name, column in joined.items()}


def close(found: Any, expected: Any) -> None:
    assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


def equal(one: LearnerBatches, other: LearnerBatches, modules: Any = AGENTS) -> None:
    for module in modules:
        first, second = table(one, module), table(other, module)
        assert set(first) == set(second)
        for name, column in first.items():
            assert_allclose(second[name], column, rtol=1e-6, atol=1e-9, err_msg=name)


def made(*rollouts: Sequence[Rollout], learners: int = 1, **ppo: Any) -> LearnerBatches:
    """Of several iterations, the last."""
    connector = connector_of(**ppo)
    return [connector(own, learners) for own in rollouts][-1]


def connector_of(**ppo: Any) -> LearnerConnector:
    return LearnerConnector(small_ppo(num_envs=ENVS, **ppo), AGENTS)


@pytest.mark.parametrize("chosen", SETTINGS.values(), ids=SETTINGS)
@EXPERT
@examples(20, 6)
@given(seed=SEEDS, at=st.sampled_from([2, 4, 6]))
def test_how_many_runners_sampled_does_not_matter(
    chosen: dict[str, Any], expert: bool, seed: int, at: int
) -> None:
    whole = [[random_rollout(seed, expert)], [random_rollout(seed + 1, expert)]]
    shares = [[part_of(one, at, ENVS), part_of(one, 0, at)] for (one,) in whole]  # in any order
    equal(made(*whole, **chosen), made(*shares, **chosen))


@EXPERT
@examples(20, 6)
@given(seed=SEEDS, learners=st.integers(2, 5))
def test_learners_have_equal_shares_of_all_decisions(
    expert: bool, seed: int, learners: int
) -> None:
    rollouts = [random_rollout(seed, expert)]
    one, several = made(rollouts), made(rollouts, learners=learners)
    equal(one, several)
    rows = [
        [len(batch.policy_batches[module][Columns.LOSS_MASK]) for batch in several.batches]
        for module in AGENTS
    ]
    assert all(max(own) - min(own) <= 1 for own in rows)
    assert several.fewest == min(map(min, rows))
    assert one.fewest == min(map(sum, rows))


def test_a_module_without_decisions_is_left_out() -> None:
    rollout = random_rollout(0)
    first, second = rollout.modules.values()
    first.decides[:] = False
    found = made([rollout])
    assert set(found.batches[0].policy_batches) == set(AGENTS) - {"a"}
    assert found.fewest == second.decides.sum()
    second.decides[:] = False
    assert made([rollout]).fewest == 0


@EXPERT
def test_the_columns_are_what_was_sampled(expert: bool) -> None:
    rollout = random_rollout(0, expert)
    batch, own = made([rollout]).batches[0].policy_batches["a"], rollout.modules["a"]
    assert np.shares_memory(batch[Columns.OBS]["seen"], own.observations["seen"])  # not copied
    expected = {Columns.LOSS_MASK: own.decides, LABELS: own.labels}
    if expert:
        expected[EXPERT_ACTIONS] = own.expert_actions
    else:
        expected |= {Columns.ACTIONS: own.actions, Columns.ACTION_LOGP: own.log_probabilities}
    given_up = {Columns.OBS, TARGETS} if expert else {Columns.OBS, TARGETS, GAINS}
    assert set(batch) == set(expected) | given_up
    for name, column in expected.items():
        assert_array_equal(batch[name], column.reshape(-1, *column.shape[2:]))


@pytest.mark.parametrize("discounting", [PerStep(0.9, 0.8), PerTime(10.0, 5.0)])
def test_advantages_and_targets_are_of_what_was_sampled(discounting: Any) -> None:
    """Nothing comes after an episode that is terminated, nor goes on after the last step."""
    rollout = random_rollout(0)
    own, ends = rollout.modules["b"], rollout.terminated | rollout.truncated
    ends[-1] = True
    batch = made([rollout], discounting=discounting).batches[0].policy_batches["b"]
    gains, expected = advantages(
        discounting.accrued(own.rewards, rollout.elapsed), own.values,
        np.where(rollout.terminated, 0.0, own.next_values), rollout.elapsed, ends, own.decides,
        discounting,
    )  # fmt: skip
    close(batch[TARGETS], (gains + expected).reshape(-1))
    close(batch[GAINS][batch[Columns.LOSS_MASK]], standardised(gains[own.decides]))


def test_what_befalls_the_environments_of_a_group_is_taken_away() -> None:
    rollout = random_rollout(0)
    own = rollout.modules["a"]
    own.decides[:] = True
    batch = made([rollout], group_size=2).batches[0].policy_batches["a"]
    gains = batch[TARGETS].reshape(STEPS, -1) - own.values
    time, episode = (np.repeat(x, 2, axis=1) for x in (rollout.time, rollout.episode))
    expected = less_group_mean(gains, time, episode, rows=4, group_size=2)
    assert not np.allclose(expected, gains)
    close(batch[GAINS], standardised(expected.reshape(-1)))


def test_what_came_of_an_experts_decisions_is_not_the_critics_guess() -> None:
    first, second = random_rollout(0, expert=True), random_rollout(0, expert=True)
    for own in second.modules.values():
        own.values[:] = 0.0
    equal(made([first]), made([second]))


def test_the_critic_learns_standard_scores_and_is_read_as_such() -> None:
    connector = connector_of(value_memory=1.0)
    scale = connector.value_scales["a"]
    for seed in (0, 1):
        expected = table(made([random_rollout(seed)]), "a")[TARGETS]
        rollout = random_rollout(seed)
        for name, own in rollout.modules.items():  # scores of the same values: the same targets
            of_module = connector.value_scales[name]
            own.values[:] = of_module.scored(own.values)
            own.next_values[:] = of_module.scored(own.next_values)
        close(table(connector([rollout], 1), "a")[TARGETS], standardised(expected))
        assert scale.mean == pytest.approx(expected.mean(), rel=1e-5)


@pytest.mark.parametrize("goes_on", [False, True])
def test_discounted_sums_of_rewards_end_where_episodes_do(goes_on: bool) -> None:
    chosen = GOES_ON if goes_on else {"normalise_rewards": True}
    running, sums, connector = np.zeros(ENVS), [], connector_of(**chosen)
    for rollout in map(random_rollout, (0, 1)):
        found = connector([rollout], 1)
        running = running if goes_on else np.zeros(ENVS)  # those that ran on were given up
        for t in range(STEPS):
            sums.append(running + rollout.modules["b"].rewards[t])
            running = np.where((rollout.terminated | rollout.truncated)[t], 0.0, 0.5 * sums[-1])
    deviation = connector.reward_scales["b"].deviation
    assert deviation == pytest.approx(np.std(sums))
    rollout.modules["b"].rewards[:] /= deviation
    equal(made([rollout], **chosen | {"normalise_rewards": False}), found, "b")


def test_scales_go_on_from_their_state() -> None:
    first, second = (connector_of(**SETTINGS["scales"]) for _ in range(2))
    first([random_rollout(0)], 1)
    second.load(json.loads(json.dumps(first.state())))
    equal(*(connector([random_rollout(1)], 1) for connector in (first, second)))
    assert first.state() == second.state()
