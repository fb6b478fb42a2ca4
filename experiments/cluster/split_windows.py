"""Windows of traces on clusters of mixed GPUs: what schedulers train and are judged on.

`conf/split/*.yaml` says which traces on which clusters; `conf/split/facts/*.yaml`, written by
`experiments.split` before anything was trained, what came of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from envs.bounds import Count, Positive
from envs.cluster.interference.rates import RateModel
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster_state import Overheads
from envs.cluster.workload.readers.read_trace import TraceReader
from envs.cluster.workload.slicing import Window, at_most_gpus, of_queue, split_by_time, stretch
from envs.cluster.workload.trace import Trace
from envs.errors import InputError
from envs.files import check_file
from experiments.cluster.problem import ClusterProblem
from experiments.cluster.trace_source import TraceGenerator
from experiments.config.targets import build, build_as, no_such_thing
from experiments.run.artifacts import to_json
from experiments.run.provenance import content_hash, text_hash

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
    facts: dict[str, Any]

    def __post_init__(self) -> None:
        if not self.traces:
            raise InputError("config key 'split.traces': no trace")
        if TEST not in self.shares:
            raise InputError(f"config key 'split.shares': no window '{TEST}'")
        for name, trace in self.traces.items():
            where = f"config key 'split.traces.{name}"
            if trace.format not in self.formats:
                known = ", ".join(self.formats)
                raise InputError(f"{where}.format': {trace.format!r} is unknown (known: {known})")

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


@dataclass(frozen=True, eq=False)
class SplitWindow:
    """Consecutive jobs of a window of time, stretched to the load asked for, from second 0."""

    name: str  # of the trace, and a number
    first: int  # job of the window of time
    start_s: int  # submission of its first job, seconds after the first job of the trace
    end_s: int  # and of its last
    stretch: float  # times between submissions were multiplied by this
    load: float  # offered, see `reference_load`
    problem: ClusterProblem

    def document(self) -> dict[str, object]:
        """As a JSON mapping, without the jobs."""
        return {
            "name": self.name,
            "first": self.first,
            "jobs": len(self.problem.trace),
            "start_s": self.start_s,
            "end_s": self.end_s,
            "stretch": round(self.stretch, 6),
            "load": round(self.load, 4),
        }


@dataclass(frozen=True, eq=False)
class TracePart:
    """A trace of the split, cut at `max_gpus`, with its cluster."""

    name: str
    trace: Trace
    cluster: Cluster
    load: float
    rates: RateModel
    overheads: Overheads
    windows: Mapping[str, Window]  # disjoint in time
    larger: int = 0  # jobs of more than `max_gpus` GPUs, which are left out

    def parts(self, window: str, *, window_jobs: int, least_jobs: int) -> list[SplitWindow]:
        """The window in parts of equal numbers of jobs, at most `window_jobs`.

        None where it has fewer than `least_jobs`, or all are submitted at once.

        Raises:
            InputError: the trace has no window of that name.
        """
        if window not in self.windows:
            known = ", ".join(self.windows)
            raise InputError(f"config key 'window': {window!r} is unknown (known: {known})")
        jobs = self.windows[window].trace
        if len(jobs) < least_jobs:
            return []
        count = -(-len(jobs) // window_jobs)
        limits = [number * len(jobs) // count for number in range(count + 1)]
        return [
            self._part(f"{self.name}.{number}", jobs, first, last)
            for number, (first, last) in enumerate(pairwise(limits))
        ]

    def _part(self, name: str, jobs: Trace, first: int, last: int) -> SplitWindow:
        part = jobs.take(slice(first, last), name)
        start_s, end_s = int(part.submit_s[0]), int(part.submit_s[-1])
        part = part.canonical()
        factor = reference_load(part, self.cluster, self.rates) / self.load
        part = stretch(part, factor)
        problem = ClusterProblem(self.cluster, part, self.rates, self.overheads, None)
        load = reference_load(part, self.cluster, self.rates)
        return SplitWindow(name, first, start_s, end_s, factor, load, problem)


class Split:
    """The traces of a split, read when they are asked for.

    Raises:
        InputError: the folder of data is not given, or a file in it, or what a trace is generated
            from, is not what the split was made from.
    """

    def __init__(self, config: SplitConfig) -> None:
        self.config = config
        self.generators = self._generators()
        files = [name for name in config.inputs if name not in self.generators]
        if files and not config.data:
            raise InputError(NO_DATA)
        self.data = Path(config.data or "")
        for name in files:
            self._same(name, content_hash(self.data / name), self.data / name)
        for name, generator in self.generators.items():
            found = text_hash(to_json(generator.document()))
            self._same(name, found, f"config key 'split.formats.{name}'")
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
        read: dict[tuple[str, str], Trace] = {}
        found = {}
        for name, chosen in self.config.traces.items():
            key = (chosen.format, chosen.path or "")
            if key not in read:
                read[key] = self._read(chosen)
            found[name] = self._trace(name, chosen, read[key])
        return found

    def windows(self, window: str) -> list[SplitWindow]:
        """The parts of one window of all traces."""
        config = self.config
        sizes = {"window_jobs": config.window_jobs, "least_jobs": config.least_jobs}
        return [part for trace in self.traces.values() for part in trace.parts(window, **sizes)]

    def left_out(self, window: str) -> dict[str, dict[str, int]]:
        """Jobs that no part of a window has, by trace: too large, or of a window with too few."""
        played: dict[str, int] = dict.fromkeys(self.traces, 0)
        for part in self.windows(window):
            played[part.name.rpartition(".")[0]] += len(part.problem.trace)
        return {
            name: {"larger": part.larger, "few": len(part.windows[window].trace) - played[name]}
            for name, part in self.traces.items()
        }

    def cluster(self, chosen: SplitTrace) -> Cluster:
        """Equal nodes, the GPU types in equal consecutive shares."""
        config = self.config
        return Cluster.uniform(
            chosen.nodes,
            config.gpus_per_node,
            nodes_per_rack=config.nodes_per_rack,
            gpu_types=config.gpu_types,
        )

    def _generators(self) -> dict[str, TraceGenerator]:
        """What makes the traces that have no file, by the name of their format."""
        found = {}
        for name, chosen in self.config.traces.items():
            if chosen.path is not None:
                continue
            where = f"split.formats.{chosen.format}"
            made = build(self.config.formats[chosen.format], where)
            if not isinstance(made, TraceGenerator):
                message = f"is missing, and {where} reads a file"
                raise InputError(f"config key 'split.traces.{name}.path' {message}")
            found[chosen.format] = made
        return found

    def _same(self, name: str, found: str, where: Path | str) -> None:
        """Raise unless an input is the one that the split was made from."""
        expected = self.config.inputs.get(name)
        if expected is None:
            raise InputError(f"config key 'split.inputs': no SHA-256 of {name!r} (it is {found})")
        if found != expected:
            raise InputError(f"has SHA-256 {found}, the split was made from {expected}", file=where)

    def _read(self, chosen: SplitTrace) -> Trace:
        if chosen.path is None:
            return self.generators[chosen.format].generate(None)
        if chosen.path not in self.config.inputs:
            raise InputError(f"config key 'split.inputs': no SHA-256 of {chosen.path!r}")
        reader = build(self.config.formats[chosen.format], f"split.formats.{chosen.format}")
        if not isinstance(reader, TraceReader):
            node = self.config.formats[chosen.format]
            raise no_such_thing(f"split.formats.{chosen.format}", node, "trace format")
        return reader.read(str(self.data / chosen.path), strict=True).trace

    def _trace(self, name: str, chosen: SplitTrace, trace: Trace) -> TracePart:
        cluster = self.cluster(chosen)
        smallest = int(np.bincount(cluster.gpu_type, cluster.gpus).min())
        if chosen.max_gpus > smallest:
            message = f"{chosen.max_gpus} GPUs, one GPU type has {smallest}"
            raise InputError(f"config key 'split.traces.{name}.max_gpus': {message}")
        if chosen.queue is not None:
            trace = of_queue(trace, chosen.queue)
        whole = len(trace)
        trace = replace(at_most_gpus(trace, chosen.max_gpus), name=name).canonical()
        windows = {w.name: w for w in split_by_time(trace, self.config.shares)}
        parts = (name, trace, cluster, chosen.load, self.rates, self.overheads, windows)
        return TracePart(*parts, larger=whole - len(trace))


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
