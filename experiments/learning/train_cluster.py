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

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
from annotated_types import MinLen

from agents.cluster.checkpoint_adviser import described
from agents.cluster.migrating.adviser import MigrationAdviser
from envs.cluster.environment.generator import ClusterGenerator
from envs.cluster.environment.instance import ClusterBounds, ClusterInstance
from envs.cluster.environment.parallel_env import ClusterParallelEnv
from envs.cluster.environment.views import Adviser
from envs.cluster.interference.rates import RateModel
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace
from envs.errors import InputError
from experiments.cluster.split_windows import Split, SplitConfig
from experiments.cluster.trace_source import TraceConfig, load_trace
from experiments.learning.exporting import (
    CHECKPOINT_FOLDER,
    adviser_inputs,
    export_trained,
    require_exportable,
    same_inputs,
)
from experiments.pictures.learning import (
    common,
    draw_exams,
    interquartile_mean,
    read_exams,
)
from experiments.run.app import Result, Run
from experiments.run.artifacts import METRICS_FILE, write_figure, write_json, write_sidecar
from experiments.run.display import ProgressDisplay
from experiments.run.overrides import plain_config
from experiments.run.provenance import file_hash, stamp
from experiments.run.saved_run import resumed_config
from experiments.run.targets import build, build_as, no_such_thing

if TYPE_CHECKING:
    from agents.rllib.cluster.config import ClusterTraining


Node = Mapping[str, Any]

Factory = Callable[[], ClusterParallelEnv]

ExamFactory = Callable[[int], ClusterParallelEnv]  # by the number of the window


@dataclass(frozen=True, eq=False)
class JobsAndClusters:
    """What episodes are drawn from."""

    traces: tuple[Trace, ...]  # of training
    exams: tuple[Trace, ...] | tuple[ClusterInstance, ...]  # windows drawn from, or those there are
    clusters: tuple[Cluster, ...]
    inputs: Mapping[str, str]  # SHA-256 by name

    @classmethod
    def of_splits(
        cls, splits: Mapping[str, SplitConfig], window: str, exam_window: str
    ) -> JobsAndClusters:
        """The windows of all traces of some splits, and the clusters they run on.

        The exams are the split's own parts of `exam_window`, on their clusters, at their load.

        Raises:
            InputError: a split's file is missing or another, or it has no such window.
        """
        traces: list[Trace] = []
        exams: list[ClusterInstance] = []
        clusters: dict[str, Cluster] = {}
        inputs: dict[str, str] = {}
        for config in splits.values():
            split = Split(config)
            for key, asked in (("window", window), ("exam_window", exam_window)):
                if asked not in config.shares:
                    known = ", ".join(config.shares)
                    message = f"{asked!r} is unknown in split {config.name} (known: {known})"
                    raise InputError(f"config key '{key}': {message}")
            for part in split.traces.values():
                traces.append(part.windows[window].trace.canonical())
                clusters.setdefault(part.cluster.name, part.cluster)
            for chosen in split.windows(exam_window):
                exams.append(ClusterInstance(chosen.problem.cluster, chosen.problem.trace))
            inputs |= config.inputs
        return cls(tuple(traces), tuple(exams), tuple(clusters.values()), inputs)

    @classmethod
    def of_trace(cls, config: TraceConfig, window: str, exam_window: str) -> JobsAndClusters:
        """Two windows of one trace, without any cluster.

        Raises:
            InputError: naming the config key or the file.
        """
        if config.window is not None:
            message = "the windows are given by 'window' and 'exam_window'"
            raise InputError(f"config key 'trace.window': {message}")
        found = [load_trace(replace(config, window=name)) for name in (window, exam_window)]
        return cls((found[0].trace,), (found[1].trace,), (), found[0].inputs)

    def with_clusters(self, nodes: Sequence[Node]) -> JobsAndClusters:
        """With the clusters that config nodes describe.

        Raises:
            InputError: a node describes something else, or there is no cluster.
        """
        clusters = list(self.clusters)
        for number, node in enumerate(nodes):
            cluster = build(node, f"clusters[{number}]")
            if not isinstance(cluster, Cluster):
                raise no_such_thing(f"clusters[{number}]", node, "cluster")
            clusters.append(cluster)
        if not clusters:
            raise InputError("config key 'clusters': no cluster")
        return replace(self, clusters=tuple(clusters))


