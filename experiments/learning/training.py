"""What trainers share: configs, and of policies the run of the learner and what is exported."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from agents.rllib.config import Training
from agents.rllib.metrics import Row, Tracking
from envs.errors import InputError
from experiments.cluster.split_windows import SplitConfig, check_windows
from experiments.config.composing import plain_config
from experiments.config.targets import build_as
from experiments.learning.exporting import CHECKPOINT_FOLDER, card_of
from experiments.learning.outcome import Outcome
from experiments.pictures.learning import draw_exams, read_exams
from experiments.run.artifacts import METRICS_FILE, write_figure, write_json, write_sidecar
from experiments.run.display import ProgressDisplay
from experiments.run.one_run import Result, Run
from experiments.run.provenance import Provenance, stamp
from experiments.run.saved_run import resumed_config

if TYPE_CHECKING:
    from agents.rllib.subject import Subject
    from agents.rllib.training import Trained
    from models.architecture import Policy
    from models.export.checkpoint import ModelCard

ALLOCATOR_FOLDER = "allocator"  # beside the placer's
CURVE_FILE = "learning_curve.png"
SHOWN = (
    "iterations", "steps", "seconds", "best_score", "best_iteration", "untrained_score",
    "resumed", "checkpoint",
)  # fmt: skip

News = Callable[[Row], str]  # of an iteration, in a few words


@dataclass(kw_only=True)
class PolicyConfig:
    """What the trainers of policies are told; groups are objects by `_target_`."""

    env: Any
    agent: Any
    model: Any
    learner: Any
    tracking: Any
    ray: Any = field(default_factory=lambda: {"address": None})
    training: Any
    resume: str | None = None  # the run folder of a run to go on with; its config is taken up again
    seed: int
    json: bool


@dataclass(kw_only=True)
class WindowsConfig:
    """What those who learn from windows of splits are told."""

    splits: dict[str, SplitConfig] = field(default_factory=dict)  # traces, +split@splits.itp=itp
    window: str = "train"  # of the splits, or the trace: whose jobs are learned from
    exam_window: str = "validation"  # and whose, later in time, are for exams
    seed: int
    json: bool

    def __post_init__(self) -> None:
        check_windows(self.splits, self.window, self.exam_window)


AnyConfig = TypeVar("AnyConfig", bound=PolicyConfig)


def begun(config: AnyConfig, run: Run) -> tuple[AnyConfig, Tracking]:
    """The config, of a run that goes on its own, and where metrics go.

    Raises:
        InputError: the command line changes what a resumed run keeps; it tracks nothing.
    """
    if config.resume is not None:
        config = resumed_config(run.folder, config, run.overrides)
    return config, build_as(Tracking, config.tracking, "tracking", "tracking of metrics")


def training_of_pairs(config: PolicyConfig) -> Training:
    """How a policy that scores pairs of a job and a place is learned.

    Raises:
        InputError: the policy is another.
    """
    from models.cluster.pairs import PairsConfig

    training = build_as(Training, config.training, "training", "training run")
    if not isinstance(training.model, PairsConfig):
        told = f"{type(training.model).__name__} scores no pairs: take model=pairs"
        raise InputError(f"config key 'model': {told}")
    return training


def trained(
    config: PolicyConfig, tracking: Tracking, training: Training, subject: Subject, run: Run,
    display: ProgressDisplay, provenance: Provenance, news: News,
    ended: Callable[[Trained], str], name: str = "training",
) -> Trained:  # fmt: skip
    """Train (on); metrics and checkpoints go to the run's folder, and where they come from.

    Args:
        config: whether a run goes on.
        tracking: where metrics go beside the file.
        training: how it is learned.
        subject: about what.
        run: its folder.
        display: shows how far it is.
        provenance: of the checkpoints.
        news: of an iteration.
        ended: what came of it, in a few words.
        name: of the task on the display.
    """
    resume = config.resume is not None
    if not resume:
        origin = stamp({}, provenance, kind="training_checkpoints")
        write_json(run.folder / "checkpoints" / "provenance.json", origin)

    from agents.rllib.training import train

    task = display.begin(name, training.budget_s, training.min_iterations)

    def on_iteration(row: Row) -> None:
        what = "imitation" if row["charts/cloning"] else "PPO"
        told = f"iteration {row['iteration']:.0f} ({what}), {news(row)}"
        display.update(task, row["charts/seconds"], told)

    found = train(training, subject, run.folder, on_iteration, resume=resume, tracking=tracking)
    display.end(task, ended(found))
    write_sidecar(run.folder / METRICS_FILE, provenance, kind="metrics")
    return found


def counts_of(found: Trained, *more: str) -> dict[str, object]:
    """What the results of all trainers tell of a run, and `more` of its attributes."""
    keys = ("iterations", "steps", "seconds", "best_score", "best_iteration", *more)
    return {
        **{key: getattr(found, key) for key in keys},
        "untrained_score": found.exams[0][1],
        "exams": [{"iteration": k, "score": score} for k, score in found.exams],
    }


def learned(
    config: AnyConfig,
    run: Run,
    subject_of: Callable[[AnyConfig], tuple[Training, Subject]],
    news: News,
    title: str,
    what: str,
    unit: str,
) -> Result:
    """Train (on), then write the checkpoint, the learning curve and what the exams say.

    Args:
        config: of the app.
        run: its folder.
        subject_of: how it is learned, and about what.
        news: of an iteration.
        title: of the checkpoint's card.
        what: of the exams, in the plural.
        unit: of their outcomes, in the picture.
    """
    config, tracking = begun(config, run)
    training, subject = subject_of(config)
    with ProgressDisplay(run.console) as display:
        found = trained(
            config, tracking, training, subject, run, display, run.provenance, news,
            lambda found: f"{found.best_score:.4f} times the reference at best",
        )  # fmt: skip
    checkpoint = run.folder.resolve() / CHECKPOINT_FOLDER
    outcome = Outcome.of(run.folder, f"{what} over the reference's")
    run.console.say(outcome.sentence)
    text = f"Of {len(found.trained)} exams of the most probable actions, in the mean: "
    card = card_of(title, f"{text}{outcome.sentence}.", plain_config(config), run.provenance)
    for policy in found.policies.values():
        _export(policy, checkpoint, card)
    figure = draw_exams([read_exams(run.folder, found.exams)], "exams in training", unit)
    write_figure(run.folder / CURVE_FILE, figure, run.provenance)
    values = {
        **counts_of(found),
        "outcomes": list(found.trained),
        "reference": list(found.reference),
        "checkpoint": str(checkpoint),
        "resumed": config.resume is not None,
    }
    return Result(values, run.provenance, SHOWN, (*outcome.warnings, *found.warnings))


def _export(policy: Policy, checkpoint: Path, card: ModelCard) -> None:
    """Write a policy of one action an episode as a folder."""
    from models.cluster.pairs import PairsPolicy
    from models.export.allocator import export_allocator
    from models.export.pairs import export_pairs
    from models.export.placer import export_placer
    from models.step.channels import PipesPolicy
    from models.step.placer import PlacerPolicy

    if isinstance(policy, PairsPolicy):
        export_pairs(policy, checkpoint, card)
    elif isinstance(policy, PipesPolicy):
        title = "A policy that allocates bandwidth"
        export_allocator(policy, checkpoint.with_name(ALLOCATOR_FOLDER), replace(card, title=title))
    else:
        assert isinstance(policy, PlacerPolicy)
        export_placer(policy, checkpoint, card)
