"""From fragments to rows: whatever the fragments and learners are, the same decisions."""

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

from agents.rllib.advantages import PerStep, PerTime, standardised, without_shared
from agents.rllib.batch import BatchMaker, Ready
from agents.rllib.config import PPO
from agents.rllib.module import LABELS, TAUGHT
from agents.rllib.runner import Fragment, Part
from tests.agents.rllib.toys import small_ppo
from tests.strength import SEEDS, examples

STEPS, LANES = 6, 8
AGENTS = {"a": 2, "b": 1}  # of a lane
SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "scales": {"value_memory": 3.0, "normalise_rewards": True, "steps": STEPS, "episodes": None},
    "time": {"discounting": PerTime(10.0, 5.0), "alike": 2},
}


def random_fragment(seed: int, taught: bool = False) -> Fragment:
    rng = np.random.default_rng(seed)
    over = rng.integers(0, 12, (STEPS, LANES))
    parts = {}
    for name, count in AGENTS.items():
        shape = (STEPS, LANES * count)
        rows = STEPS * LANES * count
        parts[name] = Part(
            lanes=np.repeat(np.arange(LANES), count),
            observations={"number": np.arange(rows), "seen": rng.normal(size=(rows, 3))},
            labels=rng.integers(-1, 4, (rows, 2)),
            decides=rng.random(shape) < 0.7,
            actions=rng.integers(0, 4, (*shape, 2)),
            taught=rng.integers(0, 4, shape) if taught else None,
            log_probabilities=rng.normal(size=shape).astype(np.float32),
            scores=rng.normal(size=shape),
            after=rng.normal(size=shape),
            rewards=rng.normal(3.0, 2.0, shape),
        )
    begins = np.concatenate([np.zeros((1, LANES), np.bool_), over[:-1] < 2])
    return Fragment(
        parts=parts,
        lanes=np.arange(LANES),
        elapsed=rng.uniform(0.1, 3.0, (STEPS, LANES)),
        now=np.arange(STEPS)[:, None] + rng.random((STEPS, LANES)),
        episode=1 + np.cumsum(begins, axis=0),
        terminated=over == 0,
        cut=over == 1,
    )


def lanes_of(fragment: Fragment, first: int, last: int) -> Fragment:
    """The same for some of its environments."""

    def cut(array: Any, count: int = 1) -> Any:
        return None if array is None else array[:, first * count : last * count]

    parts = {}
    for name, part in fragment.parts.items():
        count = AGENTS[name]

        def flat(array: Any, count: int = count) -> Any:
            whole = array.reshape(STEPS, LANES * count, *array.shape[1:])
            kept = whole[:, first * count : last * count]
            return kept.reshape(-1, *array.shape[1:])

        assert part.labels is not None
        parts[name] = Part(
            lanes=part.lanes[first * count : last * count],
            observations={key: flat(x) for key, x in part.observations.items()},
            labels=flat(part.labels),
            **{
                field.name: cut(getattr(part, field.name), count)
                for field in fields(Part)
                if field.name not in {"lanes", "observations", "labels"}
            },
        )
    names = ("elapsed", "now", "episode", "terminated", "cut")
    arrays = {name: cut(getattr(fragment, name)) for name in names}
    return replace(fragment, parts=parts, lanes=fragment.lanes[first:last], **arrays)


def table(ready: Ready, module: str) -> dict[str, np.ndarray]:
    """The columns of all learners' decisions, ordered by their number."""
    batches = [batch.policy_batches[module] for batch in ready.batches]
    found: dict[str, list[np.ndarray]] = {}
    for batch in batches:
        kept = batch[Columns.LOSS_MASK]
        for name, column in batch.items():
            columns = column if isinstance(column, dict) else {name: column}
            for key, x in columns.items():
                found.setdefault(key, []).append(x[kept])
    joined = {name: np.concatenate(columns) for name, columns in found.items()}
    order = np.argsort(joined["number"])
    return {name: column[order] for name, column in joined.items()}


def equal(one: Ready, other: Ready) -> None:
    for module in AGENTS:
        first, second = table(one, module), table(other, module)
        assert set(first) == set(second)
        for name, column in first.items():
            assert_allclose(second[name], column, rtol=1e-6, atol=1e-9, err_msg=name)


def made(fragments: Sequence[Sequence[Fragment]], ppo: PPO, learners: int = 1) -> Ready:
    """Of several iterations, the last."""
    maker = BatchMaker(ppo, AGENTS)
    return [maker.ready(own, learners) for own in fragments][-1]


