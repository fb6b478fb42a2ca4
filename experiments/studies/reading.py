"""What a person reads of a study: its tables, and a section of a page."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import numpy as np
import polars as pl

from experiments.reporting.page import Figure, Page
from experiments.reporting.tables import Columns, Table
from experiments.run.statistics import Interval
from experiments.studies.comparison import KNOWN, Comparison, solvers_first
from experiments.studies.frames import FAILED_STATUS, INFEASIBLE
from experiments.studies.study import BEST_OVERALL, BEST_PER_PROBLEM

WIDEST = 9  # entries beside each other in a table
MOST_DRAWN = 40  # problems in a picture, rows of a table on a console

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
    "and seeds. Without: problems on which there is no value."
)
TIME_NOTE = " In its time: median ratio to the best of the others that was given no more time."


def tables_of(found: Comparison) -> list[Table]:
    """A row for each solver; ratios by problem; values; times; what has no result and why."""
    study, shown = found.study, solvers_first(found.shown)
    rows = [found.summaries[entry] for entry in shown]
    columns, timed = dict(SUMMARY), TIME_NOTE
    if all(row["in_its_time"] is None for row in rows):
        del columns["in its time"]
        timed = ""
    against = {BEST_PER_PROBLEM: "the best on each", BEST_OVERALL: found.name(found.overall())}
    name = study.against[0]
    note = SUMMARY_NOTE.format(metric=study.metrics[0], against=against.get(name, name))
    tables = [Table.of("Solvers", columns, rows, note + timed)]
    if len(study.against) > 1 or len(study.metrics) > 1:
        tables.append(_yardsticks(found))
    if found.several and len(found.problems) > 1:
        tables.append(_by_problem(found))
    tables.append(_values_table(found))
    for within in study.within:
        if name in {entry.solver for entry in found.entries}:
            times = [found.time_ratios(entry, within) for entry in shown if entry.solver != name]
            title = f"Search time over that of {name}, to within {within:.1%} of the best known"
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
    """Mean ratios over the instances of each problem, of every metric."""
    shown, metrics = solvers_first(found.shown), found.study.metrics
    ratios = {metric: {x: found.ratios(x, metric=metric) for x in shown} for metric in metrics}
    rows = []
    for problem, places in found.problems.items():
        best = found.name(found.overall(places))
        for metric in metrics:
            every = [found.interval(ratios[metric][x][places]) for x in shown]
            cells = ["" if one is None else one.text() for one in every]
            rows.append((problem, str(len(places)), best, metric, *cells))
    columns = ("problem", "instances", "best overall", "figure", *map(found.name, shown))
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


def page_of(found: Comparison, tables: Sequence[Table]) -> Page:
    """The tables and the pictures on one page that needs no network."""
    page = Page(found.study.title, found.study.note)
    add_pictures(page, found)
    add_tables(page, tables)
    return page


def add_tables(page: Page, tables: Sequence[Table]) -> None:
    for table in tables:
        page.heading(table.title, f"table-{page.tables}", level=3)
        page.table(table)
        page.text(table.note)


def add_pictures(page: Page, found: Comparison) -> None:
    """Ratios of every problem by solver, and the best value by seconds of search."""
    import plotly.express as px

    shown = solvers_first(found.shown)
    page.heading(f"Ratios of {found.metric}", f"ratios-{page.figures}", level=3)
    ratios = pl.DataFrame(
        {
            "problem": escape(item.name),
            "solver": escape(found.name(entry)),
            "ratio": ratio,
        }
        for entry in shown
        for item, ratio in zip(found.items, found.mean_ratios(entry), strict=True)
    ).drop_nans("ratio")
    height = 120 + 34 * len(shown)
    drawn = px.strip(ratios, x="ratio", y="solver", hover_name="problem", height=height)
    page.figure(Figure("Every problem", drawn))
    curves = found.frames.curves.join(found.frames.cells, "cell", maintain_order="left")
    curves = curves.with_columns(pl.col("problem", "solver").map_elements(escape, pl.String))
    problems = list(curves["problem"].unique(maintain_order=True))[:WIDEST]
    if problems:
        chosen = curves.filter(pl.col("problem").is_in(problems))
        drawn = px.line(
            chosen, x="seconds", y="value", color="solver", line_group="cell", facet_col="problem",
            facet_col_wrap=3, line_shape="hv", height=130 + 260 * -(-len(problems) // 3),
        )  # fmt: skip
        drawn.update_yaxes(matches=None, showticklabels=True)
        page.figure(Figure("The best value so far", drawn))


def _number(value: float | None, digits: int = 4) -> str:
    return "" if value is None or np.isnan(value) else f"{value:.{digits}g}"
