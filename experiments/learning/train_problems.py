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

from dataclasses import dataclass
from typing import TYPE_CHECKING

from agents.rllib.config import Training
from agents.rllib.metrics import Row
from experiments.config.targets import build, build_as, no_such_thing
from experiments.learning.training import PolicyConfig, learned
from experiments.run.one_run import Result, Run

if TYPE_CHECKING:
    from agents.rllib.step.problems import Problems


@dataclass(kw_only=True)
class TrainProblemsConfig(PolicyConfig):
    """`conf/train_problems.yaml`; groups are objects by `_target_`."""


def subject_of(config: TrainProblemsConfig) -> tuple[Training, Problems]:
    """What a config trains, how, and on what.

    Raises:
        InputError: naming the config key or the file.
    """
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
    return learned(
        config, run, subject_of, news, title="A placement policy", what="step times",
        unit="step time",
    )  # fmt: skip


def news(row: Row) -> str:
    """One iteration in a few words."""
    return (
        f"{row['charts/ratio_mean']:.3f} times the reference, "
        f"{row['charts/feasible_share']:.0%} fit, {row['charts/SPS']:.0f} plans/s"
    )
