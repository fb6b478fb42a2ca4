"""Whole plans and the rates of a network: a placer, then the allocators of all servers at once."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from gymnasium import spaces

from agents.rllib.config import Training
from agents.rllib.step.bandwidth import ALLOCATOR
from agents.rllib.step.plans import PlanRLTask, PlanRunnerEnv
from agents.rllib.task import Array, Step, one_architecture
from envs.errors import InputError
from envs.joint.generator import DrawnJointProblems, JointProblem, Placed
from envs.joint.piped import TOP, Traffic
from models.architecture import Architecture
from models.export.allocator import export_allocator
from models.export.checkpoint import ModelCard
from models.step.channels import TeamConfig

PLACER = "placer"
MASK = "action_mask"  # (2,) of every agent: whether it has a choice now
_CHOICE, _NO_CHOICE = np.array([1, 1], np.int8), np.array([1, 0], np.int8)


class JointPlanRunnerEnv(PlanRunnerEnv):
    """Two steps: the placer acts, then every allocator whose server sends anything.

    All have the same rewards: what the placement comes to at even shares, then what the levels add
    to that. So allocators are not charged with the placement, and the sum is that of the plan.
    """

    question: JointProblem

    @property
    def time(self) -> float:
        return float(self.placed is not None)

    def reset(self, *arguments: Any, **named: Any) -> None:
        super().reset(*arguments, **named)
        self.placed: Placed | None = None

    def observe(self, time: int) -> None:
        placer, *allocators = self.rows
        if self.placed is None:
            seen = self.task.seen(self.question)
            placer[0].write(time, placer[1], {**seen, MASK: _CHOICE})
            for buffer, row in allocators:
                buffer.arrays[MASK][time, row] = _NO_CHOICE
            return
        placer[0].arrays[MASK][time, placer[1]] = _NO_CHOICE
        traffic = self.placed.traffic
        for server, (buffer, row) in enumerate(allocators):
            buffer.arrays[MASK][time, row] = _NO_CHOICE
            if server < len(traffic.used) and traffic.used[server].any():
                buffer.write(time, row, allocator_view(buffer.arrays, traffic, server))

    def step(self, actions: Sequence[Any]) -> Step:
        agents = len(self.rows)
        if self.placed is None:
            self.placed = self.question.placed(actions[0])
            self.judged = self.placed.judged
            return Step([self.judged.reward] * agents, 1.0, terminated=False, truncated=False)
        count = len(self.placed.traffic.used)
        level = np.array(actions[1 : count + 1])[:, : count - 1] - TOP
        self.judged = self.question.shared(self.placed, level)
        gained = self.judged.reward - self.placed.judged.reward
        return Step([gained] * agents, 1.0, terminated=True, truncated=False)


def allocator_view(arrays: Mapping[str, Array], traffic: Traffic, server: int) -> dict[str, Array]:
    """What the allocator of a server sees, padded as `arrays` are."""
    seen = {name: np.zeros(array.shape[2:], array.dtype) for name, array in arrays.items()}
    pipes = len(traffic.used) - 1
    seen["pipe_features"][:pipes] = traffic.pipes[server]
    seen["server_features"][:] = traffic.servers[server]
    seen["pipe_mask"][:pipes] = traffic.mask[server]
    seen[MASK] = _CHOICE
    return seen


class JointPlanRLTask(PlanRLTask):
    """Plans with rates: agents `placer`, `allocator_0`, ..., of which the latter share a policy.

    Raises:
        InputError: as `PlanRLTask`; the source gives no pipes.
    """

    kind = JointPlanRunnerEnv

    def __init__(self, source: Any, training: Training) -> None:
        if not isinstance(source, DrawnJointProblems):
            raise InputError("decides no bandwidth: a team takes env=joint_problems", field="env")
        super().__init__(source, training)
        self.agents = (PLACER, *(f"{ALLOCATOR}_{server}" for server in range(source.servers)))
        self._spaces = {
            PLACER: (_with_mask(source.observation_space), source.action_space),
            ALLOCATOR: (_with_mask(source.allocator_space), source.level_space),
        }

    def module_of(self, agent: str) -> str:
        return PLACER if agent == PLACER else ALLOCATOR

    def export(self, policies: Mapping[str, Any], folder: Path, card: ModelCard) -> None:
        """The allocators' beside the placer's."""
        super().export(policies, folder, card)
        card = replace(card, title="A policy that allocates bandwidth")
        export_allocator(policies[ALLOCATOR], folder.with_name(ALLOCATOR), card)

    def architectures(self, model: Any) -> dict[str, Architecture]:
        assert isinstance(model, TeamConfig)
        return {
            PLACER: one_architecture(model.placer), ALLOCATOR: one_architecture(model.allocator)
        }  # fmt: skip

    def spaces_of(self, agent: str) -> tuple[spaces.Dict, spaces.Space[Any]]:
        return self._spaces[self.module_of(agent)]


def _with_mask(space: spaces.Dict) -> spaces.Dict:
    return spaces.Dict({**space.spaces, MASK: spaces.Box(0, 1, (2,), np.int8)})
