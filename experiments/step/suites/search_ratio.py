"""`suite=search_ratio`: how much longer searches without fusion take to a plan as good."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from itertools import pairwise
from typing import TypeVar

import numpy as np

from envs.bounds import Positive, bounded
from experiments.pictures.step import AnytimeCurve, Panel, draw_anytime
from experiments.step.suites.cell import (
    Axis,
    Cases,
    Outcome,
    PlanCell,
    PlanSuite,
    Row,
    cells_of,
    percent,
    require_distinct,
    rows_of,
    seconds,
)
from experiments.study.suite import Report
from experiments.study.tables import Table

Kind = TypeVar("Kind")

NEAR = 0.02  # of the best known plan: the headline
TIME_COLUMNS = (
    "problem", "operators", "search", "last plan", "after", "over the best known", "to within 2 %",
)  # fmt: skip
NEAR_COLUMNS = (
    "search", "opponent", "problems", "it came there", "the opponent did", "smallest ratio",
    "median", "largest",
)  # fmt: skip
NEAR_NOTE = (
    "Seconds of the opponent over those of the search to within 2 % of the best known plan; ≥: the "
    "opponent did not come there, its limit stands for its time; 0: the search did not and the "
    "opponent did; problems in which neither did are in no median."
)
RATIO_COLUMNS = (
    "problem", "search", "opponent", "at its last plan", "within 1 %", "within 2 %", "worse plan",
    "largest", "median", "as good as the opponent after",
)  # fmt: skip
MARKS = ("at_fused_plan", "within_1_percent", "within_2_percent", "at_worse_plan")
WITHIN = (0.01, 0.02)  # of the fused search's last plan


@dataclass(frozen=True)
class Ratio:
    """Seconds of an opponent over seconds of the fused search, to plans of one quality.

    Where the opponent has not come there when its time is over, the time it was given
    stands for the time it needs, and the ratio is censored: the true one is at least as large.
    """

    step_time_s: float  # the quality
    fused_s: float
    unfused_s: float  # the time it was given where censored
    censored: bool

    @classmethod
    def at(
        cls, quality: float, fused: AnytimeCurve, unfused: AnytimeCurve, limit_s: float
    ) -> Ratio | None:
        """None where the fused search never came there: nothing can be said of a ratio."""
        fused_s, unfused_s = fused.time_to(quality), unfused.time_to(quality)
        if not np.isfinite(fused_s):
            return None
        if np.isfinite(unfused_s):
            return cls(quality, fused_s, unfused_s, censored=False)
        return cls(quality, fused_s, min(limit_s, unfused.end), censored=True)

    @property
    def value(self) -> float:
        """How many times as long the opponent takes, at least."""
        return self.unfused_s / self.fused_s

    def text(self) -> str:
        """For a reader; `≥` marks a censored ratio."""
        return f"{'≥ ' if self.censored else ''}{self.value:.3g}x"

    def document(self) -> dict[str, object]:
        return {**asdict(self), "ratio": self.value}


@bounded
@dataclass(frozen=True)
class SearchRatio(PlanSuite):
    """Fused searches against opponents without their fusion, on step times of all operators.

    The ratio at a quality q is the time after which the opponent has a plan of step time q or less,
    over that of the fused search. The headline takes it at 2 % above the best plan of all searches.
    It is taken, too, at the step time of every plan on the fused search's anytime curve, the last
    one included; at 1 % and 2 % above the last one; and at the worse of both last plans, which is
    the best quality that both reach.

    Args:
        title: for a reader.
        cases: graphs and topologies.
        fused: label: overrides of conf/plan.yaml; agents that fuse.
        fused_budget_s: seconds of search of each of them.
        unfused: likewise: the opponents.
        unfused_limit_s: seconds of search of each of them, at which ratios are censored.
        reference: label: overrides; further agents, for the best known plan.
        reference_budget_s: seconds of search of each of them.

    Raises:
        InputError: a label stands twice.
    """

    title: str
    cases: Sequence[Cases]
    fused: Axis
    fused_budget_s: Positive
    unfused: Axis
    unfused_limit_s: Positive
    reference: Axis
    reference_budget_s: Positive

    def __post_init__(self) -> None:
        require_distinct([*self.unfused, *self.fused, *self.reference], "reference")

    def cells(self) -> list[PlanCell]:
        """All searches and the references on every case; the short ones first."""
        cells = cells_of(self.cases, self.fused, [self.fused_budget_s])
        cells += cells_of(self.cases, self.reference, [self.reference_budget_s])
        return cells + cells_of(self.cases, self.unfused, [self.unfused_limit_s])

    def report(self, outcomes: Mapping[PlanCell, Outcome]) -> Report:
        """Times to good plans, the distribution of all ratios, and the curves of every case."""
        rows = rows_of(outcomes)
        pairs = {
            (label, other): [
                _Race(row.case, row.found, label, other, self.unfused_limit_s) for row in rows
            ]
            for label in self.fused
            for other in self.unfused
        }
        races = [race for found in pairs.values() for race in found]
        tables = [
            Table("Time to within 2 % of the best known plan", TIME_COLUMNS,
                  [cells for row in rows for cells in _times(row)]),
            Table("Opponents", NEAR_COLUMNS,
                  [(*pair, *_near(found)) for pair, found in pairs.items()], note=NEAR_NOTE),
            Table("Opponent's seconds over those of the search", RATIO_COLUMNS,
                  [race.cells() for race in races],
                  note=f"opponents' limit {self.unfused_limit_s:g} s; ≥: not reached within it"),
            *(
                Table(f"All ratios of {label} over {other}, one per plan on its way",
                      ("ratio", "plans", "of them censored"),
                      _histogram([ratio for race in found for ratio in race.ratios]),
                      on_console=False)
                for (label, other), found in pairs.items()
            ),
        ]  # fmt: skip
        panels = []
        for row in rows:
            unit, scale = next(iter(row.found.values())).shown_unit
            shown = (*self.fused, *self.unfused)
            curves = {x: row.found[x].curve.scaled(1 / scale) for x in shown}
            panels.append(Panel(row.case.name, curves, row.bound / scale, row.best / scale, unit))
        title = f"{self.title}: the best plan so far, simulated on all operators"
        figure = draw_anytime(panels, title, "step time", span=np.inf)
        headline = {f"{a} / {b}": _headline(found) for (a, b), found in pairs.items()}
        numbers = {"rows": [race.document() for race in races], "fused": headline}
        name = "median_ratio_near_the_best_known"
        values = {f"{pair}: {name.replace('_', ' ')}": x[name] for pair, x in headline.items()}
        return Report(tables, {"search_ratio.png": figure}, numbers, values)


@dataclass(frozen=True)
class _Race(Row):
    """One fused search and one opponent on one case."""

    label: str  # of the fused search
    other: str  # of the opponent
    limit_s: float  # of the opponent

    @property
    def fused(self) -> AnytimeCurve:
        return self.found[self.label].curve

    @property
    def unfused(self) -> AnytimeCurve:
        return self.found[self.other].curve

    @property
    def loss(self) -> float:
        """Of the fused search's plan against the best known one; NaN without a plan."""
        return self.fused.final / self.best - 1.0 if self.fused.points else np.nan

    def at(self, quality: float) -> Ratio | None:
        """The ratio at one quality; None, too, where the opponent could not be run."""
        if self.found[self.other].status == "failed":
            return None
        return Ratio.at(quality, self.fused, self.unfused, self.limit_s)

    @cached_property
    def near(self) -> Ratio | None:
        """The ratio at `NEAR` the best known plan."""
        return self.at(_near_best(self))

    @property
    def lost(self) -> bool:
        """Whether the opponent alone comes near the best known plan."""
        quality = _near_best(self)
        return self.fused.time_to(quality) == np.inf > self.unfused.time_to(quality)

    @cached_property
    def ratios(self) -> list[Ratio]:
        """One per plan on the fused search's curve."""
        found = [self.at(quality) for _, quality in self.fused.points]
        return [ratio for ratio in found if ratio is not None]

    @cached_property
    def marks(self) -> list[Ratio | None]:
        """At the fused plan, within 1 % and 2 % of it, and at the worse of both plans."""
        final = self.fused.final
        worse = max(final, self.unfused.final)
        near = [self.at(final * (1.0 + share)) for share in WITHIN]
        return [self.at(final), *near, self.at(worse) if np.isfinite(worse) else None]

    def cells(self) -> tuple[str, ...]:
        """A row of `RATIO_COLUMNS`."""
        ratios = sorted(self.ratios, key=lambda ratio: ratio.value)
        spread = [ratios[-1], _middle(ratios)] if ratios else [None, None]
        shown = [ratio.text() if ratio else "" for ratio in (*self.marks, *spread)]
        as_good = self.fused.time_to(self.unfused.final) if self.unfused.points else np.nan
        return (self.case.name, self.label, self.other, *shown, seconds(as_good))

    def document(self) -> dict[str, object]:
        marks = zip(MARKS, self.marks, strict=True)
        return {
            "graph": self.case.graph,
            "topology": self.case.topology,
            "fused_search": self.label,
            "opponent": self.other,
            "operators": self.operators,
            **super().document(),
            "loss_to_best_known": self.loss,
            "near_best_known": self.near.document() if self.near else None,
            "opponent_alone_near_best_known": self.lost,
            "fused_s_to_unfused_plan": self.fused.time_to(self.unfused.final),
            **{name: ratio.document() if ratio else None for name, ratio in marks},
            "ratios": [ratio.document() for ratio in self.ratios],
            "trajectories": {
                label: [list(point) for point in self.found[label].curve.points]
                for label in (self.label, self.other)
            },
        }


