"""Giving workers to malleable jobs as what is learned about."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from gymnasium import spaces

from agents.cluster.allocation.sizes import AllocationSolver
from agents.rllib.subject import (
    Array,
    Lane,
    Stepped,
    Subject,
)
from envs.arrays import IntArray
from envs.cluster.allocation.episode import CHOSEN
from envs.cluster.allocation.parallel_env import AllocationParallelEnv
from envs.cluster.allocation.problem import AllocationProblem

QUEUE = "queue"  # the module of all


class Allocations(Subject):
    """The queues of an `AllocationParallelEnv` share one policy.

    Args:
        make: an environment to train in.
        make_exam: one to be examined in.
        teacher: whose plans are imitated; None: the rule's.
    """

    charts: Sequence[str] = ("utility_share", "finished_share")

    def __init__(
        self,
        make: Callable[[], AllocationParallelEnv],
        make_exam: Callable[[], AllocationParallelEnv],
        teacher: AllocationSolver | None = None,
    ) -> None:
        self.make, self.make_exam, self.env = make, make_exam, make()
        self.taught = Taught()
        self.agents = self.env.possible_agents
        self.reference = self
        self.teacher = teacher or self

    def module_of(self, agent: str) -> str:
        return QUEUE

    def spaces_of(self, agent: str) -> tuple[spaces.Dict, spaces.Space[Any]]:
        return self.env.observation_space(agent), self.env.action_space(agent)

    def lane(self, index: int) -> AllocationLane:
        return AllocationLane(self.make(), self.taught)

    def exam_lane(self, number: int) -> AllocationLane:
        return AllocationLane(self.make_exam())


class AllocationLane(Lane):
    """An episode is one problem.

    Its outcome is what all jobs are worth at once / the utility. Rewards are percents of the
    former, the time is counted in slots.
    """

    def __init__(self, env: AllocationParallelEnv, taught: Taught | None = None) -> None:
        self.env, self.taught = env, taught or Taught()

    @property
    def now(self) -> float:
        return float(self.env.episode.slot)

    def reset(self, seed: int, stage: float = 1.0, adviser: Any = None) -> None:
        self.env.reset(seed=seed)
        problem = self.env.episode.problem
        self.whole = sum(job.utility.at(1) for job in problem.jobs)
        taught = self.taught
        self.told = taught.by(adviser, problem) if isinstance(adviser, AllocationSolver) else None

    def views(self) -> Sequence[Mapping[str, Array]]:
        self.seen = list(self.env.observe().values())
        return self.seen

    def step(self, actions: Sequence[Any]) -> Stepped:
        before = self.now
        (terms, *_), over, _ = self.env.play([int(action) for action in actions])
        reward = 100.0 * sum(terms.values()) / self.whole
        elapsed = self.now - before
        return Stepped([reward] * len(actions), elapsed, over, False)

    def advice(self, agent: int) -> int:
        """The rule's choice, or the first job that has fewer workers than the teacher gives it."""
        seen, episode = self.seen[agent], self.env.episode
        if self.told is None:
            return int(seen["pair"][:, CHOSEN].argmax())
        given = self.told[episode.slot]
        for row, job in enumerate(self.env.shown(agent)):
            at = episode.at.get(int(job))
            if (0 if at is None else at[0].sum()) < given[job]:
                return row
        return len(seen["pair"]) - 1

    def outcome(self) -> float:
        return self.whole / self.env.utility if self.env.utility > 0.0 else float("inf")

    def ended(self) -> Mapping[str, float]:
        episode = self.env.episode
        return {
            "utility_share": self.env.utility / self.whole,
            "finished_share": episode.finished / max(len(episode.done), 1),
        }


class Taught:
    """The workers (T, J) of a teacher's plan, for alike lanes once."""

    problem: AllocationProblem | None = None

    def by(self, teacher: AllocationSolver, problem: AllocationProblem) -> IntArray | None:
        if problem is not self.problem:
            plan = teacher.solve(problem).solution
            self.problem, self.given = problem, None if plan is None else plan.workers.sum(axis=2)
        return self.given
