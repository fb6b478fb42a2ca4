"""The comparison table: one row per method, on the console, as Markdown and as JSON."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from rich.table import Table

from agents.solver import Result
from agents.step.problems import Evaluation
from envs.step.plans import Plan
from envs.units import GIBI
from experiments.reporting.tables import console_table, markdown_table
from experiments.step.tasks import Task

COLUMNS = (
    "method", "step time", "against best single device", "against lower bound", "peak memory",
    "search time",
)  # fmt: skip
DOES_NOT_FIT = "does not fit"


@dataclass(frozen=True, eq=False)
class Row:
    """One method: its plan as the simulator sees it, and what the search took."""

    method: str
    evaluation: Evaluation | None  # None: no plan
    seconds: float  # wall time of the search
    reason: str  # why there is no plan, or what is wrong with it
    trajectory: tuple[tuple[float, float], ...] = ()  # (seconds, best step time so far)

    @property
    def step_time(self) -> float:
        """Seconds; inf without a feasible plan."""
        found = self.evaluation
        return found.step_time if found is not None and found.feasible else float("inf")

    @property
    def feasible(self) -> bool:
        """Whether there is a plan that fits."""
        return self.step_time < float("inf")


@dataclass(frozen=True, eq=False)
class Comparison:
    """All methods on one problem, beside the proved bound and, maybe, the best single device."""

    rows: tuple[Row, ...]
    single_device: str | None  # the method that is the first yardstick; None: there is none
    lower_bound: float  # seconds
    words: Mapping[str, str] = field(default_factory=dict)  # what methods are; else their names

    @property
    def best(self) -> Row | None:
        """The feasible row of least step time."""
        best = min(self.rows, key=lambda row: row.step_time, default=None)
        return best if best is not None and best.feasible else None

    @property
    def single_device_time(self) -> float:
        """Seconds; inf when the step fits no single device."""
        times = [row.step_time for row in self.rows if row.method == self.single_device]
        return times[0] if times else float("inf")

    @property
    def columns(self) -> tuple[str, ...]:
        """Those of the table."""
        return self._shown(COLUMNS)

    def cells(self) -> list[tuple[str, ...]]:
        """The table as texts, in the order of `columns`."""
        return [self._shown(self._cells(row)) for row in self.document()]

    def rich(self, title: str) -> Table:
        """The table for a console; the best row stands out."""
        table = console_table(title, self.columns)
        for row, cells in zip(self.rows, self.cells(), strict=True):
            table.add_row(*cells, style="bold green" if row is self.best else "")
        table.caption = f"proved lower bound {self.lower_bound * 1e3:.1f} ms"
        return table

    def markdown(self) -> str:
        """The table in Markdown."""
        return markdown_table(self.columns, self.cells())

    def document(self) -> list[dict[str, Any]]:
        """The table as numbers."""
        single = self.single_device_time
        return [
            {
                "method": row.method,
                "step_time_s": row.step_time,
                "feasible": row.feasible,
                "times_faster_than_single_device": single / row.step_time
                if np.isfinite(single) and row.feasible
                else None,
                "times_lower_bound": row.step_time / self.lower_bound
                if row.feasible and self.lower_bound > 0
                else None,
                "peak_memory_bytes": float(row.evaluation.peak_memory.max())
                if row.evaluation is not None
                else None,
                "search_s": row.seconds,
                "reason": row.reason,
                "trajectory": [list(point) for point in row.trajectory],
            }
            for row in self.rows
        ]

    def _cells(self, row: Mapping[str, Any]) -> tuple[str, ...]:
        method, seconds = self.words.get(row["method"], row["method"]), row["search_s"]
        search = f"{seconds:.1f} s" if seconds < 100 else f"{seconds:.0f} s"
        held = row["peak_memory_bytes"]
        peak = "" if held is None else f"{held / GIBI:.2f} GiB"
        if not row["feasible"]:
            state = DOES_NOT_FIT if peak or DOES_NOT_FIT in row["reason"] else "no plan"
            return (method, state, "", "", peak, search)
        faster, above = row["times_faster_than_single_device"], row["times_lower_bound"]
        against = DOES_NOT_FIT if faster is None else f"{faster:.2f}x"
        over = "" if above is None else f"+{above - 1:.1%}"
        return (method, f"{row['step_time_s'] * 1e3:.1f} ms", against, over, peak, search)

    def _shown(self, cells: tuple[str, ...]) -> tuple[str, ...]:
        return cells if self.single_device is not None else cells[:2] + cells[3:]


def row_of(method: str, found: Result[Plan], task: Task) -> Row:
    """A planner's result as a row: its plan judged by the task, its own figure not used."""
    verdict = None if found.solution is None else task.judge(found.solution)
    reason = verdict.violations[0] if verdict is not None and verdict.violations else found.reason
    evaluation = None if verdict is None else verdict.evaluation
    return Row(method, evaluation, found.seconds, reason, tuple(found.history))
