"""How far a run is, and the columns of its metrics."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from agents.rllib.cluster.columns import (
    AGREEMENT,
    CLIPPED,
    CROSS_ENTROPY,
    KL,
    POSTERIOR_LOSS,
)
from agents.rllib.learner import GRADIENT_NORM_METRIC


@dataclass
class ClusterProgress:
    """Counters, scales, and all that the runner needs to go on."""

    iteration: int = 0
    decisions: int = 0  # of schedulers, cloning included
    learned: int = 0  # of them, by PPO
    episodes: int = 0
    seconds: float = 0.0  # wall clock spent training
    reference: list[float] = field(default_factory=list)  # mean JCT of the exam's windows, seconds
    best_score: float = float("inf")  # of an exam
    best_iteration: int = 0
    exams: list[tuple[int, float]] = field(default_factory=list)  # (iteration, score)
    reward_scale: dict[str, Any] = field(default_factory=dict)
    value_scale: dict[str, Any] = field(default_factory=dict)
    runner: dict[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.exams = [(iteration, score) for iteration, score in self.exams]


CHARTS = (
    "iteration",
    "charts/cloning",  # 1: the teacher is imitated, 0: PPO
    "charts/decisions",  # of schedulers, so far
    "charts/episodes",  # so far
    "charts/seconds",  # wall clock spent training so far
    "charts/SPS",  # decisions per second, this iteration, without its exam
    "charts/sample_seconds",  # of this iteration
    "charts/learn_seconds",  # of this iteration
    "charts/gradient_steps",  # of this iteration
    "charts/mean_jct_s",  # of the episodes that ended in this iteration; nan without any
    "charts/finished_share",  # of their jobs
    "charts/episodic_length",  # mean, steps
    "charts/episodic_return",  # mean, of a scheduler
    "charts/curriculum",  # progress, 0 to 1
    "charts/pupil_share",  # of the steps of cloning; nan in PPO
    "charts/reward_scale",  # rewards are divided by it
    "charts/value_mean",  # of the critic's targets, in scaled rewards
    "charts/value_deviation",
    "charts/learning_rate",
    "charts/entropy_coefficient",
    "exam/score",  # mean JCT / the reference's, mean over the windows; nan in iterations without
    "exam/mean_jct_s",  # mean over the windows
    "exam/best_score",  # so far
)
LOSSES: Mapping[str, str] = {  # column -> RLlib's or our name; all of the last minibatch
    "losses/policy_loss": "policy_loss",
    "losses/value_loss": "vf_loss",
    "losses/total_loss": "total_loss",
    "losses/entropy": "entropy",  # nats
    "losses/kl": KL,
    "losses/clipped_share": CLIPPED,
    "losses/explained_variance": "vf_explained_var",
    "losses/gradient_norm": GRADIENT_NORM_METRIC,  # before clipping
    "losses/cross_entropy": CROSS_ENTROPY,
    "losses/agreement": AGREEMENT,
    "losses/posterior_loss": POSTERIOR_LOSS,
}
COLUMNS = (*CHARTS, *LOSSES)
