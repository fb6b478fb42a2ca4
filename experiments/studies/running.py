"""What `experiments.study` does: all cells, then the three tables and what is read from them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import polars as pl

from envs.bounds import Count
from envs.errors import InputError
from experiments.pictures.style import draw_rows
from experiments.reporting.tables import write_tables
from experiments.run.artifacts import write_text
from experiments.run.display import ProgressDisplay
from experiments.run.one_run import Result, Run
from experiments.run.provenance import text_hash
from experiments.run.saved_run import resumed_config
from experiments.studies.cells import check, record_of, run_cells
from experiments.studies.comparison import (
    Comparison,
    Entry,
    solvers_first,
)
from experiments.studies.frames import FAILED_STATUS, Frames
from experiments.studies.reading import MOST_DRAWN, WIDEST, page_of, tables_of
from experiments.studies.study import Study

CELLS_FOLDER, LATEX_FILE, CSV_FILE, PAGE_FILE = "cells", "table.tex", "table.csv", "study.html"
PICTURE_FILE = "study.png"


@dataclass(kw_only=True)
class StudyConfig:
    """`conf/study.yaml`."""

    study: Study
    words: list[str] = field(default_factory=list)  # of every cell's command line: any key=value
    workers: Count = 1  # cells at a time, in processes of this machine; they disturb each other
    cells: str | None = None  # folder of cells, which several studies may share; null: of the run
    resume: str | None = None  # the run folder of a study to go on with
    seed: int
    json: bool


def run_study(config: StudyConfig, run: Run) -> Result:
    """Run what is not yet done of a study's cells, then write its tables."""
    where = [
        x for x in run.overrides if x.startswith(("workers=", "hydra/launcher", "hydra.launcher"))
    ]
    if config.resume is not None:
        rest = [word for word in run.overrides if word not in where]
        config = replace(resumed_config(run.folder, config, rest, "study."), workers=config.workers)
    study = config.study
    left_out = study.left_out()
    if left_out:
        run.console.say(f"Left out without MESHWRIGHT_DATA: {', '.join(left_out)}.")
    folder = Path(config.cells or run.folder / CELLS_FOLDER).absolute()
    cells = study.cells(config.seed, config.words)
    check(cells, folder)
    run.console.say(f"{study.title}: {len(cells)} cells")
    launcher = [word for word in where if word.startswith("hydra")]
    if config.workers > 1 and not launcher:
        launcher = ["hydra/launcher=joblib", f"hydra.launcher.n_jobs={config.workers}"]
    with ProgressDisplay(run.console) as display:
        lost = run_cells(cells, folder, display, launcher)
    records = ((cell, record_of(cell, folder) or {}, folder / cell.key) for cell in cells)
    frames = Frames.of(study.title, records)
    if (frames.cells["status"] == FAILED_STATUS).all():
        raise InputError(f"no cell has a result: {frames.cells['reason'][0]}")
    frames.write(run.folder)
    hashes = {"cells": text_hash("".join(cell.key for cell in cells))}
    provenance = run.provenance.with_inputs(**hashes)
    found = Comparison(study, frames, study.metrics[0])
    tables = tables_of(found)
    figures = {PICTURE_FILE: picture} if (picture := _picture(found)) else {}
    numbers = {
        "solvers": [*found.summaries.values()],
        "by_problem": found.by_problem_document(),
        "values": values_of(found),
    }
    table_file = write_tables(
        run, study.title, tables, provenance, caption=study.note, numbers=numbers, figures=figures
    )
    write_text(run.folder / LATEX_FILE, "\n".join(table.latex() for table in tables))
    write_text(run.folder / CSV_FILE, _long(found).write_csv())
    write_text(run.folder / PAGE_FILE, page_of(found, tables).html(provenance.document()))
    return Result(
        {
            "title": study.title,
            "cells": len(cells),
            "failed": int((frames.cells["status"] == FAILED_STATUS).sum()),
            "left_out": left_out,
            "best_overall": found.name(found.overall()),
            "best": found.name(found.leader()),
            "table": table_file,
            "page": str(run.folder / PAGE_FILE),
            "seconds": run.seconds,
            "lost_workers": lost,
            **numbers,
        },
        provenance,
        shown=("table", "page", "best", "seconds"),
    )


def values_of(found: Comparison) -> dict[str, Any]:
    """problem -> solver -> metric -> value, or one for each seed; a level more with instances."""
    several, values = len(found.seeds) > 1, dict[str, Any]()
    for row in _long(found).iter_rows(named=True):
        name = found.name(Entry(row["solver"], row["variant"], row["budget"]))
        place = values.setdefault(row["problem"], {}).setdefault(name, {})
        if row["instance"]:
            place = place.setdefault(row["instance"], {})
        if several:
            place.setdefault(row["metric"], []).append(row["value"])
        else:
            place[row["metric"]] = row["value"]
    return values


def _long(found: Comparison) -> pl.DataFrame:
    """A row for each value with all that is known of its cell."""
    wanted = pl.col("metric").is_in(found.study.metrics)
    return found.frames.values.filter(wanted).join(found.frames.cells.drop("provenance"), "cell")


def _picture(found: Comparison) -> Any:
    """Ratios of all problems by solver; None: there are too many to show."""
    shown = solvers_first(found.shown)[:WIDEST]
    if not 0 < len(found.items) <= MOST_DRAWN:
        return None
    series: Mapping[str, Any] = {found.name(entry): found.mean_ratios(entry) for entry in shown}
    names = [item.name for item in found.items]
    return draw_rows(names, series, f"{found.metric} over the yardstick", found.study.title)
