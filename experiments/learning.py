"""Training as a search: a policy learns on one problem, its best placement is the plan."""

from __future__ import annotations

import copy
import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from scipy import stats

from agents.base import PlannerResult
from envs.placement.env import PlacementEnv
from envs.plans import Placement, Plan
from envs.simulation.problem import StepProblem
from envs.simulation.step import StepSimulator
from experiments.artifacts import write_json
from experiments.display import ProgressDisplay, training_news
from experiments.learning_curve import Curve
from experiments.provenance import Provenance, stamp
from experiments.search import describe

if TYPE_CHECKING:
    from agents.rllib.config import TrainingConfig
    from agents.rllib.training import TrainingResult

METRICS_FILE = "metrics.csv"


@dataclass(frozen=True)
class Exam:
    """The policy alone, greedily from the same starts before and after training.

    Beside it the rule it has to beat: from the same starts, always the device whose look-ahead
    promises the shortest step.
    """

    untrained: tuple[float, ...]  # seconds of the plan each episode ends in; inf: does not fit
    trained: tuple[float, ...]  # seconds
    look_ahead: tuple[float, ...]  # seconds

    def sentence(self) -> str:
        """What the exam says, for a reader."""
        gain, width = paired_gain(self.untrained, self.trained)
        over_rule, rule_width = paired_gain(self.look_ahead, self.trained)
        return (
            f"the policy alone, one greedy episode from each of {len(self.trained)} starts: "
            f"{_mean_ms(self.untrained)} before training, {_mean_ms(self.trained)} after it "
            f"({gain * 1e3:.1f} ± {width * 1e3:.1f} ms less), following the look-ahead blindly "
            f"{_mean_ms(self.look_ahead)} (the policy: {over_rule * 1e3:.1f} ± "
            f"{rule_width * 1e3:.1f} ms less)"
        )

    def document(self) -> dict[str, object]:
        """The exam as numbers."""
        gain, width = paired_gain(self.untrained, self.trained)
        over_rule, rule_width = paired_gain(self.look_ahead, self.trained)
        return {
            "untrained_s": list(self.untrained),
            "trained_s": list(self.trained),
            "look_ahead_s": list(self.look_ahead),
            "mean_gain_s": gain,
            "half_width_95_s": width,
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
    quantile = stats.t.ppf(0.975, len(differences) - 1)
    return float(differences.mean()), float(quantile * stats.sem(differences))


def _mean_ms(seconds: Sequence[float]) -> str:
    return f"{float(np.mean(seconds)) * 1e3:.1f} ms"


@dataclass(frozen=True, eq=False)
class Learned:
    """A trained policy, its best plan, and how it got there."""

    training: TrainingResult
    found: PlannerResult
    curve: Curve
    exam: Exam


def learn(
    prototype: PlacementEnv,
    problem: StepProblem,
    config: TrainingConfig,
    run_folder: Path,
    display: ProgressDisplay,
    provenance: Provenance,
    *,
    resume: bool = False,
) -> Learned:
    """Train on `problem` as `config` says; metrics and checkpoints go to `run_folder`, whose
    `checkpoints/provenance.json` says where the checkpoints come from.

    The graph is fused once: the environments are copies, before its first reset, of `prototype`,
    which holds the instance.
    """
    from agents.rllib.training import train

    if not resume:
        origin = stamp({}, provenance, kind="training_checkpoints")
        write_json(run_folder / "checkpoints" / "provenance.json", origin)
    task = display.begin("ppo", config.budget_s)

    def on_iteration(row: Mapping[str, float]) -> None:
        display.update(task, row["charts/seconds"], training_news(row))

    training = train(config, lambda: copy.copy(prototype), run_folder, on_iteration, resume=resume)
    found = as_planner_result(training, prototype, problem)
    display.end(task, describe(found))
    exam = Exam(training.untrained, training.trained, training.look_ahead)
    return Learned(training, found, read_curve(run_folder / METRICS_FILE), exam)


def read_curve(path: Path) -> Curve:
    """The learning curve of a run, all its sessions together, from its metrics."""
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return Curve(
        seconds=[float(row["charts/seconds"]) for row in rows],
        mean=[float(row["charts/step_time_s_mean"]) for row in rows],
        best=[float(row["charts/step_time_s_best"]) for row in rows],
    )


def as_planner_result(
    training: TrainingResult, env: PlacementEnv, problem: StepProblem
) -> PlannerResult:
    """The best placement met in training, on every operator and simulated in full."""
    if training.best_placement is None:
        return PlannerResult(
            plan=None,
            status="limit",
            step_time=np.inf,
            seconds=training.seconds,
            evaluations=training.env_steps,
            reason="no placement met in training fits",
            trajectory=training.trajectory,
        )
    env.reset(seed=0)
    device = env.instance.fusion.expand(training.best_placement)
    simulator = StepSimulator(problem)
    order = simulator.order(device)
    return PlannerResult(
        plan=Plan(Placement(device), order),
        status="feasible",
        step_time=simulator.step_time(device, order),
        seconds=training.seconds,
        evaluations=training.env_steps,
        trajectory=training.trajectory,
    )
