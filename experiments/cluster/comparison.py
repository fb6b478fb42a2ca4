"""Baselines, references and learned schedulers on the same windows, and how they compare."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from envs.arrays import FloatArray, IntArray
from experiments.cluster.baselines import Contender, Outcome, bound_s
from experiments.cluster.conditions import Condition
from experiments.cluster.split_windows import SplitWindow
from experiments.pictures.comparison import draw_forest, draw_ratios
from experiments.study.statistics import Interval, bootstrap
from experiments.study.tables import Table

MEAN = "mean_jct_s"
MEASURES = {"mean": MEAN, "p50": "p50_jct_s", "p99": "p99_jct_s"}
PER_WINDOW, OVERALL_CONDITION = "the best baseline of each window", "the best overall"
AS_PUBLISHED, TUNED, REFERENCE = "as published", "tuned", "reference"
OVERALL, OVERALL_PUBLISHED = "best overall", "best overall as published"

POLICY_COLUMNS = {
    "policy": "{name}", "kind": "{kind}", "mean JCT / window's best": "{mean:.3f}",
    "95 % interval": "[{low:.3f}, {high:.3f}]", "best on": "{won}",
    "preemptions/job": "{moved:.1f}",
}  # fmt: skip
WINDOW_COLUMNS = {
    "window": "{name}", "jobs": "{jobs:,}", "bound": "{lower_bound_s:,.0f}",
    "best baseline": "{best}", "its mean JCT": "{least:,.0f}",
    "checkpoint": "{learned:,.0f}", "ratio": "{ratio:.3f}",
}  # fmt: skip
RATIO_COLUMNS = ("against", "which is", "mean JCT", "p50", "p99")
WINDOWS_CAPTION = (
    "Ratios are means over windows (and seeds); intervals are 95 % percentile bootstrap over "
    "windows and seeds. Below 1 the first of the two is faster. As published: with the numbers of "
    "its paper; tuned: with ours; references are policies of this project and no baselines."
)
CONDITION_COLUMNS = (
    "condition", "windows", "jobs", "left out", "best overall", OVERALL_CONDITION, PER_WINDOW,
)  # fmt: skip
CONDITIONS_CAPTION = (
    "Mean JCT of the checkpoints over that of a baseline: means over windows (and seeds), 95 % "
    "percentile bootstrap over windows and seeds. Best overall is the best of these baselines "
    "under the condition; every policy has the placement rule that is best for it there. Left out: "
    "jobs that fit no GPU type of the cluster any more, and those of windows with too few others. "
    "The times between submissions are stretched so that the load stays that of the split, unless "
    "the load is what is changed. A single window with a single checkpoint has no interval."
)


def best_overall(means: FloatArray) -> int:
    """The row of (policies, windows) mean JCTs with the least mean ratio to each window's best."""
    return int((means / means.min(axis=0)).mean(axis=1).argmin())


