"""From what runners sampled to what learners take: advantages, value targets, shares."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass, replace
from typing import Any

import numpy as np
from ray.rllib.core.columns import Columns
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch

from agents.rllib.advantages import (
    RewardScale,
    ValueScale,
    advantages,
    group_ranks,
    largest_of_group,
    less_group_mean,
    standardised,
)
from agents.rllib.config import PPO
from agents.rllib.module import EXPERT_ACTIONS, LABELS
from agents.rllib.runner import ModuleRollout, Rollout
from envs.arrays import FloatArray


@dataclass(frozen=True, eq=False)
class LearnerBatches:
    """A batch for every learner, of the modules of which each has decisions to learn from."""

    batches: list[MultiAgentBatch]
    fewest: int  # decisions of a module in the share of a learner; 0: there are none at all


class LearnerConnector:
    """Makes batches, with scales that every module's rewards and values are taken in.

    Args:
        ppo: the algorithm.
        agents: of each module in one environment.
    """

    def __init__(self, ppo: PPO, agents: dict[str, int]) -> None:
        self.ppo, self.agents = ppo, agents
        self.reward_scales = {
            name: RewardScale(ppo.num_envs * count) for name, count in agents.items()
        }
        memory = ppo.value_memory
        self.value_scales = {
            name: None if memory is None else ValueScale(memory) for name in agents
        }

    def __call__(self, rollouts: Sequence[Rollout], learners: int) -> LearnerBatches:
        """The decisions of all rollouts; the scales take them in."""
        rollout = joined(sorted(rollouts, key=lambda one: int(one.env_index[0])))
        shares = {}
        for name, own in rollout.modules.items():
            if own.decides.sum() < learners:
                continue
            gains, targets = self._advantages(name, rollout)
            kept = self.ppo.group_kept
            if kept is not None and own.expert_actions is None:
                size = self.ppo.group_size
                largest = largest_of_group(gains, size * self.agents[name], size, kept)
                own = replace(own, decides=own.decides & largest)  # noqa: PLW2901
            shares[name] = _shares(_columns(own, gains, targets), learners)
        batches = [
            MultiAgentBatch({name: own[k] for name, own in shares.items()}, rollout.steps)
            for k in range(learners)
        ]
        found = [int(np.sum(one[Columns.LOSS_MASK])) for own in shares.values() for one in own]
        return LearnerBatches(batches, min(found, default=0))

    def _advantages(self, name: str, rollout: Rollout) -> tuple[FloatArray, FloatArray]:
        """(T, B) standardised advantages and what the critic is to predict.

        To an expert's decisions belongs the discounted sum of what came of them.
        """
        ppo, discounting, own = self.ppo, self.ppo.discounting, rollout.modules[name]
        env, decides = np.searchsorted(rollout.env_index, own.env_index), own.decides
        elapsed, terminated = rollout.elapsed[:, env], rollout.terminated[:, env]
        ends = terminated | rollout.truncated[:, env]
        if ppo.steps is None:  # what runs at last does not go on
            ends[-1] = True
        rewards = discounting.accrued(own.rewards, elapsed)
        if ppo.normalise_rewards:
            past, count = self.reward_scales[name], self.agents[name]
            agents = own.env_index * count + np.arange(len(own.env_index)) % count
            past.add(rewards, discounting.discounts(elapsed), ends, agents)
            rewards = rewards / past.deviation
        values, next_values, scale = own.values, own.next_values, self.value_scales[name]
        if scale is not None:
            values, next_values = scale.values(values), scale.values(next_values)
        next_values = np.where(terminated, 0.0, next_values)
        observed = own.expert_actions is not None
        gains, expected = advantages(
            rewards, values, next_values, elapsed, ends, decides, discounting, observed
        )
        targets = gains + expected
        if scale is not None:
            scale.add(targets[decides])
            targets = scale.scored(targets)
        if ppo.group_size > 1:
            rows, time, episode = ppo.group_size * self.agents[name], rollout.time, rollout.episode
            gains = less_group_mean(gains, time[:, env], episode[:, env], rows, ppo.group_size)
            if ppo.normalise_advantages == "rank":
                return group_ranks(gains, rows, ppo.group_size), targets
        gains[decides] = standardised(gains[decides])
        return gains, targets

    def state(self) -> dict[str, dict[str, Any]]:
        """The scales, as JSON takes them."""
        return {
            name: {
                "rewards": self.reward_scales[name].state(),
                "values": None if scale is None else scale.state(),
            }
            for name, scale in self.value_scales.items()
        }

    def load(self, state: Mapping[str, Mapping[str, Any]]) -> None:
        for name, scale in self.value_scales.items():
            self.reward_scales[name].load(state[name]["rewards"])
            if scale is not None:
                scale.load(state[name]["values"])


def joined(parts: Sequence[Any]) -> Any:
    """Rollouts of several runners side by side; of what is no array, that of the first."""
    first = parts[0]
    if len(parts) == 1:
        return first
    if isinstance(first, np.ndarray):
        return np.concatenate(parts, axis=min(first.ndim - 1, 1))
    if isinstance(first, Mapping):
        return {key: joined([part[key] for part in parts]) for key in first}
    if is_dataclass(first) and not isinstance(first, type):
        names = [field.name for field in fields(first) if field.name not in ("best", "state")]
        return replace(first, **{x: joined([getattr(part, x) for part in parts]) for x in names})
    return first


def _columns(own: ModuleRollout, gains: FloatArray, targets: FloatArray) -> dict[str, Any]:
    """The rows of a module, T x B of each column."""
    columns: dict[str, Any] = {
        Columns.OBS: dict(own.observations),
        Columns.LOSS_MASK: own.decides,
        Postprocessing.VALUE_TARGETS: targets.astype(np.float32),
    }
    if own.expert_actions is not None:
        columns[EXPERT_ACTIONS] = own.expert_actions
        if own.expert_actions.ndim > 2:  # tokens: what stands before each of them
            columns[Columns.ACTIONS] = own.actions
    else:
        columns[Postprocessing.ADVANTAGES] = gains.astype(np.float32)
        columns[Columns.ACTIONS] = own.actions
        columns[Columns.ACTION_LOGP] = own.log_probabilities
    if own.labels is not None:
        columns[LABELS] = own.labels
    return _mapped(columns, lambda array: array.reshape(-1, *array.shape[2:]))


def _shares(columns: dict[str, Any], learners: int) -> list[SampleBatch]:
    """All rows for one learner; of several each gets equally many decisions, give or take one."""
    if learners == 1:
        return [SampleBatch(columns)]
    rows = np.flatnonzero(columns[Columns.LOSS_MASK])
    return [
        SampleBatch(_mapped(columns, lambda array, own=rows[first::learners]: array[own]))
        for first in range(learners)
    ]


def _mapped(columns: dict[str, Any], change: Any) -> dict[str, Any]:
    return {
        key: _mapped(value, change) if isinstance(value, dict) else change(value)
        for key, value in columns.items()
    }
