"""A policy learns on one graph and one topology: to place, or to share the network."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agents.step.problems import require_fit
from envs.bounds import Positive
from experiments.config.composing import plain_config
from experiments.config.targets import build
from experiments.learning.exporting import CHECKPOINT_FOLDER, card_of, title_of
from experiments.learning.one_problem import (
    BEST_MET,
    LEARNER,
    OneProblemConfig,
    draw_curve,
    learn,
    own_plans,
    own_words,
)
from experiments.learning.training import begun
from experiments.run.one_run import Result, Run
from experiments.step.comparison import Comparison, row_of
from experiments.step.evaluation import evaluation_values
from experiments.step.objectives import learnable
from experiments.step.planning import ask_beside
from experiments.step.problem import BUILDING, communication_of, load_problem
from experiments.step.search import describe
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
class TrainConfig(OneProblemConfig):
    """`conf/train.yaml`; groups are objects by `_target_`."""

    baselines: dict[str, Any]
    baseline_budget_s: Positive = 80.0  # wall time of each baseline, and of the placer
    placer: Any


def train_step(config: TrainConfig, run: Run) -> Result:
    """Train (on), then write what was found, the learning curve and the table."""
    from models.export.placer import export_placer
    from models.step.placer import PlacerPolicy

    config, tracking = begun(config, run)
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
    words = {**WORDS, **own_words(not hasattr(training.model, "checkpoint"))}
    rows = []
    with ProgressDisplay(run.console, words) as display:
        for name, node in config.baselines.items():
            shown = display.begin(name, config.baseline_budget_s)
            beside = ask_beside(
                node, f"baselines.{name}", objective, task, config.baseline_budget_s
            )
            display.end(shown, describe(beside))
            rows.append(row_of(name, beside, task))
        learned = learn(config, tracking, training, task, run, display, provenance)
    run.begin("drawing and exporting")
    result, found = learned.training, learned.found
    met = row_of(LEARNER, found, task)
    own = own_plans(result, task, run.folder)
    rows += (met, *(row_of(method, plan, task) for method, plan in own.items()))
    rows.sort(key=lambda row: row.step_time)
    names = {**words, LEARNER: BEST_MET}
    comparison = Comparison(tuple(rows), None, bound.seconds, names)
    name = f"{problem.graph.name} on {problem.topology.name}"
    title = f"{name}: a policy learns by PPO ({objective.name})"
    draw_curve(run, learned, comparison, title, provenance)
    told = learned.outcome.sentence
    if len(rows) > 1:
        run.console.print(comparison.rich(name))
        write_markdown(run, name, [comparison.markdown(), f"{told}."], provenance)
    run.console.say(told)
    policy, checkpoint = next(iter(result.policies.values())), None
    if isinstance(policy, PlacerPolicy):
        card = card_of(title_of(problem), told, plain_config(config), provenance)
        checkpoint = export_placer(policy, run.folder.resolve() / CHECKPOINT_FOLDER, card)
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
        "resumed": config.resume is not None,
    }
    if found.solution is None or met.evaluation is None:
        unplaced = dict.fromkeys(("step_time_s", "times_lower_bound", "peak_memory_bytes"))
        values |= {**unplaced, "feasible": False}
    else:
        task.write(run.folder, found.solution, provenance)
        values |= evaluation_values(met.evaluation, bound)
    return Result(values, provenance, SHOWN, learned.warnings)
