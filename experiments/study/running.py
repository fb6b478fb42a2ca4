"""What `experiments.study` does: all cells, then the three tables and what is read from them."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from envs.bounds import Count
from envs.errors import InputError
from experiments.pictures.style import draw_rows
from experiments.reporting.page import Page
from experiments.run.artifacts import write_text
from experiments.run.one_run import Result, Run
from experiments.run.provenance import text_hash
from experiments.run.saved_run import resumed_config
from experiments.study.cells import check, run_cells
from experiments.study.comparison import (
    KNOWN,
    Comparison,
    Entry,
    solvers_first,
)
from experiments.study.display import ProgressDisplay
from experiments.study.frames import FAILED_STATUS, INFEASIBLE, Frames
from experiments.study.statistics import Interval
from experiments.study.study import BEST_OVERALL, BEST_PER_PROBLEM, Study
from experiments.study.tables import TABLE_FILE, Columns, Table, write_tables

CELLS_FOLDER, LATEX_FILE, CSV_FILE, PAGE_FILE = "cells", "table.tex", "table.csv", "study.html"
PICTURE_FILE, MOST_DRAWN = "study.png", 40
WIDEST = 9  # entries beside each other in a table


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
    start = time.perf_counter()
    where = [
        x for x in run.overrides if x.startswith(("workers=", "hydra/launcher", "hydra.launcher"))
    ]
    if config.resume is not None:
        rest = [word for word in run.overrides if word not in where]
        config = resumed_config(run.folder, config, rest, "study.")
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
    frames = Frames.of(study.title, cells, folder)
    if (frames.cells["status"] == FAILED_STATUS).all():
        raise InputError(f"no cell has a result: {frames.cells['reason'][0]}")
    frames.write(run.folder)
    hashes = {"cells": text_hash("".join(cell.key for cell in cells))}
    provenance = run.provenance.with_inputs(**hashes)
    found = Comparison(study, frames, study.metrics[0])
    tables = tables_of(found)
    figures = {PICTURE_FILE: picture} if (picture := _picture(found)) else {}
    summaries = [found.summary(entry) for entry in found.shown]
    numbers = {"solvers": summaries, "values": values_of(found)}
    write_tables(
        run, study.title, tables, provenance, caption=study.note, numbers=numbers, figures=figures
    )
    write_text(run.folder / LATEX_FILE, "\n".join(table.latex() for table in tables))
    write_text(run.folder / CSV_FILE, _long(found).write_csv())
    write_text(run.folder / PAGE_FILE, _page(study, tables, found).html(provenance.document()))
    return Result(
        {
            "title": study.title,
            "cells": len(cells),
            "failed": int((frames.cells["status"] == FAILED_STATUS).sum()),
            "left_out": left_out,
            "best_overall": found.name(found.overall()),
            "table": str(run.folder / TABLE_FILE),
            "seconds": time.perf_counter() - start,
            "lost_workers": lost,
            **numbers,
        },
        provenance,
        shown=("table", "best_overall", "seconds"),
    )


def values_of(found: Comparison) -> dict[str, Any]:
    """problem -> solver -> metric -> value, or one for each seed; a level more with instances."""
    several, frames = len(found.seeds) > 1, found.frames
    values: dict[str, Any] = {}
    wanted = frames.values.filter(pl.col("metric").is_in(found.study.metrics)).join(
        frames.cells, "cell"
    )
    for row in wanted.iter_rows(named=True):
        name = found.name(Entry(row["solver"], row["variant"], row["budget"]))
        place = values.setdefault(row["problem"], {}).setdefault(name, {})
        if row["instance"]:
            place = place.setdefault(row["instance"], {})
        if several:
            place.setdefault(row["metric"], []).append(row["value"])
        else:
            place[row["metric"]] = row["value"]
    return values


SUMMARY: Columns = {
    "solver": "{solver}",
    "problems": "{items}",
    "without": "{missing}",
    "best on": "{best_on}",
    "ratio: median": lambda row: _number(row["median"]),
    "mean": lambda row: "" if row["mean"] is None
    else Interval(row["mean"], row["low"], row["high"]).text(),
    "worst": lambda row: _number(row["worst"]),
    "in its time": lambda row: _number(row["in_its_time"]),
    "seconds": lambda row: _number(row["seconds"]),
}  # fmt: skip
SUMMARY_NOTE = (
    "Ratio: {metric} over that of {against}, mean with its 95 % bootstrap interval over problems "
    "and seeds. Without: problems on which there is no value. In its time: median ratio to the "
    "best of the others that was given no more time."
)


def tables_of(found: Comparison) -> list[Table]:
    """A row for each solver; ratios by problem; values; times; what has no result and why."""
    study, shown = found.study, solvers_first(found.shown)
    rows = [found.summary(entry) for entry in shown]
    columns = dict(SUMMARY)
    if all(row["in_its_time"] is None for row in rows):
        del columns["in its time"]
    against = {BEST_PER_PROBLEM: "the best on each", BEST_OVERALL: found.name(found.overall())}
    name = study.against[0]
    note = SUMMARY_NOTE.format(metric=study.metrics[0], against=against.get(name, name))
    tables = [Table.of("Solvers", columns, rows, note)]
    if len(study.against) > 1 or len(study.metrics) > 1:
        tables.append(_yardsticks(found))
    several = len(found.problems) < len(found.items)
    if several and len(found.problems) > 1:
        tables.append(_by_problem(found))
    tables.append(_values_table(found))
    for within in study.within:
        if name in {entry.solver for entry in found.entries}:
            times = [found.time_ratios(entry, within) for entry in shown if entry.solver != name]
            title = f"Search time over that of {name}, to within {within:.1%} of its value"
            tables.append(Table.of(title, TIMES, times, TIMES_NOTE))
    without = found.frames.cells.filter(pl.col("status").is_in([FAILED_STATUS, INFEASIBLE]))
    if len(without):
        why = without.select("problem", "solver", "reason").unique(maintain_order=True)
        tables.append(
            Table("Without a result", ("problem", "solver", "why"), list(why.iter_rows()))
        )
    return tables


TIMES: Columns = {
    "solver": "{solver}",
    "problems": "{items}",
    "never reached": "{censored}",
    "median": lambda row: (
        f"{row['median']:.3g} [{row['low']:.3g}, {row['high']:.3g}]" if "median" in row else ""
    ),
}
TIMES_NOTE = "Never reached: the seconds of the whole search count, the ratio is larger."


def _yardsticks(found: Comparison) -> Table:
    """Every metric over that of every yardstick."""
    study, shown = found.study, solvers_first(found.shown)
    columns, rows = ["solver"], [[found.name(entry)] for entry in shown]
    for metric in study.metrics:
        for name in study.against:
            columns.append(f"{metric} over {name.replace('_', ' ')}")
            for row, entry in zip(rows, shown, strict=True):
                interval = found.interval(found.ratios(entry, name, metric))
                row.append(interval.text() if interval else "")
    return Table("Every figure over every yardstick", columns, rows)


def _by_problem(found: Comparison) -> Table:
    """Mean ratios over the instances of each problem."""
    shown = solvers_first(found.shown)
    rows = []
    for problem, places in found.problems.items():
        cells = []
        for entry in shown:
            interval = found.interval(found.ratios(entry)[places])
            cells.append(interval.text() if interval else "")
        best = found.overall(places)
        rows.append((problem, str(len(places)), found.name(best), *cells))
    columns = ("problem", "instances", "best overall", *map(found.name, shown))
    return Table("By problem", columns, rows, on_console=len(shown) <= WIDEST)


def _values_table(found: Comparison) -> Table:
    """The metric itself, problems by solvers."""
    shown = solvers_first(found.shown)
    rows = []
    bounds = dict(found.frames.cells.group_by("problem").agg(pl.col("bound").max()).iter_rows())
    for number, item in enumerate(found.items):
        cells = [_number(found.means[entry][number], 5) for entry in shown]
        cells.append(_number(bounds.get(item.problem), 5))
        known = found.study.known.get(item.problem)
        rows.append((item.name, *cells, *([_number(known, 5)] if found.study.known else [])))
    columns = ["problem", *(found.name(entry) for entry in shown), "bound"]
    columns += [KNOWN] if found.study.known else []
    return Table(
        found.metric, columns, rows, "Means over seeds.",
        on_console=len(shown) <= WIDEST and len(rows) <= MOST_DRAWN,
    )  # fmt: skip


def _long(found: Comparison) -> pl.DataFrame:
    """A row for each value with all that is known of its cell."""
    wanted = pl.col("metric").is_in(found.study.metrics)
    return found.frames.values.filter(wanted).join(found.frames.cells.drop("provenance"), "cell")


def _picture(found: Comparison) -> Any:
    """Ratios of all problems by solver; None: there are too many to be told apart."""
    shown = solvers_first(found.shown)[:WIDEST]
    if not 0 < len(found.items) <= MOST_DRAWN:
        return None
    series: Mapping[str, Any] = {
        found.name(entry): np.array([_mean_of(row) for row in found.ratios(entry)])
        for entry in shown
    }
    names = [item.name for item in found.items]
    return draw_rows(names, series, f"{found.metric} over the yardstick", found.study.title)


def _mean_of(row: Any) -> float:
    known = row[~np.isnan(row)]
    return float(known.mean()) if len(known) else float("nan")


def _page(study: Study, tables: Sequence[Table], found: Comparison) -> Page:
    """The tables and an interactive picture on one page that needs no network."""
    import plotly.express as px

    from experiments.reporting.figures import Figure

    page = Page(study.title, study.note)
    page.heading("Ratios", "ratios")
    rows = [
        {
            "problem": item.name,
            "solver": found.name(entry),
            "ratio": _mean_of(found.ratios(entry)[number]),
        }
        for entry in solvers_first(found.shown)
        for number, item in enumerate(found.items)
    ]
    drawn = px.strip(
        pl.DataFrame(rows).drop_nans("ratio"), x="ratio", y="solver", hover_name="problem",
        height=120 + 34 * len(found.shown),
    )  # fmt: skip
    page.figure(Figure("Every problem", drawn))
    for table in tables:
        page.heading(table.title, table.title.lower().replace(" ", "-"), level=3)
        page.table(table)
        page.text(table.note)
    return page


def _number(value: float | None, digits: int = 4) -> str:
    return "" if value is None or np.isnan(value) else f"{value:.{digits}g}"
