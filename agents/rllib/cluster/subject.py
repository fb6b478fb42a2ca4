"""The schedulers of a cluster as what is learned about."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Literal

from gymnasium import spaces

from agents.rllib.cluster.lane import SchedulingLane
from agents.rllib.cluster.memory import ObservationMemory
from agents.rllib.subject import Subject
from envs.cluster.environment.parallel_env import ClusterParallelEnv
from envs.cluster.environment.views import Adviser

SHARED = "scheduler"  # the module of all


class Schedulers(Subject):
    """Its agents are the schedulers of a `ClusterParallelEnv`.

    Args:
        make: makes an environment to train in.
        make_exam: makes one with the same spaces to be examined in, by the number of the window;
            episode k of an exam is that of `reset(seed=k)`.
        parameters: whether schedulers share one policy, or each has its own.
        per_gpu: whether rewards are divided by the GPUs of the cluster.
        teacher: who is imitated; None: nobody can be.
        reference: whose mean JCTs those of the exams are divided by.
    """

    charts: Sequence[str] = ("mean_jct_s", "finished_share")

    def __init__(
        self,
        make: Callable[[], ClusterParallelEnv],
        make_exam: Callable[[int], ClusterParallelEnv],
        *,
        parameters: Literal["shared", "separate"],
        per_gpu: bool,
        teacher: Adviser | None,
        reference: Adviser,
    ) -> None:
        self.make, self.make_exam = make, make_exam
        self.parameters, self.per_gpu = parameters, per_gpu
        self.teacher, self.reference = teacher, reference
        self.env = make()  # asked for its spaces alone
        self.agents: Sequence[str] = self.env.possible_agents

    def module_of(self, agent: str) -> str:
        return SHARED if self.parameters == "shared" else agent

    def spaces_of(self, agent: str) -> tuple[spaces.Dict, spaces.Space[Any]]:
        return self.env.observation_space(agent), self.env.action_space(agent)

    def memory(self, module: str, times: int, rows: int) -> ObservationMemory:
        del module  # all schedulers have the same spaces
        space, _ = self.spaces_of(self.agents[0])
        return ObservationMemory(self.env.observation, space, times, rows)

    def lane(self, index: int) -> SchedulingLane:
        del index
        return SchedulingLane(self.make(), self.per_gpu)

    def exam_lane(self, number: int) -> SchedulingLane:
        return SchedulingLane(self.make_exam(number), self.per_gpu)
