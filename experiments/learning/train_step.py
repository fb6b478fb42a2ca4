"""A policy learns on one graph and one topology: to place, or to share the network."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from agents.step.problems import require_fit
from envs.bounds import Positive
from envs.step.problem import StepProblem
from experiments.config.composing import plain_config
from experiments.config.targets import build
from experiments.learning.exporting import CHECKPOINT_FOLDER, card_of, title_of
from experiments.learning.one_problem import (
    BEST_MET,
    LEARNER,
    Learned,
    learn,
    own_plans,
    own_words,
)
from experiments.learning.tracking import tracking_of
from experiments.pictures.learning import draw_learning_curve
from experiments.run.artifacts import METRICS_FILE, write_figure, write_sidecar
from experiments.run.one_run import Result, Run
from experiments.run.provenance import Provenance
from experiments.run.saved_run import resumed_config
from experiments.step.comparison import Comparison, Row, row_of
from experiments.step.evaluate_step import evaluation_values
from experiments.step.objectives import learnable
from experiments.step.planning import ask_in_turn
from experiments.step.problem import BUILDING, communication_of, load_problem
from experiments.study.display import ProgressDisplay
from experiments.study.tables import write_markdown

SHOWN = (
    "graph", "topology", "iterations", "steps", "episodes", "seconds", "step_time_s",
    "lower_bound_s", "times_lower_bound", "peak_memory_bytes", "feasible", "resumed", "checkpoint",
)  # fmt: skip
WORDS = {  # of baselines, as `conf/main.yaml` has them
    "heft": "HEFT, list scheduler",
    "contiguous_speed": "split by speed",
    "single_device": "best single device",
    "shipped": "shipped, best of 8",
}


@dataclass(kw_only=True)
class TrainConfig:
    """`conf/train.yaml`; groups are objects by `_target_`."""

    env: Any
    agent: Any
    model: Any
    graph: Any
    topology: Any
    cost: Any
    communication: Any
    training: Any
    baselines: dict[str, Any]
    baseline_budget_s: Positive = 80.0  # wall time of each baseline, and of the placer
    placer: Any
    learner: Any
    tracking: Any
    ray: Any = field(default_factory=lambda: {"address": None})
    resume: str | None = None  # the run folder of a run to go on with; its config is taken up again
    seed: int
    json: bool


def train_step(config: TrainConfig, run: Run) -> Result:
    """Train (on), then write what was found, the learning curve and the table."""
    resume = config.resume is not None
    if resume:
        config = resumed_config(run.folder, config, run.overrides)
    tracking = tracking_of(config.tracking)
    run.begin(BUILDING)
    loaded = load_problem(config.env, config.graph, config.topology, config.cost)
    problem, provenance = loaded.problem, loaded.stamp_on(run.provenance)
    bound = require_fit(problem)
    training = build(config.training, "training")
    objective, task = learnable(
        config.env,
        problem,
        communication_of(config.communication),
        config.placer,
        config.baseline_budget_s,
    )
    task.subject(training).architectures(training.model)  # before the baselines take their time
    fresh = not hasattr(training.model, "checkpoint")
    words = {**WORDS, **own_words(fresh)}
    names = {**words, LEARNER: BEST_MET}
    budget_s = config.baseline_budget_s
    with ProgressDisplay(run.console, words) as display:
        beside = ask_in_turn(config.baselines, "baselines", objective, task, budget_s, display)
        rows = [row_of(*item, task) for item in beside.items()]
        learned = learn(
            task,
            training,
            run.folder,
            display,
            provenance,
            resume=resume,
            tracking=tracking,
        )
    run.begin("drawing and exporting")
    result, found = learned.training, learned.found
    trajectory = tuple(found.history)
    baselines = {names.get(row.method, row.method): row.step_time for row in rows}
    rows.append(Row(LEARNER, learned.evaluation, found.seconds, found.reason, trajectory))
    own = own_plans(result, task, run.folder)
    rows += (row_of(method, plan, task) for method, plan in own.items())
    rows.sort(key=lambda row: row.step_time)
    name = f"{problem.graph.name} on {problem.topology.name}"
    figure = draw_learning_curve(
        learned.curve,
        baselines,
        bound.seconds,
        f"{name}: a policy learns by PPO ({objective.name})",
    )
    write_figure(run.folder / "learning_curve.png", figure, provenance)
    write_sidecar(run.folder / METRICS_FILE, provenance, kind="metrics")
    comparison = Comparison(tuple(rows), None, bound.seconds, names)
    told = learned.outcome.sentence
    if len(rows) > 1:
        run.console.print(comparison.rich(name))
        write_markdown(run, name, [comparison.markdown(), f"{told}."], provenance)
    run.console.say(told)
    checkpoint = exported(learned, config, run.folder, problem, provenance)
    values: dict[str, object] = {
        "graph": problem.graph.name,
        "topology": problem.topology.name,
        "iterations": result.iterations,
        "steps": result.steps,
        "episodes": result.episodes,
        "seconds": result.seconds,
        "exam": learned.exam,
        "lower_bound_s": bound.seconds,
        "methods": comparison.document(),
        "checkpoint": None if checkpoint is None else str(checkpoint),
        "resumed": resume,
    }
    if found.solution is None or learned.evaluation is None:
        unplaced = dict.fromkeys(("step_time_s", "times_lower_bound", "peak_memory_bytes"))
        unplaced = {**unplaced, "feasible": False}
        return Result({**values, **unplaced}, provenance, SHOWN, learned.warnings)
    task.write(run.folder, found.solution, provenance)
    judged = evaluation_values(learned.evaluation, bound)
    return Result({**values, **judged}, provenance, SHOWN, learned.warnings)


def exported(
    learned: Learned,
    config: TrainConfig,
    run_folder: Path,
    problem: StepProblem,
    provenance: Provenance,
) -> Path | None:
    """The checkpoint folder of a policy of whole plans; None: it is another."""
    from models.export.placer import export_placer
    from models.step.placer import PlacerPolicy

    policy = next(iter(learned.training.policies.values()))
    if not isinstance(policy, PlacerPolicy):
        return None
    card = card_of(title_of(problem), learned.outcome.sentence, plain_config(config), provenance)
    return export_placer(policy, run_folder.resolve() / CHECKPOINT_FOLDER, card)
