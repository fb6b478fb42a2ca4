"""Training as a search: policies learn on one problem, and the best they meet is the plan."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from agents.base import PlannerResult
from experiments.learning.outcome import Outcome, by_step_time
from experiments.pictures.learning import Curve
from experiments.run.artifacts import METRICS_FILE, write_json
from experiments.run.display import ProgressDisplay, training_news
from experiments.run.provenance import Provenance, stamp
from experiments.step.evaluation import Evaluation
from experiments.step.search import describe
from experiments.step.tasks import Allocation, StepTask

if TYPE_CHECKING:
    from agents.rllib.config import Training
    from agents.rllib.metrics import Tracking
    from agents.rllib.training import Trained

LEARNER = "ppo"  # in tables and on consoles


@dataclass(frozen=True, eq=False)
class Learned:
    """Trained policies, the best that was decided in training, and how it got there."""

    training: Trained
    found: PlannerResult
    allocation: Allocation  # of bandwidth, beside the plan
    evaluation: Evaluation | None  # of the best plan, None without one
    curve: Curve
    outcome: Outcome

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a user is to know."""
        return (*self.outcome.warnings, *self.training.warnings)

    @property
    def exam(self) -> dict[str, object]:
        """Seconds of the most probable plan, before training and of the policy exported."""
        before, after = self.outcome.untrained, self.outcome.best
        return {"untrained_s": list(before.outcomes), "trained_s": list(after.outcomes)}


def learn(
    task: StepTask,
    training: Training,
    run_folder: Path,
    display: ProgressDisplay,
    provenance: Provenance,
    *,
    resume: bool = False,
    tracking: Tracking,
) -> Learned:
    """Train on `task`; metrics and checkpoints go to `run_folder`, whose
    `checkpoints/provenance.json` says where the checkpoints come from.
    """
    from agents.rllib.training import train

    if not resume:
        origin = stamp({}, provenance, kind="training_checkpoints")
        write_json(run_folder / "checkpoints" / "provenance.json", origin)
    subject = task.subject(training)
    shown = display.begin(LEARNER, training.budget_s, training.min_iterations)

    def on_iteration(row: Mapping[str, float]) -> None:
        display.update(shown, row["charts/seconds"], training_news(row))

    trained = train(
        training,
        subject,
        run_folder,
        on_iteration,
        resume=resume,
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
    measure = "its most probable plan, simulated on groups of operators and not on each, takes"
    outcome = Outcome.of(run_folder, measure, by_step_time, training.model)
    curve = read_curve(run_folder / METRICS_FILE, outcome)
    return Learned(trained, found, allocation, evaluation, curve, outcome)


def read_curve(path: Path, outcome: Outcome) -> Curve:
    """The learning curve of a run, all its sessions together, from its metrics.

    It begins with the first exam, before training.
    """
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    return Curve(
        seconds=[float(row["charts/seconds"]) for row in rows],
        mean=[float(row["charts/step_time_s_mean"]) for row in rows],
        best=[float(row["charts/best_objective"]) for row in rows],
        own=[
            (0.0, float(np.mean(outcome.untrained.outcomes))),
            *((float(row["charts/seconds"]), float(row["exam/outcome"])) for row in rows),
        ],
        begun=outcome.begun,
    )
