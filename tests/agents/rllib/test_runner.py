"""What is sampled: by whom, from which episodes, and what the policy says of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from typing import Any

import numpy as np
import pytest
import torch
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal, assert_equal

from agents.rllib.config import Cloning, Learner
from agents.rllib.connector import joined
from agents.rllib.module import PolicyModule, module_spec, modules_of, sample_rows
from agents.rllib.runner import ModuleRollout, Rollout, SampleRequest, VectorRunner
from agents.rllib.task import RLTask, Step
from models.architecture import MASKED_LOGIT
from tests.agents.rllib.toys import (
    GOES_ON,
    LENGTH,
    SPACE,
    TEAM,
    Guess,
    GuessEnv,
    Linear,
    copied,
    runner_of,
    small_training,
)
from tests.refusal import refusal
from tests.strength import SEEDS, examples

KINDS = pytest.mark.parametrize("ppo", [{}, GOES_ON], ids=["episodes", "steps"])


@pytest.fixture(autouse=True)
def generators() -> Iterator[None]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        yield


@pytest.fixture(scope="module")
def modules() -> dict[str, PolicyModule]:
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        return modules_of(Guess(("one", *TEAM)), Linear())


def runner(
    modules: Mapping[str, PolicyModule], task: Guess | None = None, *, index: int = 0, of: int = 0,
    cloning: int = 0, seed: int = 0, **ppo: Any,
) -> VectorRunner:  # fmt: skip
    task = task or Guess()
    training = small_training(
        {"num_envs": 4, **ppo}, cloning=Cloning(cloning), learner=Learner(of), seed=seed
    )
    own = {task.module_of(agent): modules[task.module_of(agent)] for agent in task.agents}
    return runner_of(task, training, own, index)


def sampled(made: VectorRunner, iteration: int = 0, steps: int = LENGTH, **asked: Any) -> Rollout:
    request: dict[str, Any] = {"progress": 1.0, **asked}
    return made.sample(SampleRequest(iteration, steps=steps, **request))


def of_one(*arguments: Any, **asked: Any) -> ModuleRollout:
    return sampled(*arguments, **asked).modules["o"]


def shown(own: ModuleRollout) -> Any:
    """(T, B) what was wanted, by the observations."""
    return own.observations["shown"].argmax(axis=2)


def said(module: PolicyModule, observations: Mapping[str, Any]) -> tuple[Any, Any]:
    with torch.no_grad():
        seen = {name: torch.as_tensor(x) for name, x in observations.items()}
        return module.policy.decide(seen)


def seed_of(*key: int) -> int:
    return int(np.random.SeedSequence(key).generate_state(1)[0])


def same(one: Rollout, other: Rollout) -> None:
    assert_equal(asdict(one), asdict(other))


@KINDS
def test_what_is_stored_is_what_the_policy_said(modules: Any, ppo: Any) -> None:
    made = runner(modules, Guess(TEAM), **ppo)
    for iteration in range(2):
        rollout = sampled(made, iteration, 5)
        for name, own in rollout.modules.items():
            logits, values = said(modules[name], own.observations)
            logs = torch.log_softmax(logits, dim=-1).numpy()
            taken = np.take_along_axis(logs, own.actions[..., None], axis=2)[..., 0]
            assert_allclose(own.log_probabilities, taken, atol=1e-6)
            assert_allclose(own.values, values, atol=1e-6)
            assert_allclose(own.rewards, (own.actions == shown(own)) / LENGTH)
            assert own.decides.all()
            assert_array_equal(own.labels[..., 0], shown(own))
        assert [len(own.env_index) for own in rollout.modules.values()] == [8, 4]


def test_real_numbers_act_within_their_bounds_and_are_kept_as_drawn() -> None:
    task = Guess(continuous=True)
    module = modules_of(task, Linear())["o"]
    own = of_one(runner({"o": module}, task))
    inputs, _ = said(module, own.observations)
    normal = torch.distributions.Normal(inputs[..., 0], inputs[..., 1].exp())
    expected = normal.log_prob(torch.from_numpy(own.actions[..., 0]))
    assert_allclose(own.log_probabilities, expected, rtol=1e-4, atol=1e-5)
    assert (own.actions < 0.0).any()
    acted = module.clipped(own.actions)
    assert acted.min() == 0.0
    rewards = (1.0 - np.abs(acted[..., 0] - shown(own) / 4)) / LENGTH
    assert_allclose(own.rewards, rewards, rtol=1e-5)


@KINDS
def test_episodes_are_numbered_by_run_group_and_count(modules: Any, ppo: Any) -> None:
    made = runner(modules, group_size=2, seed=7, **ppo)
    for progress in (0.25, 0.5, 0.75):
        actions = of_one(made, steps=5, progress=progress).actions
    begun = [0.25, 0.5] if ppo else [0.25, 0.5, 0.75]  # in 15 steps or in three times 5
    for index, env in enumerate(made.envs):
        seeds = [seed_of(7, index // 2, count) for count in range(len(begun))]
        assert env.resets == list(zip(seeds, begun, strict=True))
    assert (actions[:, 0] != actions[:, 1]).any()  # in the same episode


def test_with_steps_episodes_go_on_in_the_next_rollout(modules: Any) -> None:
    made, total = runner(modules, Guess(TEAM), **GOES_ON), np.zeros(4)
    for iteration in range(3):
        rollout = sampled(made, iteration, 5)
        clock = np.arange(5 * iteration, 5 * iteration + 5)[:, None] * np.ones((1, 4), np.int64)
        assert_array_equal(rollout.time, 0.5 * (clock % LENGTH))
        assert_array_equal(rollout.episode, 1 + clock // LENGTH)
        assert_array_equal(rollout.terminated, clock % LENGTH == 7)
        assert not rollout.truncated.any()
        assert (rollout.elapsed == 0.5).all()
        assert rollout.steps == 20
        for name, own in rollout.modules.items():
            last = made.vector.buffers[name].at(5, np.arange(len(own.env_index)))
            _, values = said(modules[name], last)
            assert_allclose(own.next_values[-1], values, atol=1e-6)  # where it will go on
            assert (own.next_values[:-1] == 0.0).all()
            rewards = own.rewards[: 5 - 2 * iteration].sum(axis=0)  # of the first episode
            np.add.at(total, own.env_index, rewards / len(TEAM))
        assert len(rollout.ended) == (4 if iteration == 1 else 0)
        for episode, expected in zip(rollout.ended, total, strict=False):
            assert episode["episodic_length"] == LENGTH
            assert episode["episodic_return"] == pytest.approx(expected)
            assert episode["right"] == pytest.approx(expected)
    with refusal("field 'steps'"):  # what carries over has one length
        sampled(made, 3, 6)


def test_with_episodes_every_rollout_starts_afresh(modules: Any) -> None:
    made, clock = runner(modules), np.arange(LENGTH + 3)[:, None] * np.ones((1, 4), np.int64)
    for iteration in range(2):
        rollout = sampled(made, iteration, LENGTH + 3)
        assert_array_equal(rollout.time, 0.5 * (clock % LENGTH))
        assert_array_equal(rollout.episode, 2 * iteration + 1 + clock // LENGTH)
        after = rollout.modules["o"].next_values
        assert (after[-1] != 0.0).all()  # truncated, and more would have come
        assert (after[:-1] == 0.0).all()
    whole = sampled(made, 2)
    assert whole.terminated[-1].all()
    assert (whole.episode == 5).all()
    assert (whole.modules["o"].next_values == 0.0).all()


@pytest.mark.parametrize(
    ("steps", "ppo"),
    [(LENGTH, {}), (LENGTH + 2, {}), (LENGTH, {"steps": LENGTH, "episodes": None})],
    ids=["at the end", "in between", "at the end of one that goes on"],
)
def test_a_truncated_episode_is_worth_what_its_last_observation_is(
    modules: Any, steps: int, ppo: Any
) -> None:
    rollout = sampled(runner(modules, Guess(cuts=True), **ppo), steps=steps)
    assert rollout.truncated[LENGTH - 1].all()
    assert not rollout.terminated.any()
    own = rollout.modules["o"]
    end = modules["o"].policy.critic.bias.item()
    assert_allclose(own.next_values[LENGTH - 1], end, rtol=1e-6)
    if steps > LENGTH:  # what is seen next is of the next episode
        assert not np.allclose(own.values[LENGTH], end)


def test_who_has_one_action_decides_nothing(modules: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    made, real = runner(modules, **GOES_ON), PolicyModule.masks

    def one_allowed(module: Any, buffer: Any) -> Any:
        masks = real(module, buffer)
        masks[1::2] = np.arange(4) == 2
        return masks

    monkeypatch.setattr(PolicyModule, "masks", one_allowed)
    monkeypatch.setattr(GuessEnv, "step", lambda *_: Step([0.0], 0.5, False, False))
    for iteration in range(2):
        own = of_one(made, iteration, 5)
        assert_array_equal(own.decides, np.arange(5)[:, None] % 2 == np.zeros((1, 4)))
        assert (own.actions[1::2] == 2).all()
        assert (own.log_probabilities[1::2] == 0.0).all()
        assert (own.values[1::2] == 0.0).all()


@pytest.mark.parametrize("student_share", [0.0, 0.5, 1.0])
def test_the_student_drives_its_share_and_the_expert_names_all(
    modules: Any, student_share: float
) -> None:
    made = runner(modules, num_envs=32, cloning=1)
    own = of_one(made, 0, 4 * LENGTH, student_share=student_share)
    assert_array_equal(own.expert_actions, shown(own))
    logits, values = said(modules["o"], own.observations)
    probabilities = torch.softmax(logits, dim=-1).numpy()
    right = np.take_along_axis(probabilities, own.expert_actions[..., None], axis=2).mean()
    rate = (own.actions == own.expert_actions).mean()
    expected = 1.0 - student_share + student_share * right
    assert rate == pytest.approx(expected, abs=4 * 0.5 / 32 if student_share else 0.0)
    if student_share:
        assert_allclose(own.values, values, atol=1e-6)


@pytest.mark.parametrize("coefficient", [0.0, 0.1])
def test_labels_and_an_expert_are_asked_for_where_something_is_learned_by_them(
    modules: Any, coefficient: float
) -> None:
    own = of_one(runner(modules, auxiliary_coefficient=coefficient))
    assert (own.labels is not None) == (coefficient > 0.0)
    assert own.expert_actions is None


def test_an_expert_that_does_what_is_not_allowed_is_refused(
    modules: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(GuessEnv, "expert_action", lambda env, agent: env.banned[0, agent])
    with refusal("field 'teacher': does what is not allowed"):
        sampled(runner(modules, cloning=1), student_share=0.0)


@KINDS
@pytest.mark.parametrize("rollouts", [0, 1, 3])
def test_sampling_goes_on_from_its_state(modules: Any, ppo: Any, rollouts: int) -> None:
    first, second = (runner(modules, Guess(TEAM), group_size=2, **ppo) for _ in range(2))
    for iteration in range(rollouts):
        sampled(first, iteration, 5, progress=0.1 * iteration)
    numbers, arrays = first.state()
    second.load(json.loads(json.dumps(numbers)), copied(arrays))
    assert first.task.state() == second.task.state()
    for one, other in zip(first.envs, second.envs, strict=False):
        assert one.resets[-1:] == other.resets[-1:]  # progress too
    for iteration in range(rollouts, rollouts + 3):
        same(*(sampled(made, iteration, 5) for made in (first, second)))


def test_a_runner_that_was_lost_goes_on_with_the_next_episodes(modules: Any) -> None:
    first, second = (runner(modules, **GOES_ON) for _ in range(2))
    state, second.modules = sampled(first, steps=5).state, {}
    weights = {"o": modules_of(Guess(), Linear())["o"].policy.state_dict()}
    sampled(second, 1, 5, weights=weights, state=state)
    assert second.envs[3].resets == [(seed_of(0, 3, 1), 1.0)]
    found = second.modules["o"].policy.state_dict()
    torch.testing.assert_close(dict(found), dict(weights["o"]), rtol=0, atol=0)


def test_two_runners_share_the_environments_of_one(modules: Any) -> None:
    whole, *shares = (
        sampled(runner(modules, Guess(TEAM), group_size=2, index=index, of=2 if index else 0))
        for index in range(3)
    )
    found = joined(shares)
    assert_array_equal(found.env_index, whole.env_index)
    for name, own in whole.modules.items():
        assert_array_equal(found.modules[name].env_index, own.env_index)
        assert_array_equal(shown(found.modules[name]), shown(own))


def test_every_runner_draws_on_its_own() -> None:
    task = Guess(continuous=True)
    equal = modules_of(task, Linear())
    for parameter in equal["o"].parameters():
        parameter.data.zero_()  # whatever is shown
    first, second = (of_one(runner(equal, task, index=index, of=2)).actions for index in (1, 2))
    assert (first != second).all()


def test_draws_depend_on_seed_and_iteration_alone(modules: Any) -> None:
    state = torch.random.get_rng_state()
    first = sampled(runner(modules))
    assert torch.equal(state, torch.random.get_rng_state())
    torch.rand(5)
    same(first, sampled(runner(modules)))
    own, other = first.modules["o"], of_one(runner(modules), 1)
    assert_array_equal(shown(own), shown(other))
    assert (own.actions != other.actions).any()


@examples(100, 15)
@given(SEEDS, st.integers(1, 40), st.floats(0.1, 100.0))
def test_what_is_masked_is_never_drawn(seed: int, places: int, spread: float) -> None:
    rng = np.random.default_rng(seed)
    mask = rng.random((64, places)) < 0.3
    mask[np.arange(64), rng.integers(0, places, 64)] = True
    logits = np.where(mask, spread * rng.normal(size=mask.shape), MASKED_LOGIT)
    probabilities = torch.softmax(torch.from_numpy(logits.astype(np.float32)), dim=1)
    for _ in range(20):
        assert mask[np.arange(64), sample_rows(probabilities).numpy()].all()


@pytest.mark.parametrize(("level", "place"), [(0.0, 1), (1.0 - 2**-53, 3)])
def test_the_ends_of_the_distribution_are_its_own(
    level: float, place: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: torch.full(shape, level).double())
    assert sample_rows(torch.tensor([[0.0, 0.1, 0.2, 0.7, 0.0]])).tolist() == [place]
    assert sample_rows(torch.tensor([[0.0, 1.0, 0.0]])).tolist() == [1]


def as_probable(actions: Any, probabilities: Any) -> None:
    count = len(actions)
    found = np.bincount(actions, minlength=len(probabilities)) / count
    spread = np.sqrt(probabilities * (1.0 - probabilities) / count)
    assert (np.abs(found - probabilities) <= 5 * spread).all()


def test_actions_are_drawn_as_often_as_they_are_probable(modules: Any) -> None:
    count, probabilities = 20_000, np.array([0.0, 0.05, 0.25, 0.0, 0.6, 0.1])
    wide = torch.from_numpy(probabilities).float().expand(count, 6)
    as_probable(sample_rows(wide).numpy(), probabilities)
    mask = torch.tensor([1, 0, 1, 1], dtype=torch.int8).expand(count, 4)
    seen = {"shown": torch.ones(count, 4), "action_mask": mask}
    logits = said(modules["o"], seen)[0][0]
    as_probable(modules["o"].sample(seen).actions, torch.softmax(logits, dim=0).numpy())


def of_actions(space: spaces.Space[Any]) -> PolicyModule:
    spec = module_spec(Linear())
    spec.observation_space, spec.action_space = SPACE, space
    return spec.build()


def test_several_choices_and_real_numbers_are_drawn_and_chosen() -> None:
    seen = {"shown": 5 * torch.randn(50, 4), "action_mask": torch.ones(50, 4, dtype=torch.int8)}
    several = of_actions(spaces.MultiDiscrete([3, 2]))
    inputs, values = said(several, seen)
    parts = [torch.log_softmax(x, dim=1).numpy() for x in inputs.split([3, 2], dim=1)]
    made, rows = several.sample(seen), np.arange(50)
    expected = sum(part[rows, made.actions[:, k]] for k, part in enumerate(parts))
    assert_allclose(made.log_probabilities, expected, atol=1e-5)
    assert_allclose(made.values, values, atol=1e-6)
    best = np.stack([part.argmax(axis=1) for part in parts], axis=1)
    assert_array_equal(several.greedy(seen, RLTask().greedy), best)
    assert (made.actions != best).any()
    number = of_actions(spaces.Box(0.0, 1.0, (1,), np.float32))
    assert_allclose(number.greedy(seen, RLTask().greedy), said(number, seen)[0][:, :1])
