"""Training as a search: policies learn on one problem, and the best they meet is the plan."""

from __future__ import annotations

import copy
import csv
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agents.rllib.config import Training
from agents.rllib.metrics import Row, Tracking
from agents.solver import Result
from envs.compilation import clock
from envs.placement.episodes import WholeProblem
from envs.step.plans import Placement, Plan
from envs.step.price import Pricer
from experiments.learning.outcome import Outcome, by_step_time
from experiments.learning.replay import PLANS, tokens
from experiments.learning.training import CURVE_FILE, PolicyConfig, trained
from experiments.pictures.learning import Curve, draw_learning_curve
from experiments.run.artifacts import METRICS_FILE, write_figure
from experiments.run.one_run import Run
from experiments.run.provenance import Provenance
from experiments.step.comparison import Comparison
from experiments.step.tasks import LearnedTask
from experiments.study.display import ProgressDisplay

if TYPE_CHECKING:
    from agents.rllib.training import Trained
    from models.step.decoding import Network

LEARNER, MET = "ppo", "met"  # the best plan of training, in tables and on consoles
TRAINED, UNTRAINED = "trained", "untrained"  # policies' most probable plans
OWN = (LEARNER, MET, TRAINED, UNTRAINED)
NO_PLAN = "no plan met in training fits"
BEST_MET = "best plan in training"


@dataclass(kw_only=True)
class OneProblemConfig(PolicyConfig):
    """What is learned on; groups are objects by `_target_`."""

    graph: Any
    topology: Any
    cost: Any
    communication: Any


@dataclass(frozen=True, eq=False)
class Learned:
    """Trained policies, the best that was decided in training, and how it got there."""

    training: Trained
    found: Result[Plan]
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
    config: OneProblemConfig, tracking: Tracking, training: Training, task: LearnedTask, run: Run,
    display: ProgressDisplay, provenance: Provenance,
) -> Learned:  # fmt: skip
    """Train on `task`, as `experiments.learning.training.trained`."""
    found = trained(
        config, tracking, training, task.subject(training), run, display, provenance, news, ended,
        LEARNER,
    )  # fmt: skip
    result: Result[Plan] = Result(
        None,
        "limit",
        seconds=found.seconds,
        evaluations=found.steps,
        reason=NO_PLAN,
        history=found.trajectory,
    )
    if found.best is not None:
        plan = task.plan_of(found.best)
        evaluation = task.judge(plan).evaluation
        assert evaluation is not None
        time_s = evaluation.step_time
        result = replace(result, solution=plan, status="feasible", value=time_s, reason="")
    measure = "its most probable plan, simulated on groups of operators and not on each, takes"
    outcome = Outcome.of(run.folder, measure, by_step_time, training.model)
    return Learned(found, result, read_curve(run.folder / METRICS_FILE, outcome), outcome)


def news(row: Row) -> str:
    """One iteration in a few words."""
    return (
        f"mean {row['charts/step_time_s_mean'] * 1e3:.1f} ms, "
        f"best {row['charts/best_objective'] * 1e3:.1f} ms, {row['charts/SPS']:.0f} steps/s"
    )


def ended(found: Trained) -> str:
    """What training came to in a few words."""
    best = NO_PLAN if found.best is None else f"{found.best.objective * 1e3:.1f} ms"
    return f"{best} in {found.seconds:.1f} s"


def draw_curve(
    run: Run, learned: Learned, comparison: Comparison, title: str, provenance: Provenance
) -> None:
    """Write the learning curve; what is of the training itself is no baseline in it."""
    rows = [row for row in comparison.rows if row.method not in OWN]
    words = comparison.words
    baselines = {words.get(row.method, row.method): row.step_time for row in rows}
    figure = draw_learning_curve(learned.curve, baselines, comparison.lower_bound, title)
    write_figure(run.folder / CURVE_FILE, figure, provenance)


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


def own_plans(found: Trained, task: LearnedTask, run_folder: Path) -> dict[str, Result[Plan]]:
    """The most probable plans of the policy and of what it was before; none of other policies."""
    from agents.rllib import restore
    from models.step.placer import PlacerPolicy, PresentNetwork

    ((module, policy),) = found.policies.items()
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
