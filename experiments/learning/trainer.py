"""The one trainer: step, record, evaluate, keep the best, checkpoint, go on after a kill."""

from __future__ import annotations

import csv
import io
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self

import numpy as np
from torch import Tensor

from agents.rllib import restore
from envs.compilation import clock
from envs.errors import InputError, in_one_line
from envs.files import write_atomically
from experiments.learning.tracking import TensorBoard, Tracking
from experiments.run.artifacts import METRICS_FILE, read_metrics
from models.artifacts import sync

Row = Mapping[str, float]
Files = Mapping[str, Mapping[str, Tensor]]  # arrays by name of the file and their own

ITERATION = "iteration"  # the first column of a log
COLUMNS = (
    ITERATION,
    "charts/seconds",  # wall clock spent training so far
    "evaluation/score",  # less is better; nan in iterations without
    "evaluation/outcome",  # mean over the episodes
    "evaluation/best_score",  # so far
)


class Task(Protocol):
    """What is trained: by reinforcement learning, supervised, or by a search.

    Attributes:
        identity: what a resumed run must have in common with the one that was begun.
        columns: of the metrics of a step.
        steps: done so far, as `Schedule.max_steps` counts them.
        outcomes: what the last score is made of, such as those of episodes.
    """

    @property
    def identity(self) -> Mapping[str, Any]: ...
    @property
    def columns(self) -> Sequence[str]: ...
    @property
    def steps(self) -> int: ...
    @property
    def outcomes(self) -> Sequence[float]: ...

    def begin(self) -> None:
        """Before the first score of a run that is begun."""
        return

    def step(self) -> Row:
        """One iteration; its metrics."""
        raise NotImplementedError

    def score(self) -> float:
        """How good it is now: less is better, inf: it failed."""
        raise NotImplementedError

    def weights(self) -> Mapping[str, Tensor]:
        """What is kept of the best."""
        return {}

    def state(self) -> tuple[dict[str, Any], Files]:
        """What it needs to go on: plain numbers, and arrays by file and name.

        They are written before the next step, so arrays need no copies.
        """
        raise NotImplementedError

    def load(self, numbers: dict[str, Any], files: Files) -> None:
        """Go on from what `state` gave."""


class Schedule(Protocol):
    """How long it is trained; `agents.rllib.config.Training` is one."""

    @property
    def budget_s(self) -> float | None: ...
    @property
    def max_steps(self) -> int | None: ...
    @property
    def min_iterations(self) -> int: ...
    @property
    def checkpoint_every(self) -> int: ...
    @property
    def evaluate_every(self) -> int | None: ...


@dataclass(frozen=True)
class Rounds:
    """A schedule of so many steps."""

    max_steps: int
    evaluate_every: int | None = None
    checkpoint_every: int = 1
    min_iterations: int = 0
    budget_s: float | None = None


@dataclass
class Progress:
    """What a run has come to, all its sessions together."""

    iteration: int = 0
    seconds: float = 0.0  # wall clock spent training
    evaluations: list[tuple[int, float]] = field(default_factory=list)  # (iteration, score)
    best_score: float = np.inf
    best_iteration: int = 0
    warnings: tuple[str, ...] = ()  # what a user is to know

    def __post_init__(self) -> None:
        self.evaluations = [(iteration, score) for iteration, score in self.evaluations]
        self.warnings = tuple(self.warnings)


class MetricsLog:
    """`metrics.csv` in `run_folder`, and what `tracking` opens for it.

    A row is on the disk when `write` returns. Opened after `last_iteration` iterations, rows that
    a killed run wrote beyond that (or wrote half) are taken away first, so that the file has
    neither gaps nor duplicates.
    """

    def __init__(
        self, run_folder: Path, last_iteration: int, columns: Sequence[str], tracking: Tracking
    ) -> None:
        self.columns, self.path = tuple(columns), run_folder / METRICS_FILE
        rows = _rows_until(self.path, last_iteration, self.columns) if last_iteration else []
        write_atomically(self.path, self._text(rows, header=True).encode())
        sync(self.path)
        self._tracker = tracking.open(run_folder, last_iteration)
        self._file = self.path.open("a", encoding="utf-8", newline="")

    def write(self, row: Row) -> None:
        """Append one iteration's metrics; `row` has exactly the keys `columns`."""
        self._file.write(self._text([row]))
        self._file.flush()
        os.fsync(self._file.fileno())
        self._tracker.log(int(row[ITERATION]), {name: row[name] for name in self.columns[1:]})

    def _text(self, rows: Sequence[Mapping[str, Any]], header: bool = False) -> str:
        text = io.StringIO()
        writer = csv.DictWriter(text, self.columns)
        if header:
            writer.writeheader()
        writer.writerows(rows)
        return text.getvalue()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        self._file.close()
        self._tracker.close(failed=kind is not None)


def _rows_until(path: Path, last_iteration: int, columns: Sequence[str]) -> list[dict[str, str]]:
    """The complete rows of iterations 1..`last_iteration`.

    Raises:
        InputError: they are not exactly these iterations.
    """
    if not path.exists():
        raise InputError("is missing", file=path)
    complete = [
        row
        for row in read_metrics(path)
        if all(row.get(name) not in {None, ""} for name in columns)
    ]
    kept = [row for row in complete if row[ITERATION].isdigit()]
    kept = [row for row in kept if int(row[ITERATION]) <= last_iteration]
    if [int(row[ITERATION]) for row in kept] != list(range(1, last_iteration + 1)):
        raise InputError(
            f"does not hold iterations 1 to {last_iteration} of the run, each once",
            file=path,
            field=ITERATION,
        )
    return kept


