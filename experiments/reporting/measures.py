"""What is compared across runs: the rows that a result has for a table, and what they measure."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeGuard

from envs.units import GIBI
from experiments.study.statistics import Interval, half_width
from experiments.study.tables import NO_END, NOT_KNOWN

LARGEST = 10**300
MAKESPAN = "makespan"  # the objective of a step's plan that is its step time
Values = Mapping[str, Any]
_SEED_OF_TRACE = re.compile(r"-seed\d+$")
_RECIPE = re.compile(r"\+experiment=([\w/]+)")


@dataclass(frozen=True)
class Estimate(Interval):
    """A mean and its 95 % interval, NaN without one; `around`: a half width, as Student's."""

    around: bool = True


def estimate(values: Sequence[object], scale: float = 1.0) -> Estimate:
    """Of what runs of one job say: numbers, lists over seeds, or one mean with its interval."""
    match values:
        case [Mapping() as own]:
            mean, low, high = (scale * _number(own.get(x)) for x in ("mean", "low", "high"))
            return Estimate(mean, low, high, around=False)
        case [list(inner)]:
            values = inner
    numbers = [scale * _number(value) for value in values]
    mean = math.fsum(numbers) / len(numbers) if numbers else math.nan
    half = half_width(numbers) if math.isfinite(mean) else math.nan
    return Estimate(mean, mean - half, mean + half)


def _number(value: object) -> float:
    if isinstance(value, Mapping):
        value = value.get("mean")
    return float(value) if is_number(value) else math.nan


def is_number(value: object) -> TypeGuard[float]:
    """Whether a value of a JSON file is one that a computer can work with."""
    if isinstance(value, int):
        return not isinstance(value, bool) and abs(value) < LARGEST
    return isinstance(value, float)


@dataclass(frozen=True)
class Measure:
    """A column: where its number stands in a row, and how it is written.

    Args:
        key: of the row.
        label: of the column, with its unit.
        scale: from the unit of the file to that of the column.
        digits: after the point.
        per_cent: whether the number is a share.
        more: whether more is better.
    """

    key: str
    label: str
    scale: float = 1.0
    digits: int = 1
    per_cent: bool = False
    more: bool = False

    def of(self, rows: Sequence[Values]) -> Estimate:
        """What the runs of one job come to, in the unit of the column; NaN where there is none."""
        return estimate([row.get(self.key) for row in rows], self.scale)

    def text(self, found: Estimate) -> str:
        """With its interval, where there is one that has a width."""
        if not math.isfinite(found.mean):
            return NOT_KNOWN if math.isnan(found.mean) else NO_END
        own = self._written(found.mean)
        width = found.high - found.low
        if not math.isfinite(width) or width <= 1e-9 * abs(found.mean):
            return own
        if found.around:
            return f"{own} ± {self._written(found.high - found.mean)}"
        return f"{own} [{self._written(found.low)}, {self._written(found.high)}]"

    def _written(self, value: float) -> str:
        return f"{value:.{self.digits}%}" if self.per_cent else f"{value:,.{self.digits}f}"


# What one run says of one thing: the problem and who answered, as texts, and what came out.
Row = tuple[tuple[object, ...], Values]


@dataclass(frozen=True)
class Kind:
    """Results that stand in one table.

    Args:
        key: a word for links.
        title: of the table.
        note: what a reader must know.
        names: headings of who answered.
        measures: columns; the first ranks the rows and is drawn.
        rows: of a result; none where it is of another kind.
        problem: keys of the config that make the problem; where they differ, tables do.
        bound: key of a bound on the first measure that is drawn beside it.
        level: lines that are drawn over the first measure, by name.
    """

    key: str
    title: str
    note: str
    names: tuple[str, ...]
    measures: tuple[Measure, ...]
    rows: Callable[[Values], Iterator[Row]]
    problem: tuple[str, ...] = ()
    bound: str | None = None
    level: Mapping[str, float] = field(default_factory=dict)


def _steps(result: Values) -> Iterator[Row]:
    if "topology" not in result or result.get("problem", MAKESPAN) != MAKESPAN:
        return
    problem = f"{result.get('graph')} on {result['topology']}"
    if result.get("communication", "single_port") != "single_port":
        problem += f", {result['communication']}"
    own = {
        **result,
        "method": result.get("agent") or "plan file",
        "search_s": result.get("seconds"),
    }
    if "objective_s" in result:  # of a plan
        own["step_time_s"] = result["objective_s"]
    bound = result.get("lower_bound_s")
    for row in _rows(result, "methods", own if {"agent", "step_time_s"} <= own.keys() else None):
        seconds, gap = row.get("step_time_s"), None
        if is_number(seconds) and is_number(bound) and bound > 0:
            gap = seconds / bound - 1.0
        yield (problem, row.get("method")), {**row, "bound": bound, "gap": gap}


def _plans(result: Values) -> Iterator[Row]:
    if "objective" in result and result.get("problem", MAKESPAN) != MAKESPAN:
        problem = f"{result['problem']}, {result.get('graph')} on {result.get('topology')}"
        if result.get("unit"):
            problem += f" ({result['unit']})"
        yield (problem, result.get("agent"), result.get("status")), result


def _schedules(result: Values) -> Iterator[Row]:
    if "trace" not in result:
        return
    trace = _SEED_OF_TRACE.sub("", str(result["trace"]))
    problem, own = f"{trace}, {result.get('jobs')} jobs on {result.get('gpus')} GPUs", None
    if "policies" not in result and {"mean_jct_s", "agent"} <= result.keys():
        place = f" / {result['placement']}" if result.get("placement") else ""
        own = {**result, "policy": f"{result['agent']}{place}"}
        if result.get("interference") not in (None, "none"):
            problem += f", interference {result['interference']}"
    for row in _rows(result, "policies", own):
        yield (problem, row.get("policy"), row.get("knows")), row


