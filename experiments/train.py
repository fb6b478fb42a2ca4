"""Train policies on one graph and one topology: to place, to share the network, or both.

python -m experiments.train graph=bert_large topology=mixed_v100_p100 training.budget_s=600
python -m experiments.train env=joint agent=ppo_joint model=joint topology=planes_4x1
python -m experiments.train env=joint agent=ppo_joint model=joint topology=planes_4x1 \
    warm_start=planner warm_start.budget_s=50 training.budget_s=150
python -m experiments.train env=bandwidth_toy agent=ppo_bandwidth model=channels \
    training.restart_share=0 baselines=bandwidth
python -m experiments.train +experiment=cluster_known training.budget_s=600
python -m experiments.train resume=<run folder>

With `model=interference` the predictor of slow-downs is trained, with `model=durations` that of the
work jobs still need, with `model=priority` what counts beside that, with `env=cluster_mixed`, or
another cluster, its schedulers; with `--help` beside these there is an example, and the keys.
`conf/experiment` holds recipes for schedulers; the second line of each is its command.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from envs.errors import InputError
from experiments.learning.one_problem import METRICS_FILE, learn
from experiments.learning.subjects import subject_of
from experiments.learning.train_cluster import TrainClusterConfig, train_cluster
from experiments.learning.train_durations import TrainDurationsConfig, train_durations
from experiments.learning.train_interference import TrainInterferenceConfig, train_interference
from experiments.learning.train_priority import TrainPriorityConfig, train_priority
from experiments.learning.warm_start import WarmStartConfig, require_start, warm_start
from experiments.pictures.learning import draw_learning_curve
from experiments.run.app import Result, Run, Variant, run_app
from experiments.run.artifacts import write_figure, write_sidecar
from experiments.run.display import ProgressDisplay
from experiments.run.overrides import CONFIG_FILE
from experiments.run.saved_run import resumed_config
from experiments.run.targets import build
from experiments.step.baselines import baselines, row_values, write_table
from experiments.step.comparison import Row
from experiments.step.evaluation import evaluation_values, require_fit
from experiments.step.problem import communication_of, load_problem

SHOWN = (
    "graph", "topology", "iterations", "env_steps", "episodes", "seconds", "step_time_s",
    "lower_bound_s", "times_lower_bound", "peak_memory_bytes", "feasible", "resumed",
)  # fmt: skip
VARIANTS = {
    "model=interference": Variant(
        "train_interference", TrainInterferenceConfig, train_interference
    ),
    "model=durations": Variant("train_durations", TrainDurationsConfig, train_durations),
    "model=priority": Variant("train_priority", TrainPriorityConfig, train_priority),
    "env=cluster*": Variant("train_cluster", TrainClusterConfig, train_cluster),
}


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
    baselines: dict[str, Any]
    baseline_budget_s: float
    placer: Any
    warm_start: WarmStartConfig
    resume: str | None
    seed: int
    json: bool

    def __post_init__(self) -> None:
        if self.resume is not None and not (Path(self.resume) / CONFIG_FILE).is_file():
            raise InputError(f"is no run folder: it has no {CONFIG_FILE}", file=self.resume)
        if not 0 < self.baseline_budget_s < float("inf"):
            raise InputError(
                f"config key 'baseline_budget_s': {self.baseline_budget_s} is not positive and "
                "finite"
            )


def train(config: TrainConfig, run: Run) -> Result:
    """Train (on), then write what was found, the learning curve and the table."""
    resume = config.resume is not None
    if resume:
        config = resumed_config(run.folder, config, run.overrides)
    loaded = load_problem(config.env, config.graph, config.topology, config.cost)
    problem, provenance = loaded.problem, loaded.stamp_on(run.provenance)
    bound = require_fit(problem)
    training = build(config.training)
    communication = communication_of(config.communication)
    subject = subject_of(config.env, loaded, communication, config.placer, config.baseline_budget_s)
    subject.task(training).architectures(training.model)  # before the baselines take their time
    config.warm_start.within(training.budget_s)
    if config.warm_start.agent is not None:
        require_start(config.env, subject)
    method, start = "ppo", None
    with ProgressDisplay(run.console) as display:
        rows = baselines(config.baselines, subject, config.baseline_budget_s, display)
        if config.warm_start.agent is not None:
            method = config.warm_start.method
            task = display.begin(config.warm_start.planner, config.warm_start.budget_s)
            warm = warm_start(
                config.warm_start, config.env, subject, run.folder, provenance, resume=resume
            )
            subject, start, provenance = warm.subject, warm.start, warm.provenance
            display.end(task, f"{start.record.step_time * 1e3:.1f} ms to go on from")
        learned = learn(
            subject, training, run.folder, display, provenance, resume=resume, warm_start=start
        )
    result, found = learned.training, learned.found
    trajectory = tuple(found.trajectory)
    rows.append(Row(method, learned.evaluation, found.seconds, found.reason, trajectory))
    name = f"{problem.graph.name} on {problem.topology.name}"
    figure = draw_learning_curve(
        learned.curve,
        {row.method: row.step_time for row in rows[:-1]},
        bound.seconds,
        f"{name}: {method}, learning to {subject.deed}",
    )
    write_figure(run.folder / "learning_curve.png", figure, provenance)
    write_sidecar(run.folder / METRICS_FILE, provenance, kind="metrics")
    if config.baselines:
        write_table(run, rows, bound.seconds, name, provenance)
    values: dict[str, object] = {
        "graph": problem.graph.name,
        "topology": problem.topology.name,
        "iterations": result.iterations,
        "env_steps": result.env_steps,
        "episodes": result.episodes,
        "seconds": result.seconds,
        "exam": learned.exam.document(),
        "warm_start": None
        if start is None
        else {"method": method, "step_time_s": start.record.step_time},
        "lower_bound_s": bound.seconds,
        "methods": [row_values(row, bound.seconds) for row in rows],
        "resumed": resume,
    }
    if result.best_plan is None or learned.evaluation is None:
        unplaced = {"step_time_s": None, "peak_memory_bytes": None, "feasible": False}
        return Result({**values, **unplaced}, provenance, SHOWN)
    subject.write(run.folder, result.best_plan, provenance)
    judged = evaluation_values(problem, learned.evaluation, bound)
    return Result({**values, **judged}, provenance, SHOWN)


def main(arguments: list[str] | None = None) -> int:
    """The app; what is learned of clusters and jobs has configs of its own."""
    return run_app("train", TrainConfig, train, arguments, VARIANTS)


if __name__ == "__main__":
    sys.exit(main())
