"""`suite=search_ratio`: how much longer the un-fused MILP takes to a plan as good."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from envs.errors import InputError
from experiments.pictures.step import AnytimeCurve, Panel, draw_anytime
from experiments.run.suite import SUITE_KEY, Report
from experiments.run.tables import Table
from experiments.step.suites.cell import (
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
    seconds,
)

UNFUSED = "un-fused"
PLAN_COLUMNS = (
    "problem", "fused search", "operators", "fused plan", "after", "un-fused plan", "after",
    "fused as good after", "loss to the best known",
)  # fmt: skip
RATIO_COLUMNS = (
    "problem", "fused search", "fused plan", "within 1 %", "within 2 %", "worse plan", "largest",
    "median",
)  # fmt: skip
MARKS = ("at_fused_plan", "within_1_percent", "within_2_percent", "at_worse_plan")
WITHIN = (0.01, 0.02)  # of the fused search's last plan


@dataclass(frozen=True)
class Ratio:
    """Seconds of the un-fused search over seconds of the fused one, to plans of one quality.

    Where the un-fused search has not come there when its time is over, the time it was given
    stands for the time it needs, and the ratio is censored: the true one is at least as large.
    """

    quality: float  # seconds of the step
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
        """How many times as long the un-fused search takes, at least."""
        return self.unfused_s / self.fused_s

    def text(self) -> str:
        """For a reader; `≥` marks a censored ratio."""
        return f"{'≥ ' if self.censored else ''}{self.value:.3g}x"

    def document(self) -> dict[str, object]:
        return {
            "step_time_s": self.quality,
            "fused_s": self.fused_s,
            "unfused_s": self.unfused_s,
            "censored": self.censored,
            "ratio": self.value,
        }


@dataclass(frozen=True)
class SearchRatio(PlanSuite):
    """Fused against un-fused, on step times simulated on all operators, neither warm-started.

    The ratio at a quality q is the time after which the un-fused search has a plan of step time q
    or less, over that of the fused search. It is taken at the step time of every plan on the fused
    search's anytime curve, the last one included; at 1 % and 2 % above the last one; and at the
    worse of both last plans, which is the best quality that both reach.

    Args:
        title: for a reader.
        cases: graphs and topologies.
        fused: label: overrides of conf/plan.yaml; agents that fuse.
        fused_budget_s: seconds of search of each of them.
        unfused: likewise: the agent that does not.
        unfused_limit_s: seconds of its search, at which ratios are censored.
        reference: label: overrides; agents whose plans, beside those of both sides, the loss is
            measured by.
        reference_budget_s: seconds of search of each of them.

    Raises:
        InputError: a budget is not positive, or something is no list of overrides.
    """

    title: str
    cases: Sequence[Cases]
    fused: Mapping[str, Any]
    fused_budget_s: float
    unfused: Sequence[str]
    unfused_limit_s: float
    reference: Mapping[str, Any]
    reference_budget_s: float

    def __post_init__(self) -> None:
        axis({UNFUSED: self.unfused}, "unfused")
        axis(self.fused, "fused")
        axis(self.reference, "reference")
        for name in ("fused_budget_s", "unfused_limit_s", "reference_budget_s"):
            positive(getattr(self, name), name)
        labels = [UNFUSED, *self.fused, *self.reference]
        for label in labels:
            if labels.count(label) > 1:
                raise InputError("stands twice", file=SUITE_KEY, record=label, field="reference")

    @property
    def left_out(self) -> list[str]:
        return left_out_of(self.cases)

    def cells(self) -> list[PlanCell]:
        """Both searches and the references on every case; the short ones first."""
        cells = cells_of(self.cases, self.fused, [self.fused_budget_s])
        cells += cells_of(self.cases, self.reference, [self.reference_budget_s])
        return cells + cells_of(self.cases, {UNFUSED: self.unfused}, [self.unfused_limit_s])

    def report(self, outcomes: Mapping[PlanCell, Outcome]) -> Report:
        """A row per case, the distribution of all ratios, and both curves of every case."""
        cases = by_case(outcomes)
        races = [
            _Race(case, label, found, self.unfused_limit_s)
            for label in self.fused
            for case, found in cases.items()
        ]
        tables = [
            Table("Last plans", PLAN_COLUMNS, [race.plan_cells() for race in races]),
            Table("Un-fused over fused seconds", RATIO_COLUMNS,
                  [race.ratio_cells() for race in races],
                  note=f"un-fused limit {self.unfused_limit_s:g} s; ≥: not reached within it"),
            *(
                Table(f"All ratios of {label}, one per plan on its way",
                      ("ratio", "plans", "of them censored"),
                      _histogram([r for x in races if x.label == label for r in x.ratios()]))
                for label in self.fused
            ),
        ]  # fmt: skip
        headline = {
            label: _headline([race for race in races if race.label == label])
            for label in self.fused
        }
        figure = draw_anytime(
            [_panel([race for race in races if race.case == case]) for case in cases],
            f"{self.title}: the best plan so far, simulated on all operators",
            "step time",
            span=np.inf,
        )
        numbers = {"rows": [race.document() for race in races], "fused": headline}
        shown = {
            f"{label}: {name.replace('_', ' ')}": value
            for label, found in headline.items()
            for name, value in found.items()
            if not isinstance(value, dict)
        }
        return Report(tables, {"search_ratio.png": figure}, numbers, shown)


@dataclass(frozen=True)
class _Race:
    """One fused search and the un-fused one on one case."""

    case: Case
    label: str  # of the fused search
    found: Mapping[str, Outcome]
    limit_s: float

    @property
    def fused(self) -> AnytimeCurve:
        return self.found[self.label].curve

    @property
    def unfused(self) -> AnytimeCurve:
        return self.found[UNFUSED].curve

    @property
    def loss(self) -> float:
        """Of the fused search's plan against the best known one; NaN without a plan."""
        best = min(outcome.objective for outcome in self.found.values())
        return self.fused.final / best - 1.0 if self.fused.points else np.nan

    def at(self, quality: float) -> Ratio | None:
        """The ratio at one quality; None, too, where the un-fused search could not be run."""
        if self.found[UNFUSED].status == "failed":
            return None
        return Ratio.at(quality, self.fused, self.unfused, self.limit_s)

    def ratios(self) -> list[Ratio]:
        """One per plan on the fused search's curve."""
        found = [self.at(quality) for _, quality in self.fused.points]
        return [ratio for ratio in found if ratio is not None]

    def marks(self) -> list[Ratio | None]:
        """At the fused plan, within 1 % and 2 % of it, and at the worse of both plans."""
        final = self.fused.final
        worse = max(final, self.unfused.final)
        near = [self.at(final * (1.0 + share)) for share in WITHIN]
        return [self.at(final), *near, self.at(worse) if np.isfinite(worse) else None]

    def plan_cells(self) -> tuple[str, ...]:
        """A row of `PLAN_COLUMNS`."""
        operators = max(outcome.operators for outcome in self.found.values())
        as_good = self.fused.time_to(self.unfused.final) if self.unfused.points else np.nan
        return (
            self.case.name,
            self.label,
            f"{operators:,}",
            *_last(self.found[self.label]),
            *_last(self.found[UNFUSED]),
            seconds(as_good),
            percent(self.loss),
        )

    def ratio_cells(self) -> tuple[str, ...]:
        """A row of `RATIO_COLUMNS`."""
        ratios = sorted(self.ratios(), key=lambda ratio: ratio.value)
        spread = [ratios[-1], ratios[(len(ratios) - 1) // 2]] if ratios else [None, None]
        shown = (*self.marks(), *spread)
        return (self.case.name, self.label, *(ratio.text() if ratio else "" for ratio in shown))

    def document(self) -> dict[str, object]:
        marks = zip(MARKS, self.marks(), strict=True)
        return {
            "graph": self.case.graph,
            "topology": self.case.topology,
            "fused_search": self.label,
            "operators": max(outcome.operators for outcome in self.found.values()),
            "step_time_s": {name: outcome.objective for name, outcome in self.found.items()},
            "search_s": {name: outcome.seconds for name, outcome in self.found.items()},
            "reason": {name: x.reason for name, x in self.found.items() if not x.feasible},
            "loss_to_best_known": self.loss,
            "fused_s_to_unfused_plan": self.fused.time_to(self.unfused.final),
            **{name: ratio.document() if ratio else None for name, ratio in marks},
            "ratios": [ratio.document() for ratio in self.ratios()],
            "trajectories": {
                self.label: [list(point) for point in self.fused.points],
                UNFUSED: [list(point) for point in self.unfused.points],
            },
        }


def _panel(races: Sequence[_Race]) -> Panel:
    """All curves of one case."""
    found = races[0].found
    outcome = found[races[0].label]
    unit, scale = outcome.shown_unit
    curves = {race.label: race.fused.scaled(1 / scale) for race in races}
    return Panel(
        title=races[0].case.name,
        curves={**curves, UNFUSED: races[0].unfused.scaled(1 / scale)},
        lower_bound=max(outcome.lower_bound for outcome in found.values()) / scale,
        best_known=min(outcome.objective for outcome in found.values()) / scale,
        unit=unit,
    )


def _headline(races: Sequence[_Race]) -> dict[str, object]:
    """The largest ratios and the median loss of one fused search, over all cases."""
    found: dict[str, object] = {}
    for number, name in enumerate(MARKS):
        marked = [mark for race in races if (mark := race.marks()[number]) is not None]
        best = max(marked, key=lambda ratio: ratio.value, default=None)
        found[f"largest_ratio_{name}"] = best.text() if best else None
        found[f"largest_{name}"] = best.document() if best else None
    losses = [race.loss for race in races if np.isfinite(race.loss)]
    return {**found, "median_loss_to_best_known": float(np.median(losses)) if losses else None}


def _last(outcome: Outcome) -> tuple[str, str]:
    """The last plan of a search, and the seconds it took to find it."""
    if not outcome.feasible:
        return f"no plan: {outcome.reason}" if outcome.status == "failed" else "no plan", ""
    return outcome.time(outcome.objective), seconds(outcome.curve.time_to(outcome.curve.final))


def _histogram(ratios: Sequence[Ratio]) -> list[tuple[str, ...]]:
    """Ratios by powers of ten."""
    edges = [0.0, 0.1, 1.0, 10.0, 100.0, 1000.0, np.inf]
    rows: list[tuple[str, ...]] = []
    for low, high in pairwise(edges):
        inside = [ratio for ratio in ratios if low <= ratio.value < high]
        label = f"{low:g} or more" if np.isinf(high) else f"{low:g} to {high:g}"
        rows.append((label, str(len(inside)), str(sum(ratio.censored for ratio in inside))))
    return rows
