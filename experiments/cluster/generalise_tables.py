"""Rows of tables about policies and windows, and the same as numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict

import numpy as np

from experiments.cluster.generalise_comparison import MEASURES, PER_WINDOW, Comparison
from experiments.cluster.generalise_statistics import Interval, bootstrap
from experiments.cluster.split_baselines import Baseline, Outcome

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
    published = None if found.published is None else found.baselines[found.published].name
    rows = []
    for name, row in intervals.items():
        kinds = []
        if name == found.baselines[found.overall].name:
            kinds.append(OVERALL)
        if name == published:
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
