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

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from experiments.learning.exporting import CHECKPOINT_FOLDER, card_of
from experiments.learning.tracking import tracking_of
from experiments.pictures.learning import draw_exams, read_exams
from experiments.run.artifacts import (
    METRICS_FILE,
    write_figure,
    write_json,
    write_sidecar,
)
from experiments.run.display import ProgressDisplay
from experiments.run.one_run import Result, Run
from experiments.run.overrides import plain_config
from experiments.run.provenance import stamp
from experiments.run.saved_run import resumed_config
from experiments.run.targets import build, build_as, no_such_thing

if TYPE_CHECKING:
    from agents.rllib.config import Training
    from agents.rllib.step.problems import Problems

ALLOCATOR_FOLDER = "allocator"  # beside the placer's
SHOWN = (
    "iterations", "steps", "seconds", "best_score", "best_iteration", "untrained_score",
    "resumed",
)  # fmt: skip


@dataclass
class TrainProblemsConfig:
    """`conf/train_problems.yaml`; groups are objects by `_target_`."""

    env: Any
    agent: Any
    model: Any
    learner: Any
    tracking: Any
    ray: Any
    training: Any
    resume: str | None
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
    from models.step.pipes import TeamConfig

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
    resume = config.resume is not None
    if resume:
        config = resumed_config(run.folder, config, run.overrides)
    tracking = tracking_of(config.tracking)
    training, subject = subject_of(config)
    if not resume:
        origin = stamp({}, run.provenance, kind="training_checkpoints")
        write_json(run.folder / "checkpoints" / "provenance.json", origin)

    from agents.rllib.training import train
    from models.export.allocator import export_allocator
    from models.export.placer import export_placer
    from models.step.pipes import PipesPolicy
    from models.step.placer import PlacerPolicy

    with ProgressDisplay(run.console) as display:
        shown = display.begin("ppo", training.budget_s)

        def on_iteration(row: Mapping[str, float]) -> None:
            display.update(shown, row["charts/seconds"], news(row))

        found = train(training, subject, run.folder, on_iteration, resume=resume, tracking=tracking)
        display.end(shown, f"{found.best_score:.3f} times the reference at best")
    write_sidecar(run.folder / METRICS_FILE, run.provenance, kind="metrics")
    checkpoint = run.folder.resolve() / CHECKPOINT_FOLDER
    card = card_of(
        title="A placement policy",
        text=f"In {len(found.trained)} exams of the most probable tokens step times were "
        f"{found.best_score:.3f} times the reference's in the mean, before training "
        f"{found.exams[0][1]:.3f} times.",
        config=plain_config(config),
        provenance=run.provenance,
    )
    for policy in found.policies.values():
        if isinstance(policy, PipesPolicy):
            title = "A policy that allocates bandwidth"
            export_allocator(
                policy, checkpoint.with_name(ALLOCATOR_FOLDER), replace(card, title=title)
            )
        else:
            assert isinstance(policy, PlacerPolicy)
            export_placer(policy, checkpoint, card)
    figure = draw_exams([read_exams(run.folder)], "exams in training", "step time")
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
    return Result(values, run.provenance, SHOWN)


def news(row: Mapping[str, float]) -> str:
    """One iteration in a few words."""
    what = "imitation" if row["charts/cloning"] else "PPO"
    return (
        f"iteration {row['iteration']:.0f} ({what}), {row['charts/ratio_mean']:.3f} times the "
        f"reference, {row['charts/feasible_share']:.0%} fit, {row['charts/SPS']:.0f} plans/s"
    )
