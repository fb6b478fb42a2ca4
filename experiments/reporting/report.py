"""The report of several runs: one model of tables, written as HTML, Markdown and LaTeX."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass, replace
from itertools import count, groupby
from pathlib import Path

from experiments.reporting.figures import anytime, gantt, learning_curve, ranking
from experiments.reporting.page import Page
from experiments.reporting.run_folder import RunFolder
from experiments.reporting.sheets import Job, Sheet, jobs_of, sheets_of
from experiments.study.tables import Table, latex_text


@dataclass(frozen=True)
class Report:
    """What is written; tables are the same in all three forms."""

    title: str
    jobs: Sequence[Job]
    sheets: Sequence[Sheet]

    @classmethod
    def of(cls, folders: Sequence[str | Path], title: str = "Runs") -> Report:
        """Of the runs in these folders.

        Raises:
            InputError: a folder holds no finished run, or is named twice.
        """
        jobs = jobs_of(folders)
        return cls(title, jobs, sheets_of(jobs))

    @property
    def runs(self) -> list[RunFolder]:
        return [run for job in self.jobs for run in job.runs]

    def page(self, created: str) -> Page:
        """The HTML file of a day."""
        runs, jobs = len(self.runs), len(self.jobs)
        about = (
            f"{runs} {'run' if runs == 1 else 'runs'} of {jobs} "
            f"{'config' if jobs == 1 else 'configs'}, {created[:10]}. Every number is a "
            "link to the command and the config that made it; intervals are 95 %."
        )
        page = Page(self.title, about)
        numbers = count(1)
        for kind, sheets in groupby(self.sheets, lambda sheet: sheet.kind):
            page.heading(kind.title, kind.key)
            for sheet in sheets:
                page.heading(sheet.problem, f"table-{next(numbers)}", level=3)
                page.figure(ranking(sheet))
                page.table(sheet.table, [entry.job.anchor for entry in sheet.entries])
            page.text(kind.note)
        page.heading("Runs", "runs")
        for job in self.jobs:
            with page.run(job.anchor, job.title):
                self._job(page, job)
        return page

    def markdown(self) -> list[str]:
        """The parts of the Markdown file."""
        runs = "\n".join(
            f"- [{job.number}] `{run.command}` (seed {run.seed}, commit "
            f"{run.origin.get('git_commit')})"
            for job in self.jobs
            for run in job.runs
        )
        return [*(table.markdown() for table in self._all_tables()), f"## Runs\n\n{runs}"]

    def latex(self, mark: Mapping[str, object]) -> str:
        """Tables for a document that uses the package booktabs, and where they are from."""
        runs = [
            rf"\item[{{[{job.number}]}}] \texttt{{{latex_text(job.first.command)}}}"
            for job in self.jobs
        ]
        parts = [
            f"% {json.dumps(mark)}",
            "% \\usepackage{booktabs}",
            *(table.latex() for table in self._all_tables()),
            "\\begin{description}",
            *runs,
            "\\end{description}",
        ]
        return "\n".join(parts) + "\n"

    def _all_tables(self) -> Iterator[Table]:
        yield from (sheet.table for sheet in self.sheets)
        for job in self.jobs:
            yield from self._scalars(job)
            for run in job.runs:
                yield from self._own_tables(job, run)

    def _scalars(self, job: Job) -> list[Table]:
        """The figures of a job that stands in no sheet."""
        compared = any(entry.job is job for sheet in self.sheets for entry in sheet.entries)
        return [] if compared else job.scalars()

    def _own_tables(self, job: Job, run: RunFolder) -> list[Table]:
        """What a run has printed itself, but for the rows that stand in a table of all runs."""
        seed = f", seed {run.seed}" if len(job.runs) > 1 else ""
        mine = {sum(entry.job is job for entry in sheet.entries) for sheet in self.sheets} - {0, 1}
        return [
            replace(table, title=f"{table.title} (run [{job.number}]{seed})")
            for table in run.tables
            if len(table.rows) not in mine
        ]

    def _job(self, page: Page, job: Job) -> None:
        """Commands, config and versions of one job, and all that its runs left."""
        first, several = job.first, len(job.runs) > 1
        origin, packages = first.origin, first.environment.get("packages")
        page.text(
            f"meshwright {origin.get('package_version', 'unknown')}, commit "
            f"{origin.get('git_commit', 'unknown')}, Python "
            f"{first.environment.get('python', 'unknown')}"
        )
        for run in job.runs:
            page.command(f"seed {run.seed}, {run.origin.get('created')}, {run.path}", run.command)
        page.long_text("config", first.config or "no config was stored")
        if isinstance(packages, Mapping):
            page.long_text("package versions", _lines(packages, " "))
        page.long_text("inputs (SHA-256)", _lines(origin.get("inputs_sha256"), ": ") or "none")
        for table in self._scalars(job):
            page.table(table, [job.anchor] * len(table.rows))
        for figure in (learning_curve(job), anytime(job), *map(gantt, job.runs)):
            page.figure(figure)
        for run in job.runs:
            tables = self._own_tables(job, run)
            with page.folded(f"tables of seed {run.seed}") if several and tables else nullcontext():
                for table in tables:
                    page.text(table.title)
                    page.table(table, [job.anchor] * len(table.rows))
                    page.text(table.note)
        if (first.path / "plan.json").is_file() and not first.timeline:
            page.text(
                "A timeline of its plan: python -m experiments.plot "
                f"plan={first.path / 'plan.json'} with this run's graph= and topology=, and that "
                "run's folder in the report."
            )
        for run in job.runs:
            redrawn = {"learning_curve.png": run.metrics, "gantt.png": run.timeline}
            shown = {name: data for name, data in run.pictures().items() if not redrawn.get(name)}
            page.pictures(f"pictures of seed {run.seed}", shown)


def _lines(named: object, between: str) -> str:
    """Names and what they stand for, a line each."""
    items = named.items() if isinstance(named, Mapping) else ()
    return "\n".join(f"{name}{between}{value}" for name, value in items)
