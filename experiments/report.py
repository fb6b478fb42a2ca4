"""One page of several runs: tables with intervals and bounds, figures, and what made each number.

python -m experiments.report <run folder> <run folder>
python -m experiments.report runs=[<run folder>,<run folder>] title='Two planners'

The run folder receives report.html, which needs no network, and the same tables as report.md and
report.tex. Runs of one config are taken together, whatever their seeds.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

from experiments.reporting.report import Report
from experiments.reporting.sheets import Reported
from experiments.run.app import main_of
from experiments.run.artifacts import write_text
from experiments.run.declared import CONFIG_DIR, command_words
from experiments.run.one_run import RESULT_FILE, Result, Run
from experiments.run.provenance import file_hash
from experiments.run.tables import write_markdown

PAGE, MARKDOWN, LATEX = "report.html", "report.md", "report.tex"


@dataclass
class ReportConfig:
    """`conf/report.yaml`."""

    runs: list[str]
    title: str
    seed: int
    json: bool


def report(config: ReportConfig, run: Run) -> Result:
    """Read the runs, then write the three forms."""
    reported = Reported.of(config.runs)
    hashes = {found.name: file_hash(found.path / RESULT_FILE) for found in reported.runs}
    provenance = run.provenance.with_inputs(**hashes)
    made = Report(reported, config.title)
    write_text(run.folder / PAGE, made.html(provenance))
    write_markdown(run, config.title, made.markdown(), provenance, MARKDOWN)
    write_text(run.folder / LATEX, made.latex(provenance))
    values: dict[str, object] = {
        "runs": len(reported.runs),
        "configs": len(reported.jobs),
        "tables": made.tables,
        "figures": made.figures,
        "page": str(run.folder / PAGE),
        "markdown": str(run.folder / MARKDOWN),
        "latex": str(run.folder / LATEX),
    }
    return Result(values, provenance)


def with_folders(arguments: list[str]) -> list[str]:
    """The command line; words that are neither keys nor options are the run folders."""
    words, flags, configs = command_words(arguments)
    folders = [x for x in words if "=" not in x or Path(x).is_dir()]
    others = [x for x in words if x not in folders]
    others += [*flags, *(f"{CONFIG_DIR[0]}={folder}" for folder in configs)]
    quoted = ",".join("'" + folder.replace("'", r"\'") + "'" for folder in folders)
    return [f"runs=[{quoted}]", *others] if folders else others


def main(arguments: list[str] | None = None) -> int:
    """The app; run folders may stand by themselves."""
    words = with_folders(sys.argv[1:] if arguments is None else arguments)
    if arguments is None:
        sys.argv[1:] = words  # nothing comes after this run
    run_report = main_of("report", ReportConfig, report)
    return run_report(None if arguments is None else words)


if __name__ == "__main__":
    sys.exit(main())
