"""Planners beside a learner: what they find on its problem, and the table of all."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from experiments.learning.subjects import Subject
from experiments.run.app import Run
from experiments.run.display import ProgressDisplay
from experiments.run.provenance import Provenance
from experiments.run.tables import Table, write_tables
from experiments.step.comparison import Row
from experiments.step.search import describe

COLUMNS = ("method", "step time", "against lower bound", "search time")


def baselines(
    nodes: Mapping[str, Any], subject: Subject, budget_s: float, display: ProgressDisplay
) -> list[Row]:
    """What the planners that `nodes` describe find, one after the other, `budget_s` for each."""
    rows = []
    for name, node in nodes.items():
        task = display.begin(name, budget_s)
        found, evaluation = subject.baseline(node, budget_s)
        display.end(task, describe(found))
        reason = found.reason
        if evaluation is not None and not evaluation.feasible:
            reason = evaluation.violations[0]
        rows.append(Row(name, evaluation, found.seconds, reason, tuple(found.trajectory)))
    return rows


def row_values(row: Row, lower_bound: float) -> dict[str, object]:
    """A row as numbers."""
    return {
        "method": row.method,
        "step_time_s": row.step_time,
        "feasible": row.feasible,
        "times_lower_bound": row.step_time / lower_bound
        if row.feasible and lower_bound > 0
        else None,
        "search_s": row.seconds,
        "reason": row.reason,
        "trajectory": [list(point) for point in row.trajectory],
    }


def write_table(
    run: Run, rows: Sequence[Row], lower_bound: float, name: str, provenance: Provenance
) -> None:
    """Show the rows and write them to `table.md`."""
    cells = [_cells(row, lower_bound) for row in rows]
    note = f"proved lower bound {lower_bound * 1e3:.1f} ms"
    write_tables(run, name, [Table("Methods", COLUMNS, cells, note)], provenance)


def _cells(row: Row, lower_bound: float) -> tuple[str, ...]:
    if not row.feasible:
        return (row.method, row.reason or "no plan", "", f"{row.seconds:.1f} s")
    above = f"+{row.step_time / lower_bound - 1:.1%}" if lower_bound > 0 else ""
    return (row.method, f"{row.step_time * 1e3:.1f} ms", above, f"{row.seconds:.1f} s")
