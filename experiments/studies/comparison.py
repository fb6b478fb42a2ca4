"""Who is how far from a yardstick: ratios paired by problem, with bootstrap intervals."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import polars as pl

from envs.arrays import FloatArray
from envs.errors import InputError
from experiments.run.statistics import Interval, bootstrap, bootstrap_median
from experiments.studies.frames import Frames
from experiments.studies.study import BEST_OVERALL, BEST_PER_PROBLEM, Study

SAME = 1e-9  # relative difference, by rounding, of two equal values
KNOWN = "published"


class Item(NamedTuple):
    """What values are paired by: a problem, and the instance of it where it has several."""

    problem: str
    instance: str

    @property
    def name(self) -> str:
        return ": ".join(filter(None, (self.problem, self.instance)))


class Entry(NamedTuple):
    """Who is compared."""

    solver: str
    variant: str
    budget: float | None


@dataclass(frozen=True, eq=False)
class Comparison:
    """One metric of a study."""

    study: Study
    frames: Frames
    metric: str

    @cached_property
    def rows(self) -> pl.DataFrame:
        """The metric's values with their cells; of a result with instances those of each."""
        found = self.frames.figures(self.metric)
        if found.is_empty():
            known = ", ".join(sorted(self.frames.values["metric"].unique()))
            reason = f"no cell has a figure {self.metric!r} (known: {known})"
            raise InputError(f"config key 'study.metrics': {reason}")
        several = found.group_by("cell").agg((pl.col("instance") != "").any().alias("several"))
        return found.join(several, "cell", maintain_order="left").filter(
            (pl.col("instance") != "") == pl.col("several")
        )

    @cached_property
    def items(self) -> list[Item]:
        found = self.rows.select("problem", "instance").unique(maintain_order=True)
        return [Item(*row) for row in found.iter_rows()]

    @cached_property
    def entries(self) -> list[Entry]:
        """Everybody, in the order of the study, whether or not there is a value."""
        names = self.frames.cells.select("solver", "variant", "budget").unique(maintain_order=True)
        return [Entry(*row) for row in names.iter_rows()]

    def name(self, entry: Entry) -> str:
        """The solver and its variant, and the budget where its solver has several."""
        name = "/".join(filter(None, (entry.solver, entry.variant)))
        several = len({x.budget for x in self.entries if x.solver == entry.solver}) > 1
        return f"{name}, {entry.budget:g} s" if several else name

    @cached_property
    def seeds(self) -> list[int]:
        return sorted(self.frames.cells["seed"].unique().to_list())

    @cached_property
    def values(self) -> Mapping[Entry, FloatArray]:
        """(items, seeds) of each entry; NaN where there is none."""
        place = {item: number for number, item in enumerate(self.items)}
        column = {seed: number for number, seed in enumerate(self.seeds)}
        shape = len(self.items), len(self.seeds)
        found = {entry: np.full(shape, np.nan) for entry in self.entries}
        chosen = self.rows.select(
            "solver", "variant", "budget", "problem", "instance", "seed", "value"
        )
        for solver, variant, budget, problem, instance, seed, value in chosen.iter_rows():
            found[Entry(solver, variant, budget)][place[Item(problem, instance)], column[seed]] = (
                value
            )
        return found

    @cached_property
    def means(self) -> Mapping[Entry, FloatArray]:
        """(items,) over the seeds that have a value; NaN where none has."""
        return {entry: _mean(values, axis=1) for entry, values in self.values.items()}

    @cached_property
    def rivals(self) -> list[Entry]:
        """Those that the best is chosen of."""
        names = self.study.yardsticks
        return [x for x in self.entries if names is None or x.solver in names]

    @cached_property
    def best(self) -> FloatArray:
        """(items,) the best value of a rival, or published."""
        published = np.array([self.study.known.get(item.problem, np.nan) for item in self.items])
        every = np.array([published, *(self.means[entry] for entry in self.rivals)])
        return self._least(every)

    @cached_property
    def best_known(self) -> FloatArray:
        """(items,) the best value of anybody, or published."""
        return self._least(np.array([self.best, *self.means.values()]))

    def overall(self, places: Sequence[int] | None = None) -> Entry:
        """The rival with the best mean ratio to the best, over all items or over some."""
        return self._leader(self.rivals, places)

    def leader(self) -> Entry:
        """The same of everybody."""
        return self._leader(self.entries)

    def _leader(self, entries: Sequence[Entry], places: Sequence[int] | None = None) -> Entry:
        return min(entries, key=lambda entry: self._score(entry, places))

    @cached_property
    def shown(self) -> list[Entry]:
        """The best variant of each solver and budget."""
        found: dict[tuple[str, float | None], Entry] = {}
        for entry in self.entries:
            key = entry.solver, entry.budget
            if key not in found or self._score(entry) < self._score(found[key]):
                found[key] = entry
        return list(found.values())

    @cached_property
    def problems(self) -> Mapping[str, list[int]]:
        """The places of the items of each problem."""
        found: dict[str, list[int]] = {}
        for number, item in enumerate(self.items):
            found.setdefault(item.problem, []).append(number)
        return found

    @property
    def several(self) -> bool:
        """Whether a problem has several instances."""
        return len(self.problems) < len(self.items)

    def yardsticks(self, entry: Entry, against: str) -> list[Entry | None]:
        """Whose value an entry's is divided by, for each item; None: there is none.

        The best overall is that of a problem where problems have instances, else that of all.
        """
        if against == BEST_PER_PROBLEM:
            every = np.array([self.means[rival] for rival in self.rivals])
            best = self._least(every)
            near = np.where(np.isnan(every), np.inf, abs(every - best)).argmin(axis=0)
            return [
                None if np.isnan(x) else self.rivals[n] for x, n in zip(best, near, strict=True)
            ]
        if against == BEST_OVERALL:
            groups = self.problems if self.several else {"": list(range(len(self.items)))}
            best_of = {n: self.overall(places) for places in groups.values() for n in places}
            return [best_of[n] for n in range(len(self.items))]
        return [self._beside(entry, against)] * len(self.items)

    def yardstick(self, entry: Entry, against: str = "", metric: str = "") -> FloatArray:
        """(items,) what the values of an entry are divided by, as `against` or the study says."""
        against = against or self.study.against[0]
        if "=" in against:
            return self._at_level(entry, *against.split("=", 1))
        if against == BEST_PER_PROBLEM and not metric:
            return self.best
        means = self._of(metric or self.metric).means
        chosen = self.yardsticks(entry, against)
        return np.array([np.nan if x is None else means[x][n] for n, x in enumerate(chosen)])

    def ratios(self, entry: Entry, against: str = "", metric: str = "") -> FloatArray:
        """(items, seeds) values over the yardstick, which the first metric chooses."""
        values = self._of(metric or self.metric).values
        ratios: FloatArray = values[entry] / self.yardstick(entry, against, metric)[:, None]
        return ratios

    def _of(self, metric: str) -> Comparison:
        """A metric on the same items."""
        if metric not in self._others:
            self._others[metric] = Comparison(self.study, self.frames, metric)
            self._others[metric].__dict__["items"] = self.items
        return self._others[metric]

    @cached_property
    def _others(self) -> dict[str, Comparison]:
        return {self.metric: self}

    def interval(self, ratios: FloatArray) -> Interval | None:
        """Of the mean over the items, and seeds, that have a value; None: there is none."""
        known = ratios[:, ~np.isnan(ratios).all(axis=0)]
        known = known[~np.isnan(known).any(axis=1)] if known.size else known
        return bootstrap(known, self.study.samples, self.seeds[0]) if known.size else None

    def mean_ratios(self, entry: Entry) -> FloatArray:
        """(items,) `ratios`, over the seeds that have one."""
        return _mean(self.ratios(entry), axis=1)

    @cached_property
    def summaries(self) -> Mapping[Entry, dict[str, Any]]:
        """A row for each of those shown."""
        return {entry: self.summary(entry) for entry in self.shown}

    def summary(self, entry: Entry) -> dict[str, Any]:
        """A row for an entry: how often it has the best value, and ratios to the yardstick."""
        over, mean = self.mean_ratios(entry), self.means[entry]
        known = over[~np.isnan(over)]
        cells = self._cells(entry)
        interval = self.interval(self.ratios(entry))
        near = mean / self.best_known
        won = near <= 1.0 + SAME if self.study.sense == "min" else near >= 1.0 - SAME
        times = cells["seconds"].drop_nulls()
        return {
            "solver": self.name(entry),
            "items": len(self.items),
            "missing": len(self.items) - len(known),
            "best_on": int(won.sum()),
            "median": float(np.median(known)) if len(known) else None,
            "worst": float(known.max() if self.study.sense == "min" else known.min())
            if len(known) else None,
            "mean": interval.mean if interval else None,
            "low": interval.low if interval else None,
            "high": interval.high if interval else None,
            "seconds": times.median() if len(times) else None,
            "in_its_time": self.in_its_time(entry),
        }  # fmt: skip

    @cached_property
    def by_problem(self) -> Mapping[str, Mapping[Entry, Interval | None]]:
        """Mean ratios over the instances of each problem; empty: no problem has several."""
        places = self.problems if self.several else {}
        return {
            problem: {x: self.interval(self.ratios(x)[some]) for x in self.shown}
            for problem, some in places.items()
        }

    def by_problem_document(self) -> dict[str, Any]:
        """Of problems of several instances the best overall, and mean ratios with intervals."""
        found = {}
        for problem, intervals in self.by_problem.items():
            means = {self.name(x): asdict(y) for x, y in intervals.items() if y is not None}
            places = self.problems[problem]
            best = self.name(self.overall(places))
            found[problem] = {"best_overall": best, "instances": len(places), "ratios": means}
        return found

    def in_its_time(self, entry: Entry) -> float | None:
        """The median ratio to the best rival that is given no more time than the entry took.

        Of a rival with several budgets that is the run with the least one that is no shorter, or
        else the longest; of another what it had found by then. None without curves.
        """
        if self.frames.curves.is_empty() or self.study.sense != "min":
            return None
        took = self._seconds(entry)
        ratios = []
        for number, item in enumerate(self.items):
            seconds, own = took.get(item.problem), self.means[entry][number]
            if seconds is None or np.isnan(own):
                continue
            best = min(
                (self._by(x, number, seconds) for x in self._told(entry, seconds)), default=np.inf
            )
            if np.isfinite(best):
                ratios.append(own / best)
        return float(np.median(ratios)) if ratios else None

    def time_to(self, entry: Entry, within: float) -> list[tuple[float, bool]]:
        """(seconds, censored) for each item until the entry is within a share of the best known.

        An item that it never comes so near counts as one that takes longer than the search did.
        """
        found = []
        took = self._seconds(entry)
        for number, item in enumerate(self.items):
            limit = self.best[number] * (1.0 + within) * (1.0 + SAME)
            if item.problem not in took or np.isnan(limit):
                continue
            reached = self._curve(entry, item.problem).filter(pl.col("value") <= limit)["seconds"]
            first = reached.min() if len(reached) else None
            found.append((took[item.problem], True) if first is None else (float(first), False))  # type: ignore[arg-type]
        return found

    def time_ratios(self, entry: Entry, within: float) -> dict[str, Any]:
        """How much longer an entry takes than the solver that is the yardstick: median, interval.

        Where only the entry never comes so near, its ratio is at least the one that is counted.
        """
        yardstick = self._beside(entry, self.study.against[0])
        own, other = self.time_to(entry, within), self.time_to(yardstick, within)
        pairs = [(a, b) for a, b in zip(own, other, strict=True) if not b[1]]
        ratios = np.array([a[0] / max(b[0], 1e-3) for a, b in pairs])
        censored = sum(a[1] for a, _ in pairs)
        if not len(ratios):
            return {"solver": self.name(entry), "within": within, "items": 0, "censored": 0}
        interval = bootstrap_median(ratios, self.study.samples, self.seeds[0])
        ends = {"median": interval.mean, "low": interval.low, "high": interval.high}
        return {
            "solver": self.name(entry),
            "within": within,
            "items": len(ratios),
            "censored": censored,
            **ends,
        }

    def _score(self, entry: Entry, places: Sequence[int] | None = None) -> tuple[int, float]:
        ratios = self.means[entry] / self.best
        ratios = ratios if places is None else ratios[list(places)]
        mean = float(_mean(ratios, axis=0))
        mean = mean if self.study.sense == "min" else -mean
        return int(np.isnan(ratios).sum()), mean if np.isfinite(mean) else np.inf

    def _least(self, values: FloatArray) -> FloatArray:
        empty = np.isnan(values).all(axis=0)
        worst = np.inf if self.study.sense == "min" else -np.inf
        filled = np.where(np.isnan(values), worst, values)
        found = filled.min(axis=0) if self.study.sense == "min" else filled.max(axis=0)
        return np.where(empty, np.nan, found)

    def _at_level(self, entry: Entry, factor: str, level: str) -> FloatArray:
        """The entry's own values where a factor has another level, else as the problem is."""
        levels = {
            problem: json.loads(text)
            for problem, text in self.frames.cells.select("problem", "factors").unique().iter_rows()
        }
        place = {item: number for number, item in enumerate(self.items)}
        there = [
            place.get(
                Item(", ".join({**levels[item.problem], factor: level}.values()), item.instance)
            )
            for item in self.items
        ]
        own = self.means[entry]
        return np.array([np.nan if number is None else own[number] for number in there])

    def _cells(self, entry: Entry) -> pl.DataFrame:
        same = (pl.col("solver") == entry.solver) & (pl.col("variant") == entry.variant)
        return self.frames.cells.filter(same & pl.col("budget").eq_missing(pl.lit(entry.budget)))

    def _seconds(self, entry: Entry) -> dict[str, float]:
        """The mean search time of an entry by problem."""
        known = self._cells(entry).drop_nulls("seconds")
        return dict(known.group_by("problem").agg(pl.col("seconds").mean()).iter_rows())

    def _curve(self, entry: Entry, problem: str) -> pl.DataFrame:
        cells = self._cells(entry).filter(pl.col("problem") == problem)["cell"]
        return self.frames.curves.filter(pl.col("cell").is_in(cells.implode()))

    def _told(self, entry: Entry, seconds: float) -> list[Entry]:
        """The runs of rivals that stand for so many seconds."""
        found = []
        for solver in dict.fromkeys(x.solver for x in self.rivals if x.solver != entry.solver):
            runs = [x for x in self.rivals if x.solver == solver]
            budgets = sorted({x.budget for x in runs if x.budget is not None})
            if len(budgets) > 1:
                chosen = next((x for x in budgets if x >= seconds * (1.0 - SAME)), budgets[-1])
                runs = [x for x in runs if x.budget == chosen]
            found += runs
        return found

    def _by(self, entry: Entry, number: int, seconds: float) -> float:
        """What an entry had for an item by then; of a run of many budgets what it ended with."""
        value = self.means[entry][number]
        if np.isnan(value):
            return np.inf
        several = len({x.budget for x in self.rivals if x.solver == entry.solver}) > 1
        curve = self._curve(entry, self.items[number].problem)
        if several or curve.is_empty():
            return float(value)
        reached = curve.filter(pl.col("seconds") <= seconds)["value"].min()
        return np.inf if reached is None else float(reached)  # type: ignore[arg-type]

    def _beside(self, entry: Entry, solver: str) -> Entry:
        """A solver at the budget of an entry, or else at its last."""
        same = [x for x in self.shown if x.solver == solver]
        return next((x for x in same if x.budget == entry.budget), same[-1])


def _mean(values: FloatArray, axis: int) -> FloatArray:
    """Without NaN; NaN where there is nothing else."""
    known = ~np.isnan(values)
    count = known.sum(axis=axis)
    total = np.where(known, values, 0.0).sum(axis=axis)
    return np.where(count > 0, total / np.maximum(count, 1), np.nan)


def solvers_first(entries: Sequence[Entry]) -> list[Entry]:
    """All budgets of a solver beside each other."""
    order = list(dict.fromkeys(entry.solver for entry in entries))
    return sorted(entries, key=lambda entry: (order.index(entry.solver), entry.budget or 0.0))
