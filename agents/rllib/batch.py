"""From what runners sampled to what learners take: advantages, targets, ready rows."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from ray.rllib.core.columns import Columns
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.rllib.policy.sample_batch import MultiAgentBatch, SampleBatch

from agents.rllib.advantages import (
    RewardScale,
    ValueScale,
    advantages,
    ranked,
    standardised,
    telling,
    without_shared,
)
from agents.rllib.config import PPO
from agents.rllib.module import LABELS, TAUGHT
from agents.rllib.runner import Fragment, Part
from envs.arrays import FloatArray

NumbersOfModules = dict[str, dict[str, Any]]


@dataclass(frozen=True, eq=False)
class Ready:
    """A batch for every learner, of the modules of which each has decisions to learn from."""

    batches: list[MultiAgentBatch]
    fewest: int  # decisions of a module in the share of a learner; 0: there are none at all


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
        fragment = fragments[0] if len(fragments) == 1 else joined(fragments)
        shares = {}
        for name, part in fragment.parts.items():
            if part.decides.sum() < learners:
                continue
            gains, targets = self._gains(name, fragment)
            if self.ppo.learned is not None and part.taught is None:
                rows = self.ppo.alike * self.agents[name]
                kept = telling(gains, rows, self.ppo.alike, self.ppo.learned)
                part = replace(part, decides=part.decides & kept)  # noqa: PLW2901
            shares[name] = _shares(_columns(part, gains, targets), learners)
        batches = [
            MultiAgentBatch({name: own[k] for name, own in shares.items()}, fragment.steps)
            for k in range(learners)
        ]
        found = [int(np.sum(one[Columns.LOSS_MASK])) for own in shares.values() for one in own]
        return Ready(batches, min(found, default=0))

    def _gains(self, name: str, fragment: Fragment) -> tuple[FloatArray, FloatArray]:
        """(T, B) standardised advantages and what the critic is to predict.

        To a teacher's decisions belongs the discounted sum of what came of them.
        """
        ppo, discounting, part = self.ppo, self.ppo.discounting, fragment.parts[name]
        lane, decides = np.searchsorted(fragment.lanes, part.lanes), part.decides
        elapsed, over = fragment.elapsed[:, lane], fragment.terminated[:, lane]
        ends = over | fragment.cut[:, lane]
        if ppo.steps is None:  # what runs at last does not go on
            ends[-1] = True
        rewards = discounting.accrued(part.rewards, elapsed)
        if ppo.normalise_rewards:
            past, count = self.reward_scales[name], self.agents[name]
            agents = part.lanes * count + np.arange(len(part.lanes)) % count
            past.add(rewards, discounting.discounts(elapsed), ends, agents)
            rewards = rewards / past.deviation
        values, after, scale = part.scores, part.after, self.value_scales[name]
        if scale is not None:
            values, after = scale.values(values), scale.values(after)
        after = np.where(over, 0.0, after)
        observed = part.taught is not None
        gains, expected = advantages(
            rewards, values, after, elapsed, ends, decides, discounting, observed
        )
        targets = gains + expected
        if scale is not None:
            scale.add(targets[decides])
            targets = scale.scored(targets)
        if ppo.alike > 1:
            rows, now, episode = ppo.alike * self.agents[name], fragment.now, fragment.episode
            gains = without_shared(gains, now[:, lane], episode[:, lane], rows, ppo.alike)
            if ppo.normalise_advantages == "rank":
                return ranked(gains, rows, ppo.alike), targets
        gains[decides] = standardised(gains[decides])
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


def joined(fragments: Sequence[Fragment]) -> Fragment:
    """Fragments of several runners side by side, by the numbers of their environments."""
    ordered = sorted(fragments, key=lambda fragment: int(fragment.lanes[0]))
    parts = {}
    for name, first in ordered[0].parts.items():
        own = [fragment.parts[name] for fragment in ordered]
        steps = len(first.decides)
        known = {field.name: [getattr(part, field.name) for part in own] for field in fields(Part)}
        found: dict[str, Any] = {
            key: np.concatenate(values, axis=min(values[0].ndim - 1, 1))
            for key, values in known.items()
            if isinstance(values[0], np.ndarray) and key != "labels"
        }
        found["observations"] = {
            key: _beside([part.observations[key] for part in own], steps)
            for key in first.observations
        }
        if first.labels is not None:
            found["labels"] = _beside(known["labels"], steps)
        parts[name] = Part(**found)
    arrays: dict[str, Any] = {
        field.name: np.concatenate(
            [getattr(fragment, field.name) for fragment in ordered],
            axis=0 if field.name == "lanes" else 1,
        )
        for field in fields(Fragment)
        if isinstance(getattr(ordered[0], field.name), np.ndarray)
    }
    return Fragment(parts, **arrays)


def _beside(rows: Sequence[NDArray[Any]], steps: int) -> NDArray[Any]:
    """(T x B, ...) rows of several as those of all."""
    by_time = [array.reshape(steps, -1, *array.shape[1:]) for array in rows]
    beside = np.concatenate(by_time, axis=1)
    return beside.reshape(-1, *beside.shape[2:])


def _columns(part: Part, gains: FloatArray, targets: FloatArray) -> dict[str, Any]:
    """The rows of a part, T x B of each column."""
    columns: dict[str, Any] = {
        Columns.OBS: dict(part.observations),
        Columns.LOSS_MASK: part.decides.reshape(-1),
        Postprocessing.VALUE_TARGETS: targets.astype(np.float32).reshape(-1),
    }
    if part.taught is not None:
        columns[TAUGHT] = part.taught.reshape(-1, *part.taught.shape[2:])
        if part.taught.ndim > 2:  # tokens: what stands before each of them
            columns[Columns.ACTIONS] = part.actions.reshape(columns[TAUGHT].shape)
    else:
        columns[Postprocessing.ADVANTAGES] = gains.astype(np.float32).reshape(-1)
        columns[Columns.ACTIONS] = part.actions.reshape(-1, *part.actions.shape[2:])
        columns[Columns.ACTION_LOGP] = part.log_probabilities.reshape(
            -1, *part.log_probabilities.shape[2:]
        )
    if part.labels is not None:
        columns[LABELS] = part.labels
    return columns


def _shares(columns: dict[str, Any], learners: int) -> list[SampleBatch]:
    """All rows for one learner; of several each gets equally many decisions, give or take one."""
    if learners == 1:
        return [SampleBatch(columns)]
    decisions = np.flatnonzero(columns[Columns.LOSS_MASK])
    return [SampleBatch(_rows(columns, decisions[first::learners])) for first in range(learners)]


def _rows(columns: dict[str, Any], numbers: NDArray[np.int64]) -> dict[str, Any]:
    return {
        key: _rows(value, numbers) if isinstance(value, dict) else value[numbers]
        for key, value in columns.items()
    }