class FixedWindow:
    """The same window in every episode, within the bounds of other episodes."""

    def __init__(self, bounds: ClusterBounds, instance: ClusterInstance) -> None:
        self.bounds, self.instance = bounds, instance

    def __call__(self, rng: np.random.Generator) -> ClusterInstance:
        return self.instance


def factories(
    env: Node, found: JobsAndClusters, interference: Node, overheads: Node, exam_windows: int
) -> tuple[Factory, ExamFactory]:
    """What makes environments to train in, and the k-th to be examined in, of the same spaces.

    What a generator holds of the traces is held once. Of more windows than are asked for, exams
    take every so many.

    Raises:
        InputError: a node describes something else, or what cannot be; the adviser looks at
            durations that the observation does not show.
    """
    make = build(env, "env")
    if not (isinstance(make, partial) and "windows" in make.keywords):
        raise no_such_thing("env", env, "environment of several schedulers about traces")
    rates = build_as(RateModel, interference, "interference", "interference model")
    given = {"rates": rates, "overheads": build(overheads, "overheads")}
    clusters = _one_or_all(found.clusters)
    first = make(clusters, _one_or_all(found.traces), **given)
    if not isinstance(first, ClusterParallelEnv):
        raise InputError(f"config key 'env': {type(first).__name__} is not about schedulers")
    adviser, sees = first.observation.adviser, first.observation.table.known
    if isinstance(adviser, MigrationAdviser) and adviser.knows == "durations" and not sees:
        message = (
            "looks at durations, which env.observation.known_durations=false keeps from schedulers"
        )
        raise InputError(f"config key 'adviser': {message}")

    def with_generator(generator: ClusterGenerator) -> ClusterParallelEnv:
        another: ClusterParallelEnv = make(clusters, None, windows=lambda *_: generator, **given)
        return another

    exams: list[ClusterGenerator] = []
    windows = [exam for exam in found.exams if isinstance(exam, ClusterInstance)]
    if windows:
        if exam_windows > len(windows):
            message = f"{exam_windows}, the splits have {len(windows)}"
            raise InputError(f"config key 'training.exam_windows': {message}")
        chosen = [number * len(windows) // exam_windows for number in range(exam_windows)]
        exams += [FixedWindow(first.generator.bounds, windows[number]) for number in chosen]
    else:
        drawn = make.keywords["windows"](clusters, _one_or_all(found.exams))
        exams += [drawn] * exam_windows
    return partial(with_generator, first.generator), lambda k: with_generator(exams[k])


def _one_or_all(things: Sequence[Any]) -> Any:
    """Generators of one kind take a single cluster and trace."""
    return things[0] if len(things) == 1 else things


CURVE_FILE, CURVES_FILE = "learning_curve.png", "learning_curves.png"

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
            message = "exams are about other jobs than training"
            raise InputError(f"config key 'exam_window': is {self.window!r} as well: {message}")


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
    """The adviser that a config node describes."""
    return build_as(Adviser, node, key, "adviser of schedulers")


def news(row: Mapping[str, float]) -> str:
    """One iteration in a few words."""
    what = "cloning" if row["charts/cloning"] else "PPO"
    return (
        f"iteration {row['iteration']:.0f} ({what}), mean JCT {row['charts/mean_jct_s']:,.0f} s, "
        f"best exam {row['exam/best_score']:.3f}, {row['charts/SPS']:,.0f} decisions/s"
    )


@dataclass
class CurvesConfig:
    """`conf/cluster_curves.yaml`."""

    runs: Annotated[list[str], MinLen(2)]
    seed: int
    json: bool


def curves(config: CurvesConfig, run: Run) -> Result:
    """Read the exams of every run and draw them together."""
    folders = [Path(name) for name in config.runs]
    runs = [read_exams(folder) for folder in folders]
    decisions, scores = common(runs)
    if not len(decisions):
        raise InputError("config key 'runs': were never examined after equally many decisions")
    hashes = {f"run_{k}": file_hash(path / METRICS_FILE) for k, path in enumerate(folders)}
    provenance = run.provenance.with_inputs(**hashes)
    write_figure(run.folder / CURVES_FILE, draw_exams(runs, f"{len(runs)} seeds"), provenance)
    values: dict[str, object] = {
        "runs": config.runs,
        "decisions": decisions.tolist(),
        "scores": scores.tolist(),
        "interquartile_mean": interquartile_mean(scores).tolist(),
        "last": float(interquartile_mean(scores)[-1]),
        "picture": str(run.folder / CURVES_FILE),
    }
    return Result(values, provenance, ("last", "picture"))
