"""Suites of planners: every cell is one run of `experiments.plan`."""

from __future__ import annotations

import os
import re
from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import MinLen

from envs.bounds import bounded
from envs.errors import InputError
from envs.units import MILLISECOND
from experiments.pictures.step import AnytimeCurve
from experiments.study.grid import AppCell, Document
from experiments.study.suite import SUITE_KEY, Check, Report

DATA_VARIABLE = "MESHWRIGHT_DATA"  # the folder of published graphs
CELLS_VARIABLE = "$CELLS"  # the folder of all cells of a run
SAME = 1e-9  # relative difference, by rounding, of two equal objectives

Labelled = Mapping[str, Sequence[str]]  # label: overrides of conf/plan.yaml
Axis = Annotated[Labelled, MinLen(1)]


@dataclass(frozen=True)
class Case:
    """What the agents of a suite compete on."""

    problem: str  # labels of the suite
    graph: str
    topology: str
    overrides: tuple[str, ...]  # of conf/plan.yaml

    @property
    def name(self) -> str:
        objective = "" if self.problem == "makespan" else f", {self.problem}"
        return f"{self.graph} on {self.topology}{objective}"


@dataclass(frozen=True)
class PlanCell:
    """One agent on one case with one budget.

    `CELLS_VARIABLE` in its overrides stands for the folder that has the run folders of all cells:
    a cell may take what others have written there, once those it `needs` have ended.
    """

    case: Case
    agent: str  # label of the suite
    budget_s: float
    agent_overrides: tuple[str, ...]
    needs: tuple[PlanCell, ...] = ()

    @property
    def name(self) -> str:
        return f"{self.case.name}: {self.agent}, {self.budget_s:g} s"

    @property
    def folder(self) -> str:
        """The name of its run folder."""
        case = self.case
        words = (case.problem, case.graph, case.topology, self.agent, f"{self.budget_s:g}s")
        return ".".join(re.sub(r"[^\w-]+", "_", word) for word in words)

    def app(self, folder: Path, seed: int, needs: tuple[AppCell, ...]) -> AppCell:
        """The run of `experiments.plan`, below the folder of all cells."""
        asked = [
            text.replace(CELLS_VARIABLE, str(folder))
            for text in (*self.case.overrides, *self.agent_overrides)
        ]
        return AppCell(
            self.name,
            "plan",
            (*asked, f"budget_s={self.budget_s}", f"seed={seed}"),
            folder / self.folder,
            needs,
            budget_s=self.budget_s,
            may_fail=True,
        )


@dataclass(frozen=True)
class Outcome:
    """What a cell came to, in seconds; `unit_s` seconds are one of the input's own units."""

    objective: float  # seconds, inf without a feasible plan
    lower_bound: float  # seconds, 0 where nothing is known
    seconds: float  # wall time of the search
    status: str
    reason: str  # why there is no plan
    operators: int
    unit: str
    unit_s: float
    curve: AnytimeCurve

    @classmethod
    def of(cls, document: Document, file: Path | None = None) -> Outcome:
        """From what the run left in a file: `result.json`, or why there is none.

        Raises:
            InputError: it is no result of a planner.
        """
        if "exit_code" in document:
            return cls.failed(str(document["reason"]))
        try:
            unit_s = document["unit_s"]
            points = tuple((float(at), float(best) * unit_s) for at, best in document["trajectory"])
            feasible = bool(document["feasible"])
            reason = "; ".join(document["violations"]) or document["reason"]
            return cls(
                objective=document["objective_s"] if feasible else np.inf,
                lower_bound=document["lower_bound_s"] or 0.0,
                seconds=document["seconds"],
                status=document["status"],
                reason="" if feasible else reason,
                operators=document["operators"],
                unit=document["unit"],
                unit_s=unit_s,
                curve=AnytimeCurve(points if feasible else (), document["seconds"]),
            )
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"is no result of a planner ({error!r})", file=file) from error

    @classmethod
    def failed(cls, reason: str) -> Outcome:
        """A run that ended without a result."""
        return cls(np.inf, 0.0, 0.0, "failed", reason, 0, "s", 1.0, AnytimeCurve((), 0.0))

    @property
    def feasible(self) -> bool:
        """Whether there is a plan that fits."""
        return bool(np.isfinite(self.objective))

    @property
    def shown_unit(self) -> tuple[str, float]:
        """The unit of time for a reader, and its seconds: milliseconds, or the file's own."""
        return ("ms", MILLISECOND) if self.unit in ("s", "ms") else ("the file's unit", self.unit_s)

    def time(self, seconds: float) -> str:
        """A value of the objective for a reader."""
        if not np.isfinite(seconds):
            return "no plan"
        name, unit_s = self.shown_unit
        return f"{seconds / unit_s:.5g}{' ms' if name == 'ms' else ''}"

    @property
    def text(self) -> str:
        """Its objective for a reader."""
        return self.time(self.objective)


@dataclass(frozen=True)
class Row:
    """What planners came to on one case, by label."""

    case: Case
    found: Mapping[str, Outcome]

    @property
    def best(self) -> float:
        """The least objective; inf without a plan."""
        return min(outcome.objective for outcome in self.found.values())

    @property
    def bound(self) -> float:
        """The best that any of them proved."""
        return max(outcome.lower_bound for outcome in self.found.values())

    @property
    def operators(self) -> int:
        """Of the case; 0 where nothing was planned."""
        return max(outcome.operators for outcome in self.found.values())

    def document(self) -> dict[str, object]:
        """What they came to, as numbers."""
        return {
            "step_time_s": {name: outcome.objective for name, outcome in self.found.items()},
            "search_s": {name: outcome.seconds for name, outcome in self.found.items()},
            "reason": {name: x.reason for name, x in self.found.items() if not x.feasible},
        }


