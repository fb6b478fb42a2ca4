"""Train the schedulers of a cluster: imitation, then multi-agent PPO.

python -m experiments.train env=cluster_mixed +split@splits.itp=itp +split@splits.philly=philly \\
    interference=analytic overheads.restart_s=60 training.budget_s=3600
python -m experiments.train env=cluster_parallel trace.format=synthetic trace.jobs=4000 \\
    clusters='[{_target_: envs.cluster.nodes.Cluster.uniform, nodes: 8, gpus_per_node: 8,
    nodes_per_rack: 2}]'
python -m experiments.train resume=<run folder>

The policy of the best evaluation becomes a scheduler checkpoint, <run folder>/checkpoint.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from agents.cluster.checkpoint_expert import described
from agents.cluster.migrating.expert import MigrationExpert
from agents.cluster.teachers import FirstFit, ShownExpert
from agents.rllib.config import Training
from envs.cluster.environment.generator import ClusterGenerator, FixedCluster
from envs.cluster.environment.observation import ExpertPolicy
from envs.cluster.environment.parallel_env import ClusterParallelEnv
from envs.cluster.interference.rates import RateModel
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace
from envs.errors import InputError
from experiments.cluster.split_windows import Split, inputs_of
from experiments.cluster.trace_source import LoadedTrace, TraceConfig, load_trace
from experiments.config.composing import plain_config
from experiments.config.targets import build, build_as, no_such_thing
from experiments.learning.exporting import (
    CHECKPOINT_FOLDER,
    evaluation_score,
    expert_inputs,
    export_trained,
    named,
    require_exportable,
    same_inputs,
)
from experiments.learning.outcome import Outcome
from experiments.learning.trainer import Row
from experiments.learning.training import (
    CURVE_FILE,
    PolicyConfig,
    WindowsConfig,
    begun,
    counts_of,
    trained,
)
from experiments.pictures.learning import draw_evaluations, read_evaluations
from experiments.run.artifacts import write_figure
from experiments.run.display import ProgressDisplay
from experiments.run.one_run import Result, Run

if TYPE_CHECKING:
    from agents.rllib.cluster.scheduling import SchedulingRLTask


Factory = Callable[[], ClusterParallelEnv]

ExamFactory = Callable[[int], ClusterParallelEnv]  # by the number of the window


@dataclass(eq=False)
class Jobs:
    """What episodes are drawn from."""

    clusters: list[Cluster]
    traces: list[Trace] = field(default_factory=list)  # of training
    evaluations: list[Trace] = field(default_factory=list)  # windows drawn from,
    windows: list[FixedCluster] = field(default_factory=list)  # or those there are
    inputs: dict[str, str] = field(default_factory=dict)  # SHA-256 by name
    loaded: dict[str, LoadedTrace] = field(default_factory=dict)  # by window, without splits

    @classmethod
    def of(cls, config: TrainClusterConfig) -> Jobs:
        """Two windows of one trace, or of all traces of the splits, whose clusters come first.

        Splits are evaluated on their own parts of `evaluation_window`, on their clusters, at their
        load.

        Raises:
            InputError: naming the config key or the file.
        """
        found = cls([], inputs=inputs_of(config.splits))
        clusters: dict[str, Cluster] = {}
        for split in map(Split, config.splits.values()):
            for part in split.traces.values():
                found.traces.append(part.windows[config.window].trace.canonical())
                clusters.setdefault(part.cluster.name, part.cluster)
            for chosen in split.windows(config.evaluation_window):
                found.windows.append(FixedCluster(chosen.problem.cluster, chosen.problem.trace))
        if not config.splits:
            if config.trace.window is not None:
                message = "the windows are given by 'window' and 'evaluation_window'"
                raise InputError(f"config key 'trace.window': {message}")
            for name, traces in (
                (config.window, found.traces),
                (config.evaluation_window, found.evaluations),
            ):
                loaded = load_trace(replace(config.trace, window=name))
                traces.append(loaded.trace)
                found.inputs |= loaded.inputs
                found.loaded[name] = loaded
        found.clusters += clusters.values()
        for number, node in enumerate(config.clusters):
            found.clusters.append(build_as(Cluster, node, f"clusters[{number}]", "cluster"))
        if not found.clusters:
            raise InputError("config key 'clusters': no cluster")
        return found


def environments(
    config: TrainClusterConfig, found: Jobs, evaluation_episodes: int
) -> tuple[Factory, ExamFactory]:
    """What makes environments to train in, and the k-th to be evaluated in, of the same spaces.

    What a generator holds of the traces is held once. Of more windows than are asked for,
    evaluations take every so many.

    Raises:
        InputError: a node describes something else, or what cannot be; the expert looks at
            durations that the observation does not show.
    """
    make = build(config.env, "env")
    if not (isinstance(make, partial) and "windows" in make.keywords):
        raise no_such_thing("env", config.env, "environment of several schedulers about traces")
    rates = build_as(RateModel, config.interference, "interference", "interference model")
    given = {"rates": rates, "overheads": build(config.overheads, "overheads")}
    clusters = _one_or_all(found.clusters)
    first = make(clusters, _one_or_all(found.traces), **given)
    if not isinstance(first, ClusterParallelEnv):
        raise InputError(f"config key 'env': {type(first).__name__} is not about schedulers")
    expert, sees = first.observation.expert, first.observation.table.known
    if isinstance(expert, MigrationExpert) and expert.knows == "durations" and not sees:
        message = (
            "looks at durations, which env.observation.known_durations=false keeps from schedulers"
        )
        raise InputError(f"config key 'expert': {message}")

    def with_generator(generator: ClusterGenerator) -> ClusterParallelEnv:
        another: ClusterParallelEnv = make(clusters, None, windows=lambda *_: generator, **given)
        return another

    evaluations: list[ClusterGenerator]
    if found.windows:
        windows = found.windows
        if evaluation_episodes > len(windows):
            message = f"{evaluation_episodes}, the splits have {len(windows)}"
            raise InputError(f"config key 'training.evaluation_episodes': {message}")
        chosen = [
            number * len(windows) // evaluation_episodes for number in range(evaluation_episodes)
        ]
        evaluations = [windows[number] for number in chosen]
        for window in windows:  # within those of other episodes
            window.bounds = first.generator.bounds
    else:
        evaluations = [
            make.keywords["windows"](clusters, _one_or_all(found.evaluations))
        ] * evaluation_episodes
    return partial(with_generator, first.generator), lambda k: with_generator(evaluations[k])


def _one_or_all(things: Sequence[Any]) -> Any:
    """Generators of one kind take a single cluster and trace."""
    return things[0] if len(things) == 1 else things


def teachers(
    config: TrainClusterConfig, shown: ExpertPolicy | None
) -> tuple[ExpertPolicy | None, ExpertPolicy]:
    """The policy that is imitated, and the reference: the expert shown where none is named."""
    teacher = None if shown is None else ShownExpert()
    given = [
        None if node is None else build_as(ExpertPolicy, node, key, "expert of schedulers")
        for key, node in (("teacher", config.teacher), ("reference", config.reference))
    ]
    return given[0] or teacher, given[1] or teacher or FirstFit()


def task_of(config: TrainClusterConfig) -> tuple[Training, Jobs, SchedulingRLTask]:
    """What a config trains, how, and on what.

    Raises:
        InputError: naming the config key or the file.
    """
    from agents.rllib.cluster.scheduling import SchedulingRLTask, Staged

    training = config.training_run()
    found = Jobs.of(config)
    make, make_evaluation = environments(config, found, training.evaluation_episodes)
    generator = make().generator
    if training.curriculum_steps and not isinstance(generator, Staged):
        message = f"{type(generator).__name__} has no curriculum: null it must be"
        raise InputError(f"config key 'training.curriculum_steps': {message}")
    shown = make_evaluation(0).observation.expert
    require_exportable(training.model, shown)
    teacher, reference = teachers(config, shown)
    task = SchedulingRLTask(
        make,
        make_evaluation,
        parameters=training.parameters,
        per_gpu=config.per_gpu,
        teacher=teacher,
        reference=reference,
    )
    return training, found, task


SHOWN = (
    "iterations", "steps", "episodes", "seconds", "best_score", "best_iteration",
    "untrained_score", "resumed", "checkpoint",
)  # fmt: skip


@dataclass(kw_only=True)
class TrainClusterConfig(WindowsConfig, PolicyConfig):
    """`conf/task/cluster.yaml`; groups are objects by `_target_`."""

    env: Any
    interference: Any
    expert: Any
    trace: TraceConfig
    # clusters beside those of the splits, objects by _target_
    clusters: Sequence[Any] = ()
    overheads: Any
    # who is imitated first, an expert by _target_; null: the one that is shown, where
    # there is one
    teacher: Any = None
    # whose mean JCT the evaluations are measured by, the same; null: the one that is shown, or
    # else agents.cluster.teachers.FirstFit
    reference: Any = None
    # rewards are divided by the GPUs of the cluster, so that all sizes weigh alike
    per_gpu: bool = True

    def __post_init__(self) -> None:
        if self.splits and self.trace.path is not None:
            raise InputError("config key 'trace.path': the splits bring their own traces")
        if self.splits:
            super().__post_init__()
        elif self.window == self.evaluation_window:
            raise InputError("config key 'evaluation_window': is the window of training")


def train_cluster(config: TrainClusterConfig, run: Run, twin: str | None = None) -> Result:
    """Train (on), then write the learning curve and what the evaluations say.

    Where something was learned, the untrained policy is exported too, into the folder `twin`.
    """
    config, tracking = begun(config, run)
    run.begin("reading the jobs")
    training, found, task = task_of(config)
    for name, loaded in found.loaded.items():
        for line in loaded.changes():
            run.console.say(f"{name}: {line}")
    env = task.make_evaluation(0)
    expert = described(env.observation.expert)
    if config.resume is not None:
        same_inputs(run.folder, expert)
    provenance = run.provenance.with_inputs(**found.inputs, **expert_inputs(expert))
    with ProgressDisplay(run.console) as display:
        result = trained(
            config, tracking, training, task, run, display, provenance, news
        )  # fmt: skip
    reference = named(task.reference, env.observation.expert)
    outcome = Outcome.of(run.folder, evaluation_score(reference))
    run.console.say(outcome.sentence)
    run.begin("exporting the policy, asking it again in a process without Ray and PyG")
    checkpoint: Path | None = None
    if training.parameters == "shared":  # a checkpoint folder holds one policy
        export = partial(
            export_trained,
            env=env,
            run_folder=run.folder,
            config=plain_config(config),
            traces=[trace.name for trace in found.traces],
            reference=reference,
            provenance=provenance,
        )
        checkpoint = run.folder / CHECKPOINT_FOLDER
        ((module, policy),) = result.policies.items()
        export(policy, checkpoint)
        if twin is not None and outcome.learned:
            from agents.rllib import restore

            restore.load_best(run.folder, {module: policy}, restore.UNTRAINED)
            export(policy, run.folder / twin)
    evaluations = read_evaluations(run.folder, result.evaluations)
    names = ", ".join(cluster.name for cluster in found.clusters)
    figure = draw_evaluations(
        [evaluations],
        f"evaluations of a scheduler in training on {names}",
        reference=f"reference: {reference}",
    )
    write_figure(run.folder / CURVE_FILE, figure, provenance)
    values: dict[str, object] = {
        **counts_of(result, "episodes"),
        "learned": outcome.learned,
        "outcome": outcome.sentence,
        "reference_mean_jct_s": list(result.reference),
        "traces": [trace.name for trace in found.traces],
        "windows": {name: loaded.counts() for name, loaded in found.loaded.items()},
        "clusters": [cluster.name for cluster in found.clusters],
        "checkpoint": checkpoint and str(checkpoint),
        "resumed": config.resume is not None,
    }
    return Result(values, provenance, SHOWN, (*outcome.warnings, *result.warnings))


def news(row: Row) -> str:
    """One iteration in a few words."""
    jct = row["charts/mean_jct_s"]
    score = "no episode has ended in it" if np.isnan(jct) else f"mean JCT {jct:,.0f} s"
    best = row["evaluation/best_score"]
    evaluation = (
        f"best evaluation {best:.3f}" if np.isfinite(best) else "no evaluation was finished"
    )
    return f"{score}, {evaluation}, {row['charts/SPS']:,.0f} steps/s"
