"""`suite=placement`: all planners on all problems, beside the bound and the best known plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from envs.errors import InputError
from experiments.pictures.step import Panel, draw_anytime
from experiments.step.suites.cell import (
    SAME,
    Case,
    Cases,
    Outcome,
    PlanCell,
    PlanSuite,
    axis,
    cells_of,
    left_out_of,
    percent,
    positive,
    seconds,
)
from experiments.study.suite import SUITE_KEY, Report
from experiments.study.tables import Table

COLUMNS = (
    "problem", "operators", "agent", "budget", "objective", "to the bound", "to the best known",
    "search", "status",
)  # fmt: skip
SUMMARY_COLUMNS = (
    "agent", "budget", "problems", "plans", "best", "to best", "worst", "to bound",
)  # fmt: skip
SUMMARY_NOTE = (
    "to best, worst: median and largest gap to the best known value; to bound: median gap"
)
PANELS = 12  # in one picture
SPAN = 1.6  # a picture shows values up to this many times the best one

Rows = Mapping[Case, Sequence[tuple[PlanCell, Outcome]]]


@dataclass(frozen=True)
class Part:
    """Some agents with some budgets on some cases.

    Args:
        cases: problems, graphs and topologies.
        agents: label: overrides of conf/plan.yaml.
        budgets_s: seconds of search; one is enough for agents that do not search.

    Raises:
        InputError: a budget is not positive and finite, or the agents are no mapping of labels.
    """

    cases: Cases
    agents: Mapping[str, Any]
    budgets_s: Sequence[float]

    def __post_init__(self) -> None:
        axis(self.agents, "agents")
        if not self.budgets_s:
            raise InputError("is empty", file=SUITE_KEY, field="budgets_s")
        for seconds_ in self.budgets_s:
            positive(seconds_, "budgets_s")

    def cells(self) -> list[PlanCell]:
        """Every agent with every budget on every case."""
        return cells_of([self.cases], self.agents, self.budgets_s)


@dataclass(frozen=True)
class PlacementSuite(PlanSuite):
    """Gaps of every plan, and the anytime curves.

    The best known value of a case is the best of this run, or the published one where that is
    better. The bound of a case is the best that any agent proved.

    Args:
        title: for a reader.
        parts: what is run; cells that stand twice are run once.
        best_known: label of the problem: label of the graph: published value in the file's unit.
    """

    title: str
    parts: Sequence[Part]
    best_known: Mapping[str, Any]

    def __post_init__(self) -> None:
        for problem, values in _mapping(self.best_known, "best_known").items():
            for graph, value in _mapping(values, f"best_known.{problem}").items():
                positive(value, f"best_known.{problem}.{graph}")

    @property
    def left_out(self) -> list[str]:
        return left_out_of(part.cases for part in self.parts)

    def cells(self) -> list[PlanCell]:
        """The cells of all parts, once each, those of one case together."""
        cells = dict.fromkeys(cell for part in self.parts for cell in part.cells())
        cases = list(dict.fromkeys(cell.case for cell in cells))
        return sorted(cells, key=lambda cell: cases.index(cell.case))

    def report(self, outcomes: Mapping[PlanCell, Outcome]) -> Report:
        """A row per cell, a summary per agent and budget, and the anytime curves."""
        by_case: dict[Case, list[tuple[PlanCell, Outcome]]] = {}
        for cell, outcome in outcomes.items():
            by_case.setdefault(cell.case, []).append((cell, outcome))
        yardsticks = {case: self._yardstick(case, rows) for case, rows in by_case.items()}
        numbers = [
            {**_facts(cell, outcome), **yardsticks[cell.case].gaps(outcome)}
            for cell, outcome in outcomes.items()
        ]
        tables = [
            Table("Agents", SUMMARY_COLUMNS, _summary(outcomes, yardsticks), note=SUMMARY_NOTE),
            Table("All runs", COLUMNS, _rows(by_case, yardsticks), on_console=False),
        ]
        cases = list(by_case)
        figures = {
            f"anytime_{number + 1}.png": draw_anytime(
                [_panel(case, by_case[case], yardsticks[case]) for case in shown],
                f"{self.title}: the best plan so far",
                "objective",
                SPAN,
            )
            for number, shown in enumerate(
                cases[start : start + PANELS] for start in range(0, len(cases), PANELS)
            )
        }
        return Report(tables, figures, {"rows": numbers})

    def _yardstick(self, case: Case, rows: Sequence[tuple[PlanCell, Outcome]]) -> _Yardstick:
        published = float(self.best_known.get(case.problem, {}).get(case.graph, np.inf))
        unit_s = next((outcome.unit_s for _, outcome in rows if outcome.operators), 1.0)
        return _Yardstick(
            best=min([published * unit_s, *(outcome.objective for _, outcome in rows)]),
            bound=max(outcome.lower_bound for _, outcome in rows),
            published=published * unit_s,
        )


def _mapping(value: object, field: str) -> Mapping[str, object]:
    if not isinstance(value, Mapping):
        raise InputError(f"{value!r} is no mapping", file=SUITE_KEY, field=field)
    return value


@dataclass(frozen=True)
class _Yardstick:
    """What the plans of one case are measured by."""

    best: float  # seconds
    bound: float  # seconds
    published: float  # seconds, inf where nothing is

    def gaps(self, outcome: Outcome) -> dict[str, float]:
        """Relative; inf without a plan or without a bound."""
        to_bound = outcome.objective / self.bound - 1.0 if self.bound > 0 else np.inf
        to_best = outcome.objective / self.best - 1.0 if outcome.feasible else np.inf
        return {"gap_to_bound": to_bound, "gap_to_best_known": to_best}


def _facts(cell: PlanCell, outcome: Outcome) -> dict[str, object]:
    return {
        "problem": cell.case.problem,
        "graph": cell.case.graph,
        "topology": cell.case.topology,
        "agent": cell.agent,
        "budget_s": cell.budget_s,
        "operators": outcome.operators,
        "objective_s": outcome.objective,
        "lower_bound_s": outcome.lower_bound,
        "feasible": outcome.feasible,
        "status": outcome.status,
        "reason": outcome.reason,
        "search_s": outcome.seconds,
        "unit": outcome.unit,
        "unit_s": outcome.unit_s,
        "trajectory": [list(point) for point in outcome.curve.points],
    }


def _rows(by_case: Rows, yardsticks: Mapping[Case, _Yardstick]) -> list[tuple[str, ...]]:
    return [
        (
            case.name,
            f"{outcome.operators:,}" if outcome.operators else "",
            cell.agent,
            f"{cell.budget_s:g} s",
            outcome.time(outcome.objective),
            percent(yardsticks[case].gaps(outcome)["gap_to_bound"]),
            percent(yardsticks[case].gaps(outcome)["gap_to_best_known"]),
            seconds(outcome.seconds),
            outcome.status if outcome.feasible else f"{outcome.status}: {outcome.reason}",
        )
        for case, rows in by_case.items()
        for cell, outcome in rows
    ]


def _summary(
    outcomes: Mapping[PlanCell, Outcome], yardsticks: Mapping[Case, _Yardstick]
) -> list[tuple[str, ...]]:
    """A row per agent and budget; medians over the cases in which it found a plan."""
    groups: dict[tuple[str, float], list[tuple[PlanCell, Outcome]]] = {}
    for cell, outcome in outcomes.items():
        groups.setdefault((cell.agent, cell.budget_s), []).append((cell, outcome))
    table: list[tuple[str, ...]] = []
    for (agent, seconds_), group in groups.items():
        gaps = [yardsticks[cell.case].gaps(outcome) for cell, outcome in group if outcome.feasible]
        to_best = [gap["gap_to_best_known"] for gap in gaps]
        to_bound = [gap["gap_to_bound"] for gap in gaps]
        table.append(
            (
                agent,
                f"{seconds_:g} s",
                str(len(group)),
                str(len(gaps)),
                str(sum(gap <= SAME for gap in to_best)),
                percent(float(np.median(to_best))) if to_best else "",
                percent(max(to_best)) if to_best else "",
                percent(float(np.median(to_bound))) if to_bound else "",
            )
        )
    return table


def _panel(case: Case, rows: Sequence[tuple[PlanCell, Outcome]], yardstick: _Yardstick) -> Panel:
    """Of every agent the run with the largest budget."""
    longest: dict[str, tuple[PlanCell, Outcome]] = {}
    for cell, outcome in rows:
        if cell.agent not in longest or cell.budget_s > longest[cell.agent][0].budget_s:
            longest[cell.agent] = (cell, outcome)
    first = next((outcome for _, outcome in rows if outcome.operators), rows[0][1])
    unit, scale = first.shown_unit
    curves = {name: outcome.curve.scaled(1.0 / scale) for name, (_, outcome) in longest.items()}
    bound, published = yardstick.bound / scale, yardstick.published / scale
    return Panel(case.name, curves, bound, published, unit)
