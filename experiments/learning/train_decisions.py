"""Train a policy over what schedulers could do next, by futures that all candidates share.

python -m experiments.train env=decisions training.budget_s=600
python -m experiments.train env=decisions env.futures.posterior=null 'regimes=[shared_by_4]'
python -m experiments.train env=decisions base.scorer='{_target_: \\
    agents.cluster.joint_choice.PairScorer, path: <run folder>/checkpoint, first: 8, sure: 2.0, \\
    patience_s: 172800.0}'

The policy of the best evaluation becomes a folder, <run folder>/checkpoint, which any policy of
this kind follows by such a scorer, and with which the next one may begin. A decision counts by what
its window takes in all.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from agents.cluster.joint_choice import JointChoice
from agents.rllib.config import Training
from envs.bounds import Count
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.errors import InputError
from experiments.cluster.problem import ClusterProblem, built_policy
from experiments.cluster.regimes import JUDGING, LEARNING, RegimesConfig
from experiments.config.targets import build_as, no_such_thing
from experiments.learning.training import PolicyConfig, WindowsConfig, learned, training_of_pairs
from experiments.run.one_run import Result, Run

if TYPE_CHECKING:
    from agents.cluster.paired_futures import PairedFutures
    from agents.rllib.cluster.decisions import DecisionRLTask, DecisionsConfig, Worlds


@dataclass(kw_only=True)
class TrainDecisionsConfig(RegimesConfig, WindowsConfig, PolicyConfig):
    """`conf/task/decisions.yaml`; groups are objects by `_target_`."""

    env: Any
    base: Any
    # names of known, mixed evenly
    regimes: Sequence[str] = ("shared", "shared_by_4", "shared_by_16")
    windows: Count = 200  # of each regime
    evaluation_windows: Count = 40

    def __post_init__(self) -> None:
        super().__post_init__()
        self.chosen = [self.named(name, "regimes") for name in self.regimes]


def task_of(config: TrainDecisionsConfig) -> tuple[Training, DecisionRLTask]:
    """What a config trains, how, and on what.

    Raises:
        InputError: naming the config key.
    """
    from agents.rllib.cluster.decisions import DecisionRLTask, DecisionsConfig

    training = training_of_pairs(config)
    env = build_as(DecisionsConfig, config.env, "env", "kind of decisions")
    task = DecisionRLTask(
        env,
        _worlds(config, env, config.window, LEARNING, config.windows),
        _worlds(config, env, config.evaluation_window, JUDGING, config.evaluation_windows),
    )
    return training, task


def _worlds(
    config: TrainDecisionsConfig, env: DecisionsConfig, window: str, purpose: int, count: int
) -> Worlds:
    """Draws from so many windows of every regime."""
    found = []
    for regime in config.chosen:
        base = built_policy(regime.policy(config.base), "base")
        if not isinstance(base, JointChoice):
            raise no_such_thing("base", config.base, "joint_choice")
        problems = config.problems(regime, window, purpose, count)
        try:
            found += [(env.futures(base), problem) for problem in problems]
        except InputError as error:
            reason = f"config key 'env.futures.{error.field}': {error.message}"
            raise InputError(reason) from error
    return partial(_drawn, found)


def _drawn(
    found: list[tuple[PairedFutures, ClusterProblem]], rng: np.random.Generator
) -> tuple[PairedFutures, ClusterSimulator]:
    futures, one = found[int(rng.integers(len(found)))]
    return futures, ClusterSimulator(
        one.cluster, one.trace, rates=one.rates, overheads=one.overheads, incidents=one.incidents
    )


def train_decisions(config: TrainDecisionsConfig, run: Run) -> Result:
    """Train (on), then write the checkpoint, the learning curve and what the evaluations say."""
    return learned(config, run, task_of)
