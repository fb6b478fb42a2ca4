"""A learned policy, or the rule that it begins with, as a planner of malleable jobs."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from agents.solver import Budget, Result
from envs.arrays import FloatArray
from envs.bounds import Count, bounded
from experiments.papers.malleable_jobs.env import (
    CANDIDATE_WIDTH,
    CHOSEN,
    CLUSTER_WIDTH,
    AllocationEpisode,
    AllocationGraph,
    AllocationObservation,
)
from experiments.papers.malleable_jobs.problem import RESOURCES, AllocationPlan, AllocationProblem
from experiments.papers.malleable_jobs.slots import AllocationSolver, outcome
from models.artifacts import read_json_object
from models.export.checkpoint import SPEC_FILE
from models.export.pairs import read_pairs


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
            spec = read_json_object(Path(path) / SPEC_FILE)
            self.head_start = float(spec["config"]["head_start"])

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