def _near_best(row: Row) -> float:
    return row.best * (1.0 + NEAR)


def _middle(ascending: Sequence[Kind]) -> Kind:
    """The lower median."""
    return ascending[(len(ascending) - 1) // 2]


def _times(row: Row) -> Iterator[tuple[str, ...]]:
    """Rows of `TIME_COLUMNS`."""
    for name, outcome in row.found.items():
        curve, last = outcome.curve, ("no plan", "")
        if outcome.feasible:
            last = outcome.text, seconds(curve.time_to(curve.final))
        elif outcome.status == "failed":
            last = f"no plan: {outcome.reason}", ""
        over = percent(outcome.objective / row.best - 1.0) if outcome.feasible else ""
        after = seconds(curve.time_to(_near_best(row)))
        yield (row.case.name, f"{row.operators:,}", name, *last, over, after)


def _near(races: Sequence[_Race]) -> tuple[str, ...]:
    """The last columns of `NEAR_COLUMNS`."""
    there = [race.near for race in races if race.near is not None]
    lost = sum(race.lost for race in races)
    ascending = ["0"] * lost + [x.text() for x in sorted(there, key=lambda ratio: ratio.value)]
    counts = (len(races), len(there), lost + sum(not ratio.censored for ratio in there))
    spread = (ascending[0], _middle(ascending), ascending[-1]) if ascending else ("", "", "")
    return (*map(str, counts), *spread)


def _headline(races: Sequence[_Race]) -> dict[str, object]:
    """Of one fused search and one opponent over all cases: medians, and the largest ratios."""
    near = [race.near.value for race in races if race.near is not None]
    near += [0.0 for race in races if race.lost]
    found: dict[str, object] = {
        "median_ratio_near_the_best_known": _middle(sorted(near)) if near else None
    }
    for number, name in enumerate(MARKS):
        marked = [mark for race in races if (mark := race.marks[number]) is not None]
        best = max(marked, key=lambda ratio: ratio.value, default=None)
        found[f"largest_{name}"] = best.document() if best else None
    losses = [race.loss for race in races if np.isfinite(race.loss)]
    return {**found, "median_loss_to_best_known": float(np.median(losses)) if losses else None}


def _histogram(ratios: Sequence[Ratio]) -> list[tuple[str, ...]]:
    """Ratios by powers of ten."""
    edges = [0.0, 0.1, 1.0, 10.0, 100.0, 1000.0, np.inf]
    rows: list[tuple[str, ...]] = []
    for low, high in pairwise(edges):
        inside = [ratio for ratio in ratios if low <= ratio.value < high]
        label = f"{low:g} or more" if np.isinf(high) else f"{low:g} to {high:g}"
        rows.append((label, str(len(inside)), str(sum(ratio.censored for ratio in inside))))
    return rows
