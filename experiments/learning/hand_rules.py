"""What simple rules come to in the environments of the project, beside what is learned there."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from scipy.stats import gmean

from agents.bandwidth.rules import ProportionalShares, SquareRootShares, UniformShares
from agents.cluster.migrating.expert import MigrationExpert
from agents.cluster.migrating.priorities import AttainedServiceClasses, RemainingTime
from agents.cluster.teachers import FirstFit, ShortestFit
from agents.placement.baselines import ContiguousSplit, SingleDevice, SpeedShares
from agents.placement.list_planners import Heft
from agents.rllib.environments import EnvironmentRunnerEnv, EnvironmentTask
from agents.rllib.task import RLTask
from agents.solver import UNLIMITED
from agents.step.problems import BandwidthPlanning, StepPlanning
from envs.bandwidth.env import BandwidthEnv
from envs.cluster.environment.parallel_env import ClusterParallelEnv
from envs.joint.env import JointEnv
from envs.placement.env import PlacementEnv


def rule_scores(task: RLTask, reference: Sequence[float]) -> dict[str, float]:
    """Scores of rules in the episodes of the evaluation, the best first; inf: one fails there.

    There are none for tasks and environments of others, or for another objective; an environment
    with a method `simple_rules` says itself what they collect in its episode ("worth").

    Args:
        task: about the environment.
        reference: objectives of the reference in the episodes.
    """
    if not isinstance(task, EnvironmentTask):
        return {}
    rows = [_objectives(task, number) for number in range(len(reference))]
    scores = {
        name: float(gmean([row[name] / by for row, by in zip(rows, reference, strict=True)]))
        for name in rows[0]
    }
    return dict(sorted(scores.items(), key=lambda item: item[1]))


def _objectives(task: EnvironmentTask, number: int) -> dict[str, float]:
    """Of an episode, by rule."""
    env = task.make_evaluation_env(number)
    inner = getattr(env.env.unwrapped, "parallel", env.env.unwrapped)
    for kind, objective, rules in RULES:
        if isinstance(inner, kind) and task.info == objective:
            return dict(rules(env, inner, number))
    if task.info == "worth" and hasattr(inner, "simple_rules"):
        env.reset(number)
        return {name: 1.0 / worth for name, worth in inner.simple_rules().items()}
    return {}


def _placements(env: EnvironmentRunnerEnv, inner: Any, seed: int) -> Iterator[tuple[str, float]]:
    """Plans of a step, at equal weights of the network."""
    inner.reset(seed=seed)
    problem, group = inner.instance.problem, inner.instance.fusion.group
    first = np.unique(group, return_index=True)[1]  # an operator of every group
    for name, planner in (
        ("single_device", SingleDevice()),
        ("contiguous_speed", ContiguousSplit(shares=SpeedShares())),
        ("heft", Heft()),
    ):
        plan, seconds = planner.solve(StepPlanning(problem), UNLIMITED).solution, np.inf
        if plan is not None:
            _, info = inner.reset(seed=seed, options={"start": plan.placement.device[first]})
            if inner.plan_outcome()[1]:
                seconds = info.get("step_time_s") or info[inner.agents[0]]["step_time_s"]
        yield name, seconds


def _shares(env: EnvironmentRunnerEnv, inner: Any, seed: int) -> Iterator[tuple[str, float]]:
    """Static shares of the network."""
    inner.reset(seed=seed)
    problem = BandwidthPlanning(inner.instance.problem, inner.instance.plan)
    for name, rule in (
        ("uniform", UniformShares()),
        ("proportional", ProportionalShares()),
        ("square_root", SquareRootShares()),
    ):
        yield name, rule.solve(problem).value


def _schedulers(env: EnvironmentRunnerEnv, inner: Any, seed: int) -> Iterator[tuple[str, float]]:
    """Orders of jobs, each in its own episode."""
    rules: dict[str, Any] = {"first_fit": FirstFit(), "shortest_fit": ShortestFit()}
    if inner.actions.preempt_after_s is not None:
        rules["srtf"] = MigrationExpert(RemainingTime)
        rules["las"] = MigrationExpert(AttainedServiceClasses)
    for name, rule in rules.items():
        env.reset(seed)
        follows, over = rule.begin(inner.episode), False
        while not over:
            step = env.step([follows.action(inner.episode, k) for k in range(inner.schedulers)])
            over = step.terminated or step.truncated
        yield name, env.objective()


RULES: tuple[tuple[type, str, Callable[..., Iterator[tuple[str, float]]]], ...] = (
    (PlacementEnv, "step_time_s", _placements),
    (JointEnv, "step_time_s", _placements),
    (BandwidthEnv, "step_time_s", _shares),
    (ClusterParallelEnv, "cost", _schedulers),
)
