"""Everything chosen about a training run of schedulers, and what of it RLlib's learner needs."""

from __future__ import annotations

from dataclasses import dataclass

from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.rl_module import RLModuleSpec

from agents.rllib.cluster.learner import POSTERIOR_COEFFICIENT, SchedulerLearner
from agents.rllib.cluster.module import SchedulerModule
from agents.rllib.learner import MAX_GRADIENT_NORM_KEY
from agents.rllib.module import ARCHITECTURE_KEY
from envs.errors import InputError
from models.architecture import Architecture


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

    Raises:
        InputError: a number is out of range.
    """

    num_envs: int
    fragment: int
    alike: int
    minibatch_size: int
    num_epochs: int
    learning_rate: float
    final_learning_rate: float
    entropy_coefficient: float
    final_entropy_coefficient: float
    anneal_decisions: int
    tau: float
    credit: float
    clip: float
    most_kl: float
    value_coefficient: float
    value_memory: float
    per_gpu: bool
    normalise_rewards: bool
    posterior_coefficient: float
    max_gradient_norm: float

    def __post_init__(self) -> None:
        counts = (
            "num_envs", "fragment", "alike", "minibatch_size", "num_epochs", "anneal_decisions",
        )  # fmt: skip
        for name in counts:
            if getattr(self, name) < 1:
                raise InputError(f"{getattr(self, name)} is below 1", field=name)
        for name in (
            "learning_rate", "final_learning_rate", "tau", "credit", "clip", "most_kl",
            "max_gradient_norm",
        ):  # fmt: skip
            if not getattr(self, name) > 0:
                raise InputError(f"{getattr(self, name)} is not positive", field=name)
        for name in (
            "entropy_coefficient", "final_entropy_coefficient", "value_coefficient",
            "posterior_coefficient",
        ):  # fmt: skip
            if not getattr(self, name) >= 0:
                raise InputError(f"{getattr(self, name)} is negative", field=name)
        if not self.value_memory >= 1:
            raise InputError(f"{self.value_memory} is below 1", field="value_memory")
        if self.num_envs % self.alike:
            raise InputError(
                f"{self.alike} does not divide num_envs {self.num_envs}", field="alike"
            )


@dataclass(frozen=True)
class Cloning:
    """A teacher is imitated before PPO begins.

    Attributes:
        iterations: of sampling and learning; 0: there is no cloning.
        learning_rate: Adam's step.
        num_epochs: passes over each iteration's decisions.
        first_share: of the steps that the pupil drives in the first iteration.
        last_share: the same in the last; linear in between.

    Raises:
        InputError: a number is out of range.
    """

    iterations: int
    learning_rate: float
    num_epochs: int
    first_share: float
    last_share: float

    def __post_init__(self) -> None:
        if self.iterations < 0:
            raise InputError(f"{self.iterations} is negative", field="iterations")
        if self.num_epochs < 1:
            raise InputError(f"{self.num_epochs} is below 1", field="num_epochs")
        if not self.learning_rate > 0:
            raise InputError(f"{self.learning_rate} is not positive", field="learning_rate")
        for name in ("first_share", "last_share"):
            if not 0 <= getattr(self, name) <= 1:
                raise InputError(f"{getattr(self, name)} is not in 0..1", field=name)

    def share(self, iteration: int) -> float:
        """Of the steps that the pupil drives in an iteration, from 0 on."""
        way = iteration / max(self.iterations - 1, 1)
        return self.first_share + way * (self.last_share - self.first_share)


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
        InputError: no limit is set, or a number is out of range.
    """

    model: Architecture
    ppo: ClusterPPO
    cloning: Cloning
    seed: int
    budget_s: float | None
    max_decisions: int | None
    curriculum_decisions: int | None
    checkpoint_every: int
    exam_every: int
    exam_windows: int
    exam_give_up: float
    torch_threads: int

    def __post_init__(self) -> None:
        if self.budget_s is None and self.max_decisions is None:
            raise InputError(
                "set budget_s or max_decisions: training needs an end", field="budget_s"
            )
        for name in ("budget_s", "max_decisions", "curriculum_decisions"):
            limit = getattr(self, name)
            if limit is not None and not limit > 0:
                raise InputError(f"{limit} is not positive", field=name)
        if not self.exam_give_up > 1:
            raise InputError(f"{self.exam_give_up} is not above 1", field="exam_give_up")
        for name in ("checkpoint_every", "exam_every", "exam_windows", "torch_threads"):
            if getattr(self, name) < 1:
                raise InputError(f"{getattr(self, name)} is below 1", field=name)


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
