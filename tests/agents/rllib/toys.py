"""A task anybody can solve, its policy, and a training run on it as a script.

python toys.py <run folder> <steps> [<env runners>]
"""

from __future__ import annotations

import csv
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.learner.training_data import TrainingData
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch
from safetensors.torch import load_file
from torch import Tensor, nn

from agents.rllib.advantages import PerStep
from agents.rllib.config import PPO, TRAINING, Cloning, Learner, Training
from agents.rllib.module import PolicyModule, modules_of
from agents.rllib.ppo import PPOLearner, UpdateRequest
from agents.rllib.runner import TASK, Shared, VectorRunner
from agents.rllib.task import ObservationBuffer, RLTask, RunnerEnv, Solution, Step
from envs.files import read_json
from models.architecture import MASKED_LOGIT, Policy

LENGTH, CHOICES = 8, 4
TEAM = ("a1", "a2", "b1")
SPACE = spaces.Dict(
    {
        "shown": spaces.Box(0.0, 1.0, (CHOICES,), np.float32),
        "action_mask": spaces.Box(0, 1, (CHOICES,), np.int8),
    }
)


class Outlook(NamedTuple):
    logits: Tensor
    value: Tensor
    posterior: Tensor


class LinearPolicy(Policy):
    """Logits and value that are linear in what is shown; an auxiliary head that names it."""

    def __init__(self, outputs: int) -> None:
        super().__init__()
        self.actor, self.critic = nn.Linear(CHOICES, outputs), nn.Linear(CHOICES, 1)
        self.head = nn.Linear(CHOICES, CHOICES)

    def decide(self, observation: Mapping[str, Tensor]) -> tuple[Tensor, Tensor]:
        return self.assess(observation)[:2]

    def assess(self, observation: Mapping[str, Tensor]) -> Outlook:
        shown = observation["shown"]
        logits = self.actor(shown)
        if logits.shape[-1] == CHOICES:
            logits = logits.masked_fill(observation["action_mask"] == 0, MASKED_LOGIT)
        return Outlook(logits, self.critic(shown).squeeze(-1), self.head(shown).unsqueeze(-2))


@dataclass(frozen=True)
class Linear:
    """The architecture of `LinearPolicy`."""

    def policy(self, observation_space: spaces.Dict, action_space: spaces.Space[Any]) -> Policy:
        if isinstance(action_space, spaces.MultiDiscrete):
            return LinearPolicy(int(action_space.nvec.sum()))
        return LinearPolicy(CHOICES if isinstance(action_space, spaces.Discrete) else 2)


class LabelledBuffer(ObservationBuffer):
    """The class of what is shown is what the auxiliary head is to predict."""

    def labels(self, times: int) -> Any:
        return self.arrays["shown"][:times].argmax(axis=2)[..., None]