@bounded
@dataclass(frozen=True)
class Cases:
    """Every graph on every topology.

    Args:
        problems: label: overrides of conf/plan.yaml; the objectives.
        graphs: likewise. Graphs below `$MESHWRIGHT_DATA` are left out where it is not set.
        topologies: likewise.
    """

    problems: Axis
    graphs: Axis
    topologies: Axis

    def __iter__(self) -> Iterator[Case]:
        folder = os.environ.get(DATA_VARIABLE, "")
        axes = (self.problems.items(), self.graphs.items(), self.topologies.items())
        for (problem, asked), (graph, read), (topology, placed) in product(*axes):
            if graph not in self.left_out:
                overrides = tuple(
                    text.replace(f"${DATA_VARIABLE}", folder) for text in (*asked, *read, *placed)
                )
                yield Case(problem, graph, topology, overrides)

    @property
    def left_out(self) -> list[str]:
        """Graphs that need published data where there is none."""
        if os.environ.get(DATA_VARIABLE):
            return []
        needs = f"${DATA_VARIABLE}"
        return [label for label, read in self.graphs.items() if any(needs in x for x in read)]


def cells_of(cases: Sequence[Cases], agents: Axis, budgets_s: Sequence[float]) -> list[PlanCell]:
    """Every agent with every budget on every case; all agents of a case stand together."""
    return [
        PlanCell(case, agent, seconds, tuple(overrides))
        for group in cases
        for case in group
        for agent, overrides in agents.items()
        for seconds in budgets_s
    ]


def together(cells: Iterable[PlanCell]) -> list[PlanCell]:
    """Each once, those of one case beside each other."""
    found = list(dict.fromkeys(cells))
    cases = list(dict.fromkeys(cell.case for cell in found))
    return sorted(found, key=lambda cell: cases.index(cell.case))


class PlanSuite(ABC):
    """What the suites of planners share: their cells as runs of an app, and what these left."""

    own = ("budget_s=", "seed=", "json=", "hydra.")
    cases: Cases | Sequence[Cases]

    @property
    def groups(self) -> Sequence[Cases]:
        """What is planned."""
        return [self.cases] if isinstance(self.cases, Cases) else self.cases

    @property
    def left_out(self) -> list[str]:
        """Graphs that need published data where there is none."""
        return left_out_of(self.groups)

    @abstractmethod
    def cells(self) -> list[PlanCell]:
        """The runs it consists of."""

    @abstractmethod
    def report(self, outcomes: Mapping[PlanCell, Outcome]) -> Report:
        """What the runs came to."""

    def grid(self, folder: Path, seed: int) -> list[AppCell]:
        made: dict[PlanCell, AppCell] = {}
        found = []
        for cell in self.cells():
            missing = [need for need in cell.needs if need not in made]
            if missing:
                message = f"needs a cell that is not run before it: {missing[0].name}"
                raise InputError(message, file=SUITE_KEY, record=cell.name)
            made[cell] = cell.app(folder, seed, tuple(made[need] for need in cell.needs))
            found.append(made[cell])
        return found

    def checks(self) -> Iterator[Check]:
        cells = self.cells()
        parts = {cell.case.overrides: cell.case.name for cell in cells}
        parts |= {cell.agent_overrides: cell.agent for cell in cells}
        for overrides, name in parts.items():
            yield Check(name, "plan", "experiments.step.plan.PlanConfig", overrides)

    def summary(self, found: Mapping[AppCell, Document]) -> Report:
        apps = {app.folder.name: app for app in found}
        read = {cell: apps[cell.folder] for cell in self.cells()}
        return self.report({cell: Outcome.of(found[app], app.record) for cell, app in read.items()})


def left_out_of(groups: Iterable[Cases]) -> list[str]:
    return list(dict.fromkeys(graph for group in groups for graph in group.left_out))


def rows_of(outcomes: Mapping[PlanCell, Outcome]) -> list[Row]:
    """The outcome of every agent on every case."""
    found: dict[Case, dict[str, Outcome]] = {}
    for cell, outcome in outcomes.items():
        found.setdefault(cell.case, {})[cell.agent] = outcome
    return [Row(case, row) for case, row in found.items()]


def require_distinct(labels: Sequence[str], field: str) -> None:
    """Refuse a label that stands twice.

    Raises:
        InputError: naming it.
    """
    for label in labels:
        if labels.count(label) > 1:
            raise InputError("stands twice", file=SUITE_KEY, record=label, field=field)


def spread(values: Iterable[float]) -> tuple[float, float, float]:
    """Median, largest and smallest of the finite ones; NaN without any."""
    kept = [value for value in values if np.isfinite(value)] or [np.nan]
    return float(np.median(kept)), max(kept), min(kept)


def reduction(after: Outcome, before: Outcome) -> float:
    """1 - after / before; NaN where one of them has no plan."""
    both = after.feasible and before.feasible
    return 1.0 - after.objective / before.objective if both else np.nan


def percent(ratio: float) -> str:
    """A relative difference for a reader; nothing where it is not finite."""
    return f"{ratio:+.1%}" if np.isfinite(ratio) else ""


def times(ratio: float) -> str:
    """A ratio for a reader; nothing where it is not finite."""
    return f"{ratio:.3f}x" if np.isfinite(ratio) else ""


def seconds(value: float) -> str:
    """A duration for a reader; `never` where it is infinite, nothing where there is none."""
    if not np.isfinite(value):
        return "" if np.isnan(value) else "never"
    return f"{value:.3g} s" if value < 100 else f"{value:.0f} s"
