"""From a config to the environments that schedulers train in and are examined in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import numpy as np

from agents.cluster.migrating.adviser import MigrationAdviser
from envs.cluster.environment.generator import ClusterGenerator
from envs.cluster.environment.instance import ClusterBounds, ClusterInstance
from envs.cluster.environment.parallel_env import ClusterParallelEnv
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace
from envs.errors import InputError
from experiments.cluster.split_windows import Split, SplitConfig
from experiments.cluster.trace_source import TraceConfig, load_trace
from experiments.run.targets import build, no_such_thing

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
                    told = f"{asked!r} is unknown in split {config.name} (known: {known})"
                    raise InputError(f"config key '{key}': {told}")
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
            told = "the windows are given by 'window' and 'exam_window'"
            raise InputError(f"config key 'trace.window': {told}")
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
        """The window."""
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
    rates = build(interference, "interference")
    if not hasattr(rates, "tables"):
        raise no_such_thing("interference", interference, "interference model")
    given = {"rates": rates, "overheads": build(overheads, "overheads")}
    clusters = _one_or_all(found.clusters)
    first = make(clusters, _one_or_all(found.traces), **given)
    if not isinstance(first, ClusterParallelEnv):
        raise InputError(f"config key 'env': {type(first).__name__} is not about schedulers")
    adviser, sees = first.observation.adviser, first.observation.table.known
    if isinstance(adviser, MigrationAdviser) and adviser.knows == "durations" and not sees:
        told = (
            "looks at durations, which env.observation.known_durations=false keeps from schedulers"
        )
        raise InputError(f"config key 'adviser': {told}")

    def with_generator(generator: ClusterGenerator) -> ClusterParallelEnv:
        another: ClusterParallelEnv = make(clusters, None, windows=lambda *_: generator, **given)
        return another

    exams: list[ClusterGenerator] = []
    windows = [exam for exam in found.exams if isinstance(exam, ClusterInstance)]
    if windows:
        if exam_windows > len(windows):
            told = f"{exam_windows}, the splits have {len(windows)}"
            raise InputError(f"config key 'training.exam_windows': {told}")
        chosen = [number * len(windows) // exam_windows for number in range(exam_windows)]
        exams += [FixedWindow(first.generator.bounds, windows[number]) for number in chosen]
    else:
        drawn = make.keywords["windows"](clusters, _one_or_all(found.exams))
        exams += [drawn] * exam_windows
    return partial(with_generator, first.generator), lambda k: with_generator(exams[k])


def _one_or_all(things: Sequence[Any]) -> Any:
    """Generators of one kind take a single cluster and trace."""
    return things[0] if len(things) == 1 else things
