"""`suite=joint`: bandwidth decided with the placement, against shares that nobody decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from experiments.pictures.style import draw_rows
from experiments.step.suites.cell import (
    CELLS_VARIABLE,
    SAME,
    Case,
    Cases,
    Outcome,
    PlanCell,
    PlanSuite,
    axis,
    by_case,
    figures,
    left_out_of,
    operators_of,
    percent,
    positive,
    require_distinct,
)
from experiments.study.suite import Report
from experiments.study.tables import Table

UNIFORM, FAIR = "uniform shares", "fair sharing"  # labels of the two references
PLAN_FILE = "plan.json"
SUMMARY_COLUMNS = (
    "method", "against", "topology", "cases", "best", "median", "worst", "never worse",
)  # fmt: skip
NOTE = (
    "Step time of the best plan found. Uniform shares: placement alone, optimised for static equal "
    "shares. Fair sharing: work-conserving max-min sharing of all links, the best of all the plans "
    "of this row played so, and of a further search from them under fair sharing with the same "
    "budget. Reductions are 1 - step time / reference. The bound holds for every plan with every "
    "bandwidth."
)


@dataclass(frozen=True)
class JointSuite(PlanSuite):
    """Step times of joint methods against uniform static shares and against fair sharing.

    Every search has the same budget. Fair sharing has more: it starts from the finished plans of
    all the others, and searches on.

    Args:
        title: for a reader.
        cases: graphs and topologies.
        methods: label: overrides of conf/plan.yaml; they decide bandwidth.
        uniform: overrides; placement alone under uniform static shares.
        placed: label: overrides; further plans from which fair sharing starts.
        fair: overrides; takes plan files as `problem.plans`.
        budget_s: seconds of search of each of them.

    Raises:
        InputError: the budget is not positive, a label stands twice, or something is no mapping.
    """

    title: str
    cases: Sequence[Cases]
    methods: Mapping[str, Any]
    uniform: Sequence[str]
    placed: Mapping[str, Any]
    fair: Sequence[str]
    budget_s: float

    def __post_init__(self) -> None:
        axis(self.methods, "methods")
        axis(self.placed, "placed")
        axis({UNIFORM: self.uniform}, "uniform")
        axis({FAIR: self.fair}, "fair")
        positive(self.budget_s, "budget_s")
        require_distinct([UNIFORM, FAIR, *self.methods, *self.placed], "methods")

    @property
    def left_out(self) -> list[str]:
        return left_out_of(self.cases)

    def cells(self) -> list[PlanCell]:
        """On every case all plans, then fair sharing, which needs them."""
        found: list[PlanCell] = []
        for case in dict.fromkeys(case for group in self.cases for case in group):
            agents = {UNIFORM: self.uniform, **self.placed, **self.methods}
            made = [
                PlanCell(case, label, self.budget_s, tuple(asked))
                for label, asked in agents.items()
            ]
            files = ",".join(f"'{CELLS_VARIABLE}/{cell.folder}/{PLAN_FILE}'" for cell in made)
            asked = (*self.fair, f"problem.plans=[{files}]")
            found += [*made, PlanCell(case, FAIR, self.budget_s, asked, tuple(made))]
        return found

    def report(self, outcomes: Mapping[PlanCell, Outcome]) -> Report:
        """A row per case, the distribution of the reductions, and a picture of them."""
        cases = by_case(outcomes)
        rows = [_Row(case, found) for case, found in cases.items()]
        methods = list(self.methods)
        columns = ["case", "operators", UNIFORM, FAIR]
        for name in methods:
            columns += [name, "reduction: uniform", "reduction: fair"]
        columns += ["bound", "over the bound"]
        spreads = [
            spread
            for name in methods
            for reference in (UNIFORM, FAIR)
            for spread in _spreads(rows, name, reference)
        ]
        missing = [row for row in rows if row.reason(methods)]
        tables = [
            Table(
                "Step time with and without bandwidth decided",
                columns,
                [row.cells(methods) for row in rows],
                note=NOTE,
            ),
            Table("Reductions", SUMMARY_COLUMNS, [spread.cells() for spread in spreads]),
        ]
        if missing:
            texts = [(row.case.name, row.reason(methods)) for row in missing]
            tables.append(Table("Without a plan", ("case", "why"), texts))
        headline = {
            key: value for spread in spreads if not spread.topology
            for key, value in spread.headline().items()
        }  # fmt: skip
        numbers = {
            "budget_s": self.budget_s,
            "rows": [row.document(methods) for row in rows],
            "reductions": [spread.document() for spread in spreads],
        }
        drawn = {
            f"{method} against {reference}": [
                100.0 * row.reduction(method, reference) for row in rows
            ]
            for method in methods
            for reference in (UNIFORM, FAIR)
        }
        names = [row.case.name for row in rows]
        picture = draw_rows(names, drawn, "reduction of the step time (%)", self.title, level=0.0)
        return Report(tables, {"joint.png": picture}, numbers, headline)


@dataclass(frozen=True)
class _Row:
    case: Case
    found: Mapping[str, Outcome]

    @property
    def bound(self) -> float:
        return max(outcome.lower_bound for outcome in self.found.values())

    def reduction(self, method: str, reference: str) -> float:
        """1 - step time / reference, 0 for equal ones; NaN where one of them has no plan."""
        mine, other = self.found[method], self.found[reference]
        if not mine.feasible or not other.feasible:
            return np.nan
        reduction = 1.0 - mine.objective / other.objective
        return reduction if abs(reduction) > SAME else 0.0

    def reason(self, methods: Sequence[str]) -> str:
        """Why there is no figure for something, or nothing."""
        reasons = {
            name: self.found[name].reason
            for name in (UNIFORM, *methods, FAIR)
            if not self.found[name].feasible
        }
        if len(reasons) == len(methods) + 2:
            return reasons[UNIFORM]
        return "; ".join(f"{name}: {reason}" for name, reason in reasons.items())

    def cells(self, methods: Sequence[str]) -> tuple[str, ...]:
        operators = operators_of(self.found)
        cells = [self.case.name, f"{operators:,}" if operators else ""]
        cells += [self.found[name].time(self.found[name].objective) for name in (UNIFORM, FAIR)]
        for name in methods:
            outcome = self.found[name]
            cells.append(outcome.time(outcome.objective))
            cells += [percent(self.reduction(name, reference)) for reference in (UNIFORM, FAIR)]
        best = min(self.found[name].objective for name in methods)
        shown = self.found[UNIFORM]
        cells.append(shown.time(self.bound) if self.bound > 0 else "")
        cells.append(percent(best / self.bound - 1.0) if self.bound > 0 else "")
        return tuple(cells)

    def document(self, methods: Sequence[str]) -> dict[str, object]:
        return {
            "graph": self.case.graph,
            "topology": self.case.topology,
            "lower_bound_s": self.bound,
            "reduction": {
                name: {reference: self.reduction(name, reference) for reference in (UNIFORM, FAIR)}
                for name in methods
            },
            **figures(self.found),
        }


@dataclass(frozen=True)
class _Spread:
    """The reductions of a method against one reference, on one topology or on all."""

    method: str
    reference: str
    topology: str  # empty: all
    reductions: Sequence[float]

    def cells(self) -> tuple[str, ...]:
        place = self.topology or "all"
        if not self.reductions:
            return (self.method, self.reference, place, "0", "", "", "", "")
        worse = sum(reduction < 0 for reduction in self.reductions)
        return (
            self.method,
            self.reference,
            place,
            str(len(self.reductions)),
            *(percent(value) for value in self._three()),
            "yes" if not worse else f"worse in {worse}",
        )

    def document(self) -> dict[str, object]:
        best, median, worst = self._three()
        return {
            "method": self.method,
            "reference": self.reference,
            "topology": self.topology or None,
            "cases": len(self.reductions),
            "best": best,
            "median": median,
            "worst": worst,
            "worse": sum(reduction < 0 for reduction in self.reductions),
        }

    def headline(self) -> dict[str, float]:
        names = (f"{word} reduction of {self.method} against {self.reference}"
                 for word in ("best", "median", "worst"))  # fmt: skip
        return dict(zip(names, self._three(), strict=True)) if self.reductions else {}

    def _three(self) -> tuple[float, float, float]:
        values = self.reductions
        if not values:
            return np.nan, np.nan, np.nan
        return max(values), float(np.median(values)), min(values)


def _spreads(rows: Sequence[_Row], method: str, reference: str) -> list[_Spread]:
    """Of each topology, then of all."""
    topologies = list(dict.fromkeys(row.case.topology for row in rows))
    found = []
    for topology in [*topologies, ""] if len(topologies) > 1 else [""]:
        values = [
            row.reduction(method, reference) for row in rows if topology in ("", row.case.topology)
        ]
        kept = [value for value in values if np.isfinite(value)]
        found.append(_Spread(method, reference, topology, kept))
    return found
