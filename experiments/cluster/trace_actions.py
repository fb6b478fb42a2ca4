"""What `experiments.trace` does with a trace: convert, synthesise, fit, summarise."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated

from annotated_types import Ge

from envs.bounds import Count, bounded
from envs.cluster.workload.parquet import write_parquet
from envs.cluster.workload.readers.canonical import ORIGIN, write_csv
from envs.cluster.workload.summary import QUANTILES, UNNAMED, summarise
from envs.cluster.workload.synthetic.arrivals import EPOCH_S
from envs.cluster.workload.synthetic.fit import agreement, fit
from envs.cluster.workload.synthetic.generate import generate
from envs.errors import InputError
from experiments.cluster.trace_source import LoadedTrace, TraceConfig, load_trace, write_workload
from experiments.pictures.cluster import draw_trace_summary
from experiments.reporting.tables import Table
from experiments.run.artifacts import require_no_input, write_figure, write_sidecar
from experiments.run.one_run import Result, Run
from experiments.run.provenance import Provenance, file_hash

TABLES = (".csv", ".csv.gz", ".parquet")
PICTURE_FILE = "trace.png"
SHOWN_LABELS = 10  # queues and users in the table on the console
GANG_COLUMNS = {
    "GPUs": "{num_gpus}", "jobs": "{jobs}", "of jobs": "{job_share:.1%}",
    "of GPU-hours": "{gpu_hour_share:.1%}", "median duration": "{median:.0f} s",
    "p95": "{high:.0f} s",
}  # fmt: skip


def _require_ending(output: str, known: tuple[str, ...]) -> None:
    if not output.endswith(known):
        reason = f"{output!r} does not end in one of {', '.join(known)}"
        raise InputError(f"config key 'action.output': {reason}")


def _loaded(trace: TraceConfig, run: Run) -> tuple[LoadedTrace, Provenance]:
    loaded = load_trace(trace)
    loaded.tell_changes(run.console)
    return loaded, run.provenance.with_inputs(**loaded.inputs)


@dataclass(frozen=True)
class Convert:
    """Any format to our own: `output` ends in .csv, .csv.gz or .parquet."""

    output: str  # the file to write: .csv, .csv.gz or .parquet

    def __post_init__(self) -> None:
        _require_ending(self.output, TABLES)

    def run(self, trace: TraceConfig, run: Run) -> Result:
        """Read it, write it."""
        path = Path(self.output)
        require_no_input([path], [trace.path], "action.output")
        loaded, provenance = _loaded(trace, run)
        if path.suffix == ".parquet":
            write_parquet(loaded.trace, path, {**provenance.document(), ORIGIN: loaded.origin_s})
        else:
            write_csv(loaded.trace, path)
            write_sidecar(path, provenance, "trace")
        return Result(
            {**loaded.counts(), "output": str(path), "sha256": file_hash(path)},
            provenance,
            ("trace", "rows", "rejected_rows", "jobs", "output"),
        )


@dataclass(frozen=True)
class Synthesise(Convert):
    """Generated jobs to a file as of `Convert`.

    `format` is the name under trace.formats of what generates them.
    """

    format: str = "synthetic"  # what generates them: a name under trace.formats

    def run(self, trace: TraceConfig, run: Run) -> Result:
        """Generate it, write it."""
        return super().run(replace(trace, format=self.format), run)


@dataclass(frozen=True)
class Fit:
    """Writes `output`, YAML in the form of conf/workload, for `trace.workload=<output>`.

    `name` is that of the traces made of it. What a trace of as many jobs then has in common with
    the one measured is in the result.
    """

    output: str  # the file to write: .yaml
    name: str = "fitted"  # of the traces made of it

    def __post_init__(self) -> None:
        _require_ending(self.output, (".yaml", ".yml"))

    def run(self, trace: TraceConfig, run: Run) -> Result:
        """Measure the trace, write its statistics, make a trace of them and compare."""
        path = Path(self.output)
        require_no_input([path], [trace.path, trace.workload], "action.output")
        loaded, provenance = _loaded(trace, run)
        jobs = loaded.trace
        found = fit(jobs, name=self.name, origin_s=loaded.origin_s + EPOCH_S)
        alike = agreement(jobs, generate(found, len(jobs), trace.seed))
        about = f"Statistics of {jobs.name}: {len(jobs):,} jobs."
        write_workload(path, found, about, provenance)
        return Result({**loaded.counts(), **asdict(alike), "output": str(path)}, provenance)


@bounded
@dataclass(frozen=True)
class Summarise:
    """The numbers of the trace as tables and JSON, and its picture in the run folder.

    `gpus` are cluster sizes for which the offered load is given; `most_labels` queues and users
    stand in the JSON, those with the most jobs. `picture` draws `trace.png`.
    """

    gpus: Sequence[Count] = (64, 512, 4096)  # clusters whose offered load is given
    # queues and users listed in the JSON, those with the most jobs
    most_labels: Annotated[int, Ge(0)] = 1000
    picture: bool = True  # draw trace.png in the run folder

    def run(self, trace: TraceConfig, run: Run) -> Result:
        loaded, provenance = _loaded(trace, run)
        summary = summarise(loaded.trace, loaded.origin_s)
        of_labels = {
            key: dict(list(value.items())[: self.most_labels])
            for key, value in vars(summary).items()
            if isinstance(value, Mapping)
        }
        values = {
            **loaded.counts(),
            **vars(summary),
            **of_labels,
            "queues": len(set(summary.jobs_by_queue) - {UNNAMED}),
            "users": len(set(summary.jobs_by_user) - {UNNAMED}),
            "offered_load": {str(gpus): summary.offered_load(gpus) for gpus in self.gpus},
            "quantiles": QUANTILES,
            "gangs": [asdict(gang) for gang in summary.gangs],
        }
        del values["name"]
        shown = [key for key, value in values.items() if isinstance(value, str | int | float)]
        middle, high = QUANTILES.index(0.5), QUANTILES.index(0.95)
        gangs = [
            {**vars(gang), "median": gang.duration_s[middle], "high": gang.duration_s[high]}
            for gang in summary.gangs
        ]
        run.console.print(Table.of("", GANG_COLUMNS, gangs).rich())
        for title, jobs, hours in (
            ("queue", summary.jobs_by_queue, summary.gpu_hours_by_queue),
            ("user", summary.jobs_by_user, summary.gpu_hours_by_user),
        ):
            if not set(jobs) - {UNNAMED}:
                continue
            first, rest = list(jobs)[:SHOWN_LABELS], list(jobs)[SHOWN_LABELS:]
            rows = [(name or "(none)", str(jobs[name]), f"{hours[name]:.0f}") for name in first]
            if rest:
                others = (str(sum(jobs[n] for n in rest)), f"{sum(hours[n] for n in rest):.0f}")
                rows.append((f"{len(rest)} others", *others))
            run.console.print(Table("", (title, "jobs", "GPU-hours"), rows).rich())
        if self.picture:
            path = run.folder / PICTURE_FILE
            write_figure(path, draw_trace_summary(summary, loaded.trace.name), provenance)
            values["picture"] = str(path)
            shown.append("picture")
        return Result(values, provenance, shown)
