"""`suite=learned_placement`: a trained placer against planners that are given the same time."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
from annotated_types import MinLen

from envs.arrays import FloatArray
from envs.bounds import Count, Positive, bounded
from envs.errors import InputError, require_one_of
from experiments.pictures.step import AnytimeCurve, Panel, draw_anytime
from experiments.step.suites import cell
from experiments.step.suites.cell import SAME, Axis, Case, Cases, Labelled, Outcome, Row
from experiments.study.grid import AppCell, Document
from experiments.study.statistics import bootstrap_median
from experiments.study.suite import SUITE_KEY, Check, Report
from experiments.study.tables import Table

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAMPLES = 2000  # of the bootstrap
_TEAMS = {"opponents": ("quick", "searches"), "policies": ("learned", "ablations", "guided")}
ALONE_COLUMNS = (
    "planner", "problems", "plans missed", "seconds: median", "largest", "over the best: median",
    "below all in its time", "at or below all", "opponents without a plan",
)  # fmt: skip
ALONE_NOTE = (
    "Over the best: step time over that of the opponents' best plan at the largest budget that "
    "every problem has. In its time: against quick opponents after as many seconds, and against "
    "searches told the least budget that is no shorter; {} compete with the plan of their end. An "
    "opponent without a plan counts as {}, and is counted in the last column."
)
PAIR_COLUMNS = (
    "planner", "opponent", "each told", "took: median", "problems",
    "its step time over the opponent's", "at or below",
)  # fmt: skip
PART_COLUMNS = ("planner", "its step time over that of", "median", "at or below")
LOSS_COLUMNS = ("problem", "planner", "after", "step time", "best opponent", "by", "over it")


@bounded
@dataclass(frozen=True)
class LearnedPlacement:
    """Every planner on every problem, one after the other in one process, each of them warm.

    A search is run once for every budget: one that is told sixty seconds cools so slowly that its
    best plan after one is not what it finds when told one. A problem is two cells, runs of
    `experiments.race`: its opponents need not plan again when policies change.

    Args:
        title: for a reader.
        cases: problems, graphs and topologies, by any name.
        learned: label: overrides of conf/plan.yaml; trained policies that plan without a search.
        ablations: likewise, maybe none; the first of `learned` without one of its parts.
        guided: likewise, maybe none; searches that start from a policy, or from its twin.
        searches: likewise; opponents that use all their time.
        quick: likewise; opponents that need no budget.
        always: those of `quick` that compete with their last plan, however long it took.
        alone: that of `quick` which stands in for opponents without a plan.
        budgets_s: seconds that `searches` and `guided` are told, a run for each.
        some_budgets_s: further ones, on `some` of the problems, evenly spread.
        some: how many.
        quick_budget_s: seconds that the others may take at most.

    Raises:
        InputError: a label is not there or stands twice, or its overrides are about something else.
    """

    title: str
    cases: Mapping[str, Cases]
    learned: Axis
    ablations: Labelled
    guided: Labelled
    searches: Axis
    quick: Axis
    always: Sequence[str]
    alone: str
    budgets_s: Annotated[Sequence[Positive], MinLen(1)]
    some_budgets_s: Sequence[Positive]
    some: Count
    quick_budget_s: Positive

    own = ("entrants", "+agent@entrants", "budget", "+budget", "seed=", "json=", "hydra.")

    def __post_init__(self) -> None:
        entrants = list(self._entrants(self._budgets_s))
        keys = [_key(label) for label, _, _ in entrants]
        for label, asked, _ in entrants:
            if keys.count(_key(label)) > 1:
                raise InputError("stands twice", file=SUITE_KEY, record=label)
            for word in asked:
                if not re.match(r"[+~]*agent[=.]", word):
                    told = f"{word!r} is not about an agent"
                    raise InputError(told, file=SUITE_KEY, record=label)
        for field, labels in ("always", self.always), ("alone", [self.alone]):
            for label in labels:
                require_one_of(label, self.quick, file=SUITE_KEY, field=field)

    @property
    def left_out(self) -> list[str]:
        return cell.left_out_of(self.cases.values())

    def grid(self, folder: Path, seed: int) -> list[AppCell]:
        """Two cells for every problem: the opponents, then the policies."""
        cells = []
        for case, budgets_s in self._cases().items():
            for team in _TEAMS:
                entrants = list(self._entrants(budgets_s, team))
                words = [word for label, asked, _ in entrants for word in _entered(label, asked)]
                words += [f"+budgets_s.{_key(label)}={limit}" for label, _, limit in entrants]
                cells.append(
                    AppCell(
                        f"{case.name}: {team}", "race",
                        (*case.overrides, *words, f"seed={seed}"), folder / _folder(case, team),
                        budget_s=sum(limit for *_, limit in entrants), may_fail=True,
                    )
                )  # fmt: skip
        return cells

    def checks(self) -> Iterator[Check]:
        for case in self._cases():
            yield Check(case.name, "race", "experiments.step.race.RaceConfig", case.overrides)
        for label, asked, _ in self._entrants(self._budgets_s):
            yield Check(label, "plan", "experiments.step.plan.PlanConfig", asked)

    def summary(self, found: Mapping[AppCell, Document]) -> Report:
        """What the planners had when; a problem that could not be posed has a row of its own."""
        apps = {app.folder.name: app for app in found}
        races, nobody = [], []
        for case, budgets_s in self._cases().items():
            teams = {team: apps[_folder(case, team)] for team in _TEAMS}
            if failed := [found[app] for app in teams.values() if "exit_code" in found[app]]:
                nobody.append((case.name, str(failed[0]["reason"])))
                continue
            outcomes: dict[str, Outcome] = {}
            for team, app in teams.items():
                entrants = found[app].get("entrants", {})
                for label, *_ in self._entrants(budgets_s, team):
                    told = {"operators": 0, **entrants.get(_key(label), {})}
                    outcomes[label] = Outcome.of(told, app.record)
            race = _Race(case, outcomes, self)
            if np.isfinite(race.best):
                races.append(race)
            else:
                nobody.append((case.name, outcomes[self.alone].reason))
        return self._report(races, nobody)

    @property
    def _budgets_s(self) -> list[float]:
        return sorted({*self.budgets_s, *self.some_budgets_s})

    def _cases(self) -> dict[Case, list[float]]:
        """Every problem, and the seconds that searches of it are told."""
        cases = [case for group in self.cases.values() for case in group]
        few = min(self.some, len(cases))
        chosen = {k * len(cases) // few for k in range(few)}
        return {
            case: self._budgets_s if k in chosen else sorted(set(self.budgets_s))
            for k, case in enumerate(cases)
        }

    def _entrants(
        self, budgets_s: Sequence[float], *teams: str
    ) -> Iterator[tuple[str, Sequence[str], float]]:
        """Label, overrides and seconds of every run of a planner of some teams, or of all."""
        for name in (name for team in teams or _TEAMS for name in _TEAMS[team]):
            for label, asked in getattr(self, name).items():
                if name in {"searches", "guided"}:
                    yield from ((_told(label, seconds), asked, seconds) for seconds in budgets_s)
                else:
                    yield label, asked, self.quick_budget_s

    def _report(self, races: Sequence[_Race], nobody: Sequence[tuple[str, str]]) -> Report:
        first = next(iter(self.learned))
        planners = (*self.guided, *self.searches, *self.learned, *self.ablations, *self.quick)
        medians = {
            x: [_median(race.over(x, at) for race in races) for at in self.budgets_s]
            for x in planners
        }
        runs = [label for label, *_ in self._entrants(self._budgets_s)]
        duels = list(self._duels(races))
        tables = [
            Table(self.title, ALONE_COLUMNS,
                  [_alone(x, races) for x in (*self.learned, *self.ablations) if races],
                  note=ALONE_NOTE.format(" and ".join(self.always) or "none", self.alone)),
            Table("With a search, each told the same time", PAIR_COLUMNS,
                  [(x, y, f"{at:g} s", took, str(len(ratios)), *_spread(ratios))
                   for x, y, at, took, ratios in duels]),
            Table("What the parts add", PART_COLUMNS,
                  [(x, first, *_spread([race.ends(x, first) for race in races]))
                   for x in self.ablations]),
            Table("Over the best, told so many seconds: median",
                  ("planner", *(f"{at:g} s" for at in self.budgets_s)),
                  [(x, *map(cell.times, row)) for x, row in medians.items()]),
            Table("Where it loses", LOSS_COLUMNS,
                  [row for race in races for x in (first, *self.guided) for row in race.losses(x)]),
            Table("All plans", ("problem", *runs),
                  [(race.case.name, *(race.found[x].text if x in race.found else "" for x in runs))
                   for race in races], on_console=False),
        ]  # fmt: skip
        if nobody:
            tables.append(Table("Without a plan", ("problem", "why"), nobody))
        headline: dict[str, object] = {"problems": len(races), "without a plan": len(nobody)}
        for label in self.learned:
            same = np.array([race.in_its_time(label) for race in races])
            seconds = _median(race.found[label].seconds for race in races)
            headline[f"{label}: median seconds"] = seconds
            over = _median(race.over(label, np.inf) for race in races)
            headline[f"{label}: median over the best"] = over
            headline[f"{label}: below every planner in its time"] = int((same < 1.0 - SAME).sum())
        for label, other, at, _, ratios in duels:
            headline[f"{label} over {other}, each told {at:g} s"] = _median(ratios)
        rows = [race.document() for race in races]
        numbers = {"rows": rows, "budgets_s": list(self.budgets_s), "median_over_the_best": medians}
        return Report(tables, {"anytime.png": self._figure(races)}, numbers, headline)

    def _duels(self, races: Sequence[_Race]) -> Iterator[tuple[str, str, float, str, list[float]]]:
        """A guided search, another, the seconds both are told and took, ratios of step times."""
        names = list(self.guided)
        pairs = [(mine, other) for mine in names for other in self.searches]
        for mine, other in [*pairs, *((names[0], twin) for twin in names[1:])]:
            for at in self._budgets_s:
                run = [race for race in races if _told(mine, at) in race.found]
                took = [
                    cell.seconds(_median(race.found[_told(x, at)].seconds for race in run))
                    for x in (mine, other)
                ]
                ratios = [race.duel(mine, other, at) for race in run]
                yield mine, other, at, " and ".join(took), ratios

    def _figure(self, races: Sequence[_Race]) -> Figure:
        """The planners' medians by seconds, of policies the first's, in times of the best.

        A search stands where its runs ended: some take longer than they are told.
        """
        curves, searches = {}, (*self.guided, *self.searches)
        for label in (next(iter(self.learned)), *self.quick, *searches):
            whens: Sequence[float] = self.budgets_s
            if label not in searches:
                whens = sorted({at for race in races for at, _ in race.found[label].curve.points})
            points: list[tuple[float, float]] = []
            for at in whens[:: max(len(whens) // 300, 1)]:
                value = _median(race.over(label, at) for race in races)
                if np.isfinite(value) and value < (points[-1][1] if points else np.inf):
                    told = _told(label, at)
                    ends = [race.found[told].seconds for race in races if told in race.found]
                    points.append((_median(ends) if ends else at, value))
            curves[label] = AnytimeCurve(tuple(points), points[-1][0] if points else 0.0)
        panel = Panel(f"median of {len(races)} problems", curves, 0.0, 1.0, "times the best")
        return draw_anytime([panel], self.title, "step time", span=1.5)


@dataclass(frozen=True)
class _Race(Row):
    """All planners on one problem."""

    suite: LearnedPlacement

    @property
    def opponents(self) -> tuple[str, ...]:
        return (*self.suite.quick, *self.suite.searches)

    def at(self, label: str, seconds: float) -> float:
        """Its step time with so many seconds, inf without a plan.

        Of a search that of its own run, told the least budget that is no shorter, or the largest.
        """
        if label not in self.found:
            budgets_s = [x for x in self.suite.budgets_s if _told(label, x) in self.found]
            enough = [x for x in budgets_s if x >= seconds] or [max(budgets_s)]
            return self.found[_told(label, min(enough))].objective
        outcome = self.found[label]
        return outcome.objective if label in self.suite.always else outcome.curve.at(seconds)

    def rivals(self, seconds: float) -> dict[str, float]:
        """The opponents' step times in so many seconds, the best device's for who has none."""
        return {x: self._or_alone(self.at(x, seconds)) for x in self.opponents}

    def _or_alone(self, time: float) -> float:
        return time if np.isfinite(time) else self.found[self.suite.alone].objective

    def over(self, label: str, seconds: float) -> float:
        """Its step time in so many seconds over the best of all opponents."""
        return _over(self.at(label, seconds), min(self.rivals(np.inf).values()))

    def duel(self, label: str, other: str, seconds: float) -> float:
        """Step time of one search over that of another, both told so many seconds."""
        theirs = self.found[_told(other, seconds)].objective
        return _over(self.found[_told(label, seconds)].objective, self._or_alone(theirs))

    def ends(self, label: str, other: str) -> float:
        """Step time of one planner's last plan over that of another's."""
        return _over(self.found[label].objective, self.found[other].objective)

    def in_its_time(self, label: str) -> float:
        """Step time of its last plan over the best that opponents have by then."""
        mine = self.found[label]
        return _over(mine.objective, min(self.rivals(mine.seconds).values()))

    def losses(self, label: str) -> Iterator[tuple[str, ...]]:
        """A row of `LOSS_COLUMNS` for each of its runs where an opponent's plan is faster."""
        asked = {_told(label, seconds): seconds for seconds in self.suite.budgets_s}
        if label in self.found:
            asked = {label: self.found[label].seconds}
        for name, seconds in asked.items():
            mine, rivals = self.found[name], self.rivals(seconds)
            by = min(rivals, key=lambda other: rivals[other])
            if (over := _over(mine.objective, rivals[by])) > 1.0 + SAME:
                times = (mine.text, mine.time(rivals[by]))
                yield (
                    self.case.name, name, cell.seconds(mine.seconds), *times, by, cell.times(over)
                )  # fmt: skip

    def document(self) -> dict[str, object]:
        curves = {label: outcome.curve.points for label, outcome in self.found.items()}
        return {"problem": self.case.name, "trajectory": curves, **super().document()}


