"""Train policies of any environment, or of a task of your own, by PPO.

python -m experiments.train task=environment task.id=meshwright/PlacementToy-v0
python -m experiments.train task=mypackage.MyTask agent.num_envs=8 training.budget_s=30

A task is an `agents.rllib.task.RLTask`. Beside the scores of evaluations stand those of simple
rules, where there are some for the environment. The policy of the best evaluation becomes a folder,
<run folder>/checkpoint; of several modules each has one in it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from agents.rllib.config import Training
from agents.rllib.task import RLTask
from envs.errors import InputError
from experiments.config.targets import build_as
from experiments.learning.training import PolicyConfig, learned
from experiments.run.one_run import Result, Run


@dataclass(kw_only=True)
class TrainTaskConfig(PolicyConfig):
    """`conf/train.yaml`; groups are objects by `_target_`."""

    task: Any


def task_of(config: TrainTaskConfig) -> tuple[Training, RLTask]:
    """How a config trains, and what.

    Raises:
        InputError: naming the config key.
    """
    training = config.training_run()
    if training.parameters == "separate":
        raise InputError("config key 'training.parameters': a task says who shares: task.shared")
    task = build_as(RLTask, config.task, "task", "task of reinforcement learning")
    return training, task


def train_task(config: TrainTaskConfig, run: Run) -> Result:
    """Train (on), then write the checkpoint, the learning curve and what the evaluations say."""
    from experiments.learning.hand_rules import rule_scores

    return learned(config, run, task_of, rule_scores)
