"""A task anybody can solve, its policy, and a training run on it as a script.

python toys.py <run folder> <steps> [<env runners>]
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from gymnasium import spaces
from torch import Tensor, nn

from agents.rllib.advantages import PerStep
from agents.rllib.config import PPO, Cloning, Learner, Training
from agents.rllib.subject import ArrayMemory, Solution, Stepped, Subject
from models.architecture import MASKED_LOGIT, Policy

LENGTH, CHOICES = 8, 4
HERE = Learner(0, 0, 0.0, "cpu", None)
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
        logits, value, _ = self.assess(observation)
        return logits, value

    def assess(self, observation: Mapping[str, Tensor]) -> Outlook:
        shown = observation["shown"]
        logits = self.actor(shown)
        if logits.shape[1] == CHOICES:
            logits = logits.masked_fill(observation["action_mask"] == 0, MASKED_LOGIT)
        return Outlook(logits, self.critic(shown).squeeze(-1), self.head(shown).unsqueeze(1))


@dataclass(frozen=True)
class Linear:
    """The architecture of `LinearPolicy`; `scale` changes nothing but the identity of a run."""

    scale: float = 1.0

    def policy(self, observation_space: spaces.Dict, action_space: spaces.Space[Any]) -> Policy:
        if isinstance(action_space, spaces.MultiDiscrete):
            return LinearPolicy(int(action_space.nvec.sum()))
        return LinearPolicy(CHOICES if isinstance(action_space, spaces.Discrete) else 2)


class LabelledMemory(ArrayMemory):
    """The class of what is shown is what the auxiliary head is taught."""

    def labels(self, times: int) -> Any:
        return self.observations(times)["shown"].argmax(axis=1)[:, None]


class GuessLane:
    """Every agent is shown one choice of four, where one other is not allowed; the shown is wanted.

    The reward of an agent is 1 / 8 when it does what is wanted, in all of 8 steps; the outcome is 2
    less the mean return: 1 at best. `elapsed` is 0.5.
    """

    def __init__(self, subject: Guess) -> None:
        self.subject = subject
        self.slots: Sequence[tuple[Any, int]] = ()
        self.resets: list[tuple[int, float]] = []

    @property
    def now(self) -> float:
        return 0.5 * self.decided

    def attach(self, slots: Sequence[tuple[Any, int]]) -> None:
        self.slots = slots

    def reset(self, seed: int, stage: float = 1.0, adviser: Any = None) -> None:
        rng = np.random.default_rng(seed)
        agents = len(self.subject.agents)
        self.resets.append((seed, stage))
        self.wanted = rng.integers(0, CHOICES, (LENGTH, agents))
        self.banned = (self.wanted + rng.integers(1, CHOICES, (LENGTH, agents))) % CHOICES
        self.decided, self.total = 0, 0.0
        self.adviser = adviser

    def observe(self, time: int) -> None:
        for agent, (memory, row) in enumerate(self.slots):
            shown, mask = np.zeros(CHOICES, np.float32), np.ones(CHOICES, np.int8)
            if self.decided < LENGTH:  # at the end nothing is shown
                shown[self.wanted[self.decided, agent]] = 1.0
                mask[self.banned[self.decided, agent]] = 0
            memory.write(time, row, {"shown": shown, "action_mask": mask})

    def step(self, actions: Sequence[Any]) -> Stepped:
        wanted = self.wanted[self.decided]
        if self.subject.continuous:
            aims = wanted / CHOICES
            rewards = [
                (1.0 - abs(float(a[0]) - w)) / LENGTH for a, w in zip(actions, aims, strict=True)
            ]
        else:
            assert all(a != b for a, b in zip(actions, self.banned[self.decided], strict=True))
            rewards = [float(a == w) / LENGTH for a, w in zip(actions, wanted, strict=True)]
        self.decided += 1
        self.total += float(np.mean(rewards))
        over = self.decided == LENGTH
        self.subject.offer(2.0 - self.total if over else np.inf, self.wanted)
        return Stepped(rewards, 0.5, over and not self.subject.cuts, over and self.subject.cuts)

    def advice(self, agent: int) -> int:
        assert self.adviser == "knows"
        return int(self.wanted[self.decided, agent])

    def outcome(self) -> float:
        return 2.0 - self.total

    def at_least(self) -> float:
        return 0.0

    def ended(self) -> Mapping[str, float]:
        return {"right": self.total}

    def document(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        return {"total": self.total}, {"decided": torch.tensor([self.decided])}

    def restore(self, numbers: dict[str, Any], arrays: Mapping[str, Tensor]) -> None:
        self.decided, self.total = int(arrays["decided"]), numbers["total"]


@dataclass
class Guess(Subject):
    """Agents with names; those of one initial share a module."""

    agents: Sequence[str] = ("one",)
    continuous: bool = False
    cuts: bool = False  # episodes are truncated, not over
    charts: Sequence[str] = ("right",)
    teacher: Any = "knows"
    reference: Any = "knows"
    best: Solution | None = None

    def module_of(self, agent: str) -> str:
        return agent[0]

    def architectures(self, model: Any) -> dict[str, Any]:
        return {self.module_of(agent): model for agent in self.agents}

    def spaces_of(self, agent: str) -> tuple[spaces.Dict, spaces.Space[Any]]:
        if self.continuous:
            return SPACE, spaces.Box(0.0, 1.0, (1,), np.float32)
        return SPACE, spaces.Discrete(CHOICES)

    def memory(self, module: str, times: int, rows: int) -> LabelledMemory:
        return LabelledMemory(SPACE, times, rows)

    def lane(self, index: int) -> GuessLane:
        return GuessLane(self)

    def exam_lane(self, number: int) -> GuessLane:
        return GuessLane(replace(self, best=None))

    def offer(self, objective: float, wanted: Any) -> None:
        if objective < (np.inf if self.best is None else self.best.objective):
            self.best = Solution(objective, {"wanted": wanted})

    def document(self) -> dict[str, Any]:
        best = self.best
        if best is None:
            return {"best": None}
        return {"best": [best.objective, best.decisions["wanted"].tolist()]}

    def restore(self, numbers: dict[str, Any]) -> None:
        if numbers["best"] is not None:
            objective, wanted = numbers["best"]
            self.best = Solution(objective, {"wanted": np.array(wanted)})


def small_ppo(**chosen: Any) -> PPO:
    """PPO on one episode of each of 8 environments; what is chosen instead of that."""
    values: dict[str, Any] = {
        "num_envs": 8,
        "steps": None,
        "episodes": 1,
        "alike": 1,
        "learned": None,
        "minibatch_size": 32,
        "num_epochs": 4,
        "learning_rate": 3e-2,
        "final_learning_rate": 3e-2,
        "entropy_coefficient": 0.0,
        "final_entropy_coefficient": 0.0,
        "anneal_steps": 1_000,
        "discounting": PerStep(0.5, 0.9),
        "clip": 0.2,
        "most_kl": None,
        "reference_kl": 0.0,
        "value_coefficient": 0.5,
        "value_memory": None,
        "normalise_rewards": False,
        "normalise_advantages": "batch",
        "auxiliary_coefficient": 0.1,
        "max_gradient_norm": 0.5,
    }
    return PPO(**{**values, **chosen})


def small_training(**chosen: Any) -> Training:
    """A run of ten tiny iterations."""
    values: dict[str, Any] = {
        "model": Linear(),
        "parameters": "shared",
        "ppo": small_ppo(),
        "cloning": Cloning(0, 1e-2, 1, 0.0, 0.0),
        "learner": HERE,
        "seed": 0,
        "budget_s": None,
        "max_steps": 640,
        "curriculum_steps": None,
        "checkpoint_every": 2,
        "exam_every": None,
        "exam_episodes": 4,
        "exam_give_up": 5.0,
        "torch_threads": 1,
    }
    return Training(**{**values, **chosen})


if __name__ == "__main__":
    from agents.rllib.restore import has_checkpoint
    from agents.rllib.training import train

    runners = int(sys.argv[3]) if len(sys.argv) > 3 else 0
    folder = Path(sys.argv[1])
    train(
        small_training(
            max_steps=int(sys.argv[2]),
            ppo=small_ppo(steps=5, episodes=None),
            learner=replace(HERE, num_env_runners=runners),
        ),
        Guess(("a1", "a2", "b1")),
        folder,
        lambda row: time.sleep(0.05),  # to be killed anywhere
        resume=has_checkpoint(folder),
    )