@dataclass(frozen=True, eq=False)
class Comparison:
    """All that was measured, W windows. Rows are baselines, then references, then checkpoints."""

    windows: Sequence[SplitWindow]
    baselines: Sequence[Contender]
    references: Sequence[Contender]  # our own policies, which are no baselines
    outcomes: Sequence[Sequence[Outcome]]  # of each row, on each window
    tuned: Collection[str]  # agents whose numbers are not those of their papers
    samples: int  # of the bootstrap
    seed: int

    @cached_property
    def bounds(self) -> FloatArray:
        """(W,) proved, of the mean JCT, seconds."""
        return np.array([bound_s(window.problem) for window in self.windows])

    def values(self, measure: str) -> FloatArray:
        """(rows, W) of one field of `Outcome`."""
        return np.array([[getattr(o, measure) for o in row] for row in self.outcomes], np.float64)

    @property
    def winners(self) -> IntArray:
        """(W,) the baseline with the least mean JCT on each window."""
        winners: IntArray = self.values(MEAN)[: len(self.baselines)].argmin(axis=0)
        return winners

    @cached_property
    def relative(self) -> FloatArray:
        """(rows, W) mean JCT over that of each window's best baseline."""
        means = self.values(MEAN)
        ratios: FloatArray = means / means[: len(self.baselines)].min(axis=0)
        return ratios

    @property
    def learned(self) -> int:
        """How many checkpoints there are."""
        return len(self.outcomes) - len(self.baselines) - len(self.references)

    @cached_property
    def by_policy(self) -> dict[str, list[int]]:
        """The baselines of each policy: it, with every placement rule."""
        found: dict[str, list[int]] = {}
        for row, baseline in enumerate(self.baselines):
            found.setdefault(baseline.policy, []).append(row)
        return found

    def best(self, rows: Sequence[int]) -> int:
        """The one of these with the least mean ratio to each window's best."""
        return rows[int(self.relative.mean(axis=1)[rows].argmin())]

    @property
    def overall(self) -> int:
        """The baseline that is best overall."""
        return self.best(range(len(self.baselines)))

    @property
    def published(self) -> int | None:
        """The one of those with the numbers of their papers; None: all are tuned."""
        rows = [i for i, one in enumerate(self.baselines) if one.policy not in self.tuned]
        return self.best(rows) if rows else None

    def ratios(self, measure: str, baseline: int | None) -> FloatArray:
        """(W, checkpoints) to one baseline, None: to the best of each window by mean JCT."""
        values = self.values(measure)
        chosen = self.winners if baseline is None else baseline
        yardstick = values[chosen, np.arange(len(self.windows))]
        ratios: FloatArray = (values[len(values) - self.learned :] / yardstick).T
        return ratios

    def interval(self, ratios: FloatArray) -> Interval:
        return bootstrap(ratios, self.samples, self.seed)

    def policies(self) -> list[dict[str, Any]]:
        """Every policy with its best placement rule, and every reference, the best first."""
        wins = np.bincount(self.winners, minlength=len(self.baselines))
        chosen = [
            (self.best(rows), TUNED if policy in self.tuned else AS_PUBLISHED,
             f"{wins[rows].sum()} of {len(self.windows)}")
            for policy, rows in self.by_policy.items()
        ]  # fmt: skip
        contenders = [*self.baselines, *self.references]
        chosen += [(row, REFERENCE, "") for row in range(len(self.baselines), len(contenders))]
        found: list[dict[str, Any]] = []
        for row, kind, won in chosen:
            outcomes = self.outcomes[row]
            moved = sum(o.preemptions for o in outcomes) / sum(o.jobs for o in outcomes)
            interval = asdict(self.interval(self.relative[row][:, None]))
            record = {"name": contenders[row].name, "kind": kind, "won": won, "moved": moved}
            found.append(record | interval)
        return sorted(found, key=lambda record: record["mean"])

    def documents(self) -> list[dict[str, Any]]:
        """Every window as numbers."""
        ends = len(self.baselines), len(self.baselines) + len(self.references)
        names = [one.name for one in (*self.baselines, *self.references)]
        found: list[dict[str, Any]] = []
        for w, window in enumerate(self.windows):
            rows = [asdict(row[w]) for row in self.outcomes]
            played = dict(zip(names, rows[: ends[1]], strict=True))
            found.append({
                **window.about,
                "lower_bound_s": float(self.bounds[w]),
                "best": names[self.winners[w]],
                "baselines": {name: played[name] for name in names[: ends[0]]},
                "references": {name: played[name] for name in names[ends[0] :]},
                "checkpoints": rows[ends[1] :],
            })  # fmt: skip
        return found


class Summary(NamedTuple):
    """Tables, a picture and its file name, and the numbers behind both."""

    tables: Sequence[Table]
    caption: str
    file: str
    picture: Figure
    values: Mapping[str, object]
    shown: Sequence[str]


