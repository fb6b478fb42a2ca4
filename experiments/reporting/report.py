"""The report of several runs: one model of tables, written as HTML, Markdown and LaTeX."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from itertools import count, groupby

from experiments.reporting.figures import Figure, anytime, gantt, learning_curves, ranking
from experiments.reporting.page import Page
from experiments.reporting.run_folder import RunFolder
from experiments.reporting.sheets import Job, Reported
from experiments.run.provenance import Provenance, stamp
from experiments.study.tables import Table, latex_text

MOST_PICTURES = 40_000_000  # bytes of PNGs in one report


@dataclass
class Report:
    """What is written; tables are the same in all three forms."""

    reported: Reported
    title: str
    figures: int = field(default=0, init=False)
    tables: int = field(default=0, init=False)
    pictures_left: int = field(default=MOST_PICTURES, init=False)

    def html(self, provenance: Provenance) -> str:
        runs, jobs = len(self.reported.runs), len(self.reported.jobs)
        about = (
            f"{runs} {'run' if runs == 1 else 'runs'} of {jobs} "
            f"{'config' if jobs == 1 else 'configs'}, {provenance.created[:10]}. Every number is a "
            "link to the command and the config that made it; intervals are 95 %."
        )
        page = Page(self.title, about)
        numbers = count(1)
        for kind, sheets in groupby(self.reported.sheets, lambda sheet: sheet.kind):
            page.heading(kind.title, kind.key)
            for sheet in sheets:
                page.heading(sheet.problem, f"table-{next(numbers)}", level=3)
                self._figure(page, ranking(sheet))
                self._table(page, sheet.table, [entry.job.anchor for entry in sheet.entries])
            page.text(kind.note)
        page.heading("Runs", "runs")
        for job in self.reported.jobs:
            self._job(page, job)
        return page.html(stamp({"title": self.title}, provenance, kind="report"))

    def markdown(self) -> list[str]:
        """The parts of the Markdown file."""
        runs = "\n".join(
            f"- [{job.number}] `{run.command}` (seed {run.origin.get('seed')}, commit "
            f"{run.origin.get('git_commit')})"
            for job in self.reported.jobs
            for run in job.runs
        )
        return [*(table.markdown() for table in self._all_tables()), f"## Runs\n\n{runs}"]

    def latex(self, provenance: Provenance) -> str:
        """Tables for a document that uses the package booktabs."""
        mark = json.dumps(stamp({"title": self.title}, provenance, kind="report"))
        runs = [
            rf"\item[{{[{job.number}]}}] \texttt{{{latex_text(job.first.command)}}}"
            for job in self.reported.jobs
        ]
        parts = [
            f"% {mark}",
            "% \\usepackage{booktabs}",
            *(table.latex() for table in self._all_tables()),
            "\\begin{description}",
            *runs,
            "\\end{description}",
        ]
        return "\n".join(parts) + "\n"

    def _all_tables(self) -> Iterator[Table]:
        yield from (sheet.table for sheet in self.reported.sheets)
        for job in self.reported.jobs:
            if job not in self.reported.compared:
                yield from job.scalars()
            for run in job.runs:
                yield from self._own_tables(job, run)

    def _job(self, page: Page, job: Job) -> None:
        """Commands, config and versions of one job, and all that its runs left."""
        page.run(job.anchor, job.title)
        first = job.first
        origin = first.origin
        page.text(
            f"meshwright {origin.get('package_version', 'unknown')}, commit "
            f"{origin.get('git_commit', 'unknown')}, Python "
            f"{first.environment.get('python', 'unknown')}"
        )
        for run in job.runs:
            label = f"seed {run.origin.get('seed')}, {run.origin.get('created')}, {run.path}"
            page.command(label, run.command)
        page.folded("config", first.config or "no config was stored")
        packages = first.environment.get("packages")
        if isinstance(packages, Mapping):
            page.folded("package versions", "\n".join(f"{k} {v}" for k, v in packages.items()))
        page.folded("inputs (SHA-256)", _inputs(first) or "none")
        if job not in self.reported.compared:
            for table in job.scalars():
                self._table(page, table, [job.anchor] * len(table.rows))
        for figure in (*learning_curves(job), anytime(job)):
            self._figure(page, figure)
        for run in job.runs:
            self._figure(page, gantt(run))
        for run in job.runs:
            tables = list(self._own_tables(job, run))
            if tables and len(job.runs) > 1:
                page.fold(f"tables of seed {run.origin.get('seed')}")
            for table in tables:
                page.text(table.title)
                self._table(page, table, [job.anchor] * len(table.rows))
                page.text(table.note)
            if tables and len(job.runs) > 1:
                page.end_fold()
        if (first.path / "plan.json").is_file() and not first.timeline:
            page.text(
                "A timeline of its plan: python -m experiments.plot "
                f"plan={first.path / 'plan.json'} with this run's graph= and topology=, and that "
                "run's folder in the report."
            )
        self._pictures(page, job)
        page.end_run()

    def _own_tables(self, job: Job, run: RunFolder) -> Iterator[Table]:
        """What a run has printed itself, but for the rows that stand in a table of all runs."""
        seed = f", seed {run.origin.get('seed')}" if len(job.runs) > 1 else ""
        mine = [[x for x in sheet.entries if x.job is job] for sheet in self.reported.sheets]
        for table in run.tables:
            if not any(len(entries) == len(table.rows) > 1 for entries in mine):
                yield replace(table, title=f"{table.title} (run [{job.number}]{seed})")

    def _pictures(self, page: Page, job: Job) -> None:
        """Those for which there is no interactive figure, as long as there is room."""
        for run in job.runs:
            redrawn = {
                "learning_curve.png": bool(run.metrics),
                "gantt.png": bool(run.timeline),
            }
            shown: dict[str, bytes] = {}
            left_out = 0
            for name, data in run.pictures().items():
                if redrawn.get(name):
                    continue
                if len(data) > self.pictures_left:
                    left_out += 1
                    continue
                self.pictures_left -= len(data)
                shown[name] = data
            if shown:
                page.pictures(f"pictures of seed {run.origin.get('seed')}", shown)
            if left_out:
                page.text(f"{left_out} pictures of {run.name} are left out: the report is full.")

    def _figure(self, page: Page, figure: Figure | None) -> None:
        if figure is not None:
            page.figure(figure)
            self.figures += 1

    def _table(self, page: Page, table: Table, anchors: list[str]) -> None:
        page.table(table, anchors)
        self.tables += 1


def _inputs(run: RunFolder) -> str:
    inputs = run.origin.get("inputs_sha256")
    named = inputs.items() if isinstance(inputs, Mapping) else ()
    return "\n".join(f"{name}: {digest}" for name, digest in named)
