"""What trainers share: configs, and of policies the run of the learner and what is exported."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from agents.rllib.config import Training
from experiments.cluster.split_windows import SplitConfig, check_windows
from experiments.config.composing import plain_config
from experiments.config.targets import build_as
from experiments.learning.exporting import CHECKPOINT_FOLDER, card_of
from experiments.learning.outcome import Outcome
from experiments.learning.tracking import Tracking
from experiments.learning.trainer import Progress, Rounds, Row, Task, train
from experiments.pictures.learning import draw_evaluations, improvements, read_evaluations
from experiments.run.artifacts import (
    METRICS_FILE,
    read_metrics,
    write_figure,
    write_json,
    write_sidecar,
)
from experiments.run.display import ProgressDisplay
from experiments.run.one_run import Result, Run
from experiments.run.provenance import Provenance, stamp
from experiments.run.saved_run import resumed_config

if TYPE_CHECKING:
    from agents.rllib.task import RLTask, Solution
    from models.architecture import Policy

CURVE_FILE = "learning_curve.png"
SHOWN = (
    "iterations", "steps", "seconds", "best_score", "best_iteration", "untrained_score",
    "resumed", "checkpoint",
)  # fmt: skip

News = Callable[[Row], str]  # of an iteration, in a few words


@dataclass(kw_only=True)
class TrainingConfig:
    """What every training is given."""

    tracking: Any
    resume: str | None = None  # the run folder of a run to go on with; its config is taken up again
    seed: int
    json: bool


@dataclass(kw_only=True)
class PolicyConfig(TrainingConfig):
    """What the trainings of policies are given; groups are objects by `_target_`."""

    agent: Any
    model: Any
    learner: Any
    ray: Any = field(default_factory=lambda: {"address": None})
    training: Any

    def training_run(self) -> Training:
        """The learner's settings."""
        return build_as(Training, self.training, "training", "training run")


@dataclass(kw_only=True)
class WindowsConfig(TrainingConfig):
    """What trainings on windows of splits are given."""

    splits: dict[str, SplitConfig] = field(default_factory=dict)  # traces, +split@splits.itp=itp
    window: str = "train"  # of the splits, or the trace: whose jobs are learned from
    evaluation_window: str = "validation"  # and whose, later in time, are for evaluations

    def __post_init__(self) -> None:
        check_windows(self.splits, self.window, self.evaluation_window)


AnyConfig = TypeVar("AnyConfig", bound=TrainingConfig)


def begun(config: AnyConfig, run: Run) -> tuple[AnyConfig, Tracking]:
    """The config, of a run that goes on its own, and where metrics go.

    Raises:
        InputError: the command line changes what a resumed run keeps; it tracks nothing.
    """
    if config.resume is not None:
        config = resumed_config(run.folder, config, run.overrides)
    return config, build_as(Tracking, config.tracking, "tracking", "tracking of metrics")


@dataclass(kw_only=True, eq=False)
class Trained(Progress):
    """What a run found and learned, all its sessions together."""

    policies: Mapping[str, Policy]  # of the best evaluation, by module
    steps: int
    episodes: int
    reference: Sequence[float]  # objectives of the evaluation's episodes; () where there is none
    outcomes: Sequence[float]  # those of the last policies; inf: failed
    best: Solution | None  # of the decisions met in training

    @property
    def iterations(self) -> int:
        return self.iteration


def train_policies(
    training: Training,
    task: RLTask,
    run_folder: Path,
    on_iteration: Callable[[Row], None] = lambda row: None,
    *,
    resume: bool = False,
    tracking: Tracking | None = None,
) -> Trained:
    """Train by PPO, as `experiments.learning.trainer.train`; the best policies, and the run."""
    from agents.rllib.restore import load_best
    from agents.rllib.training import ppo_task

    with ppo_task(training, task) as ppo:
        progress = train(ppo, training, run_folder, on_iteration, resume=resume, tracking=tracking)
        load_best(run_folder, ppo.policies)
        counters = ppo.algorithm.counters
        return Trained(
            **vars(progress),
            policies=ppo.policies,
            steps=counters.steps,
            episodes=counters.episodes,
            reference=ppo.reference,
            outcomes=ppo.outcomes,
            best=ppo.best,
        )


