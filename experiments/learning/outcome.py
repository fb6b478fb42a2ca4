"""What training came to: the policy that is exported beside the one that it was before."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from envs.errors import InputError
from experiments.run.artifacts import METRICS_FILE, read_metrics
from models.artifacts import read_json_object

FRESH, TRAINED_BEFORE = "the untrained policy", "the policy it began with"


@dataclass(frozen=True)
class Evaluated:
    """A policy in an evaluation."""

    iteration: int  # after which it was
    steps: int  # of environments until then
    score: float  # less is better; inf: it failed
    outcomes: tuple[float, ...]  # of the episodes

    @classmethod
    def of(cls, folder: Path) -> Evaluated:
        """What `agents.rllib.restore.save_best` wrote there."""
        from agents.rllib.restore import SCORE_FILE

        found = read_json_object(folder / SCORE_FILE)
        try:
            steps, outcomes = int(found["steps"]), tuple(map(float, found["outcomes"]))
            return cls(int(found["iteration"]), steps, float(found["score"]), outcomes)
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"is no evaluation's ({error})", file=folder / SCORE_FILE) from error

    def cells(self) -> Mapping[str, str]:
        """As a row of a table."""
        return {
            "evaluation after iteration": str(self.iteration)
            if self.iteration
            else "0 (untrained)",
            "steps": f"{self.steps:,}",
            "score": by_score(self),
        }


def by_score(one: Evaluated) -> str:
    """How good a policy is, for a reader."""
    return f"{one.score:.4f}" if math.isfinite(one.score) else "none (a job was never finished)"


def by_step_time(one: Evaluated) -> str:
    """The same where outcomes are seconds of a step."""
    seconds = math.fsum(one.outcomes) / len(one.outcomes)
    return f"{seconds * 1e3:.1f} ms" if math.isfinite(seconds) else "none (does not fit)"


@dataclass(frozen=True)
class Outcome:
    """A whole training run.

    Args:
        iterations: of training.
        best: whose policy is exported.
        untrained: of the same architecture, before training.
        measure: what `described` prints.
        described: how good a policy is, in words.
        begun: what `untrained` is.
        cloned: of the iterations, those of imitation, the first ones.
    """

    iterations: int
    best: Evaluated
    untrained: Evaluated
    measure: str
    described: Callable[[Evaluated], str] = by_score
    begun: str = FRESH
    cloned: int = 0

    @classmethod
    def of(
        cls,
        run_folder: Path,
        measure: str,
        described: Callable[[Evaluated], str] = by_score,
        model: object = None,
    ) -> Outcome:
        """Of the run in a folder, of a `model`.

        Raises:
            InputError: it evaluated nothing.
        """
        from agents.rllib.restore import BEST, UNTRAINED

        best, untrained = (Evaluated.of(run_folder / name) for name in (BEST, UNTRAINED))
        rows = read_metrics(run_folder / METRICS_FILE)
        cloned = sum(float(row.get("charts/cloning") or 0.0) > 0.0 for row in rows)
        begun = TRAINED_BEFORE if hasattr(model, "checkpoint") else FRESH
        return cls(len(rows), best, untrained, measure, described, begun, cloned)

    @property
    def learned(self) -> bool:
        """Whether an evaluation was better than the first one."""
        return self.best.score < self.untrained.score

    @property
    def sentence(self) -> str:
        """For tables, cards and warnings."""
        before, last = self.described(self.untrained), self.best.iteration
        done = f"{self.iterations} iterations of training"
        if self.learned:
            found = (
                f"{done}; exported is the policy after iteration {last}: {self.measure} "
                f"{self.described(self.best)}, of {self.begun} in the same evaluations {before}"
            )
            imitates = last <= self.cloned < self.iterations
            return f"{found}; it is the imitation: PPO did not improve on it" if imitates else found
        return (
            f"{done} and nothing was learned: no evaluation was better than that of {self.begun} "
            f"({self.measure} {before}); exported is "
            + (f"the policy after iteration {last}" if last else self.begun)
        )

    @property
    def warnings(self) -> tuple[str, ...]:
        """What a user is to know of a run that learned nothing."""
        return () if self.learned else (self.sentence,)
