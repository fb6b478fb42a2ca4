"""`action=summary`: the numbers of a trace, and its picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TypeVar

from rich.box import SIMPLE
from rich.table import Table

from envs.cluster.workload.summary import QUANTILES, UNNAMED, TraceSummary, summarise
from envs.errors import InputError
from experiments.cluster.trace_source import TraceConfig, load_trace
from experiments.pictures.trace_chart import draw_trace_summary
from experiments.run.app import Result, Run
from experiments.run.artifacts import write_figure

PICTURE_FILE = "trace.png"
SHOWN_LABELS = 10  # queues and users in the table on the console

Value = TypeVar("Value")


@dataclass(frozen=True)
class Summarise:
    """The numbers of the trace as tables and JSON, and its picture in the run folder.

    `gpus` are cluster sizes for which the offered load is told; `most_labels` queues and users
    stand in the JSON, those with the most jobs. `picture` draws `trace.png`.
    """

    gpus: Sequence[int]
    most_labels: int
    picture: bool

    def __post_init__(self) -> None:
        for gpus in self.gpus:
            if gpus < 1:
                raise InputError(f"{gpus} is below 1", field="gpus")
        if self.most_labels < 0:
            raise InputError(f"{self.most_labels} is negative", field="most_labels")

    def run(self, trace: TraceConfig, run: Run) -> Result:
        """Summarise it."""
        loaded = load_trace(trace)
        summary = summarise(loaded.trace, loaded.origin_s)
        provenance = run.provenance.with_inputs(**loaded.inputs)
        values = {**loaded.counts(), **self._values(summary)}
        shown = [key for key, value in values.items() if isinstance(value, str | int | float)]
        for line in loaded.rejections():
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
