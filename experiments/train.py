"""Train a placement policy on one graph and one topology.

python -m experiments.train graph=bert_large topology=mixed_v100_p100 training.budget_s=600
python -m experiments.train resume=<run folder>
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.errors import InputError
from experiments.app import Result, Run, run_app
from experiments.artifacts import write_figure, write_sidecar
from experiments.display import ProgressDisplay
from experiments.evaluation import evaluate_plan, evaluation_values, require_fit
from experiments.learning import METRICS_FILE, learn
from experiments.learning_curve import draw_learning_curve
from experiments.overrides import CONFIG_FILE
from experiments.plan_file import write_plan
from experiments.problem import communication_of, load_problem, placement_env
from experiments.saved_run import resumed_config
from experiments.targets import build


@dataclass
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
    resume: str | None
    seed: int
    json: bool

    def __post_init__(self) -> None:
        if self.resume is not None and not (Path(self.resume) / CONFIG_FILE).is_file():
            raise InputError(f"is no run folder: it has no {CONFIG_FILE}", file=self.resume)


def train(config: TrainConfig, run: Run) -> Result:
    """Train (on), then write the best plan and the learning curve."""
    resume = config.resume is not None
    if resume:
        config = resumed_config(run.folder, config, run.overrides)
    loaded = load_problem(config.env, config.graph, config.topology, config.cost)
    problem, provenance = loaded.problem, loaded.stamp_on(run.provenance)
    communication = communication_of(config.communication)
    bound = require_fit(problem)
    training = build(config.training)
    env = placement_env(config.env, problem)
    with ProgressDisplay(run.console) as display:
        learned = learn(env, problem, training, run.folder, display, provenance, resume=resume)
    result = learned.training
    name = f"{problem.graph.name} on {problem.topology.name}"
    figure = draw_learning_curve(learned.curve, {}, bound.seconds, f"{name}: learning to place")
    write_figure(run.folder / "learning_curve.png", figure, provenance)
    write_sidecar(run.folder / METRICS_FILE, provenance, kind="metrics")
    values: dict[str, object] = {
        "graph": problem.graph.name,
        "topology": problem.topology.name,
        "iterations": result.iterations,
        "env_steps": result.env_steps,
        "episodes": result.episodes,
        "seconds": result.seconds,
        "exam": learned.exam.document(),
        "lower_bound_s": bound.seconds,
        "resumed": resume,
    }
    plan = learned.found.plan
    if plan is None:
        unplaced = {"step_time_s": None, "peak_memory_bytes": None, "feasible": False}
        return Result({**values, **unplaced}, provenance)
    write_plan(run.folder / "plan.json", plan, problem, provenance)
    evaluation = evaluate_plan(problem, plan, communication)
    return Result({**values, **evaluation_values(problem, evaluation, bound)}, provenance)


if __name__ == "__main__":
    sys.exit(run_app("train", TrainConfig, train))
