"""`suite=search_ratio`: how much longer searches without fusion take to a plan as good."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from experiments.pictures.step import AnytimeCurve, Panel, draw_anytime
from experiments.step.suites.cell import (
    Case,
    Cases,
    Outcome,
    PlanCell,
    PlanSuite,
    axis,
    by_case,
    cells_of,
    figures,
    left_out_of,
    operators_of,
    percent,
    positive,
    require_distinct,
    seconds,
)
from experiments.study.suite import Report
from experiments.study.tables import Table

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
        """How many times as long the opponent takes, at least."""
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
        InputError: a budget is not positive, a label stands twice, or something is no mapping.
    """

    title: str
    cases: Sequence[Cases]
    fused: Mapping[str, Any]
    fused_budget_s: float
    unfused: Mapping[str, Any]
    unfused_limit_s: float
    reference: Mapping[str, Any]
    reference_budget_s: float

    def __post_init__(self) -> None:
        for name in ("fused", "unfused", "reference"):
            axis(getattr(self, name), name)
        for name in ("fused_budget_s", "unfused_limit_s", "reference_budget_s"):
            positive(getattr(self, name), name)
        require_distinct([*self.unfused, *self.fused, *self.reference], "reference")

    @property
    def left_out(self) -> list[str]:
        return left_out_of(self.cases)

    def cells(self) -> list[PlanCell]:
        """All searches and the references on every case; the short ones first."""
        cells = cells_of(self.cases, self.fused, [self.fused_budget_s])
        cells += cells_of(self.cases, self.reference, [self.reference_budget_s])
        return cells + cells_of(self.cases, self.unfused, [self.unfused_limit_s])

    def report(self, outcomes: Mapping[PlanCell, Outcome]) -> Report:
        """Times to good plans, the distribution of all ratios, and the curves of every case."""
        cases = by_case(outcomes)
        pairs = {
            (label, other): [
                _Race(case, label, other, found, self.unfused_limit_s)
                for case, found in cases.items()
            ]
            for label in self.fused
            for other in self.unfused
        }
        races = [race for found in pairs.values() for race in found]
        tables = [
            Table("Time to within 2 % of the best known plan", TIME_COLUMNS,
                  [row for case, found in cases.items() for row in _times(case, found)]),
            Table("Opponents", NEAR_COLUMNS,
                  [(*pair, *_near(found)) for pair, found in pairs.items()], note=NEAR_NOTE),
            Table("Opponent's seconds over those of the search", RATIO_COLUMNS,
                  [race.cells() for race in races],
                  note=f"opponents' limit {self.unfused_limit_s:g} s; ≥: not reached within it"),
            *(
                Table(f"All ratios of {label} over {other}, one per plan on its way",
                      ("ratio", "plans", "of them censored"),
                      _histogram([ratio for race in found for ratio in race.ratios()]),
                      on_console=False)
                for (label, other), found in pairs.items()
            ),
        ]  # fmt: skip
        figure = draw_anytime(
            [self._panel(case, found) for case, found in cases.items()],
            f"{self.title}: the best plan so far, simulated on all operators",
            "step time",
            span=np.inf,
        )
        headline = {f"{a} / {b}": _headline(found) for (a, b), found in pairs.items()}
        numbers = {"rows": [race.document() for race in races], "fused": headline}
        name = "median_ratio_near_the_best_known"
        shown = {f"{pair}: {name.replace('_', ' ')}": x[name] for pair, x in headline.items()}
        return Report(tables, {"search_ratio.png": figure}, numbers, shown)

    def _panel(self, case: Case, found: Mapping[str, Outcome]) -> Panel:
        """The curves of all searches of one case."""
        unit, scale = next(iter(found.values())).shown_unit
        return Panel(
            title=case.name,
            curves={x: found[x].curve.scaled(1 / scale) for x in (*self.fused, *self.unfused)},
            lower_bound=max(outcome.lower_bound for outcome in found.values()) / scale,
            best_known=_best(found) / scale,
            unit=unit,
        )