def _trainings(result: Values) -> Iterator[Row]:
    if {"best_score", "untrained_score"} <= result.keys():
        recipe, problem = None, "schedulers"
        match result:
            case {"provenance": {"command": str(command)}}:
                recipe = _RECIPE.search(command)
        match result:
            case {"traces": list(traces), "clusters": list(clusters)}:
                problem = f"traces: {len(traces)}, clusters: {len(clusters)}"
        yield (problem, recipe[1] if recipe else "training"), result


def _windows(result: Values) -> Iterator[Row]:
    match result:
        case {"split": split, "ratios": Mapping() as ratios}:
            windows = result.get("windows")
            count = f", {len(windows)} windows" if isinstance(windows, list) else ""
            problem = f"{split}, durations {result.get('information')}{count}"
            for against, ratio in ratios.items():
                if isinstance(ratio, Mapping):
                    yield (problem, against), {**ratio, "gap": result.get("mean_gap_to_bound")}


def _packings(result: Values) -> Iterator[Row]:
    problem = f"{result.get('pods')} pods on {result.get('gpus')} GPUs, load {result.get('load')}"
    for row in _rows(result, "rules"):
        yield (problem, row.get("rule")), row


def _flows(result: Values) -> Iterator[Row]:
    if {"flows", "mean_slow_down"} <= result.keys():
        yield ("max-min fair", f"{result['flows']} flows on {result.get('shards')} shards"), result


def _rows(result: Values, key: str, own: Values | None = None) -> list[Values]:
    """Those under a key, or the one that a result is itself."""
    rows = result.get(key, [own])
    return [row for row in rows if isinstance(row, Mapping)] if isinstance(rows, list) else []


GAP = Measure("gap", "above the bound", per_cent=True)
KINDS = (
    Kind(
        "steps",
        "Plans of a training step",
        "Step time: all operators in the simulator. The bound is proved: no plan is faster.",
        ("planner",),
        (
            Measure("step_time_s", "step time (ms)", 1e3),
            Measure("bound", "lower bound (ms)", 1e3),
            GAP,
            Measure("search_s", "search (s)"),
            Measure("peak_memory_bytes", "peak memory (GiB)", 1 / GIBI, 2),
        ),
        _steps,
        ("graph", "topology", "cost"),
        "bound",
    ),
    Kind(
        "plans",
        "Plans by objective",
        "The objective is in the unit of the graph's file; the bound holds for every plan.",
        ("planner", "status"),
        (
            Measure("objective", "objective", digits=4),
            Measure("lower_bound", "lower bound", digits=4),
            GAP,
            Measure("seconds", "search (s)"),
        ),
        _plans,
        ("graph", "topology", "cost", "problem"),
        "lower_bound",
    ),
    Kind(
        "schedules",
        "Schedulers on a trace",
        "JCT: completion minus submission. knows: what a policy may look at of a job that has not "
        "finished; compare within one class. slow-down: mean of JCT / work. in use: GPU-seconds "
        "held of those there were. unfair: share of the jobs later than with an equal share.",
        ("policy", "knows"),
        (
            Measure("mean_jct_s", "mean JCT (s)", digits=0),
            Measure("p50_jct_s", "median JCT (s)", digits=0),
            Measure("p99_jct_s", "p99 JCT (s)", digits=0),
            Measure("mean_queueing_s", "mean wait (s)", digits=0),
            Measure("mean_slow_down", "slow-down"),
            Measure("utilisation", "in use", per_cent=True),
            Measure("unfair", "unfair", per_cent=True),
            Measure("preemptions", "preempted", digits=0),
        ),
        _schedules,
        ("trace", "cluster", "interference", "overheads", "failures"),
    ),
    Kind(
        "trainings",
        "Trainings of schedulers",
        "Scores: mean JCT over that of the reference on validation windows; below 1 is faster.",
        ("recipe",),
        (
            Measure("best_score", "best score", digits=3),
            Measure("untrained_score", "untrained", digits=3),
            Measure("steps", "steps", digits=0),
            Measure("seconds", "seconds", digits=0),
        ),
        _trainings,
        level={"reference": 1.0},
    ),
    Kind(
        "windows",
        "Learned schedulers on test windows",
        "JCTs over those of a baseline, paired by window; 95 % bootstrap over windows and "
        "checkpoints; below 1 the learned scheduler is faster.",
        ("against",),
        (
            Measure("mean", "mean JCT", digits=3),
            Measure("p50", "median", digits=3),
            Measure("p99", "p99", digits=3),
            GAP,
        ),
        _windows,
        level={"as fast": 1.0},
    ),
    Kind(
        "packings",
        "Packing rules",
        "GPUs allocated of those there are, at the end of all arrivals; 95 % over the seeds.",
        ("rule",),
        (
            Measure("allocation_percent", "allocated (%)", more=True),
            Measure("mean_failed_percent", "pods that failed (%)"),
        ),
        _packings,
    ),
    Kind(
        "flows",
        "Flows that share links",
        "Slow-down: completion time over the time alone.",
        ("file",),
        (
            Measure("mean_slow_down", "mean slow-down", digits=3),
            Measure("p50_slow_down", "median", digits=3),
            Measure("p99_slow_down", "p99", digits=3),
        ),
        _flows,
    ),
)  # fmt: skip
