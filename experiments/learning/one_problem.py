"""Training as a search: a policy learns on one problem, its best placement is the plan."""

from __future__ import annotations

import csv
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agents.base import PlannerResult
from agents.rllib.step.environment import Record, WarmStart
from envs.bounds import Positive
from envs.errors import InputError
from envs.joint.env import JointEnv
from envs.step.order import OneFOneB
from envs.step.plans import Placement
from experiments.learning.learning_tasks import JointLearning, LearningTask, Node
from experiments.pictures.learning import Curve
from experiments.run.artifacts import METRICS_FILE, write_json
from experiments.run.display import ProgressDisplay, training_news
from experiments.run.provenance import Provenance, file_hash, stamp
from experiments.run.statistics import half_width
from experiments.run.targets import build
from experiments.step.evaluation import Evaluation
from experiments.step.plan_file import read_plan, write_plan
from experiments.step.search import describe

if TYPE_CHECKING:
    from agents.rllib.step.config import TrainingConfig
    from agents.rllib.step.training import TrainingResult
    from models.step.policy import PlacementPolicy


@dataclass(frozen=True)
class Exam:
    """The policy alone, greedily from the same starts before and after training.

    Beside it, where there is a look-ahead, the rule it has to beat: from the same starts, always
    the choice whose look-ahead promises the shortest step.
    """

    untrained: tuple[float, ...]  # seconds of the plan each episode ends in; inf: does not fit
    trained: tuple[float, ...]  # seconds
    look_ahead: tuple[float, ...]  # seconds; () where there is none

    def sentence(self) -> str:
        """What the exam says, for a reader."""
        gain, width = paired_gain(self.untrained, self.trained)
        text = (
            f"the policy alone, one greedy episode from each of {len(self.trained)} starts: "
            f"{_mean_ms(self.untrained)} before training, {_mean_ms(self.trained)} after it "
            f"({gain * 1e3:.1f} ± {width * 1e3:.1f} ms less)"
        )
        if not self.look_ahead:
            return text
        over_rule, rule_width = paired_gain(self.look_ahead, self.trained)
        return (
            f"{text}, following the look-ahead blindly {_mean_ms(self.look_ahead)} (the policy: "
            f"{over_rule * 1e3:.1f} ± {rule_width * 1e3:.1f} ms less)"
        )

    def document(self) -> dict[str, object]:
        """The exam as numbers."""
        gain, width = paired_gain(self.untrained, self.trained)
        known = {
            "untrained_s": list(self.untrained),
            "trained_s": list(self.trained),
            "look_ahead_s": list(self.look_ahead),
            "mean_gain_s": gain,
            "half_width_95_s": width,
        }
        if not self.look_ahead:
            return known
        over_rule, rule_width = paired_gain(self.look_ahead, self.trained)
        return {
            **known,
            "mean_gain_over_look_ahead_s": over_rule,
            "half_width_95_over_look_ahead_s": rule_width,
        }


