"""Learned schedulers, baselines and references on the same windows, and how they compare."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from agents.cluster.shipped import scheduler_folder
from envs.arrays import FloatArray, IntArray
from envs.errors import InputError
from experiments.cluster.baselines import (
    CLASSES,
    Baseline,
    Outcome,
    bound_s,
    outcome_of,
    problem_hash,
    replay_cell,
)
from experiments.cluster.problem import Scheduler
from experiments.cluster.split_windows import SplitWindow
from experiments.config.targets import build, no_such_thing
from experiments.run.provenance import file_hash
from experiments.study.grid import FunctionCell, Outcomes

Node = Mapping[str, Any]

LEARNED = "checkpoint"
MEASURES = {"mean": "mean_jct_s", "p50": "p50_jct_s", "p99": "p99_jct_s"}
PER_WINDOW = "the best baseline of each window"


class Exported(NamedTuple):
    """The scheduler of a checkpoint folder, and the config node that it was built from."""

    node: Node
    scheduler: Scheduler

    def build(self) -> Scheduler:
        return self.scheduler


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
    def winners(self) -> IntArray:
        """(W,) the baseline with the least mean JCT on each window."""
        winners: IntArray = self.values("mean_jct_s").argmin(axis=0)
        return winners

    @property
    def overall(self) -> int:
        """The baseline that is best overall."""
        return best_overall(self.values("mean_jct_s"))

    @property
    def overall_name(self) -> str:
        return self.baselines[self.overall].name

    @property
    def published_name(self) -> str | None:
        return None if self.published is None else self.baselines[self.published].name

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


def best_overall(means: FloatArray) -> int:
    """The row of (policies, windows) mean JCTs with the least mean ratio to each window's best."""
    return int((means / means.min(axis=0)).mean(axis=1).argmin())


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
        message = f"it sees durations, the class is {information!r}"
        raise InputError(f"config key 'checkpoints': {message}", file=folder)
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


@dataclass(frozen=True, eq=False)
class Contenders:
    """All that is replayed on every window.

    `references` are our own policies, which are no baselines; `tuned` names the agents whose
    numbers are not those of their papers.
    """

    baselines: Sequence[Baseline]
    references: Sequence[Baseline]
    checkpoints: Sequence[Exported]
    tuned: frozenset[str]

    def replays(self, windows: Sequence[SplitWindow], cache: Path) -> list[list[FunctionCell]]:
        """By contender, in the order of the fields above, and by window."""
        rows: list[list[FunctionCell]] = [[] for _ in range(len(self))]
        for window in windows:
            digest = problem_hash(window.problem)
            players = [(one.name, one.node, one.build) for one in self._policies]
            players += [(LEARNED, one.node, one.build) for one in self.checkpoints]
            for row, (name, node, make) in zip(rows, players, strict=True):
                row.append(replay_cell(window.problem, digest, name, node, make, cache))
        return rows

    def compared(
        self,
        windows: Sequence[SplitWindow],
        replays: Sequence[Sequence[FunctionCell]],
        found: Outcomes,
    ) -> Comparison:
        """How they did, from the replays of these windows."""
        rows = [[outcome_of(cell, found) for cell in row] for row in replays]
        first, second = len(self.baselines), len(self._policies)
        bounds = np.array([bound_s(window.problem) for window in windows])
        return Comparison(
            windows,
            bounds,
            self.baselines,
            rows[:first],
            rows[second:],
            self.references,
            rows[first:second],
            self.tuned,
        )

    @property
    def _policies(self) -> list[Baseline]:
        return [*self.baselines, *self.references]

    def __len__(self) -> int:
        return len(self._policies) + len(self.checkpoints)


def hashes(checkpoints: Sequence[str]) -> Mapping[str, str]:
    """SHA-256 of the specs of checkpoint folders, by name."""
    return {f"{LEARNED} {name}": file_hash(_folder(name) / "spec.json") for name in checkpoints}


def _folder(checkpoint: str) -> Path:
    try:
        return scheduler_folder(checkpoint)
    except InputError as error:
        raise InputError(f"config key 'checkpoints': {error.message}") from error
