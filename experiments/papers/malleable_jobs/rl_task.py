"""Giving workers to malleable jobs as a task of the learner."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from gymnasium import spaces

from agents.rllib.task import Array, RLTask, RunnerEnv, Step
from envs.arrays import IntArray
from experiments.papers.malleable_jobs.env import CHOSEN, AllocationParallelEnv
from experiments.papers.malleable_jobs.problem import AllocationProblem
from experiments.papers.malleable_jobs.slots import AllocationSolver
from models.export.checkpoint import ModelCard
from models.export.pairs import export_pairs

MakesEnv = Callable[[], AllocationParallelEnv]


class AllocationRLTask(RLTask):
    """The queues of an `AllocationParallelEnv` share one policy.

    Args:
        make: an environment to train in.
        make_evaluation: one to be evaluated in.
        teacher: whose plans are imitated; None: the rule's.
    """

    metrics: Sequence[str] = ("utility_share", "finished_share")
    title, unit = "A policy that gives workers to malleable jobs", "worth at once / utility"
    measure = "worths at once / utilities"

    def __init__(
        self, make: MakesEnv, make_evaluation: MakesEnv, teacher: AllocationSolver | None = None
    ) -> None:
        self.make, self.make_evaluation, self.env = make, make_evaluation, make()
        self._planned: tuple[AllocationProblem | None, IntArray | None] = None, None
        self.agents = self.env.possible_agents
        self.reference = self
        self.teacher = teacher or self

    def module_of(self, agent: str) -> str:
        return "queue"

    def news(self, row: Mapping[str, float]) -> str:
        return (
            f"{row['charts/utility_share']:.1%} gained, best score "
            f"{row['evaluation/best_score']:.4f}, {row['charts/SPS']:,.0f} decisions/s"
        )

    def export(self, policies: Mapping[str, Any], folder: Path, card: ModelCard) -> None:
        (policy,) = policies.values()
        export_pairs(policy, folder, card)

    def spaces_of(self, agent: str) -> tuple[spaces.Dict, spaces.Space[Any]]:
        return self.env.observation_space(agent), self.env.action_space(agent)

    def make_env(self, index: int) -> AllocationRunnerEnv:
        return AllocationRunnerEnv(self.make(), self)

    def make_evaluation_env(self, number: int) -> AllocationRunnerEnv:
        return AllocationRunnerEnv(self.make_evaluation(), self)

    def planned(self, expert: AllocationSolver, problem: AllocationProblem) -> IntArray | None:
        """The workers (T, J) of an expert's plan, for the environments of a group once."""
        if problem is not self._planned[0]:
            plan = expert.solve(problem).solution
            self._planned = problem, None if plan is None else plan.workers.sum(axis=2)
        return self._planned[1]


class AllocationRunnerEnv(RunnerEnv):
    """An episode is one problem.

    Its objective is what all jobs are worth at once / the utility. Rewards are percents of the
    former, the time is counted in slots.
    """

    def __init__(self, env: AllocationParallelEnv, task: AllocationRLTask) -> None:
        self.env, self.task = env, task

    @property
    def time(self) -> float:
        return float(self.env.episode.slot)

    def reset(self, seed: int, progress: float = 1.0, expert: Any = None) -> None:
        self.env.reset(seed=seed)
        planned = isinstance(expert, AllocationSolver)
        self.workers = self.task.planned(expert, self.env.episode.problem) if planned else None

    def observations(self) -> Sequence[Mapping[str, Array]]:
        self.seen = list(self.env.observe().values())
        return self.seen

    def step(self, actions: Sequence[Any]) -> Step:
        before, whole = self.time, self.env.episode.worth
        (terms, *_), over, _ = self.env.play([int(action) for action in actions])
        reward = 100.0 * sum(terms.values()) / whole
        return Step([reward] * len(actions), self.time - before, over, False)

    def expert_action(self, agent: int) -> int:
        """The rule's choice, or the first job that has fewer workers than in the expert's plan."""
        pair, episode = self.seen[agent]["pair"], self.env.episode
        if self.workers is None:
            return int(pair[:, CHOSEN].argmax())
        given = self.workers[episode.slot]
        for row, job in enumerate(self.env.shown[agent].tolist()):
            if episode.filling.workers(job) < given[job]:
                return row
        return len(pair) - 1

    def objective(self) -> float:
        worth, utility = self.env.episode.worth, self.env.utility
        return worth / utility if utility > 0.0 else float("inf")

    def metrics(self) -> Mapping[str, float]:
        episode = self.env.episode
        return {
            "utility_share": self.env.utility / episode.worth,
            "finished_share": episode.finished / max(len(episode.done), 1),
        }