@pytest.mark.parametrize("chosen", SETTINGS.values(), ids=SETTINGS)
@pytest.mark.parametrize("taught", [False, True])
@examples(20, 6)
@given(seed=SEEDS, at=st.sampled_from([2, 4, 6]))
def test_how_many_runners_sampled_does_not_matter(
    chosen: dict[str, Any], taught: bool, seed: int, at: int
) -> None:
    ppo = small_ppo(num_envs=LANES, **chosen)
    whole = [random_fragment(seed, taught), random_fragment(seed + 1, taught)]
    shares = [[lanes_of(one, at, LANES), lanes_of(one, 0, at)] for one in whole]  # in any order
    equal(made([[one] for one in whole], ppo), made(shares, ppo))


@pytest.mark.parametrize("taught", [False, True])
@examples(20, 6)
@given(seed=SEEDS, learners=st.integers(2, 5))
def test_learners_have_equal_shares_of_all_decisions(
    taught: bool, seed: int, learners: int
) -> None:
    ppo, fragments = small_ppo(num_envs=LANES), [[random_fragment(seed, taught)]]
    one, several = made(fragments, ppo), made(fragments, ppo, learners)
    equal(one, several)
    fewest, sums = [], []
    for module in AGENTS:
        rows = [len(batch.policy_batches[module][Columns.LOSS_MASK]) for batch in several.batches]
        assert max(rows) - min(rows) <= 1
        fewest.append(min(rows))
        sums.append(sum(rows))
    assert several.fewest == min(fewest)
    assert one.fewest == min(sums)


def test_a_module_without_decisions_is_left_out() -> None:
    fragment, ppo = random_fragment(0), small_ppo(num_envs=LANES)
    fragment.parts["a"].decides[:] = False
    ready = made([[fragment]], ppo)
    assert set(ready.batches[0].policy_batches) == set(AGENTS) - {"a"}
    assert ready.fewest == fragment.parts["b"].decides.sum()
    for part in fragment.parts.values():
        part.decides[:] = False
    assert made([[fragment]], ppo).fewest == 0


def test_the_columns_are_what_was_sampled() -> None:
    fragment = random_fragment(0)
    batch = made([[fragment]], small_ppo(num_envs=LANES)).batches[0].policy_batches["a"]
    part = fragment.parts["a"]
    assert batch[Columns.OBS]["seen"] is part.observations["seen"]  # not copied
    assert_array_equal(batch[Columns.LOSS_MASK], part.decides.reshape(-1))
    assert_array_equal(batch[Columns.ACTIONS], part.actions.reshape(-1, 2))
    assert_array_equal(batch[Columns.ACTION_LOGP], part.log_probabilities.reshape(-1))
    assert_array_equal(batch[LABELS], part.labels)
    assert TAUGHT not in batch
    taught = random_fragment(0, taught=True)
    batch = made([[taught]], small_ppo(num_envs=LANES)).batches[0].policy_batches["a"]
    assert_array_equal(batch[TAUGHT], taught.parts["a"].taught.reshape(-1))
    assert Columns.ACTIONS not in batch
    assert Postprocessing.ADVANTAGES not in batch


@pytest.mark.parametrize("discounting", [PerStep(0.9, 0.8), PerTime(10.0, 5.0)])
def test_advantages_and_targets_are_those_worked_out_by_hand(discounting: Any) -> None:
    """Of a lane whose agent decides in steps 0, 2 and 3; the episode is over with step 3."""
    rewards, elapsed = np.array([1.0, 2.0, -1.0, 5.0]), np.array([1.0, 2.0, 0.5, 1.0])
    values, decides = np.array([3.0, 99.0, 2.0, -4.0]), np.array([True, False, True, True])
    fragment = random_fragment(0)
    for lane in range(LANES):  # 0: over, 1: cut, others: go on
        fragment.terminated[:, lane] = False
        fragment.cut[:, lane] = False
        fragment.elapsed[:4, lane] = elapsed
        part = fragment.parts["b"]
        part.rewards[:4, lane], part.scores[:4, lane] = rewards, values
        part.decides[:4, lane], part.after[3, lane] = decides, 7.0
        part.scores[4, lane], part.decides[4, lane] = 6.0, True
    fragment.terminated[3, 0] = fragment.cut[3, 1] = True
    if isinstance(discounting, PerStep):
        counts, kept = np.full(4, 0.9), np.full(4, 0.8)
    else:
        counts, kept = np.exp(-elapsed / 10.0), np.exp(-elapsed / 5.0)
        rewards = rewards * 10.0 * (1.0 - counts) / elapsed  # at an even rate
    ppo = small_ppo(num_envs=LANES, discounting=discounting)
    batch = made([[fragment]], ppo).batches[0].policy_batches["b"]
    targets = batch[Postprocessing.VALUE_TARGETS].reshape(STEPS, LANES)
    for lane, last in ((0, 0.0), (1, 7.0)):
        at_3 = rewards[3] + counts[3] * last + 4.0
        at_2 = rewards[2] + counts[2] * -4.0 - 2.0 + counts[2] * kept[2] * at_3
        between = counts[1] * kept[1] * at_2  # step 1 is as good as what it brings
        at_0 = rewards[0] + counts[0] * (rewards[1] + counts[1] * 2.0) - 3.0
        at_0 += counts[0] * kept[0] * between
        found = targets[[0, 2, 3], lane]
        assert_allclose(found, [at_0 + 3.0, at_2 + 2.0, at_3 - 4.0], rtol=1e-5)
    own = fragment.parts["b"]
    kept_rows = batch[Columns.LOSS_MASK]
    gains = (batch[Postprocessing.VALUE_TARGETS] - own.scores.reshape(-1))[kept_rows]
    assert_allclose(
        batch[Postprocessing.ADVANTAGES][kept_rows], standardised(gains), rtol=1e-4, atol=1e-5
    )


