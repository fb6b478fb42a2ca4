"""What a comparison on windows, or under several conditions, has to say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from typing import NamedTuple

import numpy as np
from matplotlib.figure import Figure

from experiments.cluster.baselines import Baseline, Outcome
from experiments.cluster.comparison import MEASURES, PER_WINDOW, Comparison
from experiments.cluster.conditions import Condition, ConditionWindows
from experiments.pictures.style import draw_rows
from experiments.study.statistics import CONFIDENCE, Interval, bootstrap, half_width
from experiments.study.tables import Table

POLICY_COLUMNS = (
    "policy",
    "kind",
    "mean JCT / window's best",
    "95 % interval",
    "best on",
    "preemptions/job",
)
WINDOW_COLUMNS = ("window", "jobs", "bound", "best baseline", "its mean JCT", "checkpoint", "ratio")
RATIO_COLUMNS = ("against", "which is", "mean JCT", "p50", "p99")
AS_PUBLISHED, TUNED, REFERENCE = "as published", "tuned", "reference"
OVERALL, OVERALL_PUBLISHED = "best overall", "best overall as published"


WINDOWS_CAPTION = (
    "Ratios are means over windows (and seeds); intervals are 95 % percentile bootstrap over "
    "windows and seeds. Below 1 the first of the two is faster. As published: with the numbers of "
    "its paper; tuned: with ours; references are policies of this project and no baselines."
)
OVERALL_CONDITION = "the best overall"
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


class Summary(NamedTuple):
    """Tables, a picture and its file name, and the numbers behind both."""

    tables: Sequence[Table]
    caption: str
    figures: Mapping[str, Figure]
    values: Mapping[str, object]
    shown: Sequence[str]


class Transferred(NamedTuple):
    """What was measured under one condition.

    `ratios` are by what they are to: OVERALL_CONDITION, PER_WINDOW, names of policies.
    """

    condition: Condition
    chosen: ConditionWindows
    found: Comparison
    ratios: Mapping[str, Interval]

    @classmethod
    def of(
        cls,
        condition: Condition,
        chosen: ConditionWindows,
        found: Comparison,
        samples: int,
        seed: int,
    ) -> Transferred:
        """Mean JCTs of the checkpoints over those of each window's best, the best overall, and each
        policy with its best placement rule."""
        yardsticks: dict[str, int | None] = {PER_WINDOW: None, OVERALL_CONDITION: found.overall}
        for policy in dict.fromkeys(baseline.policy for baseline in found.baselines):
            yardsticks[policy] = found.best_of(policy)
        ratios = {
            name: bootstrap(found.ratios("mean_jct_s", baseline), samples, seed)
            for name, baseline in yardsticks.items()
        }
        return cls(condition, chosen, found, ratios)

    @property
    def several(self) -> bool:
        """Whether there is anything that an interval could be about."""
        return self.found.ratios("mean_jct_s", None).size > 1

    def text(self, against: str) -> str:
        """A ratio for a table, with its interval where there is one."""
        ratio = self.ratios[against]
        return ratio.text() if self.several else f"{ratio.mean:.3f}"

    def document(self) -> dict[str, object]:
        return {
            "changes": dict(self.condition.changes),
            "jobs": self.chosen.jobs,
            "left_out": self.chosen.left_out,
            "best_overall": self.found.overall_name,
            "ratios": {name: asdict(ratio) for name, ratio in self.ratios.items()},
            "windows": window_documents(self.found),
        }


def windows_summary(found: Comparison, title: str, samples: int, seed: int) -> Summary:
    """Every policy and every checkpoint on the windows of a split."""
    intervals = compared(found, samples, seed)
    tables = [
        Table(
            "Every policy against the best of each window",
            POLICY_COLUMNS,
            policy_rows(found, samples, seed),
        ),
        Table("Windows", WINDOW_COLUMNS, window_rows(found)),
    ]
    if found.learned:
        cells = ratio_rows(found, intervals)
        tables.insert(0, Table(f"Checkpoints ({len(found.learned)})", RATIO_COLUMNS, cells))
    best = found.values("mean_jct_s").min(axis=0)
    overall = found.relative()[found.overall].tolist()
    drawn: dict[str, Sequence[Interval | float]]
    drawn = {f"{found.overall_name}, best overall": overall}
    if found.learned:
        drawn[f"checkpoint, mean of {len(found.learned)}"] = [
            Interval(mean := row.mean(), mean - half_width(row), mean + half_width(row))
            for row in found.ratios("mean_jct_s", None)
        ]
    picture = draw_rows(
        [window.name for window in found.windows],
        drawn,
        "mean job completion time / that of the window's best baseline",
        title,
        bound=found.bounds / best,
    )
    values: dict[str, object] = {
        "windows": window_documents(found),
        "best_overall": found.overall_name,
        "best_published": found.published_name,
        "baselines": len(found.baselines),
        "mean_gap_to_bound": float(np.mean(1.0 - found.bounds / best)),
        "ratios": {n: {m: asdict(i) for m, i in row.items()} for n, row in intervals.items()},
    }
    shown = ["best_overall", "best_published", "mean_gap_to_bound"]
    if found.learned:
        against = intervals[PER_WINDOW]["mean"]
        values |= {"ratio": against.mean, "below_one": against.below_one}
        shown[1:1] = ["ratio", "below_one"]
    return Summary(tables, WINDOWS_CAPTION, {"ratios.png": picture}, values, shown)


def conditions_summary(rows: Sequence[Transferred], title: str) -> Summary:
    """The checkpoints under every condition."""
    first = [
        (
            row.condition.name, str(len(row.chosen.windows)), f"{row.chosen.jobs:,}",
            f"{row.chosen.left_out:,}", row.found.overall_name, row.text(OVERALL_CONDITION),
            row.text(PER_WINDOW),
        )
        for row in rows
    ]  # fmt: skip
    policies = [name for name in rows[0].ratios if name not in (OVERALL_CONDITION, PER_WINDOW)]
    second = [(row.condition.name, *(row.text(policy) for policy in policies)) for row in rows]
    number = len(rows[0].found.learned)
    tables = [
        Table(f"Other conditions, checkpoints: {number}", CONDITION_COLUMNS, first),
        Table("Against each policy", ("condition", *policies), second),
    ]
    ratios = [row.ratios[OVERALL_CONDITION] for row in rows]
    picture = draw_rows(
        [row.condition.name for row in rows],
        {"checkpoints": ratios},
        "mean job completion time / that of the baseline named on the right, the best overall "
        f"({CONFIDENCE:.0%} interval)",
        title,
        beside=[
            f"{x.text()}  {row.found.overall_name}" for x, row in zip(ratios, rows, strict=True)
        ],
    )
    values: dict[str, object] = {
        "conditions": {row.condition.name: row.document() for row in rows},
        "better": sum(row.several and row.ratios[OVERALL_CONDITION].below_one for row in rows),
        "of": len(rows),
    }
    shown = ["better", "of"]
    return Summary(tables, CONDITIONS_CAPTION, {"transfer.png": picture}, values, shown)


def compared(found: Comparison, samples: int, seed: int) -> dict[str, dict[str, Interval]]:
    """By yardstick and measure, how the checkpoints compare; empty without one.

    The yardsticks are each window's best baseline, the best overall, and the best overall of those
    that are as published.
    """
    if not found.learned:
        return {}
    yardsticks: dict[str, int | None] = {PER_WINDOW: None}
    for index in (found.overall, found.published):
        if index is not None:
            yardsticks[found.baselines[index].name] = index
    return {
        name: {
            measure: bootstrap(found.ratios(field, baseline), samples, seed)
            for measure, field in MEASURES.items()
        }
        for name, baseline in yardsticks.items()
    }


def ratio_rows(
    found: Comparison, intervals: dict[str, dict[str, Interval]]
) -> list[tuple[str, ...]]:
    """The same as cells."""
    rows = []
    for name, row in intervals.items():
        kinds = []
        if name == found.overall_name:
            kinds.append(OVERALL)
        if name == found.published_name:
            kinds.append(OVERALL_PUBLISHED)
        rows.append((name, ", ".join(kinds), *(interval.text() for interval in row.values())))
    return rows


def policy_rows(found: Comparison, samples: int, seed: int) -> list[tuple[str, ...]]:
    """Every policy with its best placement rule, and every reference, the best first."""
    ratios, ours = found.relative(), found.relative(found.reference_outcomes)
    wins = np.bincount(found.winners, minlength=len(ratios))
    rows: list[tuple[float, tuple[str, ...]]] = []

    def note(
        baseline: Baseline, kind: str, row: np.ndarray, won: str, outcomes: Sequence[Outcome]
    ) -> None:
        interval = bootstrap(row[:, None], samples, seed)
        moved, jobs = sum(o.preemptions for o in outcomes), sum(o.jobs for o in outcomes)
        rows.append((interval.mean, (
            baseline.name, kind, f"{interval.mean:.3f}",
            f"[{interval.low:.3f}, {interval.high:.3f}]", won, f"{moved / jobs:.1f}",
        )))  # fmt: skip

    for policy in dict.fromkeys(baseline.policy for baseline in found.baselines):
        same = [i for i, other in enumerate(found.baselines) if other.policy == policy]
        best = found.best_of(policy)
        kind = TUNED if policy in found.tuned else AS_PUBLISHED
        won = f"{wins[same].sum()} of {len(found.windows)}"
        note(found.baselines[best], kind, ratios[best], won, found.outcomes[best])
    for index, reference in enumerate(found.references):
        note(reference, REFERENCE, ours[index], "", found.reference_outcomes[index])
    return [cells for _, cells in sorted(rows, key=lambda row: row[0])]


def window_documents(found: Comparison) -> list[dict[str, object]]:
    """Every window as numbers."""
    documents = []
    for w, window in enumerate(found.windows):
        best = int(found.winners[w])
        documents.append({
            **window.document(),
            "lower_bound_s": float(found.bounds[w]),
            "best": found.baselines[best].name,
            "baselines": {
                b.name: asdict(found.outcomes[i][w]) for i, b in enumerate(found.baselines)
            },
            "references": {
                b.name: asdict(found.reference_outcomes[i][w])
                for i, b in enumerate(found.references)
            },
            "checkpoints": [asdict(row[w]) for row in found.learned],
        })  # fmt: skip
    return documents


def window_rows(found: Comparison) -> list[tuple[str, ...]]:
    """Every window, with its best baseline."""
    ratios = found.ratios("mean_jct_s", None) if found.learned else None
    rows: list[tuple[str, ...]] = []
    for w, window in enumerate(found.windows):
        best = int(found.winners[w])
        mean = np.mean([row[w].mean_jct_s for row in found.learned]) if found.learned else np.nan
        rows.append((
            window.name,
            f"{len(window.problem.trace):,}",
            f"{found.bounds[w]:,.0f}",
            found.baselines[best].name,
            f"{found.outcomes[best][w].mean_jct_s:,.0f}",
            "" if ratios is None else f"{mean:,.0f}",
            "" if ratios is None else f"{ratios[w].mean():.3f}",
        ))  # fmt: skip
    return rows
