"""Any environment as a task: played by chance, learned, exported, and asked without torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from pettingzoo import ParallelEnv

from agents.exported import load_decider
from agents.rllib.environments import EnvironmentTask
from agents.rllib.module import modules_of
from agents.rllib.vector import Evaluation
from experiments.learning.training import train_policies
from models.export.checkpoint import ModelCard
from models.perceptron import PerceptronConfig
from tests.agents.rllib.toys import small_training
from tests.refusal import refusal

SPACE = spaces.Dict(
    {
        "lamps": spaces.Box(0.0, 1.0, (3,), np.float32),
        "action_mask": spaces.Box(0, 1, (3,), np.int8),
    }
)
CARD = ModelCard("A policy", "", "", {})


class Lamps(gymnasium.Env[Any, Any]):
    """Four times one of three lamps is on, and is to be named; another is not allowed."""

    observation_space, action_space = SPACE, spaces.Discrete(3)

    def reset(self, *, seed: Any = None, options: Any = None) -> Any:
        super().reset(seed=seed)
        self.steps = 0
        return self.shown(), {}

    def step(self, action: Any) -> Any:
        assert action != self.banned
        right, self.steps = float(action == self.lamp), self.steps + 1
        return self.shown(), right, self.steps == 4, False, {"wrong": 1.0 - right + 1e-3}

    def shown(self) -> Any:
        self.lamp = int(self.np_random.integers(3))
        self.banned = (self.lamp + 1) % 3
        mask = np.ones(3, np.int8)
        mask[self.banned] = 0
        return {"lamps": np.eye(3, dtype=np.float32)[self.lamp], "action_mask": mask}


class Pair(ParallelEnv[str, Any, Any]):
    """Both have lamps of their own, in one episode."""

    metadata = {"name": "pair"}  # noqa: RUF012

    def __init__(self, names: tuple[str, str] = ("one_0", "one_1")) -> None:
        self.possible_agents, self.single = list(names), {name: Lamps() for name in names}

    def observation_space(self, agent: str) -> Any:
        return SPACE

    def action_space(self, agent: str) -> Any:
        return spaces.Discrete(3)

    def reset(self, seed: Any = None, options: Any = None) -> Any:
        self.agents = list(self.possible_agents)
        pairs = {x: env.reset(seed=seed + k) for k, (x, env) in enumerate(self.single.items())}
        return {x: pair[0] for x, pair in pairs.items()}, {x: {} for x in pairs}

    def step(self, actions: Any) -> Any:
        found = {x: self.single[x].step(action) for x, action in actions.items()}
        self.agents = [x for x in self.agents if not found[x][2]]
        return tuple({x: one[k] for x, one in found.items()} for k in range(5))


@pytest.mark.slow
@pytest.mark.parametrize("make", [Lamps, Pair, lambda: Pair(("red", "blue"))])
def test_what_is_learned_is_what_the_export_decides(make: Any, tmp_path: Path) -> None:
    task = EnvironmentTask(make=make)
    training = small_training(
        {"auxiliary_coefficient": 0.0}, model=PerceptronConfig(16), max_steps=1_000
    )
    found = train_policies(training, task, tmp_path)
    assert found.outcomes == pytest.approx([np.exp(-4.0)] * 4)
    assert max(found.reference) > 1.5 * np.exp(-4.0)
    task.export(found.policies, tmp_path / "checkpoint", CARD)
    for name, policy in found.policies.items():
        several = len(found.policies) > 1
        folder = tmp_path / "checkpoint" / name if several else tmp_path / "checkpoint"
        decider = load_decider(folder)
        assert decider.kind == "environment"
        for seed in range(8):
            seen, _ = Lamps().reset(seed=seed)
            batch = {key: torch.from_numpy(array[None]) for key, array in seen.items()}
            expected = int(policy.decide(batch)[0][0].argmax())
            plain = {key: array.tolist() for key, array in seen.items()}
            (act,) = decider.decide({"observation": plain}).actions
            assert act == {"action": "act", "value": expected}
        with refusal("observation.lamps.*is missing"):
            decider.decide({"observation": {"action_mask": [1, 1, 1]}})
        with refusal(r"observation.lamps.*is not of shape \[3\]"):
            decider.decide({"observation": {"lamps": [1.0], "action_mask": [1, 1, 1]}})


@pytest.mark.parametrize(
    ("name", "agents"),
    [
        ("CartPole-v1", 1), ("Pendulum-v1", 1), ("meshwright/PlacementToy-v0", 1),
        ("meshwright/BandwidthToy-v0", 1), ("meshwright/BandwidthToyContinuous-v0", 1),
        ("meshwright/JointToy-v0", 4), ("meshwright/ClusterParallelToy-v0", 2),
    ],
)  # fmt: skip
def test_chance_and_a_policy_play_any_environment(name: str, agents: int) -> None:
    task = EnvironmentTask(name)
    assert len(task.agents) == agents
    modules = modules_of(task, PerceptronConfig(8))
    assert len(modules) == (1 if agents in (1, 2) else 2)
    evaluation = Evaluation(task, 2)
    for given, expert in ((modules, None), (None, task.reference)):
        played = evaluation.of(given, expert=expert)
        assert all(one.length > 0 and one.objective > 0.0 for one in played)
        assert played == evaluation.of(given, expert=expert)


def test_random_play_does_not_draw_from_the_stream_of_the_environment() -> None:
    class Guess(Lamps):
        def shown(self) -> Any:
            self.lamp, self.banned = int(self.np_random.choice(np.arange(3))), None
            return {"lamps": np.zeros(3, np.float32), "action_mask": np.ones(3, np.int8)}

    env = EnvironmentTask(make=Guess).make_env(0)
    right = 0.0
    for seed in range(200):
        env.reset(seed)
        right += env.step([env.expert_action(0)]).rewards[0]
    assert 0.2 <= right / 200 <= 0.47


def test_an_agent_may_leave_before_the_others() -> None:
    env = EnvironmentTask(make=Pair).make_env(0)
    env.reset(0)
    first, second = env.env.single.values()  # type: ignore[attr-defined]
    first.steps = 2  # of four: it leaves after two more
    steps = [env.step([first.lamp, second.lamp]) for _ in range(4)]
    assert [one.terminated for one in steps] == [False, False, False, True]
    assert [list(one.rewards) for one in steps] == [[1.0, 1.0]] * 2 + [[0.0, 1.0]] * 2
    assert len(env.observations()) == 2


def test_who_shares_a_policy() -> None:
    assert [EnvironmentTask(make=Pair).module_of(x) for x in ("one_0", "one_1")] == ["one"] * 2
    apart = EnvironmentTask(make=Pair, shared=False)
    assert [apart.module_of(x) for x in apart.agents] == apart.agents


@pytest.mark.parametrize(
    ("objective", "expected"),
    [(None, np.exp(-4.0)), ("worth", 0.25), ("cost", np.inf), ("wrong", 1e-3)],
)
def test_objectives(objective: str | None, expected: float) -> None:
    env = EnvironmentTask(make=Lamps, objective=objective).make_env(0)
    env.reset(0)
    while not env.step([env.env.lamp]).terminated:  # type: ignore[attr-defined]
        pass
    assert env.objective() == pytest.approx(expected)


def test_what_is_no_environment_is_said() -> None:
    with refusal(r"there is no 'CartPol-v1' \(near it: CartPole-v1"):
        EnvironmentTask("CartPol-v1")
    with refusal("'task.id': is missing"):
        EnvironmentTask()
    env = EnvironmentTask(make=Lamps, objective="luck").make_env(0)
    env.reset(0)
    env.step([env.env.lamp])  # type: ignore[attr-defined]
    with refusal(r"no number 'luck' \(it has wrong\)"):
        env.objective()


def test_deviations_of_continuous_actions_stay_where_ratios_are_finite() -> None:
    box = spaces.Box(-1.0, 1.0, (2,), np.float32)
    seen = spaces.Dict({"observation": spaces.Box(-1.0, 1.0, (1,), np.float32)})
    policy = PerceptronConfig().policy(seen, box)
    with torch.no_grad():
        policy.get_submodule("actor").bias.copy_(torch.tensor([0.0, 9.0, 99.0, -99.0]))
    inputs, _ = policy.decide({"observation": torch.zeros(1, 1)})
    assert inputs[0, 1].item() == pytest.approx(9.0, abs=0.1)
    assert inputs[0, 2:].tolist() == [1.0, -5.0]