def test_what_befalls_alike_environments_is_taken_away() -> None:
    fragment = random_fragment(0)
    part = fragment.parts["a"]
    part.decides[:] = True
    ppo = small_ppo(num_envs=LANES, alike=2)
    batch = made([[fragment]], ppo).batches[0].policy_batches["a"]
    gains = batch[Postprocessing.VALUE_TARGETS].reshape(STEPS, -1) - part.scores
    now, episode = (np.repeat(x, 2, axis=1) for x in (fragment.now, fragment.episode))
    own = without_shared(gains, now, episode, rows=4, alike=2)
    assert not np.allclose(own, gains)
    assert_allclose(
        batch[Postprocessing.ADVANTAGES], standardised(own.reshape(-1)), rtol=1e-4, atol=1e-5
    )


def test_what_came_of_a_teachers_decisions_is_not_the_critics_guess() -> None:
    found = []
    for factor in (1.0, 0.0):
        fragment = random_fragment(0, taught=True)
        for part in fragment.parts.values():
            part.scores[:] *= factor
        found.append(made([[fragment]], small_ppo(num_envs=LANES)))
    equal(*found)


def test_the_critic_learns_standard_scores_and_is_read_as_such() -> None:
    maker = BatchMaker(small_ppo(num_envs=LANES, value_memory=1.0), AGENTS)
    plain = made([[random_fragment(0)]], small_ppo(num_envs=LANES))
    first = maker.ready([random_fragment(0)], 1)
    targets = table(plain, "a")[Postprocessing.VALUE_TARGETS]
    scale = maker.value_scales["a"]
    assert scale is not None
    assert scale.mean == pytest.approx(targets.mean(), rel=1e-5)
    found = table(first, "a")[Postprocessing.VALUE_TARGETS]
    assert_allclose(found, standardised(targets), rtol=1e-4, atol=1e-5)
    # scores of the same values lead to the same targets
    scored = random_fragment(1)
    for name, part in scored.parts.items():
        own = maker.value_scales[name]
        assert own is not None
        part.scores[:], part.after[:] = own.scored(part.scores), own.scored(part.after)
    second = table(maker.ready([scored], 1), "a")[Postprocessing.VALUE_TARGETS]
    expected = table(made([[random_fragment(1)]], small_ppo(num_envs=LANES)), "a")
    assert_allclose(
        second, standardised(expected[Postprocessing.VALUE_TARGETS]), rtol=1e-4, atol=1e-5
    )


@pytest.mark.parametrize("goes_on", [False, True])
def test_discounted_sums_of_rewards_end_where_episodes_do(goes_on: bool) -> None:
    length = {"steps": STEPS, "episodes": None} if goes_on else {}
    ppo = small_ppo(num_envs=LANES, normalise_rewards=True, **length)
    fragments = [random_fragment(0), random_fragment(1)]
    running, sums = np.zeros(LANES), []
    maker = BatchMaker(ppo, AGENTS)
    for fragment in fragments:
        ready = maker.ready([fragment], 1)
        running = running if goes_on else np.zeros(LANES)  # those that ran on were given up
        for t in range(STEPS):
            running = running + fragment.parts["b"].rewards[t]
            sums.append(running)
            running = np.where((fragment.terminated | fragment.cut)[t], 0.0, 0.5 * running)
    deviation = maker.reward_scales["b"].deviation
    assert deviation == pytest.approx(np.std(sums))
    fragments[-1].parts["b"].rewards[:] /= deviation
    plain = made([fragments[-1:]], replace(ppo, normalise_rewards=False))
    for name, column in table(plain, "b").items():
        assert_allclose(table(ready, "b")[name], column, rtol=1e-5, atol=1e-6)


def test_scales_go_on_from_a_document() -> None:
    ppo = small_ppo(num_envs=LANES, **SETTINGS["scales"])
    first, second = BatchMaker(ppo, AGENTS), BatchMaker(ppo, AGENTS)
    first.ready([random_fragment(0)], 1)
    second.restore(json.loads(json.dumps(first.document())))
    equal(first.ready([random_fragment(1)], 1), second.ready([random_fragment(1)], 1))
    assert first.document() == second.document()
