"""A learned policy of malleable jobs: its task for the learner, and the planner that follows it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from agents.rllib.environments import EnvironmentRunnerEnv, EnvironmentTask
from agents.rllib.task import Step
from agents.solver import Budget, Result
from envs.arrays import FloatArray, IntArray
from envs.bounds import Count, bounded
from experiments.papers.malleable_jobs.env import (
    CANDIDATE_WIDTH,
    CHOSEN,
    CLUSTER_WIDTH,
    AllocationEpisode,
    AllocationGraph,
    AllocationObservation,
    AllocationParallelEnv,
)
from experiments.papers.malleable_jobs.problem import RESOURCES, AllocationPlan, AllocationProblem
from experiments.papers.malleable_jobs.slots import AllocationSolver, outcome
from models.artifacts import read_settings
from models.cluster.pairs import PairsConfig
from models.export.checkpoint import SPEC_FILE, ModelCard
from models.export.pairs import export_pairs, read_pairs

MakesEnv = Callable[[], AllocationParallelEnv]


class AllocationRLTask(EnvironmentTask):
    """The queues of an `AllocationParallelEnv` share one policy.

    Args:
        make: an environment to train in.
        make_evaluation: one to be evaluated in.
        teacher: whose plans are imitated; None: the rule's.
    """

    metrics: Sequence[str] = ("utility_share", "finished_share")
    reference: Any
    title, unit = "A policy that gives workers to malleable jobs", "worth at once / utility"
    measure = "worths at once / utilities"

    def __init__(
        self, make: MakesEnv, make_evaluation: MakesEnv, teacher: AllocationSolver | None = None
    ) -> None:
        super().__init__(make=make)
        self.make_training, self.make_evaluation = make, make_evaluation
        self._planned: tuple[AllocationProblem | None, IntArray | None] = None, None
        self.reference = self
        self.teacher = teacher or self

    def news(self, row: Mapping[str, float]) -> str:
        return (
            f"{row['charts/utility_share']:.1%} gained, best score "
            f"{row['evaluation/best_score']:.4f}, {row['charts/SPS']:,.0f} decisions/s"
        )

    def export(self, policies: Mapping[str, Any], folder: Path, card: ModelCard) -> None:
        (policy,) = policies.values()
        export_pairs(policy, folder, card)

    def make_env(self, index: int) -> AllocationRunnerEnv:
        return AllocationRunnerEnv(self, self.make_training())

    def make_evaluation_env(self, number: int) -> AllocationRunnerEnv:
        return AllocationRunnerEnv(self, self.make_evaluation())

    def planned(self, expert: AllocationSolver, problem: AllocationProblem) -> IntArray | None:
        """The workers (T, J) of an expert's plan, for the environments of a group once."""
        if problem is not self._planned[0]:
            plan = expert.solve(problem).solution
            self._planned = problem, None if plan is None else plan.workers.sum(axis=2)
        return self._planned[1]


class AllocationRunnerEnv(EnvironmentRunnerEnv):
    """An episode is one problem.

    Its objective is what all jobs are worth at once / the utility. Rewards are percents of the
    former, the time is counted in slots.
    """

    task: AllocationRLTask
    env: AllocationParallelEnv

    def __init__(self, task: AllocationRLTask, env: AllocationParallelEnv) -> None:
        self.task, self.env = task, env

    @property
    def time(self) -> float:
        return float(self.env.episode.slot)

    def reset(self, seed: int, progress: float = 1.0, expert: Any = None) -> None:
        super().reset(seed)
        planned = isinstance(expert, AllocationSolver)
        self.workers = self.task.planned(expert, self.env.episode.problem) if planned else None

    def step(self, actions: Sequence[Any]) -> Step:
        before, worth = self.time, self.env.episode.worth
        rewards, _, over, _ = super().step(actions)
        return Step([100.0 * x / worth for x in rewards], self.time - before, over, False)

    def expert_action(self, agent: int) -> int:
        """The rule's choice, or the first job that has fewer workers than in the expert's plan."""
        pair, episode = self.observations()[agent]["pair"], self.env.episode
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


@bounded
class LearnedAllocation(AllocationSolver):
    """Plays `meshwright/Allocation-v0` by a policy, which takes the candidate of highest score.

    Without a policy the rule decides: the unit that adds most progress, of what is left, times the
    worth that the job can still reach, for the dominant share of the cluster that it adds.

    Guarantees:
        None; the plan is feasible, and no job is looked at before it arrives.

    Source:
        Own. Residual learning on a rule: Silver et al., "Residual policy learning",
        arXiv:1812.06298.

    Args:
        path: a folder that `meshwright train env=allocation` wrote; None: the rule alone.
        candidates: jobs that are scored, as in training.

    Raises:
        InputError: the folder is not one of these, or a file in it is damaged or foreign.
    """

    def __init__(self, path: str | None = None, candidates: Count = 16) -> None:
        self.observation = AllocationObservation(candidates)
        self.weights, self.head_start = None, 1.0
        if path is not None:
            widths = CLUSTER_WIDTH, len(RESOURCES), CANDIDATE_WIDTH
            self.weights = read_pairs(Path(path), *widths)
            self.head_start = read_settings(Path(path) / SPEC_FILE, PairsConfig).head_start

    def _solve(self, problem: AllocationProblem, budget: Budget) -> Result[AllocationPlan]:
        """The most probable action in every step."""
        episode = AllocationEpisode(problem, np.zeros(len(problem.jobs), np.int64))
        while not episode.over:
            seen, jobs = self.observation.of(episode, 0)
            action = int(self.scores(seen).argmax())
            if action < len(jobs):
                episode.grow(int(jobs[action]))
            else:
                episode.end()
        return outcome(problem, episode.plan)

    def scores(self, seen: AllocationGraph) -> FloatArray:
        """(K + 1,) of the candidates, as `models.cluster.pairs.PairsPolicy` gives them."""
        pair, allowed = seen["pair"].astype(np.float64), seen["action_mask"] > 0
        found = self.head_start * pair[:, CHOSEN]
        if (w := self.weights) is not None:
            cluster = seen["node"][0] @ w["node"] + seen["edge"][:, 0] @ w["edge"] + w["message"]
            pooled = np.tile(np.maximum(cluster, 0.0), 2) @ w["pooled"]  # one node: mean and most
            state = np.maximum(pair @ w["pair"] + pooled + w["alone"], 0.0)
            context = state[allowed].mean(axis=0) @ w["others"]
            found = found + np.maximum(state @ w["again"] + context + w["second"], 0.0) @ w["score"]
        return np.where(allowed, found, -np.inf)
