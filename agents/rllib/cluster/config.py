"""Everything chosen about a training run of schedulers, and what of it RLlib's learner needs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from agents.rllib.cluster.learner import POSTERIOR_COEFFICIENT, SchedulerLearner, SchedulerModule
from agents.rllib.learner import MAX_GRADIENT_NORM_KEY
from agents.rllib.module import ARCHITECTURE_KEY
from envs.bounds import Count, NonNegative, Positive, Share, bounded
from envs.errors import InputError
from models.architecture import Architecture


@bounded
@dataclass(frozen=True)
class ClusterPPO:
    """Proximal policy optimisation (arXiv:1707.06347) for schedulers whose steps take seconds.

    Attributes:
        num_envs: environments stepped together in this process.
        fragment: steps of each of them per iteration.
        alike: environments in turn that meet the same jobs and share a baseline; 1: none do.
        minibatch_size: decisions per gradient step.
        num_epochs: passes over each iteration's decisions.
        learning_rate: Adam's step at the start.
        final_learning_rate: Adam's step from `anneal_decisions` on; linear in between.
        entropy_coefficient: weight of the entropy bonus at the start.
        final_entropy_coefficient: the same from `anneal_decisions` on.
        anneal_decisions: decisions over which both fall.
        tau: time after which what happens counts 1 / e, in mean durations of the episode's jobs.
        credit: the same after which 1 / e of an advantage is observed, the rest expected.
        clip: how far the probability ratio may move before the objective goes flat.
        most_kl: nats from the sampling policy beyond which an iteration learns no further.
        value_coefficient: weight of the critic's squared error.
        value_memory: iterations over which the scale of values is a mean.
        per_gpu: whether rewards are divided by the GPUs of the cluster, so that clusters of all
            sizes weigh alike.
        normalise_rewards: whether rewards are divided by a running standard deviation.
        posterior_coefficient: weight of the cross entropy of what jobs still need; 0: not learned.
        max_gradient_norm: global norm to which every gradient is clipped.
    """

    num_envs: Count
    fragment: Count
    alike: Count
    minibatch_size: Count
    num_epochs: Count
    learning_rate: Positive
    final_learning_rate: Positive
    entropy_coefficient: NonNegative
    final_entropy_coefficient: NonNegative
    anneal_decisions: Count
    tau: Annotated[float, Gt(0.0)]
    credit: Annotated[float, Gt(0.0)]
    clip: Annotated[float, Gt(0.0)]
    most_kl: Annotated[float, Gt(0.0)]
    value_coefficient: NonNegative
    value_memory: Annotated[float, Ge(1.0)]
    per_gpu: bool
    normalise_rewards: bool
    posterior_coefficient: NonNegative
    max_gradient_norm: Annotated[float, Gt(0.0)]

    def __post_init__(self) -> None:
        if self.num_envs % self.alike:
            raise InputError(
                f"{self.alike} does not divide num_envs {self.num_envs}", field="alike"
            )


@bounded
@dataclass(frozen=True)
class Cloning:
    """A teacher is imitated before PPO begins.

    Attributes:
        iterations: of sampling and learning; 0: there is no cloning.
        learning_rate: Adam's step.
        num_epochs: passes over each iteration's decisions.
        first_share: of the steps that the pupil drives in the first iteration.
        last_share: the same in the last; linear in between.
    """

    iterations: Annotated[int, Ge(0)]
    learning_rate: Positive
    num_epochs: Count
    first_share: Share
    last_share: Share

    def share(self, iteration: int) -> float:
        """Of the steps that the pupil drives in an iteration, from 0 on."""
        way = iteration / max(self.iterations - 1, 1)
        return self.first_share + way * (self.last_share - self.first_share)


@bounded
@dataclass(frozen=True)
class ClusterTraining:
    """One training run of schedulers.

    Attributes:
        model: the policy, shared by all schedulers.
        ppo: the algorithm.
        cloning: what comes before it.
        seed: seed of weights, sampling, shuffling and environments.
        budget_s: wall-clock seconds of training, exams included, or None.
        max_decisions: decisions of training, or None; training ends at the first limit.
        curriculum_decisions: decisions after which the generator's curriculum has come to its end;
            None: there is none.
        checkpoint_every: iterations between checkpoints.
        exam_every: iterations between exams.
        exam_windows: episodes of an exam.
        exam_give_up: times the reference's mean JCT beyond which a window of an exam is given up.
        torch_threads: threads of torch in this process.

    Raises:
        InputError: no limit is set.
    """

    model: Architecture
    ppo: ClusterPPO
    cloning: Cloning
    seed: int
    budget_s: Annotated[float, Gt(0.0)] | None
    max_decisions: Count | None
    curriculum_decisions: Count | None
    checkpoint_every: Count
    exam_every: Count
    exam_windows: Count
    exam_give_up: Annotated[float, Gt(1.0)]
    torch_threads: Count

    def __post_init__(self) -> None:
        if self.budget_s is None and self.max_decisions is None:
            raise InputError(
                "set budget_s or max_decisions: training needs an end", field="budget_s"
            )


def rllib_config(config: ClusterTraining) -> PPOConfig:
    """The run in RLlib's terms, as far as its learner, in this process, needs it."""
    ppo = config.ppo
    fall = [[0, ppo.entropy_coefficient], [ppo.anneal_decisions, ppo.final_entropy_coefficient]]
    built: PPOConfig = (
        PPOConfig()
        .api_stack(enable_rl_module_and_learner=True, enable_env_runner_and_connector_v2=True)
        .framework("torch")
        .learners(num_learners=0)
        .training(
            learner_class=SchedulerLearner,
            learner_config_dict={
                MAX_GRADIENT_NORM_KEY: ppo.max_gradient_norm,
                POSTERIOR_COEFFICIENT: ppo.posterior_coefficient,
            },
            lr=ppo.learning_rate,  # `session` sets it before every update
            clip_param=ppo.clip,
            vf_clip_param=float("inf"),
            vf_loss_coeff=ppo.value_coefficient,
            entropy_coeff=fall,
            use_kl_loss=False,
            grad_clip=None,  # `ClippedPPOLearner` clips
        )
        .rl_module(
            rl_module_spec=RLModuleSpec(
                module_class=SchedulerModule, model_config={ARCHITECTURE_KEY: config.model}
            )
        )
    )
    return built