def train(
    task: Task,
    schedule: Schedule,
    run_folder: Path,
    on_iteration: Callable[[Row], None] = lambda row: None,
    *,
    resume: bool = False,
    tracking: Tracking | None = None,
) -> Progress:
    """Train until the budget is spent and so many iterations as are wanted are done.

    The budget counts neither what comes before the first iteration nor the compilation of kernels.

    Args:
        task: what is trained.
        schedule: how long.
        run_folder: receives `metrics.csv`, `checkpoints/` and, the weights of the best evaluation
            and of the first one, `best/` and `untrained/`.
        on_iteration: called with each iteration's metrics, when they are on the disk.
        resume: go on from the last checkpoint in `run_folder`; the budget counts from the start of
            the run.
        tracking: where metrics go beside `metrics.csv`; None: `tensorboard/` in `run_folder`.

    Raises:
        InputError: `run_folder` holds a run already and `resume` is not set, or there is nothing
            (or something else) to resume.
    """
    if not resume and restore.has_checkpoint(run_folder):
        raise InputError("holds a run already: resume it, or take another folder", file=run_folder)
    run = _Run(task, schedule, run_folder)
    if resume:
        run.load()
    else:
        task.begin()
        run.evaluate()
        run.save()
    progress, every = run.progress, schedule.evaluate_every
    begun, first = clock() - progress.seconds, progress.iteration
    reserve = 0.0  # seconds that another iteration and the last evaluation will take
    columns = (*COLUMNS, *task.columns)
    with MetricsLog(run_folder, first, columns, tracking or TensorBoard()) as log:
        while not run.is_over(clock() - begun + reserve):
            start = clock()
            row = dict(task.step())
            progress.iteration += 1
            evaluated = every is not None and progress.iteration % every == 0
            if evaluated:
                run.evaluate()
            progress.seconds = clock() - begun
            row |= {
                ITERATION: progress.iteration,
                "charts/seconds": progress.seconds,
                "evaluation/score": progress.evaluations[-1][1] if evaluated else np.nan,
                "evaluation/outcome": float(np.mean(task.outcomes)) if evaluated else np.nan,
                "evaluation/best_score": progress.best_score,
            }
            reserve = clock() - start + (run.evaluation_seconds if every is None else 0.0)
            log.write(row)
            on_iteration(row)
            if progress.iteration % schedule.checkpoint_every == 0:
                run.save()
    evaluated = progress.evaluations[-1][0] == progress.iteration
    if not evaluated:
        run.evaluate()
    if run.saved != progress.iteration or not evaluated:
        run.save()
    progress.seconds = clock() - begun
    if resume and progress.iteration == first:
        progress.warnings = (run.nothing_left(),)
    return progress


class _Run:
    """A task, what it has come to, and its folder."""

    def __init__(self, task: Task, schedule: Schedule, folder: Path) -> None:
        self.task, self.schedule, self.folder = task, schedule, folder
        self.progress, self.saved, self.evaluation_seconds = Progress(), 0, 0.0

    def load(self) -> None:
        """Go on from the last checkpoint."""
        state, files = restore.restore(self.folder, self.task.identity)
        path = self.folder / "checkpoints"
        try:
            self.progress = Progress(**state["progress"])
            self.task.load(state["task"], files)
        except (TypeError, ValueError, KeyError, RuntimeError) as error:
            message = in_one_line(error)
            raise InputError(f"is not what a run writes ({message})", file=path) from error
        self.saved = self.progress.iteration

    def save(self) -> None:
        """Write a checkpoint."""
        numbers, files = self.task.state()
        state = {"progress": asdict(self.progress), "task": numbers}
        self.saved = self.progress.iteration
        restore.save(self.folder, self.saved, state, files, self.task.identity)

    def evaluate(self) -> None:
        """Keep the weights of the best so far; while none has finished, the last."""
        start, progress = clock(), self.progress
        score, first = self.task.score(), not progress.evaluations
        progress.evaluations.append((progress.iteration, score))
        better = score < progress.best_score or not np.isfinite(progress.best_score)
        if better:
            progress.best_score, progress.best_iteration = score, progress.iteration
        document = {
            "score": score,
            "outcomes": list(self.task.outcomes),
            "iteration": progress.iteration,
            "steps": self.task.steps,
        }
        for which in [restore.UNTRAINED] * first + [restore.BEST] * better:
            restore.save_best(self.folder, self.task.weights(), document, which)
        self.evaluation_seconds = clock() - start

    def is_over(self, seconds: float) -> bool:
        """Whether a limit is reached, or would be by going on."""
        budget_s, most = self.schedule.budget_s, self.schedule.max_steps
        enough = self.progress.iteration >= self.schedule.min_iterations
        if enough and budget_s is not None and seconds >= budget_s:
            return True
        return most is not None and self.task.steps >= most

    def nothing_left(self) -> str:
        """Of a run that was resumed with nothing left to do."""
        most = self.schedule.max_steps
        key, spent = "budget_s", f"the budget of {self.schedule.budget_s} s is spent"
        if most is not None and self.task.steps >= most:
            key, spent = "max_steps", f"{most} steps are done"
        return f"nothing more was trained, {spent}: give training.{key}=..., which is the total"
