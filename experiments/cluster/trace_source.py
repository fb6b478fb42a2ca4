"""From the config node `trace` to a trace: which file, in which format, and what part of it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Protocol, runtime_checkable

import numpy as np
from annotated_types import Ge, Le

from envs.bounds import Count, Positive
from envs.cluster.nodes import Cluster
from envs.cluster.workload.readers.own_columns import check_columns
from envs.cluster.workload.readers.read_trace import ReadTrace, RejectedRows, TraceReader
from envs.cluster.workload.slicing import (
    at_most_gpus,
    head,
    of_queue,
    of_user,
    split_by_time,
    stretch,
    submitted_between,
    to_offered_load,
)
from envs.cluster.workload.synthetic.generate import TargetLoad, generate
from envs.cluster.workload.synthetic.parameters import WorkloadParameters
from envs.cluster.workload.trace import WHOLE_GPU, Trace
from envs.errors import InputError
from experiments.config.command_words import CONFIG_MODULE
from experiments.config.composing import FILE_OPTION
from experiments.config.targets import build, no_such_thing, object_in_file, unknown_key
from experiments.run.artifacts import to_json, write_text
from experiments.run.provenance import Provenance, file_hash, stamp, text_hash

TARGET = "envs.cluster.workload.synthetic.parameters.workload_parameters"
SHORT = 6  # entries of a list that stands in one line with its key
COMMENTS = {
    "name": "of the traces, with their seed",
    "jobs": "of the trace that was measured",
    "daily": "arrivals by hour of the day, relative to their mean",
    "weekly": "arrivals by day of the week from Monday, relative to their mean",
    "burst_gap_s": "arrivals at most this many seconds apart are of one burst",
    "burst_share": "share of the gaps between arrivals that are within a burst",
    "burst_gap": "gaps within a burst, seconds",
    "pause": "gaps between bursts, seconds at the mean arrival rate",
    "probability": "of a value up to the quantile",
    "quantile": "rises evenly in its logarithm to the next",
    "gap_memory": "how alike the gaps of neighbours are",
    "strength": "rank correlation of two jobs of one episode",
    "persistence": "chance that an episode goes on with the next job",
    "gang_sizes": "GPUs of a job",
    "gang_shares": "share of the jobs, by gang size",
    "sessions": "runs of jobs of one gang size; by gang size",
    "length": "mean jobs of a session",
    "gap_within": "normal score of the gaps between its jobs: 0 as all gaps, 1 long",
    "gap_before": "normal score of the gap before it",
    "duration_memory": "how alike the durations of neighbours in a session are",
    "durations": "by gang size, seconds",
    "num_gpus": "the gang sizes of this table",
}


CANONICAL, SYNTHETIC = "canonical", "synthetic"  # names under `formats`


@dataclass
class GeneratedConfig:
    """What generated jobs are like where the command line says nothing."""

    load: Positive | None = None  # what `load` is where it is null
    # true: jobs of more GPUs than the cluster has are left out where `max_gpus` is null
    fits: bool = False
    # true: jobs are generated where there is neither trace.path nor a format
    without_path: bool = False


@dataclass
class TraceConfig:
    """What part of which jobs; `formats` are objects by `_target_`."""

    seed: int  # of their trace
    formats: dict[str, Any]
    path: str | None = None  # the file, plain or .gz
    format: str = "canonical"  # a name under formats
    # of anybody's table, format=canonical: {submit: created_at, duration: runtime, gpus:
    # gpu_count}; fields: id, submit, duration or start and end, gpus, gpu_milli, cpu_milli,
    # memory_mib, user, queue, gpu_type, model
    columns: dict[str, str] | None = None
    # of its times that are numbers other than seconds: {submit: ms}; us, ms, s, min or h; dates
    # have none
    units: dict[str, str] | None = None
    strict: bool = True  # false: faulty rows are left out and counted; true: the first is an error
    queue: str | None = None  # only the jobs of this virtual cluster
    user: str | None = None  # only the jobs of this user
    max_gpus: Count | None = None  # only jobs of at most this many GPUs
    # only jobs submitted at this second after the first job or later
    start_s: Annotated[int, Ge(0)] | None = None
    end_s: int | None = None  # and before this one
    # shares of the time between first and last submission, one after the other
    windows: dict[str, float] = field(
        default_factory=lambda: {"train": 0.6, "validation": 0.2, "test": 0.2}
    )
    window: str | None = None  # only the jobs submitted in this window
    head: Count | None = None  # only the first so many jobs
    stretch: float = 1.0  # times between submissions are multiplied by this
    # GPU-seconds asked for per GPU-second of `gpus` GPUs; null: as they are
    load: float | None = None
    gpus: Count | None = None  # GPUs to which `load` is offered; null: those of the cluster
    # thousandths of each GPU that every job asks for, once the load is set: 500 lets two share;
    # null: its own
    gpu_milli: Annotated[int, Ge(1), Le(WHOLE_GPU)] | None = None
    # their statistics: a name of conf/workload, or the path of a file in its form
    workload: str = "itp"
    jobs: int = 10000  # how many, of which a part is taken as above
    models: Sequence[str] = ()  # names of profiles of which each job gets one at random
    # of generated jobs alone; a file stays as it is unless the keys above say otherwise
    generated: GeneratedConfig = field(default_factory=GeneratedConfig)


@runtime_checkable
class TraceGenerator(Protocol):
    """A source of traces that reads no file."""

    def generate(self, load: TargetLoad | None) -> Trace:
        """The trace; `load` is what it shall offer, None: what comes naturally."""

    def document(self) -> Mapping[str, object]:
        """What the trace depends on, besides the load, as a JSON mapping."""


@dataclass(frozen=True, eq=False)
class SyntheticTrace:
    """Jobs with the statistics of `workload`; `envs.cluster.workload.synthetic.generate` says how.

    `workload` is a name of `conf/workload`, or the path of a file in its form.
    """

    workload: str = "itp"  # their statistics
    jobs: int = 200  # how many
    seed: int = 0  # one seed, one trace
    models: Sequence[str] = ()  # names of profiles

    def generate(self, load: TargetLoad | None) -> Trace:
        """The trace of the seed."""
        models = tuple(self.models)
        return generate(self._parameters(), self.jobs, self.seed, load=load, models=models)

    def document(self) -> Mapping[str, object]:
        """The statistics, the number of jobs, the seed and the names of models."""
        workload = self._parameters().document()
        models = list(self.models)
        return {"workload": workload, "jobs": self.jobs, "seed": self.seed, "models": models}

    def _parameters(self) -> WorkloadParameters:
        if Path(self.workload).suffix:
            return read_workload(self.workload)
        folder = resources.files(CONFIG_MODULE).joinpath("workload")
        names = (file.name.removesuffix(".yaml") for file in folder.iterdir())
        known = sorted(name for name in names if name != FILE_OPTION)
        if self.workload not in known:
            told = (
                f"{self.workload!r} is unknown (known: {', '.join(known)}, or the path of a file)"
            )
            raise InputError(f"config key 'trace.workload': {told}")
        with resources.as_file(folder.joinpath(f"{self.workload}.yaml")) as path:
            return read_workload(str(path))


@dataclass(frozen=True, eq=False)
class LoadedTrace:
    """What the config asks for, in canonical form.

    `origin_s` is the second 0 of `trace` on the source's own clock; a stretched trace has left that
    clock but for its first submission. `rows` counts the jobs of the source, `rejected` what of it
    is no job on GPUs, whatever part of it was asked for, and `left_out` the jobs that are not in
    that part.
    """

    trace: Trace
    rows: int
    rejected: tuple[RejectedRows, ...]
    rounded: int  # jobs whose times had fractions of a second
    left_out: Mapping[str, int]  # jobs by the config key that leaves them out
    stretched: float  # times between submissions were multiplied by this
    offered: TargetLoad | None  # the load that was set
    origin_s: int
    inputs: Mapping[str, str]  # SHA-256 by name
    read: ReadTrace  # all of the source
    config: TraceConfig

    @contextmanager
    def located(self) -> Iterator[None]:
        """Inside, what is wrong with a job of the trace is told of its row of the file."""
        try:
            yield
        except InputError as error:
            read, columns = self.read, self.config.columns or {}
            if self.config.path is None or not isinstance(error.record, int):
                raise
            job = int(np.argmax(read.trace.job_id == self.trace.job_id[error.record]))
            field = error.field or ""
            raise InputError(
                error.message,
                file=self.config.path,
                record=read.place(job),
                field=columns.get(field.removeprefix("num_"), field) or None,
            ) from error

    @property
    def num_rejected(self) -> int:
        """Rows of the source that could not be taken."""
        return sum(rejected.rows for rejected in self.rejected)

    def changes(self) -> Iterator[str]:
        """A line for each reason why rows and jobs were left out, and for changed times."""
        for r in self.rejected:
            yield f"left out: {r.rows} rows, {r.field or 'row'} {r.reason} (first: {r.first})"
        if self.rounded:
            yield f"rounded: {self.rounded} jobs have times with fractions of a second"
        for key, jobs in self.left_out.items():
            yield f"left out: {jobs} jobs, by {key}"
        if abs(self.stretched - 1.0) > 1e-4:
            yield f"changed: times between submissions are multiplied by {self.stretched:.6g}"
        if self.offered is not None:
            yield f"set: load {self.offered.load:g} of {self.offered.gpus} GPUs"

    def counts(self) -> dict[str, object]:
        """What an app tells of it: jobs, those left out by reason, and how times were changed."""
        return {
            "trace": self.trace.name,
            "rows": self.rows,
            "rejected_rows": self.num_rejected,
            "rejected": {f"{r.field or 'row'} {r.reason}": r.rows for r in self.rejected},
            "rounded_jobs": self.rounded,
            "left_out_jobs": sum(self.left_out.values()),
            "left_out": dict(self.left_out),
            "stretched": self.stretched,
            "offered": self.offered and {"load": self.offered.load, "gpus": self.offered.gpus},
            "jobs": len(self.trace),
        }


def load_trace(config: TraceConfig, cluster: Cluster | None = None) -> LoadedTrace:
    """Read or generate the trace, take the part that is asked for, set its load.

    In this order: queue, user, largest gang, time, window, number of jobs, stretch, load, what is
    asked for of every GPU. The load is offered to `gpus` GPUs, or else to those of the `cluster`
    that the trace is for, by the jobs that are left.

    Raises:
        InputError: naming the config key or the file; no job is left.
    """
    try:
        return _loaded(config, cluster)
    except InputError as error:
        if error.file is None and error.record is None and error.field is not None:
            group = "trace.windows" if error.field in config.windows else "trace"
            told = f"config key '{group}.{error.field}': {error.message}"
            raise InputError(told) from error
        raise


def _loaded(config: TraceConfig, cluster: Cluster | None) -> LoadedTrace:
    if (config.columns or config.units) and config.format != CANONICAL:
        key = "columns" if config.columns else "units"
        message = f"say what the file is, as trace.format={CANONICAL} (no other takes {key})"
        raise InputError(f"config key 'trace.{key}': {message}")
    check_columns(config.columns or {}, config.units or {})
    if config.generated.without_path and config.path is None and config.format == CANONICAL:
        config = replace(config, format=SYNTHETIC)
    source = build(_source_node(config), f"trace.formats.{config.format}")
    generates = isinstance(source, TraceGenerator)
    if generates:
        config = _with_generated(config, cluster)
    target = _target(config, cluster)
    if config.window is not None and config.window not in config.windows:
        raise InputError(unknown_key(f"trace.windows.{config.window}", config.windows))
    if isinstance(source, TraceGenerator):
        if config.path is not None:
            message = (
                f"trace.format={config.format} makes a trace and reads no file: say what the file "
                "is, as trace.format=canonical"
            )
            raise InputError(f"config key 'trace.path': {message}")
        if config.stretch != 1.0:
            message = "a generated trace is not stretched: give trace.load and trace.gpus"
            raise InputError(f"config key 'trace.stretch': {message}")
        trace = _generated(source, target, config.max_gpus)
        inputs = {f"trace {trace.name}": text_hash(to_json(source.document()))}
        read = ReadTrace(trace, len(trace), (), 0)
    elif isinstance(source, TraceReader):
        if config.path is None:
            raise InputError("config key 'trace.path' is missing: give trace.path=<file>")
        read = source.read(config.path, config.strict)
        inputs = {read.trace.name: file_hash(config.path)}
    else:
        raise no_such_thing(f"trace.formats.{config.format}", _source_node(config), "trace format")
    part, left_out = _part(config, read.trace)
    factor = config.stretch
    part = stretch(part, factor)
    if target is not None and (left_out or not generates):
        factor *= part.offered_load(target.gpus) / target.load
        part = to_offered_load(part, target.load, target.gpus)
    origin_s = read.origin_s + int(part.submit_s[0])
    if config.gpu_milli is not None:
        part = replace(part, gpu_milli=np.full(len(part), config.gpu_milli, np.int32))
    return LoadedTrace(
        part.canonical(), read.rows, read.rejected, read.rounded, left_out, factor, target,
        origin_s, inputs, read, config,
    )  # fmt: skip


def _generated(source: TraceGenerator, target: TargetLoad | None, most: int | None) -> Trace:
    """A trace whose jobs of at most `most` GPUs offer the load: their days keep 24 hours."""
    trace = source.generate(target)
    fitting = at_most_gpus(trace, most).gpu_seconds.sum() if most else 0
    if target is None or not 0 < fitting < (every := trace.gpu_seconds.sum()):
        return trace
    return source.generate(replace(target, load=target.load * float(every / fitting)))


def _with_generated(config: TraceConfig, cluster: Cluster | None) -> TraceConfig:
    """What generated jobs are like, where nothing else is asked for."""
    generated, most = config.generated, config.max_gpus
    if generated.fits and most is None:
        if cluster is None:
            message = "there is no cluster here that they could fit"
            raise InputError(f"config key 'trace.generated.fits': {message}")
        most = cluster.num_gpus
    load = generated.load if config.load is None else config.load
    return replace(config, load=load, max_gpus=most)


def _target(config: TraceConfig, cluster: Cluster | None) -> TargetLoad | None:
    """The load that is asked for."""
    if config.load is None:
        if config.gpus is not None:
            message = "says nothing without trace.load: it is the GPUs that the load is offered to"
            raise InputError(f"config key 'trace.gpus': {message}")
        return None
    if config.gpus is None and cluster is None:
        raise InputError("config key 'trace.gpus' is missing: trace.load needs the cluster's GPUs")
    return TargetLoad(config.load, config.gpus or (cluster.num_gpus if cluster else 0))


def _source_node(config: TraceConfig) -> Mapping[str, object]:
    node = config.formats.get(config.format)
    if node is None:
        known = ", ".join(name for name, value in config.formats.items() if value is not None)
        raise InputError(
            f"config key 'trace.format': {config.format!r} is unknown (known: {known})"
        )
    if not isinstance(node, Mapping) or "_target_" not in node:
        raise no_such_thing(f"trace.formats.{config.format}", node, "trace format by _target_")
    return node


def _part(config: TraceConfig, trace: Trace) -> tuple[Trace, dict[str, int]]:
    """The jobs that are asked for, and how many are left out by which key.

    Raises:
        InputError: no job is left, or a key asks for what the trace has not.
    """
    left_out: dict[str, int] = {}

    def take(key: str, part: Trace) -> Trace:
        if len(part) < len(trace):
            left_out[f"trace.{key}={getattr(config, key)}"] = len(trace) - len(part)
        return part

    if config.queue is not None:
        trace = take("queue", of_queue(trace, config.queue))
    if config.user is not None:
        trace = take("user", of_user(trace, config.user))
    if config.max_gpus is not None:
        trace = take("max_gpus", at_most_gpus(trace, config.max_gpus))
    if config.start_s is not None:
        trace = take("start_s", submitted_between(trace, config.start_s, float("inf")))
    if config.end_s is not None:
        trace = take("end_s", submitted_between(trace, config.start_s or 0, config.end_s))
    if config.window is not None:
        windows = {window.name: window for window in split_by_time(trace, config.windows)}
        trace = take("window", windows[config.window].trace)
    if config.head is not None:
        trace = take("head", head(trace, config.head))
    if not len(trace):
        raise InputError("no job is left of what the config asks for", file=trace.name)
    return trace, left_out


def write_workload(
    path: Path, parameters: WorkloadParameters, about: str, provenance: Provenance
) -> None:
    """Write `parameters` with a comment on every key; the first line says what they are `about`."""
    write_text(path, workload_text(parameters, about, provenance))


def workload_text(parameters: WorkloadParameters, about: str, provenance: Provenance) -> str:
    """The content of the file."""
    header = json.dumps(stamp({}, provenance, kind="workload"))
    return "\n".join([f"# {about}", f"# {header}", *workload_lines(parameters)]) + "\n"


def workload_lines(parameters: WorkloadParameters) -> list[str]:
    """The keys of the file, each with its comment."""
    return [f"_target_: {TARGET}", *_lines(parameters.document(), "")]


def read_workload(path: str) -> WorkloadParameters:
    """The parameters in a file.

    Args:
        path: of the YAML file.

    Raises:
        InputError: the file holds something else, or what it holds is wrong.
    """
    found = object_in_file(path, "workload")
    if not isinstance(found, WorkloadParameters):
        raise InputError("holds no parameters of a workload", file=path)
    return found


def _lines(document: Mapping[str, object], indent: str) -> list[str]:
    lines: list[str] = []
    for key, value in document.items():
        comment = f"# {COMMENTS[key]}"
        if isinstance(value, Mapping):
            lines += [f"{indent}{key}:  {comment}", *_lines(value, indent + "  ")]
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            lines.append(f"{indent}{key}:  {comment}")
            for entry in value:
                inner = _lines(entry, indent + "    ")
                lines += [f"{indent}  - {inner[0].lstrip()}", *inner[1:]]
        elif isinstance(value, list) and len(value) > SHORT:
            lines += [f"{indent}{key}:  {comment}", *_wrapped(value, indent + "  ")]
        elif isinstance(value, list):
            row = ", ".join(_number(one) for one in value)
            lines.append(f"{indent}{key}: [{row}]  {comment}")
        else:
            lines.append(f"{indent}{key}: {_number(value)}  {comment}")
    return lines


def _wrapped(values: list[object], indent: str) -> list[str]:
    """A list in lines of up to 96 characters."""
    lines, line = [], f"{indent}["
    for number, value in enumerate(values):
        word = _number(value) + ("]" if number == len(values) - 1 else ", ")
        if len(line) + len(word) > 96:
            lines.append(line.rstrip())
            line = f"{indent} "
        line += word
    return [*lines, line]


def _number(value: object) -> str:
    whole = isinstance(value, float) and value.is_integer()
    return str(int(value)) if whole and isinstance(value, float) else json.dumps(value)
