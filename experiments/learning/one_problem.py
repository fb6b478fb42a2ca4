"""Training as a search: policies learn on one problem, and the best they meet is the plan."""

from __future__ import annotations

import csv
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agents.base import PlannerResult
from envs.bounds import Positive
from envs.errors import InputError
from envs.joint.env import JointEnv
from envs.step.order import OneFOneB
from experiments.pictures.learning import Curve
from experiments.run.artifacts import METRICS_FILE, write_json
from experiments.run.display import ProgressDisplay, training_news
from experiments.run.provenance import Provenance, file_hash, stamp
from experiments.run.statistics import half_width
from experiments.run.targets import build
from experiments.step.evaluation import Evaluation
from experiments.step.objectives import Joint
from experiments.step.plan_file import read_plan, write_plan
from experiments.step.planning import ask_beside
from experiments.step.search import describe
from experiments.step.tasks import Allocation, JointTask, StepTask

if TYPE_CHECKING:
    from agents.rllib.config import Training
    from agents.rllib.metrics import Tracking
    from agents.rllib.subject import Solution
    from agents.rllib.training import Trained


@dataclass(frozen=True)
class Exam:
    """The policies alone, greedily from the same starts before and after training.

    Beside them, where there is a look-ahead, the rule they have to beat: from the same starts,
    always the choice whose look-ahead promises the shortest step.
    """

    untrained: tuple[float, ...]  # seconds of the plan each episode ends in; inf: does not fit
    trained: tuple[float, ...]  # seconds
    look_ahead: tuple[float, ...]  # seconds; () where there is none

    def sentence(self) -> str:
        """What the exam says, for a reader."""
        if len(self.trained) == 1:
            before, after = _mean_ms(self.untrained), _mean_ms(self.trained)
            return f"the policy alone, greedily: {before} before training, {after} after it"
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
    """Trained policies, the best that was decided in training, and how it got there."""

    training: Trained
    found: PlannerResult
    allocation: Allocation  # of bandwidth, beside the plan
    evaluation: Evaluation | None  # of the best plan, None without one
    curve: Curve
    exam: Exam


def learn(
    task: StepTask,
    training: Training,
    run_folder: Path,
    display: ProgressDisplay,
    provenance: Provenance,
    *,
    resume: bool = False,
    start: Solution | None = None,
    spent_s: float = 0.0,
    tracking: Tracking,
) -> Learned:
    """Train on `task`; metrics and checkpoints go to `run_folder`, whose
    `checkpoints/provenance.json` says where the checkpoints come from.

    With a `start` training goes on from a plan, and the seconds it took are part of the budget.
    """
    from agents.rllib.training import train

    if not resume:
        origin = stamp({}, provenance, kind="training_checkpoints")
        write_json(run_folder / "checkpoints" / "provenance.json", origin)
    subject = task.subject(training)
    if start is not None:
        subject.archive.offer(0, start)
    shown = display.begin("ppo", training.budget_s)

    def on_iteration(row: Mapping[str, float]) -> None:
        display.update(shown, row["charts/seconds"], training_news(row))

    trained = train(
        training,
        subject,
        run_folder,
        on_iteration,
        resume=resume,
        start=start,
        spent_s=spent_s,
        tracking=tracking,
    )
    found = PlannerResult(
        plan=None,
        status="limit",
        step_time=np.inf,
        seconds=trained.seconds,
        evaluations=trained.steps,
        reason="no plan met in training fits",
        trajectory=trained.trajectory,
    )
    allocation: Allocation = None
    evaluation = None
    if trained.best is not None:
        plan, allocation = task.plan_of(trained.best)
        evaluation = task.judge(plan, allocation).evaluation
        assert evaluation is not None
        time_s = evaluation.step_time
        found = replace(found, plan=plan, status="feasible", step_time=time_s, reason="")
    display.end(shown, describe(found))
    exam = Exam(trained.untrained, trained.trained, trained.reference)
    curve = read_curve(run_folder / METRICS_FILE)
    return Learned(trained, found, allocation, evaluation, curve, exam)


def read_curve(path: Path) -> Curve:
    """The learning curve of a run, all its sessions together, from its metrics."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return Curve(
        seconds=[float(row["charts/seconds"]) for row in rows],
        mean=[float(row["charts/step_time_s_mean"]) for row in rows],
        best=[float(row["charts/best_objective"]) for row in rows],
    )


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

    def require(self, env: Mapping[str, Any], task: StepTask, training_s: float | None) -> None:
        """Raise `InputError` where episodes of `env` cannot start from any plan, or where nothing
        of `training_s` seconds is left to learn.
        """
        if self.budget_s is None:
            return
        if training_s is not None and self.budget_s >= training_s:
            raise InputError(
                f"config key 'warm_start.budget_s': {self.budget_s} leaves nothing of "
                f"training.budget_s={training_s}"
            )
        if not (isinstance(task.env, JointEnv) and env.get("_partial_")):
            raise InputError(f"config key 'warm_start': {env.get('_target_')} starts from no plan")


@dataclass(frozen=True, eq=False)
class Warmed:
    """A task whose groups a plan does not divide, and that plan."""

    task: JointTask
    start: Solution
    seconds: float  # wall clock that it took
    provenance: Provenance  # with the plan among its inputs


def warm_start(
    config: WarmStartConfig,
    env: Mapping[str, Any],
    task: StepTask,
    folder: Path,
    provenance: Provenance,
    *,
    resume: bool,
) -> Warmed:
    """The placement that the planner of `config` finds for `task`, as a start.

    Its plan is kept in `folder`, from where a resumed run takes it. Of the plan the placement is
    taken over, at the rates an episode starts with and in the better of the environment's orders.

    Raises:
        InputError: the planner finds no plan, it does not fit in the environment's orders, or the
            plan kept in `folder` is missing or damaged.
    """
    from agents.rllib.subject import Solution

    path, search_s = folder / WARM_START_FILE, 0.0
    if not resume:
        assert config.budget_s is not None
        found = ask_beside(config.agent, "warm_start.agent", Joint(), task, config.budget_s)
        if found.plan is None:
            raise InputError(f"config key 'warm_start.agent': finds no plan ({found.reason})")
        write_plan(path, found.plan, task.problem, provenance)
        search_s = found.seconds
    begun = time.perf_counter()
    placement = read_plan(path, task.problem, OneFOneB()).placement
    make = build(env)
    warmed = JointTask(task.problem, env=make(task.problem, around=placement.device))
    fusion = warmed.begun().instance.fusion
    device = np.zeros(fusion.num_groups, dtype=np.int64)
    device[fusion.group] = placement.device
    started = warmed.begun({"start": device})
    step_time, fits = started.plan_outcome()
    if not fits:
        raise InputError("config key 'warm_start.agent': its placement does not fit into memory")
    start = Solution(step_time, {"device": device, "levels": started.levels})
    seconds = search_s + time.perf_counter() - begun
    inputs = {WARM_START_FILE: file_hash(path)}
    return Warmed(warmed, start, seconds, provenance.with_inputs(**inputs))
