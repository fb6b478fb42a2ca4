"""Run a suite of planners on many problems: one table, and the anytime curves.

python -m experiments.benchmark suite=placement_quick
python -m experiments.benchmark suite=search_ratio
python -m experiments.benchmark resume=<run folder>     # goes on where a run was killed
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from envs.errors import InputError
from experiments.plan import PlanConfig
from experiments.run.app import Result, Run, run_app
from experiments.run.artifacts import to_json, write_figure, write_json, write_text
from experiments.run.display import ProgressDisplay
from experiments.run.overrides import CONFIG_FILE, check_command_line
from experiments.run.provenance import Provenance, stamp
from experiments.run.saved_run import saved_config
from experiments.run.targets import build, no_such_thing
from experiments.step.suites.cell import DATA_VARIABLE, SUITE_KEY, Cell
from experiments.step.suites.report import Report, Suite
from experiments.step.suites.runner import CellRunner

CELL_FOLDER, TABLE_FILE, NUMBERS_FILE = "cells", "table.md", "table.json"
MINUTE = 60.0  # seconds
WIDTH = 132  # characters of a table where there is no terminal
OWN = ("budget_s=", "seed=", "json=", "hydra.")  # keys of a cell that the benchmark sets itself
CHANGEABLE = ("json=", "resume=", "workers=", "hydra.")  # by a run that goes on


@dataclass
class BenchmarkConfig:
    """`conf/benchmark.yaml`; the suite is an object by `_target_`."""

    suite: Any
    workers: int
    resume: str | None
    seed: int
    json: bool

    def __post_init__(self) -> None:
        if self.workers < 1:
            raise InputError(f"config key 'workers': {self.workers} is below 1")
        if self.resume is not None and not (Path(self.resume) / CONFIG_FILE).is_file():
            raise InputError(f"is no run folder: it has no {CONFIG_FILE}", file=self.resume)


def benchmark(config: BenchmarkConfig, run: Run) -> Result:
    """Run what is not yet done of the suite's cells, then write its tables and pictures."""
    start = time.perf_counter()
    if config.resume is not None:
        config = _resumed(config, run)
    origin = replace(run.provenance, seed=config.seed)
    suite = build(config.suite)
    if not isinstance(suite, Suite):
        raise no_such_thing("suite", config.suite, "suite of benchmarks")
    cells = suite.cells()
    _check(cells)
    if suite.left_out:
        run.console.print(
            f"left out, for {DATA_VARIABLE} is not set: {', '.join(suite.left_out)}",
            highlight=False,
            soft_wrap=True,
        )
    minutes = sum(cell.budget_s for cell in cells) / config.workers / MINUTE
    run.console.print(
        f"{suite.title}: {len(cells)} cells, at most {minutes:.0f} minutes of search",
        highlight=False,
    )
    runner = CellRunner(run.folder / CELL_FOLDER, config.seed, config.workers, origin)
    with ProgressDisplay(run.console) as display:
        outcomes = runner.run(cells, display)
    provenance = origin.with_inputs(**runner.inputs(cells))
    report = suite.report(outcomes)
    _write(run, suite, report, provenance)
    if not run.console.is_terminal:
        run.console.width = WIDTH
    for sheet in report.sheets:
        if sheet.on_console:
            run.console.print(sheet.rich())
    values: dict[str, object] = {
        "title": suite.title,
        "cells": len(cells),
        "left_out": suite.left_out,
        "table": str(run.folder / TABLE_FILE),
        "figures": [str(run.folder / name) for name in report.figures],
        "seconds": time.perf_counter() - start,
        **report.headline,
        "report": dict(report.numbers),
    }
    return Result(values, provenance, shown=("table", "seconds", *report.headline))


def _resumed(config: BenchmarkConfig, run: Run) -> BenchmarkConfig:
    """The config of the run that goes on, with what the command line may change of it."""
    for override in run.overrides:
        if not override.startswith(CHANGEABLE):
            key = override.partition("=")[0]
            raise InputError(f"config key '{key}': a resumed run keeps it")
    changes = [override for override in run.overrides if override.startswith("workers=")]
    saved = saved_config(run.folder, BenchmarkConfig, changes)
    return replace(saved, json=config.json, resume=config.resume)


def _check(cells: Sequence[Cell]) -> None:
    """Compose every case and every agent once, so that a fault is told before anything runs.

    Raises:
        InputError: there are no cells, two of them have one name, or one is no command of
            experiments.plan or sets what the benchmark sets.
    """
    if not cells:
        raise InputError("has no cells to run", file=SUITE_KEY)
    folders = [cell.folder for cell in cells]
    for cell, folder in zip(cells, folders, strict=True):
        if folders.count(folder) > 1:
            raise InputError("stands twice", file=SUITE_KEY, record=cell.name)
    parts = {cell.case.overrides: cell.case.name for cell in cells}
    parts |= {cell.agent_overrides: cell.agent for cell in cells}
    for overrides, name in parts.items():
        for override in overrides:
            if override.lstrip("+~").startswith(OWN):
                fault = f"{override!r} is not for a suite: the benchmark sets it itself"
                raise InputError(fault, file=SUITE_KEY, record=name)
        try:
            check_command_line(overrides, "plan", PlanConfig)
        except InputError as error:
            raise InputError(str(error), file=SUITE_KEY, record=name) from error


def _write(run: Run, suite: Suite, report: Report, provenance: Provenance) -> None:
    """Tables as Markdown and as JSON, and the pictures."""
    header = f"<!-- {to_json(stamp({}, provenance, kind='table'))}-->\n\n"
    left_out = f"Left out: {', '.join(suite.left_out)}.\n\n" if suite.left_out else ""
    sections = "\n".join(sheet.markdown() for sheet in report.sheets)
    write_text(run.folder / TABLE_FILE, f"{header}# {suite.title}\n\n{left_out}{sections}")
    document = {"title": suite.title, "left_out": suite.left_out, **report.numbers}
    write_json(run.folder / NUMBERS_FILE, stamp(document, provenance, kind="benchmark"))
    for name, figure in report.figures.items():
        write_figure(run.folder / name, figure, provenance)


if __name__ == "__main__":
    sys.exit(run_app("benchmark", BenchmarkConfig, benchmark))
