"""Environments, sampler and RLlib's learner of one run, in this process, without a Ray runtime."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from ray.rllib.core.columns import Columns
from ray.rllib.core.rl_module.rl_module import DEFAULT_MODULE_ID
from ray.rllib.evaluation.postprocessing import Postprocessing
from ray.rllib.utils.metrics import NUM_ENV_STEPS_SAMPLED_LIFETIME

from agents.rllib import restore
from agents.rllib.cluster.advantages import (
    Discounting,
    RewardScale,
    ValueScale,
    advantages,
    without_shared,
)
from agents.rllib.cluster.config import ClusterTraining, rllib_config
from agents.rllib.cluster.drivers import Driver, PolicyDriver, TaughtDriver
from agents.rllib.cluster.lane import NO_JOB
from agents.rllib.cluster.learner import (
    AGREEMENT,
    CLIPPED,
    CROSS_ENTROPY,
    KL,
    NO_BIN,
    POSTERIOR_LOSS,
    REMAINING_BIN,
    TAUGHT,
    Decisions,
    Foresighted,
    SchedulerLearner,
)
from agents.rllib.cluster.runner import Fragment, LockStepRunner, Staged
from agents.rllib.learner import GRADIENT_NORM_METRIC
from envs.cluster.environment.parallel_env import ClusterParallelEnv
from envs.cluster.environment.views import Adviser
from envs.errors import InputError
from models.architecture import Policy
from models.durations.network import bins_of


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


EnvFactory = Callable[[], ClusterParallelEnv]
EPISODES = "episodes"  # file of a checkpoint


class ClusterSession:
    """Samples with one policy for all schedulers, and improves it.

    Draws from the global generators: make and use it inside `restore.seeded_generators`.

    Args:
        config: the run.
        env_factory: makes one environment; called for each of `num_envs`.
        teacher: who is imitated; None: nobody.

    Raises:
        InputError: the policy is not for these environments, or the config asks for something that
            policy, generator or teacher do not have.
    """

    def __init__(
        self, config: ClusterTraining, env_factory: EnvFactory, teacher: Adviser | None
    ) -> None:
        if config.cloning.iterations and teacher is None:
            raise InputError("there is no teacher to imitate: 0 it must be", field="iterations")
        self.config = config
        ppo = config.ppo
        envs = [env_factory() for _ in range(ppo.num_envs)]
        if config.curriculum_decisions and not isinstance(envs[0].generator, Staged):
            raise InputError(
                f"{type(envs[0].generator).__name__} has no curriculum: null it must be",
                field="curriculum_decisions",
            )
        self.runner = LockStepRunner(
            envs,
            ppo.fragment,
            config.seed,
            alike=ppo.alike,
            per_gpu=ppo.per_gpu,
            teacher=teacher if config.cloning.iterations else None,
        )
        agent = envs[0].possible_agents[0]
        spaces = (envs[0].observation_space(agent), envs[0].action_space(agent))
        learner = rllib_config(config).build_learner(spaces={DEFAULT_MODULE_ID: spaces})
        assert isinstance(learner, SchedulerLearner)
        self.learner = learner
        self.policy: Policy = learner.module[DEFAULT_MODULE_ID].policy
        if ppo.posterior_coefficient and not isinstance(self.policy, Foresighted):
            raise InputError(
                f"{type(self.policy).__name__} does not say how long jobs take: 0 it must be",
                field="posterior_coefficient",
            )
        self.optimizer: torch.optim.Optimizer = learner.get_optimizer(DEFAULT_MODULE_ID)
        self.reward_scale = RewardScale(ppo.num_envs * envs[0].schedulers)
        self.value_scale = ValueScale(ppo.value_memory)

    def cloning(self, progress: ClusterProgress) -> bool:
        """Whether the next iteration imitates the teacher."""
        return progress.iteration < self.config.cloning.iterations

    def stage(self, progress: ClusterProgress) -> float:
        whole = self.config.curriculum_decisions
        return 1.0 if whole is None else min(progress.decisions / whole, 1.0)

    def driver(self, progress: ClusterProgress) -> Driver:
        if not self.cloning(progress):
            return PolicyDriver(self.policy)
        return TaughtDriver(self.policy, self.config.cloning.share(progress.iteration))

    def sample(self, progress: ClusterProgress) -> Fragment:
        self.runner.stage = self.stage(progress)
        return self.runner.sample(self.driver(progress), self.policy)

    def learn(
        self, fragment: Fragment, progress: ClusterProgress
    ) -> tuple[dict[str, float], int, float]:
        """One update on `fragment`: RLlib's metrics of it, gradient steps, and Adam's step."""
        ppo, cloning = self.config.ppo, self.config.cloning
        rate, passes, learned = ppo.learning_rate, ppo.num_epochs, progress.learned
        if self.cloning(progress):
            rate, passes = cloning.learning_rate, cloning.num_epochs
        else:
            learned += fragment.decisions
            way = min(progress.learned / ppo.anneal_decisions, 1.0)
            rate += way * (ppo.final_learning_rate - ppo.learning_rate)
        for group in self.optimizer.param_groups:
            group["lr"] = rate
        metrics, made = self.learner.learn(
            self.decisions(fragment),
            passes=passes,
            size=ppo.minibatch_size,
            most_kl=ppo.most_kl,
            steps=learned,
        )
        return metrics, made, rate

    def decisions(self, fragment: Fragment) -> Decisions:
        """What the learner needs of a fragment; the scales take it in.

        Raises:
            InputError: the teacher did what is not allowed.
        """
        gains, targets = self.gains(fragment)
        decides = fragment.decides
        columns: dict[str, NDArray[Any]] = {
            Postprocessing.VALUE_TARGETS: self.value_scale.scored(targets).astype(np.float32)
        }
        if fragment.taught is not None:
            chosen = fragment.taught[..., None]
            masks = fragment.memory.masks[: len(chosen)]
            if not np.take_along_axis(masks, chosen, axis=2).all():
                raise InputError("does what is not allowed", field="teacher")
            columns[TAUGHT] = fragment.taught
        else:
            made = gains[decides]
            standard = (gains - made.mean()) / max(float(made.std()), 1e-8)
            columns[Postprocessing.ADVANTAGES] = standard.astype(np.float32)
            columns[Columns.ACTIONS] = fragment.actions
            columns[Columns.ACTION_LOGP] = fragment.log_probabilities
        of_decisions = {key: torch.from_numpy(array[decides]) for key, array in columns.items()}
        if self.config.ppo.posterior_coefficient:
            remaining = torch.from_numpy(fragment.remaining[decides])
            bins = bins_of(remaining)
            of_decisions[REMAINING_BIN] = bins.masked_fill(remaining == NO_JOB, NO_BIN)
        rows = torch.from_numpy(np.flatnonzero(decides))
        return Decisions(fragment.memory, rows, of_decisions)

    def gains(self, fragment: Fragment) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
        """(T, B) advantages and what the critic is to predict; the scales take the fragment in.

        To a teacher's decisions belongs the discounted sum of what came of them.
        """
        ppo = self.config.ppo
        taught = fragment.taught is not None
        discounting = Discounting(ppo.tau, np.inf if taught else ppo.credit)
        ends = fragment.terminated | fragment.cut
        rewards = discounting.accrued(fragment.rewards, fragment.times)
        if ppo.normalise_rewards:
            self.reward_scale.add(rewards, discounting.discounts(fragment.times), ends)
            rewards = rewards / self.reward_scale.deviation
        values = self.value_scale.values(fragment.scores)
        after = np.where(fragment.terminated, 0.0, self.value_scale.values(fragment.after))
        gains, expected = advantages(
            rewards, values, after, fragment.times, ends, fragment.decides, discounting
        )
        targets = gains + expected
        self.value_scale.add(targets[fragment.decides])
        if ppo.alike > 1:
            rows = ppo.alike * self.runner.schedulers
            gains = without_shared(gains, fragment.now, fragment.episode, rows, ppo.alike)
        return gains, targets

    def save(self, progress: ClusterProgress, run_folder: Path, identity: dict[str, Any]) -> None:
        progress.runner, arrays = self.runner.document()
        progress.reward_scale = self.reward_scale.document()
        progress.value_scale = self.value_scale.document()
        restore.save(
            run_folder, progress, self.policy, [self.optimizer], identity, {EPISODES: arrays}
        )

    def restore(self, run_folder: Path, identity: dict[str, Any]) -> ClusterProgress:
        """Take up the last checkpoint of `run_folder`.

        Raises:
            InputError: there is none, a file is damaged, or it belongs to another run.
        """
        progress = restore.restore(
            run_folder, self.policy, [self.optimizer], identity, ClusterProgress
        )
        self.reward_scale.restore(progress.reward_scale)
        self.value_scale.restore(progress.value_scale)
        folder = restore.last_checkpoint(run_folder)
        self.runner.restore(progress.runner, restore.arrays_of(folder, EPISODES))
        self.learner.after_gradient_based_update(
            timesteps={NUM_ENV_STEPS_SAMPLED_LIFETIME: progress.learned}
        )  # brings the schedule to where it was
        self.learner.metrics.reduce()  # lets go of what that logged
        return progress
