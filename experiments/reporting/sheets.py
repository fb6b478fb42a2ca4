"""Runs in order: seeds of one job together, and results of one kind in one table."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

from envs.errors import InputError
from experiments.reporting.measures import KINDS, Estimate, Kind, Values, is_number
from experiments.reporting.run_folder import RunFolder
from experiments.study.tables import Table

MOST_RUNS = 500
UNTOLD = {"kind", "schema_version", "run_folder"}  # of a result: no figures
REFERENCE = "run"  # the column that says which job a row is of


@dataclass(frozen=True)
class Job:
    """Runs of one app and one config, whatever their seeds; `number` is that of its section."""

    number: int
    runs: Sequence[RunFolder]

    @property
    def first(self) -> RunFolder:
        return self.runs[0]

    @property
    def anchor(self) -> str:
        return f"run-{self.number}"

    def scalars(self) -> Iterator[Table]:
        """Numbers and words of its results, where there are any: means over the runs."""
        rows = []
        for key, first in self.first.result.items():
            values = [run.result.get(key) for run in self.runs]
            if isinstance(first, bool | str) and key not in UNTOLD:
                words = list(dict.fromkeys(map(str, values)))
                if not any("/" in word for word in words):  # files lie where the commands say
                    rows.append([key, ", ".join(words)])
            elif is_number(first) and key not in UNTOLD:
                found = Estimate.of(values)
                half = f" ± {found.high - found.mean:.3g}" if found.high > found.mean else ""
                rows.append([key, f"{found.mean:,.6g}{half}"])
        if rows:
            yield Table(f"Result of run [{self.number}]", ("figure", "value"), rows)

    @property
    def title(self) -> str:
        seeds = f", {len(self.runs)} runs" if len(self.runs) > 1 else ""
        return f"{self.number}. {self.first.app}: {self.first.name}{seeds}"


@dataclass(frozen=True)
class Entry:
    """A row of a sheet: who answered, in which job, and what came out by measure."""

    names: tuple[str, ...]
    job: Job
    runs: int
    found: Mapping[str, Estimate]


@dataclass(frozen=True)
class Sheet:
    """All that is known of one problem, the best first."""

    kind: Kind
    problem: str
    entries: Sequence[Entry]

    @property
    def title(self) -> str:
        return f"{self.kind.title}: {self.problem}"

    @cached_property
    def table(self) -> Table:
        """Columns in which nobody has a number are left out, but for the first."""
        measures = [
            measure
            for place, measure in enumerate(self.kind.measures)
            if place == 0
            or any(not math.isnan(entry.found[measure.key].mean) for entry in self.entries)
        ]
        columns = [*self.kind.names, "runs", *(m.label for m in measures), REFERENCE]
        rows = [
            [
                *entry.names,
                str(entry.runs),
                *(measure.text(entry.found[measure.key]) for measure in measures),
                f"[{entry.job.number}]",
            ]
            for entry in self.entries
        ]
        return Table(self.title, columns, rows, self.kind.note)


@dataclass(frozen=True)
class Reported:
    """What a report is about."""

    jobs: Sequence[Job]
    sheets: Sequence[Sheet] = field(default_factory=tuple)

    @classmethod
    def of(cls, folders: Sequence[str | Path]) -> Reported:
        """The runs in these folders.

        Raises:
            InputError: a folder holds no finished run, or is named twice.
        """
        if not folders:
            raise InputError("config key 'runs': no run folder is named")
        if len(folders) > MOST_RUNS:
            fault = f"{len(folders)} folders; a report takes up to {MOST_RUNS}"
            raise InputError(f"config key 'runs': {fault}")
        real = [os.path.realpath(folder) for folder in folders]
        for number, folder in enumerate(folders):
            if real[number] in real[:number]:
                raise InputError("is named twice", file=folder)
        by_job: dict[str, list[RunFolder]] = {}
        for folder in folders:
            run = RunFolder.read(folder)
            by_job.setdefault(run.job, []).append(run)
        jobs = [Job(number, runs) for number, runs in enumerate(by_job.values(), start=1)]
        return cls(jobs, [sheet for kind in KINDS for sheet in _sheets(kind, jobs)])

    @cached_property
    def compared(self) -> Sequence[Job]:
        """Jobs that stand in a sheet."""
        return [entry.job for sheet in self.sheets for entry in sheet.entries]

    @property
    def runs(self) -> Sequence[RunFolder]:
        return [run for job in self.jobs for run in job.runs]


def _sheets(kind: Kind, jobs: Sequence[Job]) -> list[Sheet]:
    entries: dict[tuple[str, str], list[Entry]] = {}
    for job in jobs:
        rows: dict[tuple[str, tuple[str, ...]], list[Values]] = {}
        for run in job.runs:
            for row in kind.rows(run.result):
                rows.setdefault((row.problem, row.names), []).append(row.values)
        given = job.first.hash_of(kind.problem)
        for (problem, names), values in rows.items():
            found = {measure.key: measure.of(values) for measure in kind.measures}
            own = Entry(names, job, len(values), found)
            entries.setdefault((problem, given), []).append(own)
    first = kind.measures[0]

    def rank(entry: Entry) -> float:
        mean = entry.found[first.key].mean
        return math.inf if math.isnan(mean) else -mean if first.more else mean

    problems = [problem for problem, _ in entries]
    sheets = []
    for (problem, _), rows_of in entries.items():
        alike = problems.count(problem) > 1  # the same by name, another by its config
        name = f"{problem}, as in run {rows_of[0].job.number}" if alike else problem
        sheets.append(Sheet(kind, name, sorted(rows_of, key=rank)))
    return sheets