def _alone(label: str, races: Sequence[_Race]) -> tuple[str, ...]:
    """A row of `ALONE_COLUMNS`."""
    ends = np.array([race.over(label, np.inf) for race in races])
    same = np.array([race.in_its_time(label) for race in races])
    took = [race.found[label].seconds for race in races]
    without = sum(
        np.isinf(race.at(x, race.found[label].seconds)) for race in races for x in race.opponents
    )
    return (
        label, str(len(races)), str(int(np.isinf(ends).sum())), cell.seconds(_median(took)),
        cell.seconds(max(took)), _spread(ends.tolist())[0], f"{(same < 1.0 - SAME).mean():.0%}",
        f"{(same <= 1.0 + SAME).mean():.0%}", str(without),
    )  # fmt: skip


def _spread(ratios: Sequence[float]) -> tuple[str, str]:
    """Median and interval of those that are known, and the share of 1 or below."""
    known: FloatArray = np.array([ratio for ratio in ratios if not np.isnan(ratio)])
    if not len(known):
        return "", ""
    return bootstrap_median(known, SAMPLES, 0).text(), f"{(known <= 1.0 + SAME).mean():.0%}"


def _folder(case: Case, team: str) -> str:
    return f"{_key(case.name)}.{team}"


def _told(label: str, seconds: float) -> str:
    """A run of a search."""
    return f"{label} told {seconds:g} s"


def _key(label: str) -> str:
    return re.sub(r"\W+", "_", label).strip("_")


def _entered(label: str, asked: Sequence[str]) -> Iterator[str]:
    """Overrides of the agent of conf/plan.yaml as those of an entrant of conf/race.yaml."""
    for word in asked:
        if word.startswith("agent="):
            yield f"+agent@entrants.{_key(label)}={word.removeprefix('agent=')}"
        else:
            yield re.sub(r"^([+~]*)agent\.", rf"\g<1>entrants.{_key(label)}.", word)


def _over(mine: float, theirs: float) -> float:
    """Mine over theirs; 0 where they have no plan, inf where I have none, NaN where nobody has."""
    if np.isinf(theirs):
        return np.nan if np.isinf(mine) else 0.0
    return mine / theirs


def _median(values: Iterable[float]) -> float:
    known = [value for value in values if not np.isnan(value)]
    return float(np.median(known)) if known else np.nan
