"""Train a policy of whole plans on many placement problems: imitate labels, then PPO.

python -m experiments.train env=problems training.budget_s=600
python -m experiments.train env=labelled_problems env.folder=<folder> \\
    training.cloning.iterations=200
python -m experiments.train env=problems model=placer_continued \\
    model.checkpoint=<run folder>/checkpoint
python -m experiments.train env=joint_problems model=joint_plans training.budget_s=600
python -m experiments.train resume=<run folder>

The policy of the best exam becomes a checkpoint folder, <run folder>/checkpoint, which
`model=placer_continued` goes on from, here and with `env=one_problem`. That
of allocators, where bandwidth is decided too, lies beside it: <run folder>/allocator.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from experiments.config.composing import plain_config
from experiments.config.targets import build, build_as, no_such_thing
from experiments.learning.exporting import CHECKPOINT_FOLDER, card_of
from experiments.learning.outcome import Outcome
from experiments.learning.tracking import tracking_of
from experiments.pictures.learning import draw_exams, read_exams
from experiments.run.artifacts import (
    METRICS_FILE,
    write_figure,
    write_json,
    write_sidecar,
)
from experiments.run.one_run import Result, Run
from experiments.run.provenance import stamp
from experiments.run.saved_run import resumed_config
from experiments.study.display import ProgressDisplay

if TYPE_CHECKING:
    from agents.rllib.config import Training
    from agents.rllib.step.problems import Problems
    from agents.rllib.subject import Subject
    from models.architecture import Policy
    from models.export.placer import PlacerCard

ALLOCATOR_FOLDER = "allocator"  # beside the placer's
SHOWN = (
    "iterations", "steps", "seconds", "best_score", "best_iteration", "untrained_score",
    "resumed", "checkpoint",
)  # fmt: skip


@dataclass(kw_only=True)
class TrainProblemsConfig:
    """`conf/train_problems.yaml`; groups are objects by `_target_`."""

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


def subject_of(config: TrainProblemsConfig) -> tuple[Training, Problems]:
    """What a config trains, how, and on what.

    Raises:
        InputError: naming the config key or the file.
    """
    from agents.rllib.config import Training
    from agents.rllib.step.joint_problems import JointProblems
    from agents.rllib.step.problems import Problems, sweeps_of
    from models.step.channels import TeamConfig

    training = build_as(Training, config.training, "training", "training run")
    make = build(config.env, "env")
    if not callable(make):
        raise no_such_thing("env", config.env, "source of whole problems")
    team = isinstance(training.model, TeamConfig)
    source = make(sweeps=sweeps_of(training.model.placer if team else training.model))
    subject = (JointProblems if team else Problems)(source, training)
    architectures = subject.architectures(training.model)
    for agent in subject.agents:
        architectures[subject.module_of(agent)].policy(*subject.spaces_of(agent))
    return training, subject


def train_problems(config: TrainProblemsConfig, run: Run) -> Result:
    """Train (on), then write the learning curve and what the exams say."""
    if config.resume is not None:
        config = resumed_config(run.folder, config, run.overrides)
    training, subject = subject_of(config)
    return learned(
        config, run, training, subject, news, title="A placement policy", what="step times",
        unit="step time",
    )  # fmt: skip


class Trains(Protocol):
    """A config of this app or of one like it."""

    tracking: Any
    resume: str | None


def learned(
    config: Trains,
    run: Run,
    training: Training,
    subject: Subject,
    news: Callable[[Mapping[str, float]], str],
    title: str,
    what: str,
    unit: str,
) -> Result:
    """Train (on), then write the checkpoint, the learning curve and what the exams say.

    Args:
        config: of the app, as it is taken up again where the run goes on.
        run: its folder.
        training: how it is learned.
        subject: about what.
        news: one iteration in a few words.
        title: of the checkpoint's card.
        what: of the exams, in the plural.
        unit: of their outcomes, in the picture.
    """
    resume = config.resume is not None
    tracking = tracking_of(config.tracking)
    if not resume:
        origin = stamp({}, run.provenance, kind="training_checkpoints")
        write_json(run.folder / "checkpoints" / "provenance.json", origin)

    from agents.rllib.training import train

    with ProgressDisplay(run.console) as display:
        shown = display.begin("training", training.budget_s, training.min_iterations)

        def on_iteration(row: Mapping[str, float]) -> None:
            display.update(shown, row["charts/seconds"], news(row))

        found = train(training, subject, run.folder, on_iteration, resume=resume, tracking=tracking)
        display.end(shown, f"{found.best_score:.4f} times the reference at best")
    write_sidecar(run.folder / METRICS_FILE, run.provenance, kind="metrics")
    checkpoint = run.folder.resolve() / CHECKPOINT_FOLDER
    outcome = Outcome.of(run.folder, f"{what} over the reference's")
    run.console.say(outcome.sentence)
    card = card_of(
        title=title,
        text=f"Of {len(found.trained)} exams of the most probable actions, in the mean: "
        f"{outcome.sentence}.",
        config=plain_config(config),
        provenance=run.provenance,
    )
    for policy in found.policies.values():
        _export(policy, checkpoint, card)
    figure = draw_exams([read_exams(run.folder, found.exams)], "exams in training", unit)
    write_figure(run.folder / "learning_curve.png", figure, run.provenance)
    values: dict[str, object] = {
        "iterations": found.iterations,
        "steps": found.steps,
        "seconds": found.seconds,
        "best_score": found.best_score,
        "best_iteration": found.best_iteration,
        "untrained_score": found.exams[0][1],
        "exams": [{"iteration": k, "score": score} for k, score in found.exams],
        "outcomes": list(found.trained),
        "reference": list(found.reference),
        "checkpoint": str(checkpoint),
        "resumed": resume,
    }
    return Result(values, run.provenance, SHOWN, (*outcome.warnings, *found.warnings))


def _export(policy: Policy, checkpoint: Path, card: PlacerCard) -> None:
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


def news(row: Mapping[str, float]) -> str:
    """One iteration in a few words."""
    what = "imitation" if row["charts/cloning"] else "PPO"
    return (
        f"iteration {row['iteration']:.0f} ({what}), {row['charts/ratio_mean']:.3f} times the "
        f"reference, {row['charts/feasible_share']:.0%} fit, {row['charts/SPS']:.0f} plans/s"
    )
