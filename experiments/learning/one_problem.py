"""Training as a search: policies learn on one problem, and the best they meet is the plan."""

from __future__ import annotations

import copy
import csv
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from agents.solver import Result
from agents.step.problems import Evaluation
from envs.compilation import clock
from envs.placement.episodes import WholeProblem
from envs.step.plans import Placement, Plan
from envs.step.price import Pricer
from experiments.learning.outcome import Outcome, by_step_time
from experiments.learning.replay import PLANS, tokens
from experiments.pictures.learning import Curve
from experiments.run.artifacts import METRICS_FILE, write_json
from experiments.run.provenance import Provenance, stamp
from experiments.step.planning import describe
from experiments.step.tasks import LearnedTask
from experiments.study.display import ProgressDisplay, training_news

if TYPE_CHECKING:
    from agents.rllib.config import Training
    from agents.rllib.metrics import Tracking
    from agents.rllib.training import Trained
    from models.step.decoding import Network

LEARNER = "ppo"  # in tables and on consoles
TRAINED, UNTRAINED = "trained", "untrained"  # policies' most probable plans
BEST_MET = "best plan in training"


@dataclass(frozen=True, eq=False)
class Learned:
    """Trained policies, the best that was decided in training, and how it got there."""

    training: Trained
    found: Result[Plan]
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
    task: LearnedTask,
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
    found: Result[Plan] = Result(
        None,
        "limit",
        seconds=trained.seconds,
        evaluations=trained.steps,
        reason="no plan met in training fits",
        history=trained.trajectory,
    )
    evaluation = None
    if trained.best is not None:
        plan = task.plan_of(trained.best)
        evaluation = task.judge(plan).evaluation
        assert evaluation is not None
        time_s = evaluation.step_time
        found = replace(found, solution=plan, status="feasible", value=time_s, reason="")
    display.end(shown, describe(found))
    measure = "its most probable plan, simulated on groups of operators and not on each, takes"
    outcome = Outcome.of(run_folder, measure, by_step_time, training.model)
    curve = read_curve(run_folder / METRICS_FILE, outcome)
    return Learned(trained, found, evaluation, curve, outcome)


def read_curve(path: Path, outcome: Outcome) -> Curve:
    """The learning curve of a run, all its sessions together, from its metrics.

    It begins with the first exam, before training; the one of the policy exported may be the last,
    after the last row.
    """
    with path.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    if outcome.best.iteration:
        rows[outcome.best.iteration - 1]["exam/outcome"] = str(np.mean(outcome.best.outcomes))
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


def own_words(fresh: bool) -> dict[str, str]:
    """What the rows of `own_plans` and training are; `fresh`: it began with nothing."""
    begun = "from nothing" if fresh else "further"
    return {
        LEARNER: f"training {begun}",
        TRAINED: f"trained {begun}",
        UNTRAINED: "untrained twin" if fresh else "policy it began with",
    }


def own_plans(trained: Trained, task: LearnedTask, run_folder: Path) -> dict[str, Result[Plan]]:
    """The most probable plans of the policy and of what it was before; none of other policies."""
    from agents.rllib import restore
    from models.step.placer import PlacerPolicy, PresentNetwork

    ((module, policy),) = trained.policies.items()
    if not isinstance(policy, PlacerPolicy):
        return {}
    twin = copy.deepcopy(policy)
    restore.load_best(run_folder, {module: twin}, restore.UNTRAINED)
    return {
        method: most_probable(PresentNetwork(one), policy.config.sweeps, task)
        for method, one in ((TRAINED, policy), (UNTRAINED, twin))
    }


def most_probable(network: Network, kinds: Sequence[str], task: LearnedTask) -> Result[Plan]:
    """The plan a policy makes when nothing is placed, order and all, without a search."""
    import torch

    torch.set_num_threads(1)  # as planners have it
    start = clock()
    source = task.env(task.step, sweeps=len(kinds))
    asked: WholeProblem = source.exam(0)
    seen = {name: array[None] for name, array in asked.observation.items()}
    made = tokens(network, kinds, seen)
    device, order = asked.tokens.plan(made[: len(made) // PLANS], asked.fusion.num_groups)
    rule = asked.pricer.price(device, order).rule
    placed = asked.fusion.expand(device)
    plan = Plan(Placement(placed), Pricer(task.step).price(placed, (rule,)).order)
    return Result(plan, "feasible", seconds=clock() - start)