@dataclass(frozen=True)
class _Race:
    """One fused search and one opponent on one case."""

    case: Case
    label: str  # of the fused search
    other: str  # of the opponent
    found: Mapping[str, Outcome]
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
        return self.fused.final / _best(self.found) - 1.0 if self.fused.points else np.nan

    def at(self, quality: float) -> Ratio | None:
        """The ratio at one quality; None, too, where the opponent could not be run."""
        if self.found[self.other].status == "failed":
            return None
        return Ratio.at(quality, self.fused, self.unfused, self.limit_s)

    @property
    def near(self) -> Ratio | None:
        """The ratio at `NEAR` the best known plan."""
        return self.at(_near_best(self.found))

    @property
    def lost(self) -> bool:
        """Whether the opponent alone comes near the best known plan."""
        quality = _near_best(self.found)
        return bool(
            np.isinf(self.fused.time_to(quality)) and self.unfused.time_to(quality) < np.inf
        )

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

    def cells(self) -> tuple[str, ...]:
        """A row of `RATIO_COLUMNS`."""
        ratios = sorted(self.ratios(), key=lambda ratio: ratio.value)
        spread = [ratios[-1], ratios[(len(ratios) - 1) // 2]] if ratios else [None, None]
        shown = [ratio.text() if ratio else "" for ratio in (*self.marks(), *spread)]
        as_good = self.fused.time_to(self.unfused.final) if self.unfused.points else np.nan
        return (self.case.name, self.label, self.other, *shown, seconds(as_good))

    def document(self) -> dict[str, object]:
        marks = zip(MARKS, self.marks(), strict=True)
        return {
            "graph": self.case.graph,
            "topology": self.case.topology,
            "fused_search": self.label,
            "opponent": self.other,
            "operators": operators_of(self.found),
            **figures(self.found),
            "loss_to_best_known": self.loss,
            "near_best_known": self.near.document() if self.near else None,
            "opponent_alone_near_best_known": self.lost,
            "fused_s_to_unfused_plan": self.fused.time_to(self.unfused.final),
            **{name: ratio.document() if ratio else None for name, ratio in marks},
            "ratios": [ratio.document() for ratio in self.ratios()],
            "trajectories": {
                self.label: [list(point) for point in self.fused.points],
                self.other: [list(point) for point in self.unfused.points],
            },
        }


def _best(found: Mapping[str, Outcome]) -> float:
    return min(outcome.objective for outcome in found.values())


def _near_best(found: Mapping[str, Outcome]) -> float:
    return _best(found) * (1.0 + NEAR)


def _times(case: Case, found: Mapping[str, Outcome]) -> Iterator[tuple[str, ...]]:
    """Rows of `TIME_COLUMNS`."""
    operators = operators_of(found)
    for name, outcome in found.items():
        over = percent(outcome.objective / _best(found) - 1.0) if outcome.feasible else ""
        after = seconds(outcome.curve.time_to(_near_best(found)))
        yield (case.name, f"{operators:,}", name, *_last(outcome), over, after)


def _near(races: Sequence[_Race]) -> tuple[str, ...]:
    """The last columns of `NEAR_COLUMNS`."""
    there = [race.near for race in races if race.near is not None]
    lost = sum(race.lost for race in races)
    ascending = ["0"] * lost + [x.text() for x in sorted(there, key=lambda ratio: ratio.value)]
    spread = (
        [ascending[0], ascending[(len(ascending) - 1) // 2], ascending[-1]] if ascending else []
    )
    counts = (len(races), len(there), lost + sum(not ratio.censored for ratio in there))
    return (*map(str, counts), *(spread or ["", "", ""]))


def _headline(races: Sequence[_Race]) -> dict[str, object]:
    """Of one fused search and one opponent over all cases: medians, and the largest ratios."""
    near = [race.near.value for race in races if race.near is not None]
    near += [0.0 for race in races if race.lost]
    found: dict[str, object] = {
        "median_ratio_near_the_best_known": sorted(near)[(len(near) - 1) // 2] if near else None
    }
    for number, name in enumerate(MARKS):
        marked = [mark for race in races if (mark := race.marks()[number]) is not None]
        best = max(marked, key=lambda ratio: ratio.value, default=None)
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
