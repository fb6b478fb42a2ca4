"""`suite=joint`: bandwidth decided with the placement, against shares that nobody decides."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from envs.bounds import Positive, bounded
from experiments.pictures.style import draw_rows
from experiments.step.suites.cell import (
    CELLS_VARIABLE,
    SAME,
    Axis,
    Cases,
    Outcome,
    PlanCell,
    PlanSuite,
    Row,
    percent,
    reduction,
    require_distinct,
    rows_of,
    spread,
)
from experiments.study.suite import Report
from experiments.study.tables import Table

UNIFORM, FAIR = REFERENCES = ("uniform shares", "fair sharing")  # labels
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


@bounded
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
        InputError: a label stands twice.
    """

    title: str
    cases: Sequence[Cases]
    methods: Axis
    uniform: Sequence[str]
    placed: Axis
    fair: Sequence[str]
    budget_s: Positive

    def __post_init__(self) -> None:
        require_distinct([*REFERENCES, *self.methods, *self.placed], "methods")

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
        rows = rows_of(outcomes)
        methods = list(self.methods)
        columns = ["case", "operators", *REFERENCES]
        for name in methods:
            columns += [name, "reduction: uniform", "reduction: fair"]
        columns += ["bound", "over the bound"]
        missing = [(row.case.name, told) for row in rows if (told := _reason(row, methods))]
        spreads, texts, headline = [], [], dict[str, object]()
        for method in methods:
            for reference in REFERENCES:
                for topology, values in _reductions(rows, method, reference).items():
                    median, best, worst = three = spread(values)
                    worse = sum(value < 0 for value in values)
                    shown = [percent(best), percent(median), percent(worst)]
                    shown.append(f"worse in {worse}" if worse else "yes" if values else "")
                    place = topology or "all"
                    texts.append((method, reference, place, str(len(values)), *shown))
                    named = dict(zip(("median", "best", "worst"), three, strict=True))
                    spreads.append(
                        {"method": method, "reference": reference, "topology": topology or None,
                         "cases": len(values), **named, "worse": worse}
                    )  # fmt: skip
                    if values and not topology:
                        against = f"reduction of {method} against {reference}"
                        headline |= {
                            f"{x} {against}": named[x] for x in ("best", "median", "worst")
                        }
        tables = [
            Table(
                "Step time with and without bandwidth decided",
                columns,
                [_cells(row, methods) for row in rows],
                note=NOTE,
            ),
            Table("Reductions", SUMMARY_COLUMNS, texts),
        ]
        if missing:
            tables.append(Table("Without a plan", ("case", "why"), missing))
        numbers = {
            "budget_s": self.budget_s,
            "rows": [
                {
                    "graph": row.case.graph,
                    "topology": row.case.topology,
                    "lower_bound_s": row.bound,
                    "reduction": {
                        name: {other: _reduction(row, name, other) for other in REFERENCES}
                        for name in methods
                    },
                    **row.document(),
                }
                for row in rows
            ],
            "reductions": spreads,
        }
        drawn = {
            f"{method} against {reference}": [
                100.0 * _reduction(row, method, reference) for row in rows
            ]
            for method in methods
            for reference in REFERENCES
        }
        names = [row.case.name for row in rows]
        picture = draw_rows(names, drawn, "reduction of the step time (%)", self.title, level=0.0)
        return Report(tables, {"joint.png": picture}, numbers, headline)


def _reduction(row: Row, method: str, reference: str) -> float:
    """1 - step time / reference, 0 for equal ones; NaN where one of them has no plan."""
    found = reduction(row.found[method], row.found[reference])
    return 0.0 if abs(found) <= SAME else found


def _reason(row: Row, methods: Sequence[str]) -> str:
    """Why there is no figure for something, or nothing."""
    asked = {name: row.found[name] for name in (UNIFORM, *methods, FAIR)}
    reasons = {name: outcome.reason for name, outcome in asked.items() if not outcome.feasible}
    if len(reasons) == len(asked):
        return reasons[UNIFORM]
    return "; ".join(f"{name}: {reason}" for name, reason in reasons.items())


def _cells(row: Row, methods: Sequence[str]) -> tuple[str, ...]:
    found, bound = row.found, row.bound
    cells = [row.case.name, f"{row.operators:,}" if row.operators else ""]
    cells += [found[name].text for name in REFERENCES]
    for name in methods:
        cells.append(found[name].text)
        cells += [percent(_reduction(row, name, reference)) for reference in REFERENCES]
    if bound <= 0:
        return (*cells, "", "")
    best = min(found[name].objective for name in methods)
    return (*cells, found[UNIFORM].time(bound), percent(best / bound - 1.0))


def _reductions(rows: Sequence[Row], method: str, reference: str) -> dict[str, list[float]]:
    """Those of the cases that have one, of each topology and, under no name, of all."""
    topologies = list(dict.fromkeys(row.case.topology for row in rows))
    found = [(row.case.topology, _reduction(row, method, reference)) for row in rows]
    return {
        topology: [x for at, x in found if topology in ("", at) and np.isfinite(x)]
        for topology in ([*topologies, ""] if len(topologies) > 1 else [""])
    }
