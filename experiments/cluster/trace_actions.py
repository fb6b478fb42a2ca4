"""What `experiments.trace` does with a trace: convert, synthesise, fit, summarise."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, TypeVar

from annotated_types import Ge
from rich.box import SIMPLE
from rich.table import Table

from envs.bounds import Count, bounded
from envs.cluster.workload.parquet import write_parquet
from envs.cluster.workload.readers.canonical import ORIGIN, write_csv
from envs.cluster.workload.summary import QUANTILES, UNNAMED, TraceSummary, summarise
from envs.cluster.workload.synthetic.arrivals import EPOCH_S
from envs.cluster.workload.synthetic.fit import agreement, fit
from envs.cluster.workload.synthetic.generate import generate
from envs.errors import InputError
from experiments.cluster.trace_source import LoadedTrace, TraceConfig, load_trace, write_workload
from experiments.pictures.cluster import draw_trace_summary
from experiments.run.artifacts import require_no_input, write_figure, write_sidecar
from experiments.run.one_run import Result, Run
from experiments.run.provenance import Provenance, file_hash

WORKLOAD_SUFFIXES = (".yaml", ".yml")
PICTURE_FILE = "trace.png"
SHOWN_LABELS = 10  # queues and users in the table on the console

Value = TypeVar("Value")


@dataclass(frozen=True)
class Convert:
    """Any format to our own: `output` ends in .csv, .csv.gz or .parquet."""

    output: str  # the file to write: .csv, .csv.gz or .parquet

    def __post_init__(self) -> None:
        _writer(self.output)

    def run(self, trace: TraceConfig, run: Run) -> Result:
        """Read it, write it."""
        require_no_input([Path(self.output)], [trace.path], "action.output")
        return _written(load_trace(trace), self.output, run)


@dataclass(frozen=True)
class Synthesise:
    """Generated jobs to a file as of `Convert`.

    `format` is the name under trace.formats of what generates them.
    """

    output: str  # the file to write: .csv, .csv.gz or .parquet
    format: str = "synthetic"  # what generates them: a name under trace.formats

    def __post_init__(self) -> None:
        _writer(self.output)

    def run(self, trace: TraceConfig, run: Run) -> Result:
        """Generate it, write it."""
        return _written(load_trace(replace(trace, format=self.format)), self.output, run)


def _written(loaded: LoadedTrace, output: str, run: Run) -> Result:
    path = Path(output)
    for line in loaded.changes():
        run.console.print(line, soft_wrap=True)
    provenance = run.provenance.with_inputs(**loaded.inputs)
    try:
        _writer(output)(loaded, path, provenance)
    except OSError as error:
        raise InputError(f"cannot be written ({error.strerror or error})", file=path) from error
    values = {**loaded.counts(), "output": str(path), "sha256": file_hash(path)}
    return Result(values, provenance, ("trace", "rows", "rejected_rows", "jobs", "output"))


def _to_parquet(loaded: LoadedTrace, path: Path, provenance: Provenance) -> None:
    write_parquet(loaded.trace, path, {**provenance.document(), ORIGIN: loaded.origin_s})


def _to_csv(loaded: LoadedTrace, path: Path, provenance: Provenance) -> None:
    write_csv(loaded.trace, path)
    write_sidecar(path, provenance, "trace")


_WRITERS: Mapping[str, Callable[[LoadedTrace, Path, Provenance], None]] = {
    ".csv": _to_csv, ".csv.gz": _to_csv, ".parquet": _to_parquet,
}  # fmt: skip


def _writer(output: str) -> Callable[[LoadedTrace, Path, Provenance], None]:
    for suffix, write in _WRITERS.items():
        if output.endswith(suffix):
            return write
    known = ", ".join(_WRITERS)
    raise InputError(f"config key 'action.output': {output!r} does not end in one of {known}")


@dataclass(frozen=True)
class Fit:
    """Writes `output`, YAML in the form of conf/workload, for `trace.workload=<output>`.

    `name` is that of the traces made of it. What a trace of as many jobs then has in common with
    the one measured is in the result.
    """

    output: str  # the file to write: .yaml
    name: str = "fitted"  # of the traces made of it

    def __post_init__(self) -> None:
        if not self.output.endswith(WORKLOAD_SUFFIXES):
            known = ", ".join(WORKLOAD_SUFFIXES)
            raise InputError(
                f"config key 'action.output': {self.output!r} does not end in one of {known}"
            )

    def run(self, trace: TraceConfig, run: Run) -> Result:
        """Measure the trace, write its statistics, make a trace of them and compare."""
        require_no_input([Path(self.output)], [trace.path, trace.workload], "action.output")
        loaded = load_trace(trace)
        for line in loaded.changes():
            run.console.print(line, soft_wrap=True)
        found = fit(loaded.trace, name=self.name, origin_s=loaded.origin_s + EPOCH_S)
        alike = agreement(loaded.trace, generate(found, len(loaded.trace), trace.seed))
        provenance = run.provenance.with_inputs(**loaded.inputs)
        path = Path(self.output)
        about = f"Statistics of {loaded.trace.name}: {len(loaded.trace):,} jobs."
        try:
            write_workload(path, found, about, provenance)
        except OSError as error:
            raise InputError(f"cannot be written ({error.strerror or error})", file=path) from error
        values = {**loaded.counts(), **asdict(alike), "output": str(path)}
        return Result(values, provenance)


@bounded
@dataclass(frozen=True)
class Summarise:
    """The numbers of the trace as tables and JSON, and its picture in the run folder.

    `gpus` are cluster sizes for which the offered load is told; `most_labels` queues and users
    stand in the JSON, those with the most jobs. `picture` draws `trace.png`.
    """

    gpus: Sequence[Count] = (64, 512, 4096)  # clusters whose offered load is told
    # queues and users told in the JSON, those with the most jobs
    most_labels: Annotated[int, Ge(0)] = 1000
    picture: bool = True  # draw trace.png in the run folder

    def run(self, trace: TraceConfig, run: Run) -> Result:
        loaded = load_trace(trace)
        summary = summarise(loaded.trace, loaded.origin_s)
        provenance = run.provenance.with_inputs(**loaded.inputs)
        values = {**loaded.counts(), **self._values(summary)}
        shown = [key for key, value in values.items() if isinstance(value, str | int | float)]
        for line in loaded.changes():
            run.console.print(line, soft_wrap=True)
        run.console.print(_gang_table(summary))
        for title, jobs, hours in (
            ("queue", summary.jobs_by_queue, summary.gpu_hours_by_queue),
            ("user", summary.jobs_by_user, summary.gpu_hours_by_user),
        ):
            if set(jobs) - {UNNAMED}:
                run.console.print(_label_table(title, jobs, hours))
        if self.picture:
            path = run.folder / PICTURE_FILE
            write_figure(path, draw_trace_summary(summary, loaded.trace.name), provenance)
            values["picture"] = str(path)
            shown.append("picture")
        return Result(values, provenance, shown)

    def _values(self, summary: TraceSummary) -> dict[str, object]:
        return {
            "span_s": summary.span_s,
            "gpu_hours": summary.gpu_hours,
            "max_gpus": summary.max_gpus,
            "mean_concurrent_gpus": summary.mean_concurrent_gpus,
            "mean_duration_s": summary.mean_duration_s,
            "mean_interarrival_s": summary.mean_interarrival_s,
            "queues": len(set(summary.jobs_by_queue) - {UNNAMED}),
            "users": len(set(summary.jobs_by_user) - {UNNAMED}),
            "offered_load": {str(gpus): summary.offered_load(gpus) for gpus in self.gpus},
            "quantiles": QUANTILES,
            "duration_s": summary.duration_s,
            "gangs": [asdict(gang) for gang in summary.gangs],
            "arrivals_by_hour": summary.arrivals_by_hour,
            "jobs_by_queue": _first(summary.jobs_by_queue, self.most_labels),
            "gpu_hours_by_queue": _first(summary.gpu_hours_by_queue, self.most_labels),
            "jobs_by_user": _first(summary.jobs_by_user, self.most_labels),
            "gpu_hours_by_user": _first(summary.gpu_hours_by_user, self.most_labels),
        }


def _first(values: Mapping[str, Value], most: int) -> dict[str, Value]:
    return dict(list(values.items())[:most])


def _gang_table(summary: TraceSummary) -> Table:
    table = Table("GPUs", "jobs", "of jobs", "of GPU-hours", "median duration", "p95", box=SIMPLE)
    middle, high = QUANTILES.index(0.5), QUANTILES.index(0.95)
    for gang in summary.gangs:
        table.add_row(
            str(gang.num_gpus), str(gang.jobs), f"{gang.job_share:.1%}",
            f"{gang.gpu_hour_share:.1%}", f"{gang.duration_s[middle]:.0f} s",
            f"{gang.duration_s[high]:.0f} s",
        )  # fmt: skip
    return table


def _label_table(title: str, jobs: Mapping[str, int], hours: Mapping[str, float]) -> Table:
    table = Table(title, "jobs", "GPU-hours", box=SIMPLE)
    for name in list(jobs)[:SHOWN_LABELS]:
        table.add_row(name or "(none)", str(jobs[name]), f"{hours[name]:.0f}")
    if len(jobs) > SHOWN_LABELS:
        rest = list(jobs)[SHOWN_LABELS:]
        others = (str(sum(jobs[n] for n in rest)), f"{sum(hours[n] for n in rest):.0f}")
        table.add_row(f"{len(rest)} others", *others)
    return table