def paired_gain(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """Mean of (before - after) and half of its 95 % interval (Student's t), seconds.

    Over the starts from which both plans fit; NaN with fewer than two.
    """
    fit = np.isfinite(before) & np.isfinite(after)
    differences = np.asarray(before)[fit] - np.asarray(after)[fit]
    if len(differences) < 2:
        return float("nan"), float("nan")
    return float(differences.mean()), half_width(differences)


def _mean_ms(seconds: Sequence[float]) -> str:
    return f"{float(np.mean(seconds)) * 1e3:.1f} ms"


@dataclass(frozen=True, eq=False)
class Learned:
    """A trained policy, its best plan, and how it got there."""

    training: TrainingResult
    found: PlannerResult
    evaluation: Evaluation | None  # of the best plan, None without one
    curve: Curve
    exam: Exam


def learn(
    learning: LearningTask,
    config: TrainingConfig,
    run_folder: Path,
    display: ProgressDisplay,
    provenance: Provenance,
    *,
    resume: bool = False,
    warm_start: WarmStart | None = None,
) -> Learned:
    """Train on `learning` as `config` says; metrics and checkpoints go to `run_folder`, whose
    `checkpoints/provenance.json` says where the checkpoints come from.

    The graph is fused once: the environments are copies of one that holds the instance. With a
    `warm_start` training goes on from a plan, whose seconds are part of the budget.
    """
    from agents.rllib.step.training import train

    if not resume:
        origin = stamp({}, provenance, kind="training_checkpoints")
        write_json(run_folder / "checkpoints" / "provenance.json", origin)
    task = display.begin("ppo", config.budget_s)

    def on_iteration(row: Mapping[str, float]) -> None:
        display.update(task, row["charts/seconds"], training_news(row))

    training = train(
        config,
        learning.environment,
        run_folder,
        on_iteration,
        resume=resume,
        task=learning.task(config),
        warm_start=warm_start,
    )
    best = training.best_plan
    evaluation = None if best is None else learning.evaluate(best)
    found = as_planner_result(training, evaluation)
    display.end(task, describe(found))
    exam = Exam(training.untrained, training.trained, training.look_ahead)
    return Learned(training, found, evaluation, read_curve(run_folder / METRICS_FILE), exam)


def read_curve(path: Path) -> Curve:
    """The learning curve of a run, all its sessions together, from its metrics."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return Curve(
        seconds=[float(row["charts/seconds"]) for row in rows],
        mean=[float(row["charts/step_time_s_mean"]) for row in rows],
        best=[float(row["charts/step_time_s_best"]) for row in rows],
    )


def as_planner_result(training: TrainingResult, evaluation: Evaluation | None) -> PlannerResult:
    """The best plan met in training, as it was played on every operator."""
    if evaluation is None:
        return PlannerResult(
            plan=None,
            status="limit",
            step_time=np.inf,
            seconds=training.seconds,
            evaluations=training.env_steps,
            reason="no plan met in training fits",
            trajectory=training.trajectory,
        )
    return PlannerResult(
        plan=evaluation.plan,
        status="feasible",
        step_time=evaluation.step_time,
        seconds=training.seconds,
        evaluations=training.env_steps,
        trajectory=training.trajectory,
    )


def only_policy(training: TrainingResult) -> PlacementPolicy:
    """The policy that was trained to place."""
    from models.step.policy import PlacementPolicy

    (policy,) = training.policies.values()
    assert isinstance(policy, PlacementPolicy)
    return policy


WARM_START_FILE = "warm_start.json"  # in the run folder: the planner's plan


@dataclass
class WarmStartConfig:
    """`conf/warm_start`: the planner, what tables call it and its wall time, or none of them."""

    name: str | None
    agent: Any
    budget_s: Positive | None  # seconds

    def __post_init__(self) -> None:
        if (self.agent is None) != (self.budget_s is None):
            message = "of no planner" if self.agent is None else "for a planner"
            raise InputError(f"config key 'warm_start.budget_s': {self.budget_s} s {message}")

    @property
    def method(self) -> str:
        """What PPO is called that goes on from the planner's plan."""
        return f"ppo after {self.budget_s:g} s of {self.name}"

    def within(self, training_s: float | None) -> None:
        """Raise `InputError` where nothing of `training_s` seconds is left to learn."""
        if self.budget_s is not None and training_s is not None and self.budget_s >= training_s:
            raise InputError(
                f"config key 'warm_start.budget_s': {self.budget_s} leaves nothing of "
                f"training.budget_s={training_s}"
            )


@dataclass(frozen=True, eq=False)
class Warmed:
    """A learning whose groups a plan does not divide, and that plan."""

    learning: JointLearning
    start: WarmStart
    provenance: Provenance  # with the plan among its inputs


def require_start(env: Node, learning: LearningTask) -> None:
    """Raise `InputError` where episodes of `env` cannot start from any plan."""
    if not (isinstance(learning, JointLearning) and env.get("_partial_")):
        raise InputError(f"config key 'warm_start': {env.get('_target_')} starts from no plan")


def warm_start(
    config: WarmStartConfig,
    env: Node,
    learning: LearningTask,
    folder: Path,
    provenance: Provenance,
    *,
    resume: bool,
) -> Warmed:
    """The placement that the planner of `config` finds for `learning`, as a start.

    It plans on the terms of a baseline: where it only places, on uniform static shares. Its plan is
    kept in `folder`, from where a resumed run takes it. Of the plan the placement is taken over, at
    the rates an episode starts with and in the better of the environment's orders.

    Raises:
        InputError: the planner finds no plan, it does not fit in the environment's orders, or the
            plan kept in `folder` is missing or damaged; or as `require_start`.
    """
    require_start(env, learning)
    make = build(env)
    path, search_s = folder / WARM_START_FILE, 0.0
    if not resume:
        assert config.budget_s is not None
        found, _ = learning.baseline(config.agent, config.budget_s)
        if found.plan is None:
            raise InputError(f"config key 'warm_start.agent': finds no plan ({found.reason})")
        write_plan(path, found.plan, learning.problem, provenance)
        search_s = found.seconds
    begun = time.perf_counter()
    placement = read_plan(path, learning.problem, OneFOneB()).placement
    warmed = JointLearning(learning.problem, make(learning.problem, around=placement.device))
    record = _first_record(warmed.environment(), placement)
    start = WarmStart(record, search_s + time.perf_counter() - begun)
    inputs = {WARM_START_FILE: file_hash(path)}
    return Warmed(warmed, start, provenance.with_inputs(**inputs))


def _first_record(env: JointEnv, placement: Placement) -> Record:
    """`placement`, which no group of `env` divides, simulated as plans of an archive are."""
    env.reset(seed=0)
    fusion = env.instance.fusion
    device = np.zeros(fusion.num_groups, dtype=np.int64)
    device[fusion.group] = placement.device
    env.reset(seed=0, options={"start": device})
    step_time, fits = env.plan_outcome()
    if not fits:
        raise InputError("config key 'warm_start.agent': its placement does not fit into memory")
    return Record({"device": device, "levels": env.levels}, step_time)
