"""Steps all training environments together, with one call per module for all its agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from ray.rllib.core.columns import Columns
from ray.rllib.env.single_agent_episode import SingleAgentEpisode
from ray.rllib.env.utils.infinite_lookback_buffer import InfiniteLookbackBuffer

from agents.rllib.module import PolicyModule
from agents.rllib.step.decisions import stacked, within
from agents.rllib.step.environment import TrainingEnv
from agents.rllib.step.tasks import Task

Array = NDArray[Any]


@dataclass(frozen=True, eq=False)
class Episode:
    """What all agents of one environment did from its reset on, whole or cut off.

    Attributes:
        parts: the episode of every agent as RLlib's learner takes it; all are equally long.
    """

    parts: Mapping[str, SingleAgentEpisode]

    def __len__(self) -> int:
        """Steps of the environment."""
        return len(self._any)

    @property
    def is_done(self) -> bool:
        return bool(self._any.is_done)

    @property
    def _any(self) -> SingleAgentEpisode:
        return next(iter(self.parts.values()))


class Runner:
    """Samples episodes; RLlib's own runners spend more time on it than our environments do.

    All agents act in every step and end together. Actions are drawn from the distribution of the
    module, by torch's global generator.

    Args:
        envs: at least one, all with the same agents.
        modules: decide; the learner's own, so that their weights are always the newest.
        task: says which module decides for which agent.
    """

    def __init__(
        self, envs: Sequence[TrainingEnv], modules: Mapping[str, PolicyModule], task: Task
    ) -> None:
        self.envs, self.modules, self.team = envs, modules, task.team
        self.agents: dict[str, list[str]] = {name: [] for name in modules}
        for agent in envs[0].agents:
            self.agents[task.module_of(agent)].append(agent)

    def sample(self, decisions: int) -> list[Episode]:
        """At least `decisions` steps of environments, from fresh episodes on.

        All environments make equally many steps. Where an episode ends another starts; those that
        are running at the end are cut off.
        """
        rounds = -(-decisions // len(self.envs))
        now: list[Any] = [None] * len(self.envs)  # observations of the running episodes
        begun = [0] * len(self.envs)  # rounds in which they started
        spans: list[_Span] = []
        drawn: dict[str, list[_Decisions]] = {name: [] for name in self.modules}
        rewards = np.zeros((rounds, len(self.envs)), dtype=np.float32)
        for t in range(rounds):
            for index, env in enumerate(self.envs):
                if now[index] is None:
                    now[index], begun[index] = env.reset(), t
            chosen: list[dict[str, Any]] = [{} for _ in self.envs]
            for name, agents in self.agents.items():
                made = decide(self.modules[name], [seen[agent] for seen in now for agent in agents])
                drawn[name].append(made)
                actions = iter(within(self.modules[name].action_space, made.actions))
                for joint in chosen:
                    joint.update(zip(agents, actions, strict=False))
            for index, env in enumerate(self.envs):
                now[index], rewards[t, index], terminated, truncated = env.step(chosen[index])
                if terminated or truncated or t + 1 == rounds:
                    spans.append(
                        _Span(index, begun[index], t + 1, now[index], terminated, truncated)
                    )
                    now[index] = None
        tables = {name: _joined(made) for name, made in drawn.items()}
        return [self._episode(span, tables, rewards) for span in spans]

    def _episode(self, span: _Span, tables: Mapping[str, _Decisions], rewards: Array) -> Episode:
        rows = slice(span.start, span.stop)
        episode_id = f"{span.env}.{span.start}"
        parts = {}
        for name, agents in self.agents.items():
            made = tables[name]
            for k, agent in enumerate(agents):
                column = span.env * len(agents) + k
                observations = {
                    key: np.concatenate([seen[rows, column], span.last[agent][key][None]])
                    for key, seen in made.observations.items()
                }
                parts[agent] = SingleAgentEpisode(
                    id_=f"{episode_id}.{agent}",
                    observations=_buffer(observations),
                    infos=[{}] * (span.stop - span.start + 1),
                    actions=made.actions[rows, column],
                    rewards=rewards[rows, span.env],
                    terminated=span.terminated,
                    truncated=span.truncated,
                    extra_model_outputs={
                        Columns.ACTION_LOGP: made.log_probabilities[rows, column],
                        Columns.ACTION_DIST_INPUTS: made.inputs[rows, column],
                    },
                    len_lookback_buffer=0,
                    agent_id=agent if self.team else None,
                    module_id=name if self.team else None,
                    multi_agent_episode_id=episode_id if self.team else None,
                )
        return Episode(parts)


class _Span(NamedTuple):
    """Where an episode lies: environment, rounds, and how it ended."""

    env: int
    start: int
    stop: int
    last: Any  # observation of every agent after the last step
    terminated: bool
    truncated: bool


class _Decisions(NamedTuple):
    """What one module decided for B agents in one round; with a first axis more, in all rounds."""

    observations: dict[str, Array]  # (B, ...)
    actions: Array  # (B, ...) as drawn
    log_probabilities: Array  # (B,)
    inputs: Array  # (B, K) of the distribution they were drawn from


def decide(module: PolicyModule, observations: Sequence[Mapping[str, Array]]) -> _Decisions:
    """One draw for each of B observations."""
    batch = stacked(observations)
    with torch.no_grad():
        inputs, _ = module.policy.decide({k: torch.from_numpy(v) for k, v in batch.items()})
        distribution = module.get_exploration_action_dist_cls().from_logits(inputs)
        actions = distribution.sample()
        log_probabilities = distribution.logp(actions)
    return _Decisions(batch, actions.numpy(), log_probabilities.numpy(), inputs.numpy())


def _joined(made: Sequence[_Decisions]) -> _Decisions:
    return _Decisions(
        {key: np.stack([one.observations[key] for one in made]) for key in made[0].observations},
        np.stack([one.actions for one in made]),
        np.stack([one.log_probabilities for one in made]),
        np.stack([one.inputs for one in made]),
    )


def _buffer(data: dict[str, Array]) -> InfiniteLookbackBuffer:
    """Arrays by name, each with a row per time, as RLlib keeps them after `to_numpy`."""
    buffer = InfiniteLookbackBuffer()
    buffer.data, buffer.finalized = data, True
    return buffer
