"""Runs in order: seeds of one job together, and results of one kind in one table."""

from __future__ import annotations

import math
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from envs.errors import InputError
from experiments.reporting.measures import KINDS, Estimate, Kind, Values, estimate, is_number
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

    @property
    def title(self) -> str:
        seeds = f", {len(self.runs)} runs" if len(self.runs) > 1 else ""
        return f"{self.number}. {self.first.app}: {self.first.name}{seeds}"

    def scalars(self) -> list[Table]:
        """A table of the numbers and words of its results, means over the runs; none of none."""
        rows = []
        for key in [key for key in self.first.result if key not in UNTOLD]:
            values = [run.result.get(key) for run in self.runs]
            if isinstance(values[0], bool | str):
                words = list(dict.fromkeys(map(str, values)))
                if not any("/" in word for word in words):  # files lie where the commands say
                    rows.append([key, ", ".join(words)])
            elif is_number(values[0]):
                found = estimate(values)
                half = f" ± {found.high - found.mean:.3g}" if found.high > found.mean else ""
                rows.append([key, f"{found.mean:,.6g}{half}"])
        title = f"Result of run [{self.number}]"
        return [Table(title, ("figure", "value"), rows)] if rows else []


@dataclass(frozen=True)
class Entry:
    """A row of a sheet: who answered, in which job, and what came out by measure."""

    names: Sequence[str]
    job: Job
    runs: int
    found: Mapping[str, Estimate]


@dataclass(frozen=True)
class Sheet:
    """All that is known of one problem, the best first."""

    kind: Kind
    problem: str
    entries: Sequence[Entry]

    @cached_property
    def table(self) -> Table:
        """Columns in which nobody has a number are left out, but for the first."""
        first, *others = self.kind.measures
        measures = [first]
        for other in others:
            if any(not math.isnan(entry.found[other.key].mean) for entry in self.entries):
                measures.append(other)
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
        return Table(f"{self.kind.title}: {self.problem}", columns, rows, self.kind.note)


def jobs_of(folders: Sequence[str | Path]) -> list[Job]:
    """The runs in these folders, those of one config together.

    Raises:
        InputError: a folder holds no finished run, or is named twice.
    """
    if not folders:
        raise InputError("config key 'runs': no run folder is named")
    if len(folders) > MOST_RUNS:
        fault = f"{len(folders)} folders; a report takes up to {MOST_RUNS}"
        raise InputError(f"config key 'runs': {fault}")
    seen: set[str] = set()
    by_job: dict[str, list[RunFolder]] = {}
    for folder in folders:
        real = os.path.realpath(folder)
        if real in seen:
            raise InputError("is named twice", file=folder)
        seen.add(real)
        run = RunFolder.read(folder)
        by_job.setdefault(run.job, []).append(run)
    return [Job(number, runs) for number, runs in enumerate(by_job.values(), start=1)]


def sheets_of(jobs: Sequence[Job]) -> list[Sheet]:
    """What results of a kind say of each problem."""
    return [sheet for kind in KINDS for sheet in _sheets(kind, jobs)]


def _sheets(kind: Kind, jobs: Sequence[Job]) -> list[Sheet]:
    entries: dict[tuple[str, str], list[Entry]] = {}
    for job in jobs:
        rows: dict[tuple[str, ...], list[Values]] = {}
        for run in job.runs:
            for told, values in kind.rows(run.result):
                rows.setdefault(tuple(map(str, told)), []).append(values)
        given = job.first.hash_of(kind.problem)
        for (problem, *names), of_runs in rows.items():
            found = {measure.key: measure.of(of_runs) for measure in kind.measures}
            own = Entry(names, job, len(of_runs), found)
            entries.setdefault((problem, given), []).append(own)
    first = kind.measures[0]

    def rank(entry: Entry) -> float:
        mean = entry.found[first.key].mean
        return math.inf if math.isnan(mean) else -mean if first.more else mean

    problems = Counter(problem for problem, _ in entries)
    sheets = []
    for (problem, _), rows_of in entries.items():
        alike = problems[problem] > 1  # the same by name, another by its config
        name = f"{problem}, as in run {rows_of[0].job.number}" if alike else problem
        sheets.append(Sheet(kind, name, sorted(rows_of, key=rank)))
    return sheets
