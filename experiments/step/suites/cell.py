"""The cells of a benchmark: each is one run of `experiments.plan`."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from envs.errors import InputError
from envs.units import MILLISECOND
from experiments.pictures.step import AnytimeCurve

DATA_VARIABLE = "MESHWRIGHT_DATA"  # the folder of published graphs
CELLS_VARIABLE = "$CELLS"  # the folder of all cells of a run
SUITE_KEY = "config key 'suite'"

Axis = Mapping[str, Sequence[str]]  # label: overrides of conf/plan.yaml


@dataclass(frozen=True)
class Case:
    """What the agents of a suite compete on."""

    problem: str  # labels of the suite
    graph: str
    topology: str
    overrides: tuple[str, ...]  # of conf/plan.yaml

    @property
    def name(self) -> str:
        """For a reader."""
        objective = "" if self.problem == "makespan" else f", {self.problem}"
        return f"{self.graph} on {self.topology}{objective}"


@dataclass(frozen=True)
class Cell:
    """One agent on one case with one budget.

    `CELLS_VARIABLE` in its overrides stands for the folder that has the run folders of all cells:
    a cell may take what others have written there, once those it `needs` have ended.
    """

    case: Case
    agent: str  # label of the suite
    budget_s: float
    agent_overrides: tuple[str, ...]
    needs: tuple[Cell, ...] = ()

    @property
    def name(self) -> str:
        """For a reader."""
        return f"{self.case.name}: {self.agent}, {self.budget_s:g} s"

    @property
    def folder(self) -> str:
        """The name of its run folder."""
        case = self.case
        words = (case.problem, case.graph, case.topology, self.agent, f"{self.budget_s:g}s")
        return ".".join(re.sub(r"[^\w-]+", "_", word) for word in words)

    @property
    def overrides(self) -> tuple[str, ...]:
        """The arguments of `experiments.plan`."""
        return (*self.case.overrides, *self.agent_overrides, f"budget_s={self.budget_s}")


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
    def of(cls, document: Mapping[str, Any]) -> Outcome:
        """From `result.json` of the run."""
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


@dataclass(frozen=True)
class Cases:
    """Every graph on every topology.

    Args:
        problems: label: overrides of conf/plan.yaml; the objectives.
        graphs: likewise. Graphs below `$MESHWRIGHT_DATA` are left out where it is not set.
        topologies: likewise.

    Raises:
        InputError: one of them is no mapping of labels to lists of overrides.
    """

    problems: Mapping[str, Any]
    graphs: Mapping[str, Any]
    topologies: Mapping[str, Any]

    def __post_init__(self) -> None:
        for name in ("problems", "graphs", "topologies"):
            axis(getattr(self, name), name)

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


def axis(value: object, field: str) -> Axis:
    """`value` as labels and their overrides.

    Raises:
        InputError: it is something else, or empty.
    """
    if not isinstance(value, Mapping) or not value:
        raise InputError("is no mapping of labels to overrides", file=SUITE_KEY, field=field)
    for label, overrides in value.items():
        if not isinstance(label, str):
            raise InputError(f"{label!r} is no text", file=SUITE_KEY, record=label, field=field)
        if not isinstance(overrides, list | tuple) or not all(
            isinstance(x, str) for x in overrides
        ):
            raise InputError(
                f"{overrides!r} is no list of overrides", file=SUITE_KEY, record=label, field=field
            )
    return value


def positive(value: object, field: str) -> float:
    """`value` as a number of seconds.

    Raises:
        InputError: it is not a positive and finite number.
    """
    seconds = float(value) if isinstance(value, int | float) else np.nan
    if isinstance(value, bool) or not 0 < seconds < np.inf:
        raise InputError(f"{value} is not positive and finite", file=SUITE_KEY, field=field)
    return seconds


def cells_of(cases: Sequence[Cases], agents: Axis, budgets_s: Sequence[float]) -> list[Cell]:
    """Every agent with every budget on every case; all agents of a case stand together."""
    return [
        Cell(case, agent, seconds, tuple(overrides))
        for group in cases
        for case in group
        for agent, overrides in agents.items()
        for seconds in budgets_s
    ]
