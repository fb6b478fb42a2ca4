"""`suite=order_gain`: what the order of a step gains, and what the search of a placement does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from envs.errors import InputError
from experiments.run.suite import SUITE_KEY, Report
from experiments.run.tables import Table
from experiments.step.suites.cell import (
    Cases,
    Outcome,
    PlanCell,
    PlanSuite,
    axis,
    cells_of,
    percent,
    positive,
)

COLUMNS = ("problem", "operators", "planner", "fixed order", "best order", "gain", "over the split")
SUMMARY_COLUMNS = (
    "planner", "problems", "by the order: median", "largest", "over the split: median", "largest",
    "smallest",
)  # fmt: skip
PART_COLUMNS = ("problem", "split, fixed order", "best plan", "reduction", "order", "placement")
NOTE = (
    "gain: 1 - best order / fixed order, of one planner. Over the split: 1 - its step time / that "
    "of the split, both in their best orders: whether a search is worth its time."
)
PART_NOTE = (
    "From the split in the fixed order to the best plan of all. The order's part is what the best "
    "order makes of the split; the placement's what the best plan is below that."
)


@dataclass(frozen=True)
class OrderGain(PlanSuite):
    """Every planner twice on each case: in one fixed order, and in the best of all orders.

    Args:
        title: for a reader.
        cases: graphs and topologies; each problem of it is one set of orders.
        fixed: label of the problem with one order.
        best: label of the problem with all of them.
        split: label of the planner whose plan is the yardstick.
        planners: label: overrides of conf/plan.yaml, the split among them.
        budget_s: seconds of search of each of them.

    Raises:
        InputError: the budget is not positive, a label is not there, or something is no mapping.
    """

    title: str
    cases: Cases
    fixed: str
    best: str
    split: str
    planners: Mapping[str, Any]
    budget_s: float

    def __post_init__(self) -> None:
        axis(self.planners, "planners")
        positive(self.budget_s, "budget_s")
        for field, known in (
            ("fixed", self.cases.problems),
            ("best", self.cases.problems),
            ("split", self.planners),
        ):
            label = getattr(self, field)
            if label not in known:
                message = f"{label!r} is none of {', '.join(known)}"
                raise InputError(message, file=SUITE_KEY, field=field)

    @property
    def left_out(self) -> list[str]:
        return self.cases.left_out

    def cells(self) -> list[PlanCell]:
        return cells_of([self.cases], self.planners, [self.budget_s])

    def report(self, outcomes: Mapping[PlanCell, Outcome]) -> Report:
        """A row per case and planner, their medians, and the parts of the whole reduction."""
        found: dict[str, dict[tuple[str, str], Outcome]] = {}
        for cell, outcome in outcomes.items():
            name = f"{cell.case.graph} on {cell.case.topology}"
            found.setdefault(name, {})[cell.agent, cell.case.problem] = outcome
        rows = [
            _Row(name, planner, outcomes_, self.fixed, self.best, self.split)
            for name, outcomes_ in found.items()
            for planner in self.planners
        ]
        parts = [row for row in rows if row.planner == self.split]
        by_planner = {name: [row for row in rows if row.planner == name] for name in self.planners}
        columns = [*COLUMNS]
        columns[3], columns[4] = self.fixed, self.best
        tables = [
            Table(self.title, columns, [row.cells() for row in rows], note=NOTE),
            Table("Planners", SUMMARY_COLUMNS,
                  [_summary(name, mine) for name, mine in by_planner.items()]),
            Table("Where the reduction comes from", PART_COLUMNS,
                  [row.part_cells() for row in parts], note=PART_NOTE),
        ]  # fmt: skip
        headline: dict[str, object] = {"problems": len(found)}
        for number, label in enumerate(("reduction", "by the order", "by the placement")):
            values = [x for row in parts if np.isfinite(x := row.parts()[number])]
            if values:
                headline |= {f"median {label}": float(np.median(values)),
                             f"largest {label}": max(values)}  # fmt: skip
        return Report(tables, {}, {"rows": [row.document() for row in rows]}, headline)


@dataclass(frozen=True)
class _Row:
    """One planner on one graph and topology."""

    name: str
    planner: str
    found: Mapping[tuple[str, str], Outcome]  # by planner and orders
    fixed: str
    best: str
    split: str

    def _time(self, planner: str, orders: str) -> float:
        return self.found[planner, orders].objective

    @property
    def gain(self) -> float:
        """By the order alone."""
        return _reduction(self._time(self.planner, self.best), self._time(self.planner, self.fixed))

    @property
    def over_split(self) -> float:
        """Of the planner, against the split, both in their best orders."""
        return _reduction(self._time(self.planner, self.best), self._time(self.split, self.best))

    def parts(self) -> tuple[float, float, float]:
        """The whole reduction, the order's part, the placement's: 1 - whole = both multiplied."""
        best = min(outcome.objective for outcome in self.found.values())
        begun, ordered = (self._time(self.split, orders) for orders in (self.fixed, self.best))
        return _reduction(best, begun), _reduction(ordered, begun), _reduction(best, ordered)

    def cells(self) -> tuple[str, ...]:
        outcomes = [self.found[self.planner, orders] for orders in (self.fixed, self.best)]
        operators = max(outcome.operators for outcome in outcomes)
        times = (outcome.time(outcome.objective) for outcome in outcomes)
        return (
            self.name, f"{operators:,}", self.planner, *times,
            percent(self.gain), percent(self.over_split),
        )  # fmt: skip

    def part_cells(self) -> tuple[str, ...]:
        best = min(outcome.objective for outcome in self.found.values())
        begun = self.found[self.split, self.fixed]
        return (self.name, begun.time(begun.objective), begun.time(best),
                *map(percent, self.parts()))  # fmt: skip

    def document(self) -> dict[str, object]:
        reduction, order, placement = self.parts()
        return {
            "problem": self.name,
            "planner": self.planner,
            "fixed_order_s": self._time(self.planner, self.fixed),
            "best_order_s": self._time(self.planner, self.best),
            "gain": self.gain,
            "over_split": self.over_split,
            "parts": {"reduction": reduction, "order": order, "placement": placement},
        }


def _reduction(after: float, before: float) -> float:
    """1 - after / before; NaN where one of them has no plan."""
    return 1.0 - after / before if np.isfinite(after) and np.isfinite(before) else np.nan


def _summary(name: str, rows: Sequence[_Row]) -> tuple[str, ...]:
    gains = [row.gain for row in rows if np.isfinite(row.gain)]
    over = [row.over_split for row in rows if np.isfinite(row.over_split)]
    first = (np.median(gains), max(gains)) if gains else (np.nan, np.nan)
    then = (np.median(over), max(over), min(over)) if over else (np.nan,) * 3
    return (name, str(len(rows)), *map(percent, map(float, (*first, *then))))
