"""Everything chosen about a training run, and its translation into an RLlib configuration."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from annotated_types import Ge, Gt
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.policy.policy import PolicySpec

from agents.rllib.learner import MAX_GRADIENT_NORM_KEY, ClippedPPOLearner
from agents.rllib.module import ARCHITECTURE_KEY, PolicyModule
from agents.rllib.step.tasks import Task
from envs.bounds import Count, NonNegative, Positive, Share, bounded
from envs.errors import InputError
from models.architecture import Architecture
from models.step.allocator import TeamConfig


@bounded
@dataclass(frozen=True)
class PPOSettings:
    """Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347).

    Attributes:
        num_envs: environments stepped together in this process.
        batch_episodes: full-length episodes sampled per iteration, a multiple of `num_envs`.
        minibatch_size: decisions per gradient step.
        num_epochs: passes over each batch.
        learning_rate: Adam's step at the start.
        final_learning_rate: Adam's step from `anneal_steps` on; linear in between.
        entropy_coefficient: weight of the entropy bonus at the start.
        final_entropy_coefficient: weight from `anneal_steps` on; linear in between.
        anneal_steps: environment steps over which both fall.
        gamma: discount; 1 because an episode's rewards telescope.
        gae_lambda: trade of bias against variance in the advantages.
        clip: how far the probability ratio may move before the objective goes flat.
        value_coefficient: weight of the critic's squared error, which is never clamped.
        max_gradient_norm: global norm to which every gradient is clipped.
    """

    num_envs: Count
    batch_episodes: Count
    minibatch_size: Count
    num_epochs: Count
    learning_rate: Positive
    final_learning_rate: Positive
    entropy_coefficient: NonNegative
    final_entropy_coefficient: NonNegative
    anneal_steps: Count
    gamma: Share
    gae_lambda: Share
    clip: Annotated[float, Gt(0.0)]
    value_coefficient: NonNegative
    max_gradient_norm: Annotated[float, Gt(0.0)]

    def __post_init__(self) -> None:
        if self.batch_episodes % self.num_envs:
            raise InputError(
                f"{self.batch_episodes} is not a multiple of num_envs {self.num_envs}",
                field="batch_episodes",
            )


@bounded
@dataclass(frozen=True)
class TrainingConfig:
    """One training run.

    Attributes:
        model: the policy, or those of a team.
        ppo: the algorithm.
        seed: seed of weights, sampling, shuffling and environments.
        budget_s: wall-clock seconds of training, exams included, or None.
        max_steps: environment steps of training, or None; training ends at the first limit.
        checkpoint_every: iterations between checkpoints.
        exam_episodes: greedy episodes of the policy alone, before training and after it, from the
            same starts.
        torch_threads: threads of torch in this process. Two learn about 1.5 times faster on two
            idle cores, and many times slower when another process wants one of them.
        restart_share: share of episodes that start from the best plan of some environment.
        kick: such a start has a random run of up to this many groups moved to a random device.
        draws: a team's start is the fastest of this many.

    Raises:
        InputError: no limit is set.
    """

    model: Architecture | TeamConfig
    ppo: PPOSettings
    seed: int
    budget_s: Annotated[float, Gt(0.0)] | None
    max_steps: Count | None
    checkpoint_every: Count
    exam_episodes: Annotated[int, Ge(0)]
    torch_threads: Count
    restart_share: Share
    kick: Annotated[int, Ge(0)]
    draws: Count

    def __post_init__(self) -> None:
        if self.budget_s is None and self.max_steps is None:
            raise InputError("set budget_s or max_steps: training needs an end", field="budget_s")


def rllib_config(config: TrainingConfig, task: Task) -> PPOConfig:
    """The same run in RLlib's terms, as far as its learner, in this process, needs it.

    Raises:
        InputError: `config.model` is not what the task needs.
    """
    ppo = config.ppo
    specs = {
        name: RLModuleSpec(module_class=PolicyModule, model_config={ARCHITECTURE_KEY: architecture})
        for name, architecture in task.architectures(config.model).items()
    }
    built: PPOConfig = (
        PPOConfig()
        .api_stack(enable_rl_module_and_learner=True, enable_env_runner_and_connector_v2=True)
        .framework("torch")
        .learners(num_learners=0)
        .training(
            learner_class=ClippedPPOLearner,
            learner_config_dict={MAX_GRADIENT_NORM_KEY: ppo.max_gradient_norm},
            lr=_falling(ppo.learning_rate, ppo.final_learning_rate, ppo.anneal_steps),
            gamma=ppo.gamma,
            lambda_=ppo.gae_lambda,
            clip_param=ppo.clip,
            vf_clip_param=float("inf"),
            vf_loss_coeff=ppo.value_coefficient,
            entropy_coeff=_falling(
                ppo.entropy_coefficient, ppo.final_entropy_coefficient, ppo.anneal_steps
            ),
            use_kl_loss=True,  # with weight 0: measured, never part of the loss
            kl_coeff=0.0,
            grad_clip=None,  # `ClippedPPOLearner` clips
            minibatch_size=ppo.minibatch_size,
            num_epochs=ppo.num_epochs,
        )
    )
    if not task.team:
        (spec,) = specs.values()
        return built.rl_module(rl_module_spec=spec)
    return built.multi_agent(
        policies={name: PolicySpec() for name in specs},  # a mapping: a set has no fixed order
        policy_mapping_fn=lambda agent, *_, **__: task.module_of(agent),
    ).rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=specs))


def _falling(start: float, end: float, steps: int) -> list[list[float]]:
    """RLlib's schedule: linear from `start` to `end` over `steps` environment steps."""
    return [[0, start], [max(steps, 1), end]]
