"""`suite=unseen`, `suite=memory_tight`: planners with little time against all that have more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path

import numpy as np

from agents.step.problems import Verdict
from envs.bounds import Positive, bounded
from envs.step.order import OneFOneB
from experiments.config.targets import build_as
from experiments.run.saved_run import saved_nodes
from experiments.step.objectives import Objective
from experiments.step.plan_file import read_plan
from experiments.step.problem import load_problem
from experiments.step.suites.cell import (
    SAME,
    Axis,
    Case,
    Cases,
    Outcome,
    PlanCell,
    PlanSuite,
    Row,
    cells_of,
    times,
    together,
)
from experiments.study.grid import AppCell, Document
from experiments.study.suite import Report
from experiments.study.tables import Table

PLAN_FILE = "plan.json"
PLANNER_COLUMNS = ("planner", "problems", "plans", "best", "over the best: median", "worst")
NOTE = (
    "Over the best: step time over that of the best plan of all planners. Slower than: quick "
    "planners whose plan is faster. Every plan was read from its file and judged again."
)


@bounded
@dataclass(frozen=True)
class Contest(PlanSuite):
    """Contenders on every case beside quick planners and long searches.

    A contender is held against the best plan of all planners, its own long search included, and
    against every quick planner, which no plan of it may be slower than. Every plan is read from its
    file and judged once more; one that is wrong counts as none.

    Args:
        title: for a reader.
        cases: problems, graphs and topologies.
        contenders: label: overrides of conf/plan.yaml.
        budget_s: seconds of search of each contender, and of each quick planner.
        quick: likewise; planners that need no budget.
        searches: likewise; those that use all of theirs.
        search_budget_s: seconds of search of each of them.
    """

    title: str
    cases: Cases
    contenders: Axis
    budget_s: Positive
    quick: Axis
    searches: Axis
    search_budget_s: Positive

    def cells(self) -> list[PlanCell]:
        """All planners, those of one case together."""
        found = cells_of([self.cases], {**self.contenders, **self.quick}, [self.budget_s])
        return together(found + cells_of([self.cases], self.searches, [self.search_budget_s]))

    def summary(self, found: Mapping[AppCell, Document]) -> Report:
        """The report on plans that pass a second look."""
        checked = dict(found)
        apps = {app.folder.name: app for app in found}
        for _, cells in groupby(self.cells(), key=lambda cell: cell.case):
            mine = [apps[cell.folder] for cell in cells]
            verdicts = judged_again([app.folder for app in mine])
            for app, verdict in zip(mine, verdicts, strict=True):
                if verdict is not None and verdict.violations:
                    wrong = {"feasible": False, "violations": list(verdict.violations)}
                    checked[app] = {**found[app], **wrong}
        return super().summary(checked)

    def report(self, outcomes: Mapping[PlanCell, Outcome]) -> Report:
        """A row per case, a row per planner, and the time of every plan."""
        cases: dict[Case, dict[str, Outcome]] = {}
        for cell, outcome in outcomes.items():
            name = cell.agent if cell.agent in self.quick else _long(cell.agent, cell.budget_s)
            cases.setdefault(cell.case, {})[name] = outcome
        contenders = [_long(label, self.budget_s) for label in self.contenders]
        rows = [_Row(case, found, list(self.quick)) for case, found in cases.items()]
        planners = list(rows[0].found)
        columns = ["problem", "operators", "best", "by"]
        columns += [x for name in contenders for x in (name, "over the best", "slower than")]
        plans = [[row.case.name, *(x.text for x in row.found.values())] for row in rows]
        tables = [
            Table(self.title, columns, [row.cells(contenders) for row in rows], note=NOTE),
            Table("Planners", PLANNER_COLUMNS, [_planner(name, rows) for name in planners]),
            Table("All plans", ["problem", *planners], plans),
        ]
        solved = [row for row in rows if np.isfinite(row.best)]
        if nobody := [
            (row.case.name, next(iter(row.found.values())).reason)
            for row in rows
            if row not in solved
        ]:
            tables.append(Table("Without a plan", ("problem", "why"), nobody))
        headline: dict[str, object] = {"problems": len(rows), "without a plan": len(nobody)}
        for name in contenders:
            ratios = [row.ratio(name) for row in solved] or [np.nan]
            headline |= {
                f"{name}: median over the best": float(np.median(ratios)),
                f"{name}: worst over the best": max(ratios),
                f"{name}: plans missed": ratios.count(np.inf),
                f"{name}: slower than a quick planner": sum(bool(row.ahead(name)) for row in rows),
            }
        numbers = [{"problem": row.case.name, **row.document()} for row in rows]
        return Report(tables, {}, {"rows": numbers}, headline)


def judged_again(folders: Sequence[Path]) -> list[Verdict | None]:
    """What is said of the plan in every run folder of one problem; None where there is no plan.

    Graph, devices and costs are made anew from the config of the first run with a plan.

    Raises:
        InputError: a file is no plan of this problem.
    """
    written = [folder for folder in folders if (folder / PLAN_FILE).is_file()]
    if not written:
        return [None] * len(folders)
    names = ("problem", "env", "graph", "topology", "cost")
    problem, *groups = saved_nodes(written[0], names).values()
    objective = build_as(Objective, problem, "problem", "objective of a plan")
    loaded = load_problem(*groups)
    task = objective.of(loaded.problem)
    return [
        task.judge(read_plan(folder / PLAN_FILE, loaded.problem, OneFOneB()))
        if folder in written
        else None
        for folder in folders
    ]


def _long(label: str, budget_s: float) -> str:
    return f"{label} ({budget_s:g} s)"


@dataclass(frozen=True)
class _Row(Row):
    quick: Sequence[str]

    def ratio(self, name: str) -> float:
        """Its step time over the best; inf without a plan."""
        outcome = self.found[name]
        return outcome.objective / self.best if outcome.feasible else np.inf

    def ahead(self, name: str) -> list[str]:
        """The quick planners whose plan is faster."""
        mine = self.found[name].objective / (1.0 + SAME)
        return [other for other in self.quick if self.found[other].objective < mine]

    def cells(self, contenders: Sequence[str]) -> tuple[str, ...]:
        by = min(self.found, key=self.ratio)
        winner = self.found[by]
        cells = [self.case.name, f"{self.operators:,}", winner.text, by if winner.feasible else ""]
        for name in contenders:
            ahead = ", ".join(self.ahead(name))
            cells += [self.found[name].text, times(self.ratio(name)), ahead]
        return tuple(cells)


def _planner(name: str, rows: Sequence[_Row]) -> tuple[str, ...]:
    """A row of `PLANNER_COLUMNS`; median and worst over the problems that it has a plan of."""
    ratios = [row.ratio(name) for row in rows if row.found[name].feasible]
    best = sum(ratio <= 1.0 + SAME for ratio in ratios)
    spread = (float(np.median(ratios)), max(ratios)) if ratios else (np.inf, np.inf)
    return (name, str(len(rows)), str(len(ratios)), str(best), *map(times, spread))
