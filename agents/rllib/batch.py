"""From what runners sampled to what learners take: advantages, targets, ready rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ray.rllib.core.columns import Columns
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch

from agents.rllib.advantages import (
    FloatArray,
    RewardScale,
    ValueScale,
    advantages,
    standardised,
    without_shared,
)
from agents.rllib.config import PPO
from agents.rllib.module import LABELS
from agents.rllib.ppo import TAUGHT
from agents.rllib.runner import Fragment, Part

NumbersOfModules = dict[str, dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Ready:
    """A batch for every learner, and how many decisions it holds of each module."""

    batches: list[MultiAgentBatch]
    decisions: dict[str, int]  # of the smallest share of a learner


class BatchMaker:
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

    def ready(self, fragments: Sequence[Fragment], learners: int) -> Ready:
        """The decisions of all fragments; the scales take them in."""
        rows: dict[str, list[SampleBatch]] = {}
        for name in fragments[0].parts:
            parts = [fragment.parts[name] for fragment in fragments]
            gains, targets = self._gains(name, fragments, parts)
            columns, first = [], 0
            for part in parts:
                last = first + part.decides.shape[1]
                columns.append(_columns(part, gains[:, first:last], targets[:, first:last]))
                first = last
            rows[name] = _shares(columns, learners)
        batches = [
            MultiAgentBatch(
                {name: shares[k] for name, shares in rows.items()},
                sum(fragment.steps for fragment in fragments) // learners,
            )
            for k in range(learners)
        ]
        decisions = {
            name: min(int(np.sum(one[Columns.LOSS_MASK])) for one in shares)
            for name, shares in rows.items()
        }
        return Ready(batches, decisions)

    def _gains(
        self, name: str, fragments: Sequence[Fragment], parts: Sequence[Part]
    ) -> tuple[FloatArray, FloatArray]:
        """(T, B) standardised advantages and what the critic is to predict.

        To a teacher's decisions belongs the discounted sum of what came of them.
        """
        ppo, discounting = self.ppo, self.ppo.discounting
        of_lanes = _OfLanes(fragments, parts)
        elapsed, ends = of_lanes("elapsed"), of_lanes("terminated") | of_lanes("cut")
        decides = np.concatenate([part.decides for part in parts], axis=1)
        rewards = np.concatenate([part.rewards for part in parts], axis=1)
        rewards = discounting.accrued(rewards, elapsed)
        if ppo.normalise_rewards:
            past, count = self.reward_scales[name], self.agents[name]
            agents = np.concatenate(
                [part.lanes * count + np.arange(len(part.lanes)) % count for part in parts]
            )
            past.add(rewards, discounting.discounts(elapsed), ends, agents)
            rewards = rewards / past.deviation
        values = np.concatenate([part.scores for part in parts], axis=1)
        after = np.concatenate([part.after for part in parts], axis=1)
        scale = self.value_scales[name]
        if scale is not None:
            values, after = scale.values(values), scale.values(after)
        after = np.where(of_lanes("terminated"), 0.0, after)
        cloning = parts[0].taught is not None
        gains, expected = advantages(
            rewards, values, after, elapsed, ends, decides, discounting, observed=cloning
        )
        targets = gains + expected
        if scale is not None:
            scale.add(targets[decides])
            targets = scale.scored(targets)
        if ppo.alike > 1:
            rows = ppo.alike * self.agents[name]
            gains = without_shared(gains, of_lanes("now"), of_lanes("episode"), rows, ppo.alike)
        groups = of_lanes("problem")[decides] if ppo.normalise_advantages == "problem" else None
        gains[decides] = standardised(gains[decides], groups)
        return gains, targets

    def document(self) -> NumbersOfModules:
        """The scales, as JSON takes them."""
        return {
            name: {
                "rewards": self.reward_scales[name].document(),
                "values": None if scale is None else scale.document(),
            }
            for name, scale in self.value_scales.items()
        }

    def restore(self, document: NumbersOfModules) -> None:
        for name, scale in self.value_scales.items():
            self.reward_scales[name].restore(document[name]["rewards"])
            if scale is not None:
                scale.restore(document[name]["values"])


class _OfLanes:
    """What is known of environments, (T, E), for all agents of a module, (T, B)."""

    def __init__(self, fragments: Sequence[Fragment], parts: Sequence[Part]) -> None:
        self.fragments = fragments
        self.places = [
            np.searchsorted(fragment.lanes, part.lanes)
            for fragment, part in zip(fragments, parts, strict=True)
        ]

    def __call__(self, name: str) -> NDArray[Any]:
        found = [
            getattr(fragment, name)[:, places]
            for fragment, places in zip(self.fragments, self.places, strict=True)
        ]
        return np.concatenate(found, axis=1)


def _columns(part: Part, gains: FloatArray, targets: FloatArray) -> dict[str, Any]:
    """The rows of a part, T x B of each column."""
    columns: dict[str, Any] = {
        Columns.OBS: dict(part.observations),
        Columns.LOSS_MASK: part.decides.reshape(-1),
        Postprocessing.VALUE_TARGETS: targets.astype(np.float32).reshape(-1),
    }
    if part.taught is not None:
        columns[TAUGHT] = part.taught.reshape(-1)
    else:
        columns[Postprocessing.ADVANTAGES] = gains.astype(np.float32).reshape(-1)
        columns[Columns.ACTIONS] = part.actions.reshape(-1, *part.actions.shape[2:])
        columns[Columns.ACTION_LOGP] = part.log_probabilities.reshape(-1)
    if part.labels is not None:
        columns[LABELS] = part.labels
    return columns


def _shares(columns: Sequence[dict[str, Any]], learners: int) -> list[SampleBatch]:
    """All rows for one learner; of several each gets equally many decisions, give or take one."""
    whole = columns[0] if len(columns) == 1 else _joined(columns)
    if learners == 1:
        return [SampleBatch(whole)]
    decisions = np.flatnonzero(whole[Columns.LOSS_MASK])
    return [SampleBatch(_rows(whole, decisions[first::learners])) for first in range(learners)]


def _joined(columns: Sequence[dict[str, Any]]) -> dict[str, Any]:
    return {
        key: _joined([one[key] for one in columns])
        if isinstance(value, dict)
        else np.concatenate([one[key] for one in columns])
        for key, value in columns[0].items()
    }


def _rows(columns: dict[str, Any], numbers: NDArray[np.int64]) -> dict[str, Any]:
    return {
        key: _rows(value, numbers) if isinstance(value, dict) else value[numbers]
        for key, value in columns.items()
    }
