"""`suite=learned_placement`: a trained placer against planners that are given the same time."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from envs.errors import InputError
from experiments.pictures.step import AnytimeCurve, Panel, draw_anytime
from experiments.run.grid import AppCell, Document
from experiments.run.statistics import bootstrap_median
from experiments.run.suite import SUITE_KEY, Check, Report
from experiments.run.tables import Table
from experiments.step.suites import cell
from experiments.step.suites.cell import SAME, Case, Cases, Outcome

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SAMPLES = 2000  # of the bootstrap
_TEAMS = {"opponents": ("quick", "searches"), "policies": ("learned", "ablations", "guided")}
ALONE_COLUMNS = (
    "planner", "problems", "plans missed", "seconds: median", "largest", "over the best: median",
    "below all in its time", "at or below all", "opponents without a plan",
)  # fmt: skip
ALONE_NOTE = (
    "Over the best: step time over that of the opponents' best plan with all their time. In its "
    "time: against what every opponent has after as many seconds; {} compete with the plan of "
    "their end. An opponent without a plan counts as {}, and is counted in the last column."
)
PAIR_COLUMNS = ("planner", "opponent", "after", "its step time over the opponent's", "at or below")
PART_COLUMNS = ("planner", "its step time over that of", "median", "at or below")
LOSS_COLUMNS = ("problem", "planner", "after", "step time", "best opponent", "by", "over it")


@dataclass(frozen=True)
class LearnedPlacement:
    """Every planner on every problem, one after the other in one process, each of them warm.

    One run of a search is its whole curve: what it has after t seconds is its best plan by then.
    A problem is two cells, runs of `experiments.race`: its opponents need not plan again when
    policies change.

    Args:
        title: for a reader.
        cases: problems, graphs and topologies, by any name.
        learned: label: overrides of conf/plan.yaml; trained policies that plan without a search.
        ablations: likewise, maybe none; the first of `learned` without one of its parts.
        guided: likewise, maybe none; searches that start from a trained policy.
        searches: likewise; opponents that use all their time.
        quick: likewise; opponents that need no budget.
        always: those of `quick` that compete with their last plan, however long it took.
        alone: that of `quick` which stands in for opponents without a plan.
        budget_s: seconds of `searches`.
        guided_budget_s: seconds of `guided`.
        quick_budget_s: seconds that the others may take at most.
        times_s: seconds after which plans are compared.

    Raises:
        InputError: a label is not there or stands twice, or something is no mapping of labels.
    """

    title: str
    cases: Mapping[str, Cases]
    learned: Mapping[str, Any]
    ablations: Mapping[str, Any]
    guided: Mapping[str, Any]
    searches: Mapping[str, Any]
    quick: Mapping[str, Any]
    always: Sequence[str]
    alone: str
    budget_s: float
    guided_budget_s: float
    quick_budget_s: float
    times_s: Sequence[float]

    own = ("entrants", "+agent@entrants", "budget", "+budget", "seed=", "json=", "hydra.")

    def __post_init__(self) -> None:
        for name in ("learned", "ablations", "guided", "searches", "quick"):
            if getattr(self, name) or name not in {"ablations", "guided"}:
                cell.axis(getattr(self, name), name)
        for name in ("budget_s", "guided_budget_s", "quick_budget_s"):
            cell.positive(getattr(self, name), name)
        for seconds in self.times_s:
            cell.positive(seconds, "times_s")
        keys = [_key(label) for label, _, _ in self._entrants()]
        for label, asked, _ in self._entrants():
            if keys.count(_key(label)) > 1:
                raise InputError("stands twice", file=SUITE_KEY, record=label)
            for word in asked:
                if not re.match(r"[+~]*agent[=.]", word):
                    told = f"{word!r} is not about an agent"
                    raise InputError(told, file=SUITE_KEY, record=label)
        for field, labels in ("always", self.always), ("alone", [self.alone]):
            for label in labels:
                if label not in self.quick:
                    told = f"{label!r} is none of {', '.join(self.quick)}"
                    raise InputError(told, file=SUITE_KEY, field=field)

    @property
    def left_out(self) -> list[str]:
        return cell.left_out_of(self.cases.values())

    def grid(self, folder: Path, seed: int) -> list[AppCell]:
        """Two cells for every problem: the opponents, then the policies."""
        cells = []
        for case in self._cases():
            for team in _TEAMS:
                entrants = list(self._entrants(team))
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
            yield Check(case.name, "race", "experiments.race.RaceConfig", case.overrides)
        for label, asked, _ in self._entrants():
            yield Check(label, "plan", "experiments.plan.PlanConfig", asked)

    def summary(self, found: Mapping[AppCell, Document]) -> Report:
        """What the planners had when; a problem that could not be posed has a row of its own."""
        documents = {app.folder.name: (app, document) for app, document in found.items()}
        races, nobody = [], []
        for case in self._cases():
            outcomes: dict[str, Outcome] = {}
            for team in _TEAMS:
                app, document = documents[_folder(case, team)]
                if "exit_code" in document:
                    nobody.append((case.name, str(document["reason"])))
                    break
                try:
                    shared = {"operators": document["operators"]}
                    for label, _, _ in self._entrants(team):
                        entrant = document["entrants"][_key(label)]
                        outcomes[label] = Outcome.of({**shared, **entrant})
                except (KeyError, TypeError, ValueError) as error:
                    told = f"is no result of a race ({error!r})"
                    raise InputError(told, file=app.record) from error
            else:
                if any(outcome.feasible for outcome in outcomes.values()):
                    races.append(_Race(case, outcomes, self))
                else:
                    nobody.append((case.name, outcomes[self.alone].reason))
        return self._report(races, nobody)

    def _cases(self) -> list[Case]:
        return [case for group in self.cases.values() for case in group]

    def _entrants(self, *teams: str) -> Iterator[tuple[str, Sequence[str], float]]:
        """Label, overrides and seconds of every planner of some teams, or of all."""
        for name in (name for team in teams or _TEAMS for name in _TEAMS[team]):
            limits = {"searches": self.budget_s, "guided": self.guided_budget_s}
            for label, asked in getattr(self, name).items():
                yield label, asked, limits.get(name, self.quick_budget_s)

    def _report(self, races: Sequence[_Race], nobody: Sequence[tuple[str, str]]) -> Report:
        first, labels = next(iter(self.learned)), [label for label, *_ in self._entrants()]
        note = ALONE_NOTE.format(" and ".join(self.always) or "none", self.alone)
        medians = {
            x: [_median([race.over(x, at) for race in races]) for at in self.times_s]
            for x in labels
        }
        shown = (*self.learned, *self.ablations) if races else ()
        tables = [
            Table(self.title, ALONE_COLUMNS, [_alone(x, races) for x in shown], note=note),
            Table("With a search, after the same time", PAIR_COLUMNS,
                  [(x, y, f"{at:g} s", *_spread(over)) for x, y, at, over in self._duels(races)]),
            Table("What the parts add", PART_COLUMNS,
                  [(x, first, *_spread([race.ends(x, first) for race in races]))
                   for x in self.ablations]),
            Table("Over the best, after so many seconds: median",
                  ("planner", *(f"{at:g} s" for at in self.times_s)),
                  [(x, *map(cell.times, medians[x])) for x in labels]),
            Table("Where it loses", LOSS_COLUMNS,
                  [row for race in races for x in (first, *self.guided) for row in race.loss(x)]),
            Table("All plans", ("problem", *labels),
                  [(race.case.name, *(x.time(x.objective) for x in race.found.values()))
                   for race in races], on_console=False),
        ]  # fmt: skip
        if nobody:
            tables.append(Table("Without a plan", ("problem", "why"), nobody))
        headline: dict[str, object] = {"problems": len(races), "without a plan": len(nobody)}
        for label in self.learned:
            same = np.array([race.in_its_time(label) for race in races])
            headline[f"{label}: median seconds"] = _median([x.found[label].seconds for x in races])
            headline[f"{label}: median over the best"] = _median(
                [x.over(label, np.inf) for x in races]
            )
            headline[f"{label}: below every planner in its time"] = int((same < 1.0 - SAME).sum())
        for label, other, at, ratios in self._duels(races):
            headline[f"{label} over {other} after {at:g} s"] = _median(ratios)
        rows = [race.document() for race in races]
        numbers = {"rows": rows, "times_s": list(self.times_s), "median_over_the_best": medians}
        return Report(tables, {"anytime.png": self._figure(races)}, numbers, headline)

    def _duels(self, races: Sequence[_Race]) -> Iterator[tuple[str, str, float, list[float]]]:
        """A guided search, another one, seconds, and the ratios of step times after them."""
        for label in self.guided:
            for other in self.searches:
                for at in self.times_s:
                    if at <= min(self.budget_s, self.guided_budget_s):
                        ratios = [
                            _over(race.at(label, at), race.rivals(at)[other]) for race in races
                        ]
                        yield label, other, at, ratios

    def _figure(self, races: Sequence[_Race]) -> Figure:
        """The planners' median curves, of policies the first's, in times of the opponents' best."""
        curves, (_, *variants) = {}, (*self.learned, *self.ablations)
        for label, _, limit in self._entrants():
            if label in variants:
                continue
            whens = sorted({at for race in races for at, _ in race.found[label].curve.points})
            points: list[tuple[float, float]] = []
            for at in whens[:: max(len(whens) // 300, 1)]:
                value = _median([race.over(label, at) for race in races])
                if np.isfinite(value) and value < (points[-1][1] if points else np.inf):
                    points.append((at, value))
            curves[label] = AnytimeCurve(tuple(points), points[-1][0] if points else limit)
        panel = Panel(f"median of {len(races)} problems", curves, 0.0, 1.0, "times the best")
        return draw_anytime([panel], self.title, "step time", span=1.5)


@dataclass(frozen=True)
class _Race:
    """All planners on one problem."""

    case: Case
    found: Mapping[str, Outcome]  # by label
    suite: LearnedPlacement

    def at(self, label: str, seconds: float) -> float:
        """Its step time after so many seconds; inf: it has no plan."""
        outcome = self.found[label]
        return outcome.objective if label in self.suite.always else outcome.curve.at(seconds)

    def rivals(self, seconds: float) -> dict[str, float]:
        """The opponents' step times after so many seconds, the best device's for who has none."""
        alone = self.found[self.suite.alone].objective
        times = {x: self.at(x, seconds) for x in (*self.suite.quick, *self.suite.searches)}
        return {x: time if np.isfinite(time) else alone for x, time in times.items()}

    def over(self, label: str, seconds: float) -> float:
        """Its step time after so many seconds over the best of all opponents."""
        return _over(self.found[label].curve.at(seconds), min(self.rivals(np.inf).values()))

    def ends(self, label: str, other: str) -> float:
        """Step time of one planner's last plan over that of another's."""
        return _over(self.found[label].objective, self.found[other].objective)

    def in_its_time(self, label: str) -> float:
        """Step time of its last plan over the best that opponents have by then."""
        mine = self.found[label]
        return _over(mine.objective, min(self.rivals(mine.seconds).values()))

    def without(self, label: str) -> int:
        """Opponents that have no plan when it has ended."""
        opponents = (*self.suite.quick, *self.suite.searches)
        times = [self.at(other, self.found[label].seconds) for other in opponents]
        return int(np.isinf(times).sum())

    def loss(self, label: str) -> Iterator[tuple[str, ...]]:
        """A row of `LOSS_COLUMNS` where an opponent's plan is faster in the same time."""
        mine = self.found[label]
        rivals = self.rivals(mine.seconds)
        by = min(rivals, key=lambda name: rivals[name])
        if (over := self.in_its_time(label)) > 1.0 + SAME:
            times = (mine.time(mine.objective), mine.time(rivals[by]))
            yield (self.case.name, label, cell.seconds(mine.seconds), *times, by, cell.times(over))

    def document(self) -> dict[str, object]:
        found = self.found.items()
        return {
            "problem": self.case.name,
            "step_time_s": {label: outcome.objective for label, outcome in found},
            "search_s": {label: outcome.seconds for label, outcome in found},
            "trajectory": {label: outcome.curve.points for label, outcome in found},
            "reason": {label: outcome.reason for label, outcome in found if not outcome.feasible},
        }


def _alone(label: str, races: Sequence[_Race]) -> tuple[str, ...]:
    """A row of `ALONE_COLUMNS`."""
    ends = np.array([race.over(label, np.inf) for race in races])
    same = np.array([race.in_its_time(label) for race in races])
    took = [race.found[label].seconds for race in races]
    return (
        label, str(len(races)), str(int(np.isinf(ends).sum())), cell.seconds(_median(took)),
        cell.seconds(max(took)), _spread(ends.tolist())[0], f"{(same < 1.0 - SAME).mean():.0%}",
        f"{(same <= 1.0 + SAME).mean():.0%}", str(sum(race.without(label) for race in races)),
    )  # fmt: skip


def _spread(ratios: Sequence[float]) -> tuple[str, str]:
    """Median and interval of those that are known, and the share of 1 or below."""
    known: NDArray[np.float64] = np.array([ratio for ratio in ratios if not np.isnan(ratio)])
    if not len(known):
        return "", ""
    return bootstrap_median(known, SAMPLES, 0).text(), f"{(known <= 1.0 + SAME).mean():.0%}"


def _folder(case: Case, team: str) -> str:
    return f"{_key(case.name)}.{team}"


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


def _median(values: Sequence[float]) -> float:
    known = [value for value in values if not np.isnan(value)]
    return float(np.median(known)) if known else np.nan
