"""`suite=order_gain`: what the order of a step gains, and what the search of a placement does."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from envs.errors import require_one_of
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
from experiments.study.suite import SUITE_KEY, Report
from experiments.study.tables import Table

GAINS = ("by the order", "over the split")
PARTS = ("reduction", "order", "placement")
NOTE = (
    "By the order: 1 - step time in the best order / in the fixed one, of one planner. Over the "
    "split: 1 - its step time / that of the split, both in their best orders: whether a search is "
    "worth its time."
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
        problems = self.cases.problems
        for field, known in ("fixed", problems), ("best", problems), ("split", self.planners):
            require_one_of(getattr(self, field), known, file=SUITE_KEY, field=field)

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
            self._row(name, planner, at) for name, at in found.items() for planner in self.planners
        ]
        parts = {name: self._parts(at) for name, at in found.items()}
        columns = ("problem", "operators", "planner", self.fixed, self.best, *GAINS)
        tables = [
            Table(self.title, columns, [row.pop("cells") for row in rows], note=NOTE),
            Table("Planners", ("planner", *(f"{gain}: {x}" for gain in GAINS for x in SPREAD)),
                  [(name, *_spreads([row for row in rows if row["planner"] == name], GAINS))
                   for name in self.planners]),
            Table("Where the reduction comes from", ("problem", *PARTS),
                  [(name, *(percent(part[x]) for x in PARTS)) for name, part in parts.items()],
                  note=PART_NOTE),
        ]  # fmt: skip
        headline = {
            f"{part}: {word}": value
            for part in PARTS
            for word, value in zip(
                SPREAD, _spread([row[part] for row in parts.values()]), strict=True
            )
        }
        return Report(tables, {}, {"rows": rows, "parts": parts}, headline)

    def _row(
        self, name: str, planner: str, at: Mapping[tuple[str, str], Outcome]
    ) -> dict[str, Any]:
        """One planner on one graph and topology, by numbers and as cells of the table."""
        fixed, best, split = (
            at[planner, self.fixed],
            at[planner, self.best],
            at[self.split, self.best],
        )
        gains = (_reduction(best, fixed), _reduction(best, split))
        times = (outcome.time(outcome.objective) for outcome in (fixed, best))
        cells = (name, f"{max(fixed.operators, best.operators):,}", planner, *times,
                 *map(percent, gains))  # fmt: skip
        seconds = {"fixed_order_s": fixed.objective, "best_order_s": best.objective}
        gained = dict(zip(GAINS, gains, strict=True))
        return {"problem": name, "planner": planner, **seconds, **gained, "cells": cells}

    def _parts(self, at: Mapping[tuple[str, str], Outcome]) -> dict[str, float]:
        """1 - the whole reduction is 1 - the order's part times 1 - the placement's."""
        best = min(at.values(), key=lambda outcome: outcome.objective)
        begun, ordered = at[self.split, self.fixed], at[self.split, self.best]
        pairs = (best, begun), (ordered, begun), (best, ordered)
        return dict(zip(PARTS, (_reduction(*pair) for pair in pairs), strict=True))


SPREAD = ("median", "largest", "smallest")


def _reduction(after: Outcome, before: Outcome) -> float:
    """1 - after / before; NaN where one of them has no plan."""
    both = after.feasible and before.feasible
    return 1.0 - after.objective / before.objective if both else np.nan


def _spread(values: Sequence[float]) -> tuple[float, float, float]:
    """`SPREAD` of the finite ones; NaN without any."""
    kept = [value for value in values if np.isfinite(value)] or [np.nan]
    return float(np.median(kept)), max(kept), min(kept)


def _spreads(rows: Sequence[Mapping[str, Any]], names: Sequence[str]) -> list[str]:
    return [percent(x) for name in names for x in _spread([row[name] for row in rows])]