@contextmanager
def shown(
    config: TrainingConfig, run: Run, display: ProgressDisplay, provenance: Provenance, news: News,
    name: str = "training", seconds: float | None = None, iterations: int = 0,
) -> Iterator[Callable[[Row], None]]:  # fmt: skip
    """What to call with each iteration's metrics; where they come from is written beside them.

    Args:
        config: whether a run goes on.
        run: its folder.
        display: shows how far it is.
        provenance: of the checkpoints.
        news: of an iteration.
        name: of the training on the display.
        seconds: that it will take.
        iterations: least.
    """
    if config.resume is None:
        origin = stamp({}, provenance, kind="training_checkpoints")
        write_json(run.folder / "checkpoints" / "provenance.json", origin)
    task, last = display.begin(name, seconds, iterations), ["no iteration was done"]

    def on_iteration(row: Row) -> None:
        last[0] = f"iteration {row['iteration']:.0f}, {news(row)}"
        display.update(task, row["charts/seconds"], last[0])

    yield on_iteration
    display.end(task, last[0])
    write_sidecar(run.folder / METRICS_FILE, provenance, kind="metrics")


def run_rounds(
    config: TrainingConfig, tracking: Tracking, task: Task, rounds: Rounds, run: Run,
    display: ProgressDisplay, provenance: Provenance, news: News, name: str = "training",
) -> Progress:  # fmt: skip
    """Train (on) for so many steps, and show it, as `shown`."""
    with shown(config, run, display, provenance, news, name) as on_iteration:
        return train(
            task, rounds, run.folder, on_iteration,
            resume=config.resume is not None, tracking=tracking,
        )  # fmt: skip


def trained(
    config: TrainingConfig, tracking: Tracking, training: Training, task: RLTask, run: Run,
    display: ProgressDisplay, provenance: Provenance, news: News, name: str = "training",
) -> Trained:  # fmt: skip
    """Train policies (on), as `train_policies`, and show it, as `shown`."""
    with shown(
        config, run, display, provenance,
        lambda row: f"{'imitation' if row['charts/cloning'] else 'PPO'}, {news(row)}",
        name, training.budget_s, training.min_iterations,
    ) as on_iteration:  # fmt: skip
        return train_policies(
            training, task, run.folder, on_iteration,
            resume=config.resume is not None, tracking=tracking,
        )  # fmt: skip


def trajectory(run_folder: Path, first: float) -> list[tuple[float, float]]:
    """(seconds of training, score) of the first evaluation and of each that was the best so far."""
    rows = read_metrics(run_folder / METRICS_FILE)
    scores = [(float(row["charts/seconds"]), float(row["evaluation/score"])) for row in rows]
    return improvements([(0.0, first), *scores])


def counts_of(found: Trained, *more: str) -> dict[str, object]:
    """What the results of all trainers tell of a run, and `more` of its attributes."""
    keys = ("iterations", "steps", "seconds", "best_score", "best_iteration", *more)
    return {
        **{key: getattr(found, key) for key in keys},
        "untrained_score": found.evaluations[0][1],
        "evaluations": [{"iteration": k, "score": score} for k, score in found.evaluations],
    }


def learned(
    config: AnyConfig,
    run: Run,
    task_of: Callable[[AnyConfig], tuple[Training, RLTask]],
    rules: Callable[[Any, Sequence[float]], dict[str, float]] = lambda task, reference: {},
) -> Result:
    """Train (on), then write the checkpoint, the learning curve and what the evaluations say.

    Args:
        config: of the app.
        run: its folder.
        task_of: how it is learned, and what.
        rules: of a task and the reference's objectives, scores of simple rules, the best first.
    """
    config, tracking = begun(config, run)
    training, task = task_of(config)
    with ProgressDisplay(run.console) as display:
        found = trained(config, tracking, training, task, run, display, run.provenance, task.news)
    checkpoint = run.folder.resolve() / CHECKPOINT_FOLDER
    outcome = Outcome.of(run.folder, f"{task.measure} over the reference's")
    run.console.say(outcome.sentence)
    text = f"Of {len(found.outcomes)} evaluations of the most probable actions, in the mean: "
    card = card_of(task.title, f"{text}{outcome.sentence}.", plain_config(config), run.provenance)
    task.export(found.policies, checkpoint, card)
    scores = read_evaluations(run.folder, found.evaluations)
    by_rule = rules(task, found.reference)
    known = f"reference: {task.reference}" if isinstance(task.reference, str) else "reference"
    figure = draw_evaluations([scores], "evaluations in training", task.unit, known, by_rule)
    write_figure(run.folder / CURVE_FILE, figure, run.provenance)
    values = {
        **counts_of(found),
        "outcomes": list(found.outcomes),
        "reference": list(found.reference),
        "rules": by_rule,
        "trajectory": trajectory(run.folder, found.evaluations[0][1]),
        "checkpoint": str(checkpoint),
        "checkpoint_bytes": sum(x.stat().st_size for x in checkpoint.rglob("*") if x.is_file()),
        "resumed": config.resume is not None,
    }
    return Result(values, run.provenance, SHOWN, (*outcome.warnings, *found.warnings))
