"""What is sampled: by whom, from which episodes, and what the policy says of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal, assert_equal
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from agents.rllib import runner as runner_file
from agents.rllib.config import TRAINING, Cloning, Learner
from agents.rllib.module import ARCHITECTURE_KEY, PolicyModule
from agents.rllib.runner import (
    SUBJECT,
    Fragment,
    LockStepRunner,
    Order,
    Part,
    Shared,
    draw,
    drawn,
    most_probable,
    policies,
    within,
)
from agents.rllib.subject import Stepped
from models.architecture import MASKED_LOGIT
from tests.agents.rllib.toys import LENGTH, SPACE, Guess, Linear, small_ppo, small_training
from tests.refusal import refusal
from tests.strength import SEEDS, examples

TEAM = ("a1", "a2", "b1")
GOES_ON = {"steps": 5, "episodes": None}


@pytest.fixture(autouse=True)
def generators() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.fixture(scope="module")
def modules() -> dict[str, PolicyModule]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return policies(Guess(("one", *TEAM)), Linear())


def runner(
    modules: Mapping[str, PolicyModule],
    subject: Guess | None = None,
    *,
    index: int = 0,
    of: int = 0,
    cloning: bool = False,
    seed: int = 0,
    **ppo: Any,
) -> LockStepRunner:
    subject = subject or Guess()
    training = small_training(
        ppo=small_ppo(**{"num_envs": 4, **ppo}),
        cloning=Cloning(int(cloning), 1e-2, 1, 0.0, 1.0),
        learner=Learner(of, 0, 0.0, "cpu", None),
        seed=seed,
    )
    config = PPOConfig().environment(
        env_config={SUBJECT: Shared(subject), TRAINING: Shared(training)}
    )
    made = LockStepRunner(config=config, worker_index=index)
    made.modules = {subject.module_of(a): modules[subject.module_of(a)] for a in subject.agents}
    return made


def shown(part: Part) -> np.ndarray:
    """(T, B) what was wanted, by the observations."""
    found: np.ndarray = part.observations["shown"].argmax(axis=1).reshape(part.decides.shape)
    return found


def said(module: PolicyModule, observations: Mapping[str, Any]) -> tuple[Any, Any]:
    with torch.no_grad():
        inputs, values = module.policy.decide(
            {name: torch.as_tensor(x) for name, x in observations.items()}
        )
    return inputs, values.numpy()


def same(one: Any, other: Any) -> None:
    """Two fragments, or parts of them, are equal."""
    for field in fields(one):
        first, second = getattr(one, field.name), getattr(other, field.name)
        if field.name == "parts":
            for name in first:
                same(first[name], second[name])
        elif field.name not in {"best", "document"}:
            assert_equal(first, second, err_msg=field.name)


@pytest.mark.parametrize("ppo", [{}, GOES_ON], ids=["episodes", "steps"])
def test_what_is_stored_is_what_the_policy_said(modules: Any, ppo: Any) -> None:
    made = runner(modules, Guess(TEAM), **ppo)
    for iteration in range(2):
        fragment = made.sample(Order(iteration, 1.0, 5))
        for name, part in fragment.parts.items():
            logits, values = said(modules[name], part.observations)
            logs = torch.log_softmax(logits, dim=1).numpy()
            actions = part.actions.reshape(-1)
            taken = logs[np.arange(len(actions)), actions].reshape(part.decides.shape)
            assert_allclose(part.log_probabilities, taken, atol=1e-6)
            assert_allclose(part.scores.reshape(-1), values, atol=1e-6)
            assert_allclose(part.rewards, (part.actions == shown(part)) / LENGTH)
            assert part.decides.all()
            assert (part.labels == shown(part).reshape(-1, 1)).all()
        assert [len(part.lanes) for part in fragment.parts.values()] == [8, 4]


def test_real_numbers_act_within_their_bounds_and_are_kept_as_drawn() -> None:
    subject = Guess(continuous=True)
    fresh = policies(subject, Linear())
    fragment = runner(fresh, subject).sample(Order(0, 1.0, LENGTH))
    part = fragment.parts["o"]
    inputs, _ = said(fresh["o"], part.observations)
    normal = torch.distributions.Normal(inputs[:, 0], inputs[:, 1].exp())
    actions = torch.from_numpy(part.actions.reshape(-1))
    found = part.log_probabilities.reshape(-1)
    assert_allclose(found, normal.log_prob(actions), rtol=1e-4, atol=1e-5)
    assert (part.actions < 0.0).any()
    acted = within(fresh["o"].action_space, part.actions)
    assert acted.min() == 0.0
    expected = (1.0 - np.abs(acted[..., 0] - shown(part) / 4)) / LENGTH
    assert_allclose(part.rewards, expected, rtol=1e-5)


@pytest.mark.parametrize("ppo", [{}, GOES_ON], ids=["episodes", "steps"])
def test_episodes_are_numbered_by_run_group_and_count(modules: Any, ppo: Any) -> None:
    made = runner(modules, alike=2, seed=7, **ppo)
    for stage in (0.25, 0.5, 0.75):
        made.sample(Order(0, stage, 5))
    stages = [0.25, 0.5] if ppo else [0.25, 0.5, 0.75]  # in 15 steps or in three times 5
    for index, lane in enumerate(made.lanes):
        seeds = [
            int(np.random.SeedSequence((7, index // 2, count)).generate_state(1)[0])
            for count in range(len(stages))
        ]
        assert lane.resets == list(zip(seeds, stages, strict=True))


def test_alike_environments_meet_the_same_episodes(modules: Any) -> None:
    part = runner(modules, alike=2).sample(Order(0, 1.0, LENGTH)).parts["o"]
    wanted = shown(part)
    assert (wanted[:, 0::2] == wanted[:, 1::2]).all()
    assert (wanted[:, 0] != wanted[:, 2]).any()
    assert (part.actions[:, 0] != part.actions[:, 1]).any()


def test_with_steps_episodes_go_on_in_the_next_fragment(modules: Any) -> None:
    made = runner(modules, **GOES_ON)
    clock = np.arange(15)
    for iteration in range(3):
        fragment = made.sample(Order(iteration, 1.0, 5))
        of_fragment = clock[5 * iteration : 5 * iteration + 5]
        for lane in range(4):
            assert_array_equal(fragment.now[:, lane], 0.5 * (of_fragment % LENGTH))
            assert_array_equal(fragment.episode[:, lane], 1 + of_fragment // LENGTH)
            assert_array_equal(fragment.terminated[:, lane], of_fragment % LENGTH == 7)
        assert not fragment.cut.any()
        assert (fragment.elapsed == 0.5).all()
        assert fragment.steps == 20
        assert len(fragment.ended) == (4 if iteration == 1 else 0)
        part = fragment.parts["o"]
        memory = made.seats.memories["o"]  # type: ignore[union-attr]
        _, values = said(modules["o"], memory.at(5, np.arange(4)))
        assert_allclose(part.after[-1], values, atol=1e-6)  # where it will go on
        assert (part.after[:-1] == 0.0).all()


def test_the_numbers_of_an_ended_episode_are_those_of_all_its_steps(modules: Any) -> None:
    made, total = runner(modules, Guess(TEAM), **GOES_ON), np.zeros(4)
    for iteration in range(2):
        fragment = made.sample(Order(iteration, 1.0, 5))
        for part in fragment.parts.values():
            rewards = part.rewards[: 3 if iteration else 5].sum(axis=0)
            np.add.at(total, part.lanes, rewards / len(TEAM))
    for episode, expected in zip(fragment.ended, total, strict=True):
        assert episode["episodic_length"] == LENGTH
        assert episode["episodic_return"] == pytest.approx(expected)
        assert episode["right"] == pytest.approx(expected)


def test_with_episodes_every_fragment_starts_afresh(modules: Any) -> None:
    made = runner(modules)
    for iteration in range(2):
        fragment = made.sample(Order(iteration, 1.0, LENGTH + 3))
        times = np.arange(LENGTH + 3)
        for lane in range(4):
            assert_array_equal(fragment.now[:, lane], 0.5 * (times % LENGTH))
            expected = 2 * iteration + 1 + times // LENGTH
            assert_array_equal(fragment.episode[:, lane], expected)
        after = fragment.parts["o"].after
        assert (after[-1] != 0.0).all()  # cut, and more would have come
        assert (after[:-1] == 0.0).all()
    whole = made.sample(Order(2, 1.0, LENGTH))
    assert whole.terminated[-1].all()
    assert (whole.parts["o"].after == 0.0).all()
    assert [lane.resets[-1] for lane in made.lanes] == [lane.resets[4] for lane in made.lanes]


@pytest.mark.parametrize(
    ("steps", "ppo"),
    [(LENGTH, {}), (LENGTH + 2, {}), (LENGTH, {"steps": LENGTH, "episodes": None})],
    ids=["at the end", "in between", "at the end of one that goes on"],
)
def test_a_truncated_episode_is_worth_what_its_last_observation_is(
    modules: Any, steps: int, ppo: Any
) -> None:
    fragment = runner(modules, Guess(cuts=True), **ppo).sample(Order(0, 1.0, steps))
    assert fragment.cut[LENGTH - 1].all()
    assert not fragment.terminated.any()
    part = fragment.parts["o"]
    end = modules["o"].policy.state_dict()["critic.bias"].item()
    assert_allclose(part.after[LENGTH - 1], end, rtol=1e-6)
    if steps > LENGTH:  # what is seen next is of the next episode
        assert not np.allclose(part.scores[LENGTH], end)


def test_who_has_one_action_decides_nothing(modules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made = runner(modules, **GOES_ON)
    real = runner_file.masks_of

    def one_allowed(module: Any, memory: Any) -> Any:
        masks = real(module, memory)
        assert masks is not None
        masks[1::2, :, :] = 0
        masks[1::2, :, 2] = 1
        return masks

    monkeypatch.setattr(runner_file, "masks_of", one_allowed)
    monkeypatch.setattr(
        "tests.agents.rllib.toys.GuessLane.step", lambda *_: Stepped([0.0], 0.5, False, False)
    )
    for iteration in range(2):
        part = made.sample(Order(iteration, 1.0, 5)).parts["o"]
        expected = np.arange(5) % 2 == 0
        assert_array_equal(part.decides, np.repeat(expected[:, None], 4, axis=1))
        assert (part.actions[1::2] == 2).all()
        assert (part.log_probabilities[1::2] == 0.0).all()
        assert (part.scores[1::2] == 0.0).all()


@pytest.mark.parametrize("pupil", [0.0, 0.5, 1.0])
def test_the_pupil_drives_its_share_and_the_teacher_names_all(modules: Any, pupil: float) -> None:
    made = runner(modules, num_envs=32, cloning=True)
    part = made.sample(Order(0, 1.0, 4 * LENGTH, pupil)).parts["o"]
    assert part.taught is not None
    assert_array_equal(part.taught, shown(part))
    logits, values = said(modules["o"], part.observations)
    right = torch.softmax(logits, dim=1).numpy()[np.arange(logits.shape[0]), part.taught.flat]
    expected = 1.0 - pupil + pupil * right.mean()
    rate = (part.actions == part.taught).mean()
    assert rate == pytest.approx(expected, abs=4 * 0.5 / 32 if pupil else 0.0)
    if pupil:
        assert_allclose(part.scores.reshape(-1), values, atol=1e-6)


def test_without_a_teacher_nobody_is_asked(modules: Any) -> None:
    part = runner(modules).sample(Order(0, 1.0, LENGTH)).parts["o"]
    assert part.taught is None


@pytest.mark.parametrize("coefficient", [0.0, 0.1])
def test_labels_are_made_where_something_is_taught_by_them(
    modules: Any, coefficient: float
) -> None:
    made = runner(modules, auxiliary_coefficient=coefficient)
    labels = made.sample(Order(0, 1.0, LENGTH)).parts["o"].labels
    assert (labels is not None) == (coefficient > 0.0)


def test_a_teacher_that_does_what_is_not_allowed_is_refused(
    modules: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = runner(modules, cloning=True)
    monkeypatch.setattr(
        "tests.agents.rllib.toys.GuessLane.advice",
        lambda lane, agent: int(lane.banned[lane.decided, agent]),
    )
    with refusal("field 'teacher': does what is not allowed"):
        made.sample(Order(0, 1.0, LENGTH, 0.0))


def test_what_carries_over_has_one_length(modules: Any) -> None:
    made = runner(modules, **GOES_ON)
    made.sample(Order(0, 1.0, 5))
    with refusal("field 'steps'"):
        made.sample(Order(1, 1.0, 6))


@pytest.mark.parametrize("ppo", [{}, GOES_ON], ids=["episodes", "steps"])
@pytest.mark.parametrize("fragments", [0, 1, 3])
def test_sampling_goes_on_from_a_document(modules: Any, ppo: Any, fragments: int) -> None:
    first, second = (runner(modules, Guess(TEAM), alike=2, **ppo) for _ in range(2))
    for iteration in range(fragments):
        first.sample(Order(iteration, 0.1 * iteration, 5))
    numbers, arrays = first.document()
    stored = {name: value.clone() for name, value in arrays.items()}
    second.restore(json.loads(json.dumps(numbers)), stored)
    assert first.subject.document() == second.subject.document()
    for one, other in zip(first.lanes, second.lanes, strict=False):
        assert one.resets[-1:] == other.resets[-1:]  # the stage too
    for iteration in range(fragments, fragments + 3):
        order = Order(iteration, 1.0, 5)
        one, other = first.sample(order), second.sample(order)
        same(one, other)
        assert one.document == other.document


def test_a_runner_that_was_lost_goes_on_with_the_next_episodes(modules: Any) -> None:
    first, second = (runner(modules, **GOES_ON) for _ in range(2))
    document = first.sample(Order(0, 1.0, 5)).document
    weights = {name: module.state_dict() for name, module in policies(Guess(), Linear()).items()}
    second.modules = {}
    policy = {"o": {k.removeprefix("policy."): x for k, x in weights["o"].items()}}
    second.sample(Order(1, 1.0, 5, weights=policy, document=document))
    seed = int(np.random.SeedSequence((0, 3, 1)).generate_state(1)[0])
    assert second.lanes[3].resets == [(seed, 1.0)]
    for name, value in second.modules["o"].policy.state_dict().items():
        assert torch.equal(value, policy["o"][name])


def test_two_runners_share_the_environments_of_one(modules: Any) -> None:
    order = Order(0, 1.0, LENGTH)
    whole = runner(modules, Guess(TEAM), alike=2).sample(order)
    shares = [
        runner(modules, Guess(TEAM), alike=2, index=index, of=2).sample(order) for index in (1, 2)
    ]
    assert np.concatenate([share.lanes for share in shares]).tolist() == whole.lanes.tolist()
    for name, part in whole.parts.items():
        own = [share.parts[name] for share in shares]
        assert_array_equal(np.concatenate([x.lanes for x in own]), part.lanes)
        joined = np.concatenate([shown(x) for x in own], axis=1)
        assert_array_equal(joined, shown(part))


def test_every_runner_draws_on_its_own() -> None:
    subject = Guess(continuous=True)
    alike = policies(subject, Linear())
    for parameter in alike["o"].parameters():
        parameter.data.zero_()  # whatever is shown
    first, second = (
        runner(alike, subject, index=index, of=2).sample(Order(0, 1.0, LENGTH)).parts["o"].actions
        for index in (1, 2)
    )
    assert (first != second).all()


def test_draws_depend_on_seed_and_iteration_alone(modules: Any) -> None:
    def sampled(seed: int, iteration: int) -> Fragment:
        return runner(modules, seed=seed).sample(Order(iteration, 1.0, LENGTH))

    state = torch.random.get_rng_state()
    first = sampled(0, 0)
    assert torch.equal(state, torch.random.get_rng_state())
    torch.rand(5)
    same(first, sampled(0, 0))
    other = sampled(0, 1)
    assert_array_equal(shown(first.parts["o"]), shown(other.parts["o"]))
    assert (first.parts["o"].actions != other.parts["o"].actions).any()


@examples(100, 15)
@given(SEEDS, st.integers(1, 40), st.floats(0.1, 100.0))
def test_what_is_masked_is_never_drawn(seed: int, places: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    mask = rng.random((64, places)) < 0.3
    mask[np.arange(64), rng.integers(0, places, 64)] = True
    logits = np.where(mask, spread * rng.normal(size=mask.shape), MASKED_LOGIT)
    probabilities = torch.softmax(torch.from_numpy(logits.astype(np.float32)), dim=1)
    for _ in range(20):
        actions = drawn(probabilities).numpy()
        assert mask[np.arange(64), actions].all()


@pytest.mark.parametrize(("level", "place"), [(0.0, 1), (1.0 - 2**-53, 3)])
def test_the_ends_of_the_distribution_are_its_own(
    level: float, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: torch.full(shape, level).double())
    probabilities = torch.tensor([[0.0, 0.1, 0.2, 0.7, 0.0]])
    assert drawn(probabilities).tolist() == [place]
    assert drawn(torch.tensor([[0.0, 1.0, 0.0]])).tolist() == [1]


def test_actions_are_drawn_as_often_as_they_are_probable(modules: Any) -> None:
    count = 20_000
    probabilities = np.array([0.0, 0.05, 0.25, 0.0, 0.6, 0.1])
    actions = drawn(torch.from_numpy(probabilities).float().expand(count, 6)).numpy()
    found = np.bincount(actions, minlength=6) / count
    spread = np.sqrt(probabilities * (1.0 - probabilities) / count)
    assert (np.abs(found - probabilities) <= 5 * spread).all()
    seen = {
        "shown": torch.ones(count, 4),
        "action_mask": torch.tensor([1, 0, 1, 1], dtype=torch.int8).expand(count, 4),
    }
    made = draw(modules["o"], seen)
    expected = torch.softmax(said(modules["o"], seen)[0][0], dim=0).numpy()
    found = np.bincount(made.actions, minlength=4) / count
    assert_allclose(found, expected, atol=5 * 0.5 / np.sqrt(count))
    assert found[1] == 0.0


def of_actions(space: spaces.Space[Any]) -> PolicyModule:
    return RLModuleSpec(
        module_class=PolicyModule,
        observation_space=SPACE,
        action_space=space,
        model_config={ARCHITECTURE_KEY: Linear()},
    ).build()


def test_several_choices_and_real_numbers_are_drawn_and_chosen() -> None:
    seen = {"shown": 5 * torch.randn(50, 4), "action_mask": torch.ones(50, 4, dtype=torch.int8)}
    several = of_actions(spaces.MultiDiscrete([3, 2]))
    inputs, values = said(several, seen)
    parts = [torch.log_softmax(x, dim=1).numpy() for x in inputs.split([3, 2], dim=1)]
    made, rows = draw(several, seen), np.arange(50)
    expected = sum(part[rows, made.actions[:, k]] for k, part in enumerate(parts))
    assert_allclose(made.log_probabilities, expected, atol=1e-5)
    assert_allclose(made.scores, values, atol=1e-6)
    best = np.stack([part.argmax(axis=1) for part in parts], axis=1)
    assert_array_equal(most_probable(several, seen), best)
    assert (made.actions != best).any()
    number = of_actions(spaces.Box(0.0, 1.0, (1,), np.float32))
    assert_allclose(most_probable(number, seen), said(number, seen)[0][:, :1])
