"""What schedulers do alone on windows that are always the same, beside a rule on the same ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from agents.rllib.cluster.drivers import Agent, asked, greedy
from agents.rllib.cluster.lane import Lane
from agents.rllib.cluster.memory import ObservationMemory
from agents.rllib.cluster.runner import Staged
from envs.cluster.environment.advice import Adviser
from envs.cluster.environment.parallel_env import ClusterParallelEnv
from envs.cluster.simulation.schedule import NEVER
from models.architecture import Policy

LOOKS_EVERY = 64  # steps
Act = Callable[[Mapping[str, Tensor], Sequence[Agent]], NDArray[np.int64]]


@dataclass(frozen=True)
class Examined:
    """One episode."""

    mean_jct: float  # seconds; inf: given up, or jobs were left over when it was truncated
    decisions: int  # steps


class Exam:
    """Episodes 0, 1, ... of the windows, stepped together; episode k starts at `reset(seed=k)`.

    Args:
        envs: one for every episode; a curriculum is at its end.
    """

    def __init__(self, envs: Sequence[ClusterParallelEnv]) -> None:
        env = envs[0]
        self.lanes = [Lane(env, index) for index, env in enumerate(envs)]
        self._agents = [(lane, s) for lane in self.lanes for s in range(lane.schedulers)]
        space = env.observation_space(env.possible_agents[0])
        self._memory = ObservationMemory(env.observation, space, 1, len(envs) * env.schedulers)

    def of_policy(self, policy: Policy, most_jct: Sequence[float] | None = None) -> list[Examined]:
        """The most probable actions of a policy.

        Args:
            policy: it.
            most_jct: seconds of mean JCT for each window beyond which it is given up: a policy that
                has learned nothing yet takes a hundred times as many steps as one that has.
        """
        return self.play(lambda observations, _: greedy(policy, observations), most_jct=most_jct)

    def of_teacher(self, teacher: Adviser) -> list[Examined]:
        """The actions of a rule."""
        return self.play(lambda _, agents: asked(agents), teacher)

    def play(
        self,
        act: Act,
        teacher: Adviser | None = None,
        most_jct: Sequence[float] | None = None,
    ) -> list[Examined]:
        """One episode of each window; `act` may ask a teacher, `most_jct` as of `of_policy`."""
        for index, lane in enumerate(self.lanes):
            if isinstance(lane.env.generator, Staged):
                lane.env.generator.progress = 1.0
            lane.reset(index, teacher)
            lane.observe(self._memory, 0)
        found: list[Examined | None] = [None] * len(self.lanes)
        running = list(range(len(self.lanes)))
        while running:
            lanes = [self.lanes[index] for index in running]
            masks = self._memory.masks[0]
            actions = masks.argmax(axis=1)
            numbers = np.array(
                [
                    number
                    for lane in lanes
                    for number in range(lane.rows.start, lane.rows.stop)
                    if masks[number].sum(dtype=np.int64) > 1
                ],
                np.int64,
            )
            if len(numbers):
                agents = [self._agents[number] for number in numbers]
                actions[numbers] = act(self._memory.at(0, numbers), agents)
            for index, lane in zip(list(running), lanes, strict=True):
                step = lane.step(actions[lane.rows].tolist(), masks[lane.rows])
                if step.terminated or step.truncated:
                    running.remove(index)
                    found[index] = _examined(lane)
                elif most_jct is not None and _exceeds(lane, most_jct[index]):
                    running.remove(index)
                    found[index] = Examined(float("inf"), lane.decisions)
                else:
                    lane.observe(self._memory, 0)
        return [one for one in found if one is not None]


def _exceeds(lane: Lane, most_jct: float) -> bool:
    """Whether the mean JCT will surely be above, looked up every so many steps."""
    if lane.decisions % LOOKS_EVERY:
        return False
    jobs = lane.episode.simulator.state.jobs
    until = np.where(jobs["finish"] == NEVER, lane.now, jobs["finish"])
    return float(np.maximum(until - jobs["submit"], 0.0).mean()) > most_jct


def _examined(lane: Lane) -> Examined:
    schedule = lane.episode.simulator.schedule()
    whole = bool(schedule.finished.all())
    return Examined(float(schedule.jct.mean()) if whole else float("inf"), lane.decisions)


def score(found: Sequence[Examined], reference: Sequence[float]) -> float:
    """Mean over the windows of the mean JCT / that of the reference, in the same order."""
    return float(np.mean([one.mean_jct / by for one, by in zip(found, reference, strict=True)]))
