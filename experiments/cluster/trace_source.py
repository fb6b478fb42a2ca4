"""From the config node `trace` to a trace: which file, in which format, and what part of it."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib import resources
from pathlib import Path
from typing import Annotated, Any, Protocol, runtime_checkable

import numpy as np
import yaml
from annotated_types import Ge, Le
from rich.console import Console

from envs.bounds import Count, Positive
from envs.cluster.nodes import Cluster
from envs.cluster.workload.readers.read_trace import ReadTrace, TraceReader
from envs.cluster.workload.slicing import (
    at_most_gpus,
    labelled,
    split_by_time,
    stretch,
    submitted_between,
    to_offered_load,
)
from envs.cluster.workload.synthetic.generate import TargetLoad, generate
from envs.cluster.workload.synthetic.parameters import WorkloadParameters
from envs.cluster.workload.trace import WHOLE_GPU, Trace
from envs.errors import InputError, require_one_of
from experiments.config.command_words import CONFIG_MODULE
from experiments.config.targets import build, build_as, no_such_thing, object_in_file
from experiments.run.artifacts import to_json, write_text
from experiments.run.one_run import Result, Run
from experiments.run.provenance import Provenance, file_hash, stamp, text_hash

TARGET = "envs.cluster.workload.synthetic.parameters.workload_parameters"
_KEY = re.compile(r"^( *)(- )?([a-z]\w*):", re.MULTILINE)  # of a mapping in YAML
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
        return generate(self._parameters(), self.jobs, self.seed, load=load, models=self.models)

    @property
    def sha256(self) -> str:
        """Of all that the trace depends on, besides the load."""
        return text_hash(to_json({**vars(self), "workload": self._parameters().document()}))

    def _parameters(self) -> WorkloadParameters:
        if Path(self.workload).suffix:
            return read_workload(self.workload)
        folder = resources.files(CONFIG_MODULE).joinpath("workload")
        known = sorted(file.name.removesuffix(".yaml") for file in folder.iterdir())
        require_one_of(self.workload, [*known, "<file>.yaml"], file="config key 'trace.workload'")
        with resources.as_file(folder.joinpath(f"{self.workload}.yaml")) as path:
            return read_workload(str(path))


@dataclass(frozen=True, eq=False)
class LoadedTrace:
    """What the config asks for, in canonical form.

    `origin_s` is the second 0 of `trace` on the source's own clock; a stretched trace has left that
    clock but for its first submission. `read` tells what of the source is no job on GPUs, whatever
    part of it was asked for, and `left_out` the jobs that are not in that part.
    """

    trace: Trace
    left_out: Mapping[str, int]  # jobs by the config key that leaves them out
    stretched: float  # times between submissions were multiplied by this
    offered: TargetLoad | None  # the load that was set
    origin_s: int
    inputs: Mapping[str, str]  # SHA-256 by name
    read: ReadTrace  # all of the source
    config: TraceConfig

    @contextmanager
    def located(self) -> Iterator[None]:
        """Inside, a fault of a job names the row of the file."""
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

    def changes(self) -> Iterator[str]:
        """A line for each reason why rows and jobs were left out, and for changed times."""
        for r in self.read.rejected:
            yield f"left out: {r.rows} rows, {r.field or 'row'} {r.reason} (first: {r.first})"
        if self.read.rounded:
            yield f"rounded: {self.read.rounded} jobs have times with fractions of a second"
        for key, jobs in self.left_out.items():
            yield f"left out: {jobs} jobs, by {key}"
        if abs(self.stretched - 1.0) > 1e-4:
            yield f"changed: times between submissions are multiplied by {self.stretched:.6g}"
        if self.offered is not None:
            yield f"set: load {self.offered.load:g} of {self.offered.gpus} GPUs"

    def tell_changes(self, console: Console) -> None:
        """The same, each on a line of its own."""
        for line in self.changes():
            console.print(line, soft_wrap=True)

    def counts(self) -> dict[str, object]:
        """What an app tells of it: jobs, those left out by reason, and how times were changed."""
        read = self.read
        return {
            "trace": self.trace.name,
            "rows": read.rows,
            "rejected_rows": read.num_rejected,
            "rejected": {f"{r.field or 'row'} {r.reason}": r.rows for r in read.rejected},
            "rounded_jobs": read.rounded,
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
            reason = f"config key '{group}.{error.field}': {error.message}"
            raise InputError(reason) from error
        raise


def _loaded(config: TraceConfig, cluster: Cluster | None) -> LoadedTrace:
    for key in ("columns", "units"):
        if getattr(config, key) and config.format != CANONICAL:
            reason = f"say what the file is, as trace.format={CANONICAL} (no other takes {key})"
            raise InputError(reason, field=key)
    if config.generated.without_path and config.path is None and config.format == CANONICAL:
        config = replace(config, format=SYNTHETIC)
    formats = {name: node for name, node in config.formats.items() if node is not None}
    require_one_of(config.format, formats, field="format")
    source = source_of(formats, config.format, "trace")
    generates = isinstance(source, SyntheticTrace)
    gpus = None if cluster is None else cluster.num_gpus
    if generates:
        most, generated = config.max_gpus, config.generated
        if generated.fits and most is None:
            if gpus is None:
                reason = "there is no cluster here that they could fit"
                raise InputError(reason, field="generated.fits")
            most = gpus
        load = generated.load if config.load is None else config.load
        config = replace(config, load=load, max_gpus=most)
    target = _target(config, config.gpus or gpus)
    require_one_of(config.window, (None, *config.windows), field="window")
    if isinstance(source, SyntheticTrace):
        trace = _generated(source, target, config)
        inputs = {f"trace {trace.name}": source.sha256}
        read = ReadTrace(trace, len(trace), (), 0)
    elif config.path is None:
        raise InputError("config key 'trace.path' is missing: give trace.path=<file>")
    else:
        read = source.read(config.path, config.strict)
        inputs = {read.trace.name: file_hash(config.path)}
    part, left_out = _part(config, read.trace)
    factor = config.stretch
    part = stretch(part, factor)
    if target is not None and (left_out or not generates):
        factor *= part.offered_load(target.gpus) / target.load
        part = to_offered_load(part, target.load, target.gpus)
    origin_s = read.origin_s + int(part.submit_s[0])
    if config.gpu_milli is not None:
        part = replace(part, gpu_milli=np.full(len(part), config.gpu_milli, np.int32))
    return LoadedTrace(part.canonical(), left_out, factor, target, origin_s, inputs, read, config)


def source_of(
    formats: Mapping[str, Mapping[str, object]], name: str, group: str
) -> TraceReader | SyntheticTrace:
    """What reads a trace, or makes one: a name of the `formats` that a config group has.

    Raises:
        InputError: it describes something else, or what cannot be.
    """
    where = f"{group}.formats.{name}"
    made = build(formats[name], where)
    if not isinstance(made, TraceReader | SyntheticTrace):
        raise no_such_thing(where, formats[name], "trace format")
    return made


def _target(config: TraceConfig, gpus: int | None) -> TargetLoad | None:
    """The load that is asked for."""
    if config.load is None:
        if config.gpus is not None:
            reason = "says nothing without trace.load: it is the GPUs that the load is offered to"
            raise InputError(reason, field="gpus")
        return None
    if gpus is None:
        raise InputError("config key 'trace.gpus' is missing: trace.load needs the cluster's GPUs")
    return TargetLoad(config.load, gpus)


def _generated(source: SyntheticTrace, target: TargetLoad | None, config: TraceConfig) -> Trace:
    """A trace whose jobs of at most `max_gpus` GPUs offer the load: their days keep 24 hours."""
    if config.path is not None:
        reason = (
            f"trace.format={config.format} makes a trace and reads no file: say what the file is"
        )
        raise InputError(f"{reason}, as trace.format=canonical", field="path")
    if config.stretch != 1.0:
        reason = "a generated trace is not stretched: give trace.load and trace.gpus"
        raise InputError(reason, field="stretch")
    trace, most = source.generate(target), config.max_gpus
    fitting = at_most_gpus(trace, most).gpu_seconds.sum() if most else 0
    if target is None or not 0 < fitting < (every := trace.gpu_seconds.sum()):
        return trace
    return source.generate(replace(target, load=target.load * float(every / fitting)))


def _part(config: TraceConfig, trace: Trace) -> tuple[Trace, dict[str, int]]:
    """The jobs that are asked for, and how many are left out by which key.

    Raises:
        InputError: no job is left, or a key asks for what the trace has not.
    """
    cuts: Mapping[str, Callable[[Trace, Any], Trace]] = {
        "queue": lambda jobs, queue: labelled(jobs, "queue", queue),
        "user": lambda jobs, user: labelled(jobs, "user", user),
        "max_gpus": at_most_gpus,
        "start_s": lambda jobs, start_s: submitted_between(jobs, start_s, float("inf")),
        "end_s": lambda jobs, end_s: submitted_between(jobs, config.start_s or 0, end_s),
        "window": lambda jobs, name: next(
            window.trace for window in split_by_time(jobs, config.windows) if window.name == name
        ),
        "head": lambda jobs, count: jobs.take(slice(count)),
    }
    left_out: dict[str, int] = {}
    for key, cut in cuts.items():
        if (asked := getattr(config, key)) is not None:
            before, trace = len(trace), cut(trace, asked)
            if len(trace) < before:
                left_out[f"trace.{key}={asked}"] = before - len(trace)
    if not len(trace):
        raise InputError("no job is left of what the config asks for", file=trace.name)
    return trace, left_out


@runtime_checkable
class TraceAction(Protocol):
    """One thing to do with a trace."""

    def run(self, trace: TraceConfig, run: Run) -> Result: ...


@dataclass(kw_only=True)
class TraceAppConfig:
    """`conf/trace.yaml`; groups are objects by `_target_`."""

    action: Any
    trace: TraceConfig
    seed: int
    json: bool


def trace(config: TraceAppConfig, run: Run) -> Result:
    """Do what `action` says."""
    action = build_as(TraceAction, config.action, "action", "action on a trace")
    return action.run(config.trace, run)


def write_workload(
    path: Path, parameters: WorkloadParameters, about: str, provenance: Provenance
) -> None:
    """Write `parameters` with a comment on every key; the first line says what they are `about`."""
    header = json.dumps(stamp({}, provenance, kind="workload"))
    numbers = json.loads(json.dumps(parameters.document()), parse_float=_number)
    document = {"_target_": TARGET, **numbers}
    text = yaml.safe_dump(document, sort_keys=False, default_flow_style=None, width=88)
    text = _KEY.sub(lambda found: f"{found[1]}# {COMMENTS[found[3]]}\n{found[0]}", text)
    write_text(path, f"# {about}\n# {header}\n{text}")


def _number(text: str) -> float:
    """A number, as an integer where it has no fraction."""
    return int(value) if (value := float(text)).is_integer() else value


def read_workload(path: str) -> WorkloadParameters:
    """The parameters in a file.

    Args:
        path: of the YAML file.

    Raises:
        InputError: the file holds something else, or what it holds is wrong.
    """
    return object_in_file(path, "workload", WorkloadParameters)