def windows_summary(found: Comparison, title: str) -> Summary:
    """Every policy and every checkpoint on the windows of a split.

    The checkpoints stand beside each window's best baseline, the best overall, and the best overall
    of those that are as published.
    """
    names = [one.name for one in found.baselines]
    overall = names[found.overall]
    published = None if found.published is None else names[found.published]
    best = found.values(MEAN)[: len(names)].min(axis=0)
    rows = [{**row, "least": best[w]} for w, row in enumerate(found.documents())]
    values: dict[str, object] = {
        "windows": found.documents(),
        "best_overall": overall,
        "best_published": published,
        "baselines": len(names),
        "mean_gap_to_bound": float(np.mean(1.0 - found.bounds / best)),
        "ratios": {},
    }
    shown = ["best_overall", "best_published", "mean_gap_to_bound"]
    columns, first, learned = {**WINDOW_COLUMNS, "checkpoint": "", "ratio": ""}, list[Table](), None
    if found.learned:
        columns, learned = WINDOW_COLUMNS, found.ratios(MEAN, None)
        means = found.values(MEAN)[-found.learned :].mean(axis=0)
        for w, row in enumerate(rows):
            row |= {"learned": means[w], "ratio": learned[w].mean()}
        yardsticks: dict[str, int | None] = {PER_WINDOW: None}
        yardsticks |= {names[i]: i for i in (found.overall, found.published) if i is not None}
        ratios = {
            name: {of: found.interval(found.ratios(key, i)) for of, key in MEASURES.items()}
            for name, i in yardsticks.items()
        }
        kinds = {OVERALL: overall, OVERALL_PUBLISHED: published}
        cells = [
            (name, ", ".join(kind for kind, which in kinds.items() if which == name),
             *(interval.text() for interval in row.values()))
            for name, row in ratios.items()
        ]  # fmt: skip
        first = [Table(f"Checkpoints ({found.learned})", RATIO_COLUMNS, cells)]
        against = ratios[PER_WINDOW]["mean"]
        values |= {
            "ratios": {n: {of: asdict(x) for of, x in row.items()} for n, row in ratios.items()},
            "ratio": against.mean,
            "below_one": against.below_one,
        }
        shown[1:1] = ["ratio", "below_one"]
    tables = [
        *first,
        Table.of("Every policy against the best of each window", POLICY_COLUMNS, found.policies()),
        Table.of("Windows", columns, rows),
    ]
    picture = draw_ratios(
        [row["name"] for row in rows], found.bounds / best, found.relative[found.overall], overall,
        learned, title,
    )  # fmt: skip
    return Summary(tables, WINDOWS_CAPTION, "ratios.png", picture, values, shown)


def conditions_summary(rows: Sequence[tuple[Condition, Comparison]], title: str) -> Summary:
    """Mean JCTs of the checkpoints under every condition.

    They are over those of each window's best, the best overall, and each policy with the placement
    rule that is best for it.
    """
    first, second, forest = [], [], list[Interval]()
    documents: dict[str, dict[str, Any]] = {}
    better = 0
    for condition, found in rows:
        yardsticks: dict[str, int | None] = {PER_WINDOW: None, OVERALL_CONDITION: found.overall}
        yardsticks |= {policy: found.best(same) for policy, same in found.by_policy.items()}
        ratios = {n: found.interval(found.ratios(MEAN, row)) for n, row in yardsticks.items()}
        several = found.ratios(MEAN, None).size > 1  # anything that an interval could be about
        texts = {n: x.text() if several else f"{x.mean:.3f}" for n, x in ratios.items()}
        against_window, against_overall, *others = texts.values()
        best = found.baselines[found.overall].name
        jobs, left_out = condition.jobs, condition.left_out
        first.append((
            condition.name, str(len(found.windows)), f"{jobs:,}", f"{left_out:,}", best,
            against_overall, against_window,
        ))  # fmt: skip
        second.append((condition.name, *others))
        forest.append(ratios[OVERALL_CONDITION])
        better += several and ratios[OVERALL_CONDITION].below_one
        documents[condition.name] = {
            "changes": dict(condition.changes),
            "jobs": jobs,
            "left_out": left_out,
            "best_overall": best,
            "ratios": {name: asdict(ratio) for name, ratio in ratios.items()},
            "windows": found.documents(),
        }
    policies = rows[0][1].by_policy
    tables = [
        Table(f"Other conditions, checkpoints: {rows[0][1].learned}", CONDITION_COLUMNS, first),
        Table("Against each policy", ("condition", *policies), second),
    ]
    best_names = [document["best_overall"] for document in documents.values()]
    picture = draw_forest([*documents], forest, best_names, title)
    values = {"conditions": documents, "better": better, "of": len(rows)}
    return Summary(tables, CONDITIONS_CAPTION, "transfer.png", picture, values, ("better", "of"))