class GuessEnv(RunnerEnv):
    """Every agent is shown one choice of four, where one other is not allowed; the shown is wanted.

    The reward of an agent is 1 / 8 when it does what is wanted, in all of 8 steps; the objective is
    2 less the mean return: 1 at best. `elapsed` is 0.5.
    """

    def __init__(self, task: Guess) -> None:
        self.task = task
        self.resets: list[tuple[int, float]] = []

    @property
    def time(self) -> float:
        return 0.5 * self.decided

    def reset(self, seed: int, progress: float = 1.0, expert: Any = None) -> None:
        rng, shape = np.random.default_rng(seed), (LENGTH, len(self.task.agents))
        self.resets.append((seed, progress))
        self.wanted = rng.integers(0, CHOICES, shape)
        self.banned = (self.wanted + rng.integers(1, CHOICES, shape)) % CHOICES
        self.decided, self.total, self.expert = 0, 0.0, expert

    def observations(self) -> Sequence[Mapping[str, Any]]:
        shape = len(self.task.agents), CHOICES
        shown, mask, agents = np.zeros(shape, np.float32), np.ones(shape, np.int8), range(shape[0])
        if self.decided < LENGTH:  # at the end nothing is shown
            shown[agents, self.wanted[self.decided]] = 1.0
            mask[agents, self.banned[self.decided]] = 0
        return [{"shown": a, "action_mask": b} for a, b in zip(shown, mask, strict=True)]

    def step(self, actions: Sequence[Any]) -> Step:
        wanted, acted = self.wanted[self.decided], np.array(actions)
        if self.task.continuous:
            rewards = (1.0 - abs(acted[:, 0] - wanted / CHOICES)) / LENGTH
        else:
            assert (acted != self.banned[self.decided]).all()
            rewards = (acted == wanted) / LENGTH
        self.decided += 1
        self.total += float(rewards.mean())
        over = self.decided == LENGTH
        if over:
            self.task.keep(Solution(self.objective(), {"wanted": self.wanted}))
        return Step(rewards.tolist(), 0.5, over and not self.task.cuts, over and self.task.cuts)

    def expert_action(self, agent: int) -> int:
        assert self.expert == "knows"
        return int(self.wanted[self.decided, agent])

    def objective(self) -> float:
        return 2.0 - self.total

    def metrics(self) -> Mapping[str, float]:
        return {"right": self.total}

    def state(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {"total": self.total}, {"decided": torch.tensor([self.decided])}

    def load(self, numbers: dict[str, Any], arrays: Mapping[str, Tensor]) -> None:
        self.decided, self.total = int(arrays["decided"]), numbers["total"]


@dataclass
class Guess(RLTask):
    """Agents with names; those of one initial share a module."""

    agents: Sequence[str] = ("one",)
    continuous: bool = False
    cuts: bool = False  # episodes are truncated, not over
    teacher: Any = "knows"
    reference: Any = "knows"
    env: type[GuessEnv] = GuessEnv  # of evaluations
    metrics = ("right",)

    def module_of(self, agent: str) -> str:
        return agent[0]

    def spaces_of(self, agent: str) -> tuple[spaces.Dict, spaces.Space[Any]]:
        real = spaces.Box(0.0, 1.0, (1,), np.float32)
        return SPACE, real if self.continuous else spaces.Discrete(CHOICES)

    def buffer(self, module: str, times: int, rows: int) -> LabelledBuffer:
        return LabelledBuffer(SPACE, times, rows)

    def make_env(self, index: int) -> GuessEnv:
        return GuessEnv(self)

    def make_evaluation_env(self, number: int) -> GuessEnv:
        return self.env(replace(self))


# PPO on one episode of each of 8 environments, in a run of ten tiny iterations
PPO_OF_TOYS = PPO(
    num_envs=8, steps=None, episodes=1, minibatch_size=32, num_epochs=4,
    learning_rate=3e-2, final_learning_rate=3e-2, entropy_coefficient=0.0,
    final_entropy_coefficient=0.0, anneal_steps=1_000, discounting=PerStep(0.5, 0.9),
    target_kl=None, value_memory=None, normalise_rewards=False,
)  # fmt: skip
RUN_OF_TOYS = Training(
    model=Linear(), ppo=PPO_OF_TOYS, cloning=Cloning(), learner=Learner(), budget_s=None,
    max_steps=640, checkpoint_every=2, evaluate_every=None, evaluation_episodes=4,
)  # fmt: skip
GOES_ON = {"steps": 5, "episodes": None}
ONE_PLAN = {  # of several for each problem, whose reward comes at once
    "group_size": 4, "discounting": PerStep(), "value_coefficient": 0.0,
    "auxiliary_coefficient": 0.0,
}  # fmt: skip


def small_ppo(**ppo: Any) -> PPO:
    return replace(PPO_OF_TOYS, **ppo)


def small_training(ppo: Mapping[str, Any] = {}, **chosen: Any) -> Training:
    return replace(RUN_OF_TOYS, ppo=small_ppo(**ppo), **chosen)


def runner_of(
    task: RLTask,
    training: Training,
    modules: Mapping[str, PolicyModule] | None = None,
    index: int = 0,
) -> VectorRunner:
    config = PPOConfig().environment(env_config={TASK: Shared(task), TRAINING: Shared(training)})
    made = VectorRunner(config=config, worker_index=index)
    made.modules = modules or modules_of(task, training.model)
    return made


def learner_of(training: Training, specs: Mapping[str, Any]) -> PPOLearner:
    config = PPOConfig().learners(learner_config_dict={TRAINING: Shared(training)})
    made = PPOLearner(config=config, module_spec=MultiRLModuleSpec(rl_module_specs=dict(specs)))
    made.build()
    return made


def update(made: PPOLearner, batches: Mapping[str, Any], **chosen: Any) -> dict[str, Any]:
    """One gradient step, or what is chosen instead."""
    rows = {name: SampleBatch(dict(columns)) for name, columns in batches.items()}
    request: dict[str, Any] = {
        "seed": 0, "num_epochs": 1, "num_minibatches": 1, "learning_rate": 1e-2,
        "entropy_coefficient": 0.01,
    }  # fmt: skip
    return made.update(
        training_data=TrainingData(batch=MultiAgentBatch(rows, 1)),
        request=UpdateRequest(**request | chosen),
    )


def terms_of_ppo(log_ratio: Any, gains: Any) -> dict[str, Any]:
    """The loss and what is told beside it, in numpy."""
    ratio = np.exp(log_ratio)
    least = np.minimum(ratio * gains, np.clip(ratio, 0.8, 1.2) * gains)
    return {
        "policy_loss": -least.mean(),
        "old_approx_kl": -log_ratio.mean(),
        "approx_kl": (ratio - 1.0 - log_ratio).mean(),
        "clipfrac": (np.abs(ratio - 1.0) > 0.2).mean(),
    }


def copied(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    return {name: x.clone() for name, x in tensors.items()}


def rows_of(folder: Path) -> list[dict[str, str]]:
    """The metrics of a run, without what differs from run to run."""
    clocks = {f"charts/{name}" for name in ("seconds", "SPS", "sample_seconds", "learn_seconds")}
    with (folder / "metrics.csv").open(newline="") as file:
        return [{k: v for k, v in row.items() if k not in clocks} for row in csv.DictReader(file)]


def weights_of(folder: Path, best: bool = False) -> dict[str, list[float]]:
    """Of the last checkpoint, or of the best evaluation."""
    place = folder / "best" if best else max((folder / "checkpoints").iterdir())
    return {k: x.tolist() for k, x in load_file(place / "weights.safetensors").items()}


def untrained(folder: Path) -> list[float]:
    """Outcomes of the first evaluation."""
    outcomes: list[float] = read_json(folder / "untrained/score.json")["outcomes"]
    return outcomes


def same_run(one: Path, other: Path, best: bool = True) -> None:
    assert rows_of(one) == rows_of(other)
    for which in (False, best):
        assert weights_of(one, which) == weights_of(other, which)


def in_parts(
    folder: Path, training: Training, make: Callable[[], RLTask], *ends: int, best: bool = False
) -> tuple[Any, Any]:
    """A run that has a break after some steps, and one that has none, whose ends are the same."""
    from experiments.learning.training import train_policies

    whole, parts = folder / "whole", folder / "parts"
    for part in ends:
        chosen = replace(training, max_steps=part)
        found = train_policies(chosen, make(), parts, resume=part != ends[0])
    expected = train_policies(chosen, make(), whole)
    same_run(whole, parts, best)
    return found, expected


if __name__ == "__main__":
    from agents.rllib.restore import has_checkpoint
    from experiments.learning.training import train_policies

    runners = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    folder = Path(sys.argv[1])
    train_policies(
        small_training(GOES_ON, max_steps=int(sys.argv[2]), learner=Learner(runners)),
        Guess(TEAM),
        folder,
        lambda row: time.sleep(0.05),  # to be killed anywhere
        resume=has_checkpoint(folder),
    )
