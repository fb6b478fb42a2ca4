"""`suite=placement`: all planners on all problems, beside the bound and the best known plan."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
from annotated_types import MinLen

from envs.bounds import Positive, bounded
from experiments.pictures.step import Panel, draw_anytime
from experiments.step.suites.cell import (
    SAME,
    Axis,
    Case,
    Cases,
    Outcome,
    PlanCell,
    PlanSuite,
    cells_of,
    percent,
    seconds,
    together,
)
from experiments.study.suite import Report
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


@bounded
@dataclass(frozen=True)
class Part:
    """Some agents with some budgets on some cases.

    Args:
        cases: problems, graphs and topologies.
        agents: label: overrides of conf/plan.yaml.
        budgets_s: seconds of search; one is enough for agents that do not search.
    """

    cases: Cases
    agents: Axis
    budgets_s: Annotated[Sequence[Positive], MinLen(1)]


@bounded
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
    best_known: Mapping[str, Mapping[str, Positive]]

    @property
    def groups(self) -> Sequence[Cases]:
        return [part.cases for part in self.parts]

    def cells(self) -> list[PlanCell]:
        """The cells of all parts, once each, those of one case together."""
        return together(
            cell
            for part in self.parts
            for cell in cells_of([part.cases], part.agents, part.budgets_s)
        )

    def report(self, outcomes: Mapping[PlanCell, Outcome]) -> Report:
        """A row per cell, a summary per agent and budget, and the anytime curves."""
        runs = [_Run(cell, outcome) for cell, outcome in outcomes.items()]
        by_case: dict[Case, list[_Run]] = {}
        by_agent: dict[tuple[str, float], list[_Run]] = {}
        for run in runs:
            by_case.setdefault(run.cell.case, []).append(run)
            by_agent.setdefault((run.cell.agent, run.cell.budget_s), []).append(run)
        panels = []
        for case, found in by_case.items():
            published = float(self.best_known.get(case.problem, {}).get(case.graph, np.inf))
            panels.append(_measured(case.name, found, published))
        tables = [
            Table(
                "Agents",
                SUMMARY_COLUMNS,
                [_summary(*key, found) for key, found in by_agent.items()],
                note=SUMMARY_NOTE,
            ),
            Table(
                "All runs",
                COLUMNS,
                [run.cells() for found in by_case.values() for run in found],
                on_console=False,
            ),
        ]
        figures = {
            f"anytime_{start // PANELS + 1}.png": draw_anytime(
                panels[start : start + PANELS],
                f"{self.title}: the best plan so far",
                "objective",
                SPAN,
            )
            for start in range(0, len(panels), PANELS)
        }
        return Report(tables, figures, {"rows": [run.document() for run in runs]})


@dataclass
class _Run:
    """A cell, and how far its plan is from the bound and the best known value of its case."""

    cell: PlanCell
    outcome: Outcome
    to_bound: float = np.inf  # relative; inf without a plan or without a bound
    to_best: float = np.inf

    def cells(self) -> tuple[str, ...]:
        """A row of `COLUMNS`."""
        cell, outcome = self.cell, self.outcome
        return (
            cell.case.name,
            f"{outcome.operators:,}" if outcome.operators else "",
            cell.agent,
            f"{cell.budget_s:g} s",
            outcome.text,
            percent(self.to_bound),
            percent(self.to_best),
            seconds(outcome.seconds),
            outcome.status if outcome.feasible else f"{outcome.status}: {outcome.reason}",
        )

    def document(self) -> dict[str, object]:
        cell, outcome = self.cell, self.outcome
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
            "gap_to_bound": self.to_bound,
            "gap_to_best_known": self.to_best,
        }


def _measured(title: str, runs: Sequence[_Run], published: float) -> Panel:
    """Hold the runs of a case against their yardsticks; the curves of the largest budgets."""
    first = next((run.outcome for run in runs if run.outcome.operators), runs[0].outcome)
    published *= first.unit_s if first.operators else 1.0
    best = min([published, *(run.outcome.objective for run in runs)])
    bound = max(run.outcome.lower_bound for run in runs)
    longest: dict[str, _Run] = {}
    for run in runs:
        if bound > 0:
            run.to_bound = run.outcome.objective / bound - 1.0
        if run.outcome.feasible:
            run.to_best = run.outcome.objective / best - 1.0
        shown = longest.setdefault(run.cell.agent, run)
        if run.cell.budget_s > shown.cell.budget_s:
            longest[run.cell.agent] = run
    unit, scale = first.shown_unit
    curves = {name: run.outcome.curve.scaled(1.0 / scale) for name, run in longest.items()}
    return Panel(title, curves, bound / scale, published / scale, unit)


def _summary(agent: str, budget_s: float, runs: Sequence[_Run]) -> tuple[str, ...]:
    """A row of `SUMMARY_COLUMNS`; medians over the cases in which it found a plan."""
    planned = [run for run in runs if run.outcome.feasible]
    to_best = [run.to_best for run in planned]
    gaps: list[float] = []
    if planned:
        to_bound = float(np.median([run.to_bound for run in planned]))
        gaps = [float(np.median(to_best)), max(to_best), to_bound]
    return (
        agent,
        f"{budget_s:g} s",
        str(len(runs)),
        str(len(planned)),
        str(sum(gap <= SAME for gap in to_best)),
        *(map(percent, gaps) if planned else ("", "", "")),
    )
