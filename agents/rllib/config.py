"""Everything chosen about a training run, and its translation into an RLlib configuration."""

from __future__ import annotations

from dataclasses import dataclass, field

from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.policy.policy import PolicySpec

from agents.rllib.learner import MAX_GRADIENT_NORM_KEY, ClippedPPOLearner
from agents.rllib.module import ARCHITECTURE_KEY, PolicyModule
from agents.rllib.tasks import Task
from envs.errors import InputError
from models.architecture import Architecture
from models.step.allocator import TeamConfig
from models.step.policy import PolicyConfig


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

    Raises:
        InputError: a number is out of range.
    """

    num_envs: int = 16
    batch_episodes: int = 16
    minibatch_size: int = 256
    num_epochs: int = 3
    learning_rate: float = 1e-3
    final_learning_rate: float = 1e-4
    entropy_coefficient: float = 0.003
    final_entropy_coefficient: float = 0.0003
    anneal_steps: int = 100_000
    gamma: float = 1.0
    gae_lambda: float = 0.97
    clip: float = 0.2
    value_coefficient: float = 0.5
    max_gradient_norm: float = 0.5

    def __post_init__(self) -> None:
        for name in ("num_envs", "batch_episodes", "minibatch_size", "num_epochs", "anneal_steps"):
            if getattr(self, name) < 1:
                raise InputError(f"{getattr(self, name)} is below 1", field=name)
        for name in ("learning_rate", "final_learning_rate", "clip", "max_gradient_norm"):
            if not getattr(self, name) > 0:
                raise InputError(f"{getattr(self, name)} is not positive", field=name)
        for name in ("entropy_coefficient", "final_entropy_coefficient", "value_coefficient"):
            if not getattr(self, name) >= 0:
                raise InputError(f"{getattr(self, name)} is negative", field=name)
        for name in ("gamma", "gae_lambda"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{getattr(self, name)} is not in 0..1", field=name)
        if self.batch_episodes % self.num_envs:
            raise InputError(
                f"{self.batch_episodes} is not a multiple of num_envs {self.num_envs}",
                field="batch_episodes",
            )


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
        InputError: no limit is set, or a number is out of range.
    """

    model: Architecture | TeamConfig = field(default_factory=PolicyConfig)
    ppo: PPOSettings = field(default_factory=PPOSettings)
    seed: int = 0
    budget_s: float | None = None
    max_steps: int | None = None
    checkpoint_every: int = 10
    exam_episodes: int = 16
    torch_threads: int = 1
    restart_share: float = 0.0
    kick: int = 0
    draws: int = 1

    def __post_init__(self) -> None:
        if self.budget_s is None and self.max_steps is None:
            raise InputError("set budget_s or max_steps: training needs an end", field="budget_s")
        for name in ("budget_s", "max_steps"):
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise InputError(f"{limit} is not positive", field=name)
        if not 0.0 <= self.restart_share <= 1.0:
            raise InputError(f"{self.restart_share} is not in 0..1", field="restart_share")
        for name in ("kick", "exam_episodes"):
            if getattr(self, name) < 0:
                raise InputError(f"{getattr(self, name)} is negative", field=name)
        for name in ("checkpoint_every", "torch_threads", "draws"):
            if getattr(self, name) < 1:
                raise InputError(f"{getattr(self, name)} is below 1", field=name)


def rllib_config(config: TrainingConfig, task: Task) -> PPOConfig:
    """The same run in RLlib's terms, as far as its learner, in this process, needs it.

    Args:
        config: the run.
        task: who decides.

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
