"""Runs gathered in a page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from experiments.reporting.report import Report
from experiments.run.artifacts import write_text
from experiments.run.one_run import RESULT_FILE, Result, Run
from experiments.run.provenance import file_hash, stamp
from experiments.study.tables import write_markdown

PAGE, MARKDOWN, LATEX = "report.html", "report.md", "report.tex"


@dataclass(kw_only=True)
class ReportConfig:
    """`conf/report.yaml`."""

    runs: Sequence[str]  # run folders of any apps; seeds of one config are taken together
    title: str = "Runs"  # of the page
    seed: int
    json: bool


def report(config: ReportConfig, run: Run) -> Result:
    """Read the runs, then write the three forms."""
    made = Report.of(config.runs, config.title)
    hashes = {found.name: file_hash(found.path / RESULT_FILE) for found in made.runs}
    provenance = run.provenance.with_inputs(**hashes)
    page = made.page(provenance.created)
    mark = stamp({"title": config.title}, provenance, kind="report")
    write_text(run.folder / PAGE, page.html(mark))
    write_markdown(run, config.title, made.markdown(), provenance, MARKDOWN)
    write_text(run.folder / LATEX, made.latex(mark))
    return Result(
        {
            "runs": len(made.runs),
            "configs": len(made.jobs),
            "tables": page.tables,
            "figures": page.figures,
            "page": str(run.folder / PAGE),
            "markdown": str(run.folder / MARKDOWN),
            "latex": str(run.folder / LATEX),
        },
        provenance,
    )
