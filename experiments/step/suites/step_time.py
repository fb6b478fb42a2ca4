"""`suite=step_time`: what a search gains over the best of the expert split and list scheduling."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from envs.errors import InputError
from experiments.run.suite import SUITE_KEY, Report
from experiments.run.tables import Table
from experiments.step.suites.cell import (
    SAME,
    Case,
    Cases,
    Outcome,
    PlanCell,
    PlanSuite,
    axis,
    by_case,
    cells_of,
    left_out_of,
    percent,
    positive,
)

SUMMARY_COLUMNS = ("method", "problems", "largest reduction", "median", "smallest", "losses")


@dataclass(frozen=True)
class StepTime(PlanSuite):
    """Reduction of the step time against the best reference: 1 - step time / best reference.

    A loss is a negative reduction. Problems on which a method or every reference has no plan are
    shown, and are in no median.

    Args:
        title: for a reader.
        cases: graphs and topologies.
        methods: label: overrides of conf/plan.yaml; the searches that are judged.
        references: likewise; the best of them is the yardstick.
        budget_s: seconds of search of each of them.

    Raises:
        InputError: the budget is not positive, a label stands twice, or something is no mapping.
    """

    title: str
    cases: Sequence[Cases]
    methods: Mapping[str, Any]
    references: Mapping[str, Any]
    budget_s: float

    def __post_init__(self) -> None:
        axis(self.methods, "methods")
        axis(self.references, "references")
        positive(self.budget_s, "budget_s")
        for label in self.methods:
            if label in self.references:
                raise InputError(
                    "is a method and a reference", file=SUITE_KEY, record=label, field="methods"
                )

    @property
    def left_out(self) -> list[str]:
        return left_out_of(self.cases)

    def cells(self) -> list[PlanCell]:
        """All methods and references on every case."""
        agents = {**self.references, **self.methods}
        return list(dict.fromkeys(cells_of(self.cases, agents, [self.budget_s])))

    def report(self, outcomes: Mapping[PlanCell, Outcome]) -> Report:
        """A row per case, and largest, median and smallest reduction of each method."""
        cases = by_case(outcomes)
        rows = [_Row.of(case, found, self.references) for case, found in cases.items()]
        columns = ["problem", "operators", "best reference", "its step time"]
        columns += [x for name in self.methods for x in (name, f"{name}: reduction")]
        cells = [row.cells(list(self.methods)) for row in rows]
        reductions = {
            name: [row.reduction(name) for row in rows if np.isfinite(row.reduction(name))]
            for name in self.methods
        }
        tables = [
            Table("Step time against the best reference", columns, cells),
            Table("Reductions", SUMMARY_COLUMNS, [_summary(n, x) for n, x in reductions.items()]),
        ]
        best = {f"best_reduction_{name}": max(x) for name, x in reductions.items() if x}
        median = {
            f"median_reduction_{name}": float(np.median(x)) for name, x in reductions.items() if x
        }
        numbers = {"rows": [row.document(list(self.methods)) for row in rows], **best, **median}
        return Report(tables, {}, numbers, {**best, **median})


@dataclass(frozen=True)
class _Row:
    case: Case
    found: Mapping[str, Outcome]
    reference: str  # label of the best, empty when none has a plan

    @classmethod
    def of(cls, case: Case, found: Mapping[str, Outcome], references: Mapping[str, object]) -> _Row:
        times = {name: found[name].objective for name in references}
        best = min(times, key=times.__getitem__)
        return cls(case, found, best if np.isfinite(times[best]) else "")

    @property
    def reference_time(self) -> float:
        return self.found[self.reference].objective if self.reference else np.inf

    def reduction(self, method: str) -> float:
        """1 - step time / best reference, 0 for equal ones; NaN where one of them has no plan."""
        if not self.reference or not self.found[method].feasible:
            return np.nan
        reduction = 1.0 - self.found[method].objective / self.reference_time
        return reduction if abs(reduction) > SAME else 0.0

    def cells(self, methods: Sequence[str]) -> tuple[str, ...]:
        operators = max(outcome.operators for outcome in self.found.values())
        cells = [self.case.name, f"{operators:,}" if operators else "", self.reference or "none"]
        any_outcome = next(iter(self.found.values()))
        cells.append(any_outcome.time(self.reference_time))
        for name in methods:
            outcome = self.found[name]
            cells += [outcome.time(outcome.objective), percent(self.reduction(name))]
        return tuple(cells)

    def document(self, methods: Sequence[str]) -> dict[str, object]:
        return {
            "graph": self.case.graph,
            "topology": self.case.topology,
            "reference": self.reference or None,
            "step_time_s": {name: outcome.objective for name, outcome in self.found.items()},
            "reduction": {name: self.reduction(name) for name in methods},
            "reason": {name: x.reason for name, x in self.found.items() if not x.feasible},
        }


def _summary(method: str, reductions: Sequence[float]) -> tuple[str, ...]:
    if not reductions:
        return (method, "0", "", "", "", "")
    return (
        method,
        str(len(reductions)),
        percent(max(reductions)),
        percent(float(np.median(reductions))),
        percent(min(reductions)),
        str(sum(reduction < 0 for reduction in reductions)),
    )
