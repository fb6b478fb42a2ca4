"""Learned schedulers, baselines and references on the same windows, and how they compare."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.cluster.shipped import scheduler_folder
from envs.errors import InputError
from experiments.cluster.generalise_statistics import best_overall
from experiments.cluster.problem import Scheduler
from experiments.cluster.split_baselines import CLASSES, Baseline, BaselineRuns, Outcome, bound_s
from experiments.cluster.split_windows import SplitWindow
from experiments.run.provenance import file_hash
from experiments.run.targets import build, no_such_thing

FloatArray = NDArray[np.float64]
Node = Mapping[str, Any]

LEARNED = "checkpoint"
MEASURES = {"mean": "mean_jct_s", "p50": "p50_jct_s", "p99": "p99_jct_s"}
PER_WINDOW = "the best baseline of each window"


class Exported(NamedTuple):
    """The scheduler of a checkpoint folder, and the config node that it was built from."""

    node: Node
    scheduler: Scheduler


@dataclass(frozen=True, eq=False)
class Comparison:
    """All that was measured, W windows."""

    windows: Sequence[SplitWindow]
    bounds: FloatArray  # (W,) proved, of the mean JCT, seconds
    baselines: Sequence[Baseline]
    outcomes: Sequence[Sequence[Outcome]]  # of each baseline, on each window
    learned: Sequence[Sequence[Outcome]]  # of each checkpoint, on each window
    references: Sequence[Baseline] = ()  # our own policies, which are no baselines
    reference_outcomes: Sequence[Sequence[Outcome]] = ()
    tuned: frozenset[str] = frozenset()  # agents whose numbers are not those of their papers

    def values(self, measure: str) -> FloatArray:
        """(baselines, W) of one field of `Outcome`."""
        return np.array([[getattr(o, measure) for o in row] for row in self.outcomes], np.float64)

    @property
    def winners(self) -> NDArray[np.int64]:
        """(W,) the baseline with the least mean JCT on each window."""
        winners: NDArray[np.int64] = self.values("mean_jct_s").argmin(axis=0)
        return winners

    @property
    def overall(self) -> int:
        """The baseline that is best overall."""
        return best_overall(self.values("mean_jct_s"))

    @property
    def published(self) -> int | None:
        """The one of those with the numbers of their papers; None: all are tuned."""
        ratios = self.relative().mean(axis=1)
        for row, baseline in enumerate(self.baselines):
            if baseline.policy in self.tuned:
                ratios[row] = np.inf
        return int(ratios.argmin()) if np.isfinite(ratios).any() else None

    def relative(self, outcomes: Sequence[Sequence[Outcome]] | None = None) -> FloatArray:
        """(policies, W) mean JCT over that of each window's best baseline; None: of baselines."""
        means = self.values("mean_jct_s")
        rows = self.outcomes if outcomes is None else outcomes
        found = np.array([[o.mean_jct_s for o in row] for row in rows], np.float64)
        ratios: FloatArray = found.reshape(len(rows), len(self.windows)) / means.min(axis=0)
        return ratios

    def best_of(self, policy: str) -> int:
        """The baseline that is a policy with the placement rule that is best for it overall."""
        rows = [row for row, baseline in enumerate(self.baselines) if baseline.policy == policy]
        return rows[int(self.relative().mean(axis=1)[rows].argmin())]

    def ratios(self, measure: str, baseline: int | None) -> FloatArray:
        """(W, checkpoints) to one baseline, None: to the best of each window by mean JCT."""
        number = len(self.windows)
        chosen = self.winners if baseline is None else np.full(number, baseline)
        yardstick = self.values(measure)[chosen, np.arange(number)]
        found = np.array([[getattr(o, measure) for o in row] for row in self.learned], np.float64)
        ratios: FloatArray = (found / yardstick).T
        return ratios


def exported(node: Node, folder: str, information: str) -> Exported:
    """The exported scheduler of a folder.

    Args:
        node: how it is played.
        folder: takes the place of its `checkpoint`, or the name of a shipped scheduler.
        information: the class that it must be of.

    Raises:
        InputError: it is none, or it may look at more than the class allows.
    """
    here = {**node, "checkpoint": str(_folder(folder))}
    scheduler = build(here, "scheduler")
    if not hasattr(scheduler, "knows"):
        raise no_such_thing("scheduler", node, "scheduler of clusters")
    if scheduler.knows not in CLASSES[information]:
        told = f"it sees durations, the class is {information!r}"
        raise InputError(f"config key 'checkpoints': {told}", file=folder)
    return Exported(here, scheduler)


def checked_tuned(tuned: Sequence[str], agents: Mapping[str, Any]) -> frozenset[str]:
    """The agents whose numbers are not those of their papers.

    Raises:
        InputError: one of them is not among the agents.
    """
    for name in tuned:
        if name not in agents:
            raise InputError(f"config key 'tuned': '{name}' is not among the agents")
    return frozenset(tuned)


def measured(
    windows: Sequence[SplitWindow],
    baselines: Sequence[Baseline],
    references: Sequence[Baseline],
    checkpoints: Sequence[Exported],
    tuned: frozenset[str],
    runs: BaselineRuns,
    tell: Callable[[str], None],
) -> Comparison:
    """Replay everything on every window, or take it from the folder of `runs`."""
    outcomes: list[list[Outcome]] = [[] for _ in baselines]
    ours: list[list[Outcome]] = [[] for _ in references]
    learned: list[list[Outcome]] = [[] for _ in checkpoints]
    for number, window in enumerate(windows, start=1):
        problem = window.problem
        for row, baseline in zip([*outcomes, *ours], [*baselines, *references], strict=True):
            row.append(runs.outcome(problem, baseline))
        least = min(row[-1].mean_jct_s for row in outcomes)
        news = f"{window.name} ({number} of {len(windows)}): best baseline {least:,.0f} s"
        for row, (node, scheduler) in zip(learned, checkpoints, strict=True):
            row.append(runs.outcome_of(problem, LEARNED, node, scheduler))
            news += f", checkpoint {row[-1].mean_jct_s / least:.3f}"
        tell(news)
    bounds = np.array([bound_s(window.problem) for window in windows])
    return Comparison(windows, bounds, baselines, outcomes, learned, references, ours, tuned)


def hashes(checkpoints: Sequence[str]) -> Mapping[str, str]:
    """SHA-256 of the specs of checkpoint folders, by name."""
    return {f"{LEARNED} {name}": file_hash(_folder(name) / "spec.json") for name in checkpoints}


def _folder(checkpoint: str) -> Path:
    try:
        return scheduler_folder(checkpoint)
    except InputError as error:
        raise InputError(f"config key 'checkpoints': {error.message}") from error
