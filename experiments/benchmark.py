"""Run a suite: a grid of runs that is taken up again where it was killed, and one report of them.

python -m experiments.benchmark suite=placement_quick   # planners on many problems
python -m experiments.benchmark suite=seeds +suite.job.budget_s=30 # the main job, several seeds
python -m experiments.benchmark suite=study             # learned cluster schedulers, from nothing
python -m experiments.benchmark resume=<run folder>     # goes on where a run was killed
"""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from envs.bounds import Count
from envs.errors import InputError
from experiments.run.app import Result, Run, run_app
from experiments.run.artifacts import write_figure
from experiments.run.display import ProgressDisplay
from experiments.run.grid import Grid
from experiments.run.overrides import CONFIG_FILE
from experiments.run.saved_run import resumed_config
from experiments.run.suite import Suite, checked_cells
from experiments.run.tables import TABLE_FILE, write_tables
from experiments.run.targets import build, no_such_thing

CELL_FOLDER = "cells"


@dataclass
class BenchmarkConfig:
    """`conf/benchmark.yaml`; the suite is an object by `_target_`."""

    suite: Any
    workers: Count
    resume: str | None
    seed: int
    json: bool

    def __post_init__(self) -> None:
        if self.resume is not None and not (Path(self.resume) / CONFIG_FILE).is_file():
            raise InputError(f"is no run folder: it has no {CONFIG_FILE}", file=self.resume)


def benchmark(config: BenchmarkConfig, run: Run) -> Result:
    """Run what is not yet done of the suite's cells, then write its tables and pictures.

    Raises:
        SystemExit: cells have failed that may not; the run can be resumed.
    """
    start = time.perf_counter()
    if config.resume is not None:
        config = resumed_config(run.folder, config, run.overrides, "workers=")
    origin = replace(run.provenance, seed=config.seed)
    suite = build(config.suite, "suite")
    if not isinstance(suite, Suite):
        raise no_such_thing("suite", config.suite, "suite of benchmarks")
    folder = run.folder.resolve() / CELL_FOLDER
    cells = checked_cells(suite, folder, config.seed)
    left_out = f"Left out without MESHWRIGHT_DATA: {', '.join(suite.left_out)}."
    if suite.left_out:
        run.console.print(left_out, highlight=False, soft_wrap=True)
    minutes = sum(cell.budget_s or 0.0 for cell in cells) / config.workers / 60.0
    limit = f", at most {minutes:.0f} minutes of search" if minutes else ""
    run.console.print(f"{suite.title}: {len(cells)} cells{limit}", highlight=False)
    with ProgressDisplay(run.console) as display:
        found = Grid(config.workers, origin).run(cells, display)
    if found.faults:
        print(f"error: {found.faults_line()}; resume={run.folder} goes on with it", file=sys.stderr)
        raise SystemExit(next(iter(found.faults.values())).exit_code)
    provenance = origin.with_inputs(**found.hashes(folder))
    report = suite.summary({cell: found.documents[cell] for cell in cells})
    caption = "\n\n".join(filter(None, (left_out if suite.left_out else "", report.caption)))
    numbers = {"left_out": suite.left_out, **report.numbers}
    write_tables(run, suite.title, report.tables, provenance, caption=caption, numbers=numbers)
    for name, figure in report.figures.items():
        write_figure(run.folder / name, figure, provenance)
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


if __name__ == "__main__":
    sys.exit(run_app("benchmark", BenchmarkConfig, benchmark))
