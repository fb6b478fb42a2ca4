"""Train one policy for all schedulers of a cluster: imitate a teacher, then multi-agent PPO.

python -m experiments.train env=cluster_mixed +split@splits.itp=itp +split@splits.philly=philly \\
    interference=analytic overheads.restart_s=60 training.budget_s=3600
python -m experiments.train env=cluster_parallel trace.format=synthetic trace.jobs=4000 \\
    clusters='[{_target_: envs.cluster.nodes.Cluster.uniform, nodes: 8, gpus_per_node: 8,
    nodes_per_rack: 2}]' agent.posterior_coefficient=0.1
python -m experiments.train resume=<run folder>

The policy of the best exam becomes a scheduler checkpoint, <run folder>/checkpoint.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agents.cluster.checkpoint_adviser import described
from envs.cluster.environment.advice import Adviser
from envs.errors import InputError
from experiments.cluster.split_windows import SplitConfig
from experiments.cluster.trace_source import TraceConfig
from experiments.learning.cluster_exporting import (
    adviser_inputs,
    export_trained,
    require_exportable,
    same_inputs,
)
from experiments.learning.cluster_training import ExamFactory, Factory, JobsAndClusters, factories
from experiments.learning.exporting import CHECKPOINT_FOLDER
from experiments.pictures.learning import draw_exams, read_exams
from experiments.run.app import Result, Run
from experiments.run.artifacts import write_figure, write_json, write_sidecar
from experiments.run.display import ProgressDisplay
from experiments.run.overrides import plain_config
from experiments.run.provenance import stamp
from experiments.run.saved_run import resumed_config
from experiments.run.targets import build, no_such_thing

if TYPE_CHECKING:
    from agents.rllib.cluster.config import ClusterTraining

METRICS_FILE, CURVE_FILE = "metrics.csv", "learning_curve.png"
SHOWN = (
    "iterations", "decisions", "episodes", "seconds", "best_score", "best_iteration",
    "untrained_score", "resumed",
)  # fmt: skip


@dataclass
class TrainClusterConfig:
    """`conf/train_cluster.yaml`; groups are objects by `_target_`."""

    env: Any
    agent: Any
    model: Any
    interference: Any
    adviser: Any
    trace: TraceConfig
    splits: dict[str, SplitConfig]
    window: str
    exam_window: str
    clusters: list[Any]
    overheads: Any
    teacher: Any
    reference: Any
    training: Any
    resume: str | None
    seed: int
    json: bool

    def __post_init__(self) -> None:
        if self.splits and self.trace.path is not None:
            raise InputError("config key 'trace.path': the splits bring their own traces")
        if self.window == self.exam_window:
            told = "exams are about other jobs than training"
            raise InputError(f"config key 'exam_window': is {self.window!r} as well: {told}")


def train_cluster(config: TrainClusterConfig, run: Run) -> Result:
    """Train (on), then write the learning curve and what the exams say."""
    resume = config.resume is not None
    if resume:
        config = resumed_config(run.folder, config, run.overrides)
    training = training_of(config.training)
    found, make, make_exam = environments(config, training)
    shown = make_exam(0).observation.adviser
    require_exportable(training.model, shown)
    advises = described(shown)
    if resume:
        same_inputs(run.folder, advises)
    inputs = adviser_inputs(advises)
    provenance = run.provenance.with_inputs(**found.inputs, **inputs)
    teacher, reference = teachers(config, shown)
    if not resume:
        origin = stamp({}, provenance, kind="training_checkpoints")
        write_json(run.folder / "checkpoints" / "provenance.json", origin)

    from agents.rllib.cluster.training import train_schedulers

    with ProgressDisplay(run.console) as display:
        task = display.begin("ppo", training.budget_s)

        def on_iteration(row: Mapping[str, float]) -> None:
            display.update(task, row["charts/seconds"], news(row))

        result = train_schedulers(
            training,
            make,
            make_exam,
            run.folder,
            on_iteration,
            teacher=teacher,
            reference=reference,
            resume=resume,
        )
        display.end(task, f"mean JCT {result.best_score:.3f} times the reference's at best")
    write_sidecar(run.folder / METRICS_FILE, provenance, kind="metrics")
    export_trained(
        result.policy,
        run.folder / CHECKPOINT_FOLDER,
        make_exam(0),
        run_folder=run.folder,
        config=plain_config(config),
        traces=[trace.name for trace in found.traces],
        provenance=provenance,
    )
    figure = draw_exams([read_exams(run.folder)], "exams in training")
    write_figure(run.folder / CURVE_FILE, figure, provenance)
    values: dict[str, object] = {
        "iterations": result.iterations,
        "decisions": result.decisions,
        "episodes": result.episodes,
        "seconds": result.seconds,
        "best_score": result.best_score,
        "best_iteration": result.best_iteration,
        "untrained_score": result.exams[0][1],
        "exams": [{"iteration": k, "score": score} for k, score in result.exams],
        "reference_mean_jct_s": list(result.reference),
        "traces": [trace.name for trace in found.traces],
        "clusters": [cluster.name for cluster in found.clusters],
        "checkpoint": str(run.folder / CHECKPOINT_FOLDER),
        "resumed": resume,
    }
    return Result(values, provenance, SHOWN)


def environments(
    config: TrainClusterConfig, training: ClusterTraining
) -> tuple[JobsAndClusters, Factory, ExamFactory]:
    """What a config trains and examines in.

    Raises:
        InputError: naming the config key or the file.
    """
    if config.splits:
        found = JobsAndClusters.of_splits(config.splits, config.window, config.exam_window)
    else:
        found = JobsAndClusters.of_trace(config.trace, config.window, config.exam_window)
    found = found.with_clusters(config.clusters)
    make, make_exam = factories(
        config.env, found, config.interference, config.overheads, training.exam_windows
    )
    return found, make, make_exam


def teachers(config: TrainClusterConfig, shown: Adviser | None) -> tuple[Adviser | None, Adviser]:
    """Who is imitated, and who the exams are measured by: the adviser shown, if nobody is named."""
    from agents.rllib.cluster.drivers import FirstFit, ShownAdvice

    teacher = None if shown is None else ShownAdvice()
    reference: Adviser = FirstFit() if shown is None else ShownAdvice()
    return (
        teacher if config.teacher is None else adviser_of(config.teacher, "teacher"),
        reference if config.reference is None else adviser_of(config.reference, "reference"),
    )


def training_of(node: Mapping[str, Any]) -> ClusterTraining:
    """The training run that a config node describes.

    Raises:
        InputError: it describes something else.
    """
    from agents.rllib.cluster.config import ClusterTraining

    training = build(node, "training")
    if not isinstance(training, ClusterTraining):
        raise no_such_thing("training", node, "training of schedulers")
    return training


def adviser_of(node: Mapping[str, Any], key: str) -> Adviser:
    """The adviser that a config node describes.

    Raises:
        InputError: it describes something else.
    """
    adviser = build(node, key)
    if not hasattr(adviser, "begin"):
        raise no_such_thing(key, node, "adviser of schedulers")
    built: Adviser = adviser
    return built


def news(row: Mapping[str, float]) -> str:
    """One iteration in a few words."""
    what = "cloning" if row["charts/cloning"] else "PPO"
    return (
        f"iteration {row['iteration']:.0f} ({what}), mean JCT {row['charts/mean_jct_s']:,.0f} s, "
        f"best exam {row['exam/best_score']:.3f}, {row['charts/SPS']:,.0f} decisions/s"
    )
