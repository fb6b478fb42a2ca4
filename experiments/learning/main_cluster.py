"""The main job on a cluster: train a scheduler, export it, compare it, all on generated traces.

python -m experiments.main env=cluster_mixed
python -m experiments.main env=cluster_mixed training.budget_s=600 trace.workload=philly
python -m experiments.main env=cluster_mixed trace.path=jobs.csv trace.format=itp
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from typing import Annotated, Any

from annotated_types import MinLen

from agents.cluster.checkpoint import CheckpointScheduler
from envs.bounds import Count, Positive
from envs.cluster.nodes import Cluster
from envs.cluster.workload.slicing import to_offered_load
from envs.errors import InputError
from experiments.cluster.evaluate_cluster import CAPTION, replays, write_replays
from experiments.cluster.problem import ClusterProblem, built_policy
from experiments.cluster.trace_source import load_trace
from experiments.config.targets import build_as
from experiments.learning.exporting import CHECKPOINT_FOLDER
from experiments.learning.train_cluster import SHOWN, TrainClusterConfig, train_cluster
from experiments.run.one_run import Result, Run
from experiments.run.saved_run import resumed_config

LEARNED, UNTRAINED = "learned", "untrained"  # exported schedulers, in the table


@dataclass
class ComparisonConfig:
    """The jobs of the comparison."""

    window: str
    jobs: Count
    load: Positive


@dataclass(kw_only=True)
class MainClusterConfig(TrainClusterConfig):
    """`conf/main_cluster.yaml`; groups are objects by `_target_`."""

    placement: Any
    agents: Annotated[dict[str, Any], MinLen(1)]
    scheduler: Any
    comparison: ComparisonConfig

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.splits:
            reason = (
                "the trace's own windows are trained and compared in; study=generalise has splits"
            )
            raise InputError(f"config key 'splits': {reason}")
        if self.comparison.window in (self.window, self.evaluation_window):
            reason = f"{self.comparison.window!r} is not later than training and evaluations"
            raise InputError(f"config key 'comparison.window': {reason}")
        for name in (LEARNED, UNTRAINED):
            if name in self.agents:
                raise InputError(f"config key 'agents.{name}': the name is that of what is trained")


def main_cluster(config: MainClusterConfig, run: Run) -> Result:
    """Train and export, then replay later jobs under what was trained and all others.

    What is trained is replayed as it was before training too; alone, where nothing was learned.
    """
    if config.resume is not None:
        config = resumed_config(run.folder, config, run.overrides)
    problem = _problem(config)
    policies = {name: built_policy(node, f"agents.{name}") for name, node in config.agents.items()}
    twin = run.folder / f"{CHECKPOINT_FOLDER}_{UNTRAINED}"
    trained = train_cluster(config, run, twin.name)
    learned = trained.values["learned"]
    checkpoint = trained.values["checkpoint"]
    if checkpoint is None:
        raise InputError("config key 'training.parameters': only shared ones are exported")
    folders = {LEARNED: checkpoint, UNTRAINED: twin} if learned else {UNTRAINED: checkpoint}
    for name, folder in folders.items():
        node = {**config.scheduler, "checkpoint": str(folder)}
        policies[name] = build_as(CheckpointScheduler, node, "scheduler", "exported scheduler")
    start = time.perf_counter()
    run.begin("replaying later jobs under every policy")
    found = replays(problem, policies, (), run.console)
    title = f"{problem.title}: later than training"
    rows = (
        f"{LEARNED} is exported, {UNTRAINED} it was before"
        if learned
        else f"{UNTRAINED} is exported"
    )
    caption = f"{CAPTION} {rows}: {trained.values['outcome']}."
    values = {
        **trained.values,
        "trace": problem.trace.name,
        "jobs": len(problem.trace),
        "gpus": problem.cluster.num_gpus,
        **write_replays(found, (), problem, title, run, trained.provenance, caption),
        "replay_seconds": time.perf_counter() - start,
    }
    shown = (*SHOWN, "best", "table")
    return Result(values, trained.provenance, shown, trained.warnings)


def _problem(config: MainClusterConfig) -> ClusterProblem:
    """The jobs of the comparison on the first cluster.

    Raises:
        InputError: naming the config key or the file.
    """
    if not config.clusters:
        raise InputError("config key 'clusters': no cluster")
    cluster = build_as(Cluster, config.clusters[0], "clusters[0]", "cluster")
    asked = config.comparison
    part = replace(config.trace, window=asked.window, head=asked.jobs)
    loaded = load_trace(part, cluster)
    trace = to_offered_load(loaded.trace, asked.load, cluster.num_gpus)
    return ClusterProblem.of(
        trace.canonical(), config.clusters[0], config.interference, config.overheads, None
    )
