"""Environments that are stepped together, and greedy episodes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from agents.rllib.config import BudgetGuard
from agents.rllib.module import PolicyModule
from agents.rllib.task import Array, Greedy, ObservationBuffer, RLTask, RunnerEnv
from envs.arrays import IntArray

INF = float("inf")


class VectorEnv:
    """E environments; every module sees all agents that it decides for as rows of one buffer.

    Args:
        task: whose environments they are.
        envs: all with the task's agents.
        times: of the buffers.
    """

    def __init__(self, task: RLTask, envs: Sequence[RunnerEnv], times: int) -> None:
        self.envs, self.times, self.num_agents = envs, times, len(task.agents)
        self.agents: dict[str, list[int]] = {}  # of one environment, by module
        for number, name in enumerate(task.agents):
            self.agents.setdefault(task.module_of(name), []).append(number)
        self.buffers: dict[str, ObservationBuffer] = {}
        self.rows: dict[str, list[tuple[int, int]]] = {}  # by module: environment and agent
        places: list[list[Any]] = [[None] * self.num_agents for _ in envs]
        for module, agents in self.agents.items():
            rows = [(index, agent) for index in range(len(envs)) for agent in agents]
            buffer = task.buffer(module, times, len(rows))
            self.buffers[module], self.rows[module] = buffer, rows
            for row, (index, agent) in enumerate(rows):
                places[index][agent] = (buffer, row)
        for env, own in zip(envs, places, strict=True):
            env.attach(own)

    def env_index(self, module: str) -> IntArray:
        """(B,) the environment of every row of a module."""
        return np.array([index for index, _ in self.rows[module]])

    def rows_of(self, module: str, index: int) -> slice:
        """The rows of an environment's agents in the buffer of a module."""
        size = len(self.agents[module])
        return slice(index * size, (index + 1) * size)

    def expert_actions(self, module: str, rows: IntArray) -> list[Any]:
        """What the expert policy would do in some rows."""
        places = [self.rows[module][row] for row in rows]
        return [self.envs[index].expert_action(agent) for index, agent in places]


class Played(NamedTuple):
    """One episode."""

    objective: float
    length: int  # steps


class Evaluation:
    """Episodes 0, 1, ... stepped together; episode k starts at `reset(seed=k)`.

    Args:
        task: makes their environments; a curriculum is at its end.
        episodes: how many.
        guard: of the time that making them takes.
    """

    def __init__(self, task: RLTask, episodes: int, guard: BudgetGuard | None = None) -> None:
        envs = []
        for number in range(episodes):
            if guard is not None:
                guard.check("evaluation_episodes", number, episodes)
            envs.append(task.make_evaluation_env(number))
        self.task, self.vector = task, VectorEnv(task, envs, 1)

    def of(
        self,
        modules: Mapping[str, PolicyModule] | None,
        limits: Sequence[float] | None = None,
        expert: Any = None,
    ) -> list[Played]:
        """Play the most probable actions; without modules, those of the expert policy.

        An episode whose objective exceeds its limit is given up.
        """
        envs = self.vector.envs
        for number, env in enumerate(envs):
            env.reset(number, 1.0, expert)
            env.observe(0)
        found: dict[int, Played] = {}
        running, length = list(range(len(envs))), 0
        while running:
            actions = self._actions(running, modules)
            length += 1
            for number in list(running):
                env = envs[number]
                step = env.step(actions[number])
                if step.terminated or step.truncated:
                    found[number] = Played(env.objective(), length)
                elif limits is not None and env.lower_bound() > limits[number]:
                    found[number] = Played(INF, length)
                else:
                    env.observe(0)
                    continue
                running.remove(number)
        return [found[number] for number in range(len(envs))]

    def _actions(
        self, running: Sequence[int], modules: Mapping[str, PolicyModule] | None
    ) -> dict[int, list[Any]]:
        """One action of every agent of the environments that run."""
        vector = self.vector
        actions: dict[int, list[Any]] = {n: [None] * vector.num_agents for n in running}
        for name, buffer in vector.buffers.items():
            places = vector.rows[name]
            rows = np.array([row for row, (n, _) in enumerate(places) if n in actions], np.int64)
            made = (
                vector.expert_actions(name, rows)
                if modules is None
                else _greedy(modules[name], buffer, rows, self.task.greedy)
            )
            for row, action in zip(rows, made, strict=True):
                index, agent = places[row]
                actions[index][agent] = action
        return actions


def _greedy(module: PolicyModule, buffer: ObservationBuffer, rows: IntArray, rule: Greedy) -> Array:
    """The most probable actions; the policy is not asked where only one is allowed."""
    masks = module.masks(buffer)
    if masks is None:
        return module.clipped(module.greedy(buffer.at(0, rows), rule))
    actions, choice = module.forced(masks[0, rows])
    if choice.any():
        actions[choice] = module.greedy(buffer.at(0, rows[choice]), rule)
    return actions
