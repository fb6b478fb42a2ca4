"""Train a policy of whole plans on many placement problems: imitate labels, then PPO.

python -m experiments.train env=problems training.budget_s=600
python -m experiments.train env=labelled_problems env.folder=<folder> \\
    training.cloning.iterations=200
python -m experiments.train env=problems model=placer_continued \\
    model.checkpoint=<run folder>/checkpoint
python -m experiments.train env=joint_problems model=joint_plans training.budget_s=600
python -m experiments.train resume=<run folder>

The policy of the best evaluation becomes a checkpoint folder, <run folder>/checkpoint, which
`model=placer_continued` goes on from, here and with `env=one_problem`. That
of allocators, where bandwidth is decided too, lies beside it: <run folder>/allocator.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from agents.rllib.config import Training
from experiments.config.targets import build, no_such_thing
from experiments.learning.training import PolicyConfig, learned
from experiments.run.one_run import Result, Run

if TYPE_CHECKING:
    from agents.rllib.step.plans import PlanRLTask


@dataclass(kw_only=True)
class TrainProblemsConfig(PolicyConfig):
    """`conf/task/problems.yaml`; groups are objects by `_target_`."""

    env: Any


def task_of(config: TrainProblemsConfig) -> tuple[Training, PlanRLTask]:
    """What a config trains, how, and on what.

    Raises:
        InputError: naming the config key or the file.
    """
    from agents.rllib.step.joint_plans import JointPlanRLTask
    from agents.rllib.step.plans import PlanRLTask, sweeps_of
    from models.step.channels import TeamConfig

    training = config.training_run()
    make = build(config.env, "env")
    if not callable(make):
        raise no_such_thing("env", config.env, "source of whole problems")
    team = isinstance(training.model, TeamConfig)
    source = make(sweeps=sweeps_of(training.model.placer if team else training.model))
    task = (JointPlanRLTask if team else PlanRLTask)(source, training)
    architectures = task.architectures(training.model)
    for agent in task.agents:
        architectures[task.module_of(agent)].policy(*task.spaces_of(agent))
    return training, task


def train_problems(config: TrainProblemsConfig, run: Run) -> Result:
    """Train (on), then write the learning curve and what the evaluations say."""
    return learned(config, run, task_of)
