"""Windows of traces on clusters of mixed GPUs: what schedulers train and are judged on.

`conf/split/*.yaml` says which traces on which clusters.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any, ClassVar, NamedTuple

import numpy as np

from envs.bounds import Count, Positive
from envs.cluster.interference.rates import RateModel
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster_state import Overheads
from envs.cluster.workload.readers.read_trace import TraceReader
from envs.cluster.workload.slicing import Window, at_most_gpus, labelled, split_by_time, stretch
from envs.cluster.workload.trace import Trace
from envs.errors import InputError, require_one_of
from envs.files import check_file
from experiments.cluster.problem import ClusterProblem
from experiments.cluster.trace_source import SyntheticTrace, source_of
from experiments.config.targets import build_as
from experiments.run.provenance import content_hash

TEST = "test"
NO_DATA = (
    "config key 'split.data' is missing: give split.data=<folder>, "
    "or set MESHWRIGHT_DATA to the folder of published data"
)


@dataclass
class SplitTrace:
    """One trace and its cluster; `conf/split/itp.yaml` says what the keys mean.

    `path` is a file below the folder of data, None where `format` generates the trace.
    """

    path: str | None
    format: str
    queue: str | None
    max_gpus: int
    nodes: int
    load: Positive


@dataclass
class SplitConfig:
    """`conf/split/*.yaml`; `interference`, `overheads` and `formats` are objects by `_target_`."""

    name: str
    data: str | None
    inputs: dict[str, str]
    shares: dict[str, float]
    window_jobs: Count
    least_jobs: Count
    gpus_per_node: int
    nodes_per_rack: int
    gpu_types: list[str]
    interference: Any
    overheads: Any
    formats: dict[str, Any]
    traces: dict[str, SplitTrace]

    def __post_init__(self) -> None:
        if not self.traces:
            raise InputError("config key 'split.traces': no trace")
        if TEST not in self.shares:
            raise InputError(f"config key 'split.shares': no window '{TEST}'")
        for name, trace in self.traces.items():
            key = f"config key 'split.traces.{name}.format'"
            require_one_of(trace.format, self.formats, file=key)

    def require_data(self) -> None:
        """Refuse what lacks its published data.

        Raises:
            InputError: the folder of data is not given, or a trace is not in it.
        """
        paths = [trace.path for trace in self.traces.values() if trace.path is not None]
        if paths and not self.data:
            raise InputError(NO_DATA)
        for path in paths:
            check_file(Path(str(self.data), path))

    def require_window(self, window: str, key: str = "window") -> None:
        """Refuse what is no window of this split, which a config has under `key`."""
        require_one_of(window, self.shares, file=f"config key '{key}', split {self.name}")

    def cluster(self, nodes: int) -> Cluster:
        """Equal nodes, the GPU types in equal consecutive shares."""
        return Cluster.uniform(
            nodes,
            self.gpus_per_node,
            nodes_per_rack=self.nodes_per_rack,
            gpu_types=self.gpu_types,
        )


class SplitWindow(NamedTuple):
    """Consecutive jobs of a window of time, stretched to the load asked for, from second 0."""

    name: str  # of the trace, and a number
    problem: ClusterProblem
    about: Mapping[str, Any]  # which jobs they are, how times were stretched, and the load


@dataclass(frozen=True, eq=False)
class TracePart:
    """A trace of the split, cut at `max_gpus`, with its cluster."""

    name: str
    config: SplitConfig
    cluster: Cluster
    load: float
    rates: RateModel
    overheads: Overheads
    windows: Mapping[str, Window]  # disjoint in time
    larger: int  # jobs of more than `max_gpus` GPUs, which are left out

    def parts(self, window: str) -> list[SplitWindow]:
        """The window in parts of equal numbers of jobs, at most `window_jobs`.

        None where it has fewer than `least_jobs`.

        Raises:
            InputError: all jobs of a part are submitted at once.
        """
        jobs = self.windows[window].trace
        if len(jobs) < self.config.least_jobs:
            return []
        count = -(-len(jobs) // self.config.window_jobs)
        limits = [number * len(jobs) // count for number in range(count + 1)]
        return [
            self._part(f"{self.name}.{number}", jobs, first, last)
            for number, (first, last) in enumerate(pairwise(limits))
        ]

    def _part(self, name: str, jobs: Trace, first: int, last: int) -> SplitWindow:
        taken = jobs.take(slice(first, last), name)
        part = taken.canonical()
        factor = reference_load(part, self.cluster, self.rates) / self.load
        part = stretch(part, factor)
        about = {
            "name": name,
            "first": first,  # job of the window of time
            "jobs": len(part),
            "start_s": int(taken.submit_s[0]),  # seconds after the first job of the trace
            "end_s": int(taken.submit_s[-1]),
            "stretch": round(factor, 6),  # times between submissions were multiplied by this
            "load": round(reference_load(part, self.cluster, self.rates), 4),  # offered
        }
        problem = ClusterProblem(self.cluster, part, self.rates, self.overheads, None)
        return SplitWindow(name, problem, about)


class Split:
    """The traces of a split, read when they are asked for.

    Raises:
        InputError: the folder of data is not given, or a file in it, or what a trace is generated
            from, is not what the split was made from.
    """

    def __init__(self, config: SplitConfig) -> None:
        self.config, self.data = config, Path(config.data or "")
        self._sources = {(x.format, x.path): self._source(n) for n, x in config.traces.items()}
        for name, path in self._sources:
            if (path or name) not in config.inputs:
                raise InputError(f"config key 'split.inputs': no SHA-256 of {path or name!r}")
        for name, expected in config.inputs.items():
            generator = self._sources.get((name, None))
            if isinstance(generator, SyntheticTrace):
                where, found = f"config key 'split.formats.{name}'", generator.sha256
            elif config.data:
                where, found = str(self.data / name), content_hash(self.data / name)
            else:
                raise InputError(NO_DATA)
            if found != expected:
                reason = f"has SHA-256 {found}, the split was made from {expected}"
                raise InputError(reason, file=where)
        self.rates = build_as(
            RateModel, config.interference, "split.interference", "interference model"
        )
        self.overheads = build_as(
            Overheads, config.overheads, "split.overheads", "overheads of jobs"
        )

    @cached_property
    def traces(self) -> dict[str, TracePart]:
        """By name.

        Raises:
            InputError: a file is no trace in its format, or has no such queue; a gang is larger
                than the GPUs of one type.
        """
        read = {
            key: source.generate(None)
            if isinstance(source, SyntheticTrace)
            else source.read(str(self.data / str(key[1])), strict=True).trace
            for key, source in self._sources.items()
        }
        return {
            name: self._trace(name, chosen, read[chosen.format, chosen.path])
            for name, chosen in self.config.traces.items()
        }

    def windows(self, window: str) -> list[SplitWindow]:
        """The parts of one window of all traces.

        Raises:
            InputError: there is no such window.
        """
        self.config.require_window(window)
        return [part for trace in self.traces.values() for part in trace.parts(window)]

    def left_out(self, window: str) -> dict[str, dict[str, int]]:
        """Jobs that no part of a window has, by trace: too large, or of a window with too few."""
        jobs = {name: len(part.windows[window].trace) for name, part in self.traces.items()}
        return {
            name: {
                "larger": part.larger,
                "few": jobs[name] if jobs[name] < self.config.least_jobs else 0,
            }
            for name, part in self.traces.items()
        }

    def _source(self, name: str) -> TraceReader | SyntheticTrace:
        """What reads a trace, or makes one that has no file."""
        chosen = self.config.traces[name]
        made = source_of(self.config.formats, chosen.format, "split")
        key = f"config key 'split.traces.{name}.path'"
        if isinstance(made, SyntheticTrace):
            if chosen.path is not None:
                raise InputError(f"{key}: split.formats.{chosen.format} reads no file")
        elif chosen.path is None:
            raise InputError(f"{key} is missing, and split.formats.{chosen.format} reads a file")
        return made

    def _trace(self, name: str, chosen: SplitTrace, trace: Trace) -> TracePart:
        cluster = self.config.cluster(chosen.nodes)
        if chosen.max_gpus > (smallest := gpus_of_a_type(cluster)):
            message = f"{chosen.max_gpus} GPUs, one GPU type has {smallest}"
            raise InputError(f"config key 'split.traces.{name}.max_gpus': {message}")
        if chosen.queue is not None:
            trace = labelled(trace, "queue", chosen.queue)
        whole = len(trace)
        trace = replace(at_most_gpus(trace, chosen.max_gpus), name=name).canonical()
        windows = {w.name: w for w in split_by_time(trace, self.config.shares)}
        return TracePart(
            name, self.config, cluster, chosen.load, self.rates, self.overheads, windows,
            whole - len(trace),
        )  # fmt: skip


def gpus_of_a_type(cluster: Cluster) -> int:
    """GPUs of the type that has the fewest."""
    return int(np.bincount(cluster.gpu_type, cluster.gpus).min())


def reference_load(trace: Trace, cluster: Cluster, rates: RateModel) -> float:
    """GPU-seconds asked for per GPU-second there is, a GPU counted by its speed for these jobs.

    The speed of a GPU type is the mean over the jobs, alone, weighted by the GPU-seconds they ask
    for; 1 is that of the type on which the trace's durations hold.

    Raises:
        InputError: all jobs are submitted at once.
    """
    tables = rates.tables(trace, cluster)
    work = trace.gpu_seconds
    speed = work @ tables.speed[tables.profile] / work.sum()  # (T,)
    gpus = np.bincount(cluster.gpu_type, cluster.gpus, len(cluster.gpu_types))
    return trace.offered_load(1) / float(speed @ gpus)


TRIES = 100  # draws of a part before a window counts as one without parts


@dataclass
class SampledWindows:
    """How windows are sampled: `parts` in `conf/task/priority.yaml`."""

    KEY: ClassVar[str] = "parts"  # of the config
    jobs: Sequence[Count]
    least_jobs: int
    nodes_per_type: Sequence[Count]
    load: Sequence[Positive]

    def __post_init__(self) -> None:
        if self.least_jobs < 2:
            raise InputError(f"config key '{self.KEY}.least_jobs': {self.least_jobs} is below 2")
        for key in ("jobs", "nodes_per_type", "load"):
            ends = getattr(self, key)
            if len(ends) != 2 or ends[0] > ends[1]:
                message = f"{ends} is not a least and a most"
                raise InputError(f"config key '{self.KEY}.{key}': {message}")


@dataclass(frozen=True, eq=False)
class Source:
    """One window of one trace of a split."""

    name: str  # of the trace
    jobs: Trace
    split: Split


def check_windows(splits: Mapping[str, SplitConfig], window: str, evaluation_window: str) -> None:
    """Refuse to learn from nothing, or to evaluate on what was learned from.

    Raises:
        InputError: naming the config key.
    """
    if not splits:
        raise InputError("config key 'splits': no split")
    if window == evaluation_window:
        raise InputError("config key 'evaluation_window': is the window of training")
    for split in splits.values():
        split.require_window(window)
        split.require_window(evaluation_window, "evaluation_window")


def inputs_of(splits: Mapping[str, SplitConfig]) -> dict[str, str]:
    """The SHA-256 of the files of all splits, by name."""
    return {name: sha for config in splits.values() for name, sha in config.inputs.items()}


def sources(splits: Sequence[Split], window: str, config: SampledWindows) -> list[Source]:
    """A window of all traces of some splits, where it has enough jobs.

    Raises:
        InputError: a split has no such window, or nowhere are enough jobs.
    """
    found = []
    for split in splits:
        split.config.require_window(window)
        for name, part in split.traces.items():
            jobs = part.windows[window].trace
            if len(jobs) >= config.least_jobs:
                found.append(Source(name, jobs, split))
    if not found:
        message = f"no window {window!r} of the splits has {config.least_jobs} jobs"
        raise InputError(f"config key '{config.KEY}.least_jobs': {message}")
    return found


def sampled_window(
    found: Sequence[Source], config: SampledWindows, rng: np.random.Generator
) -> tuple[str, ClusterProblem]:
    """Consecutive jobs of a random trace on a random cluster, and the name of the trace.

    Raises:
        InputError: parts are too small, or all of their jobs are submitted at once.
    """
    for _ in range(TRIES):
        source = found[int(rng.integers(len(found)))]
        chosen, split = source.split.config, source.split
        nodes = int(rng.integers(config.nodes_per_type[0], config.nodes_per_type[1] + 1))
        cluster = chosen.cluster(nodes * len(chosen.gpu_types))
        jobs = at_most_gpus(source.jobs, nodes * chosen.gpus_per_node)
        count = min(int(rng.integers(config.jobs[0], config.jobs[1] + 1)), len(jobs))
        first = int(rng.integers(len(jobs) - count + 1))
        load = float(rng.uniform(config.load[0], config.load[1]))
        part = jobs.take(slice(first, first + count)).canonical()
        if count < config.least_jobs or part.span_s == 0:
            continue
        part = stretch(part, reference_load(part, cluster, split.rates) / load)
        return source.name, ClusterProblem(cluster, part, split.rates, split.overheads, None)
    message = f"{TRIES} parts in a row have fewer jobs, or none after another"
    raise InputError(f"config key '{config.KEY}.least_jobs': {message}")
