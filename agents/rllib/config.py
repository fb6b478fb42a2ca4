"""Everything chosen about a training run. Values stand in the YAML alone."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt

from agents.rllib.advantages import Discounting
from envs.bounds import Count, NonNegative, Positive, Share, bounded
from envs.errors import InputError


@bounded
@dataclass(frozen=True)
class PPO:
    """Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347).

    Steps are those of environments: one action of every agent of one of them.

    Attributes:
        num_envs: environments stepped together, those of all runners counted.
        steps: of each of them per iteration, where episodes go on in the next one; or None.
        episodes: whole ones of each of them per iteration; or None.
        alike: environments in turn that meet the same episodes and share a baseline; 1: none do.
        minibatch_size: decisions per gradient step; of several modules those of the smallest.
        num_epochs: passes over each iteration's decisions.
        learning_rate: Adam's step at the start.
        final_learning_rate: Adam's step from `anneal_steps` on; linear in between.
        entropy_coefficient: weight of the entropy bonus at the start.
        final_entropy_coefficient: weight from `anneal_steps` on; linear in between.
        anneal_steps: steps over which both fall, those of cloning not counted.
        discounting: how the future counts.
        clip: how far the probability ratio may move before the objective goes flat.
        most_kl: nats from the sampling policy beyond which an iteration learns no further; None:
            there is no such limit.
        reference_kl: weight of the divergence from the policy that PPO began with; 0: none.
        value_coefficient: weight of the critic's squared error, which is never clamped.
        value_memory: iterations over which the scale of values is a mean; None: they have none.
        normalise_rewards: whether rewards are divided by a running standard deviation.
        normalise_advantages: over the whole batch, or those of every problem on their own.
        auxiliary_coefficient: weight of the cross entropy of the policy's auxiliary head.
        max_gradient_norm: global norm to which the gradient of each policy is clipped.
    """

    num_envs: Count
    steps: Count | None
    episodes: Count | None
    alike: Count
    minibatch_size: Count
    num_epochs: Count
    learning_rate: Positive
    final_learning_rate: Positive
    entropy_coefficient: NonNegative
    final_entropy_coefficient: NonNegative
    anneal_steps: Count
    discounting: Discounting
    clip: Annotated[float, Gt(0.0)]
    most_kl: Annotated[float, Gt(0.0)] | None
    reference_kl: NonNegative
    value_coefficient: NonNegative
    value_memory: Annotated[float, Ge(1.0)] | None
    normalise_rewards: bool
    normalise_advantages: Literal["batch", "problem"]
    auxiliary_coefficient: NonNegative
    max_gradient_norm: Annotated[float, Gt(0.0)]

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.episodes is None):
            raise InputError("set this or steps, and the other to null", field="episodes")
        if self.num_envs % self.alike:
            message = f"{self.alike} does not divide num_envs {self.num_envs}"
            raise InputError(message, field="alike")

    def fallen(self, start: float, end: float, steps: int) -> float:
        """What falls linearly from `start` to `end`, after so many steps."""
        return start + min(steps / self.anneal_steps, 1.0) * (end - start)


@bounded
@dataclass(frozen=True)
class Cloning:
    """A teacher is imitated before PPO begins.

    Attributes:
        iterations: of sampling and learning; 0: there is no cloning.
        learning_rate: Adam's step.
        num_epochs: passes over each iteration's decisions.
        first_share: of the decisions that the pupil drives in the first iteration.
        last_share: the same in the last; linear in between.
    """

    iterations: Annotated[int, Ge(0)]
    learning_rate: Positive
    num_epochs: Count
    first_share: Share
    last_share: Share

    def share(self, iteration: int) -> float:
        """Of the decisions that the pupil drives in an iteration, from 0 on."""
        way = iteration / max(self.iterations - 1, 1)
        return self.first_share + way * (self.last_share - self.first_share)


@bounded
@dataclass(frozen=True)
class Restarts:
    """Episodes that start near a solution met before, where the environment can do so.

    Attributes:
        share: of the episodes.
        kick: groups, at most, that such a start has moved elsewhere in a run.
        draws: a team's start is the best of so many.
    """

    share: Share
    kick: Annotated[int, Ge(0)]
    draws: Count


@bounded
@dataclass(frozen=True)
class Learner:
    """Where sampling and learning take place; what is learned does not depend on it.

    Attributes:
        num_env_runners: remote actors that sample; 0: this process does, and so without Ray.
        num_learners: remote actors that learn; 0: this process does.
        num_gpus_per_learner: GPUs of each of them.
        device: that this process learns on.
        ray_address: of a Ray cluster; None: one is started on this machine when it is needed.
    """

    num_env_runners: Annotated[int, Ge(0)]
    num_learners: Annotated[int, Ge(0)]
    num_gpus_per_learner: NonNegative
    device: Literal["cpu", "cuda"]
    ray_address: str | None

    @property
    def remote(self) -> bool:
        """Whether there are actors."""
        return self.num_env_runners > 0 or self.num_learners > 0


@bounded
@dataclass(frozen=True)
class Training:
    """One training run.

    Attributes:
        model: the policy, or those of a team.
        parameters: whether agents of one kind share a policy, or each has one of its own.
        ppo: the algorithm.
        cloning: what comes before it.
        restarts: where episodes start, beside where the environment has them start; None: nowhere.
        learner: where it runs.
        seed: seed of weights, sampling, shuffling and environments.
        budget_s: wall-clock seconds of training, exams included, or None.
        max_steps: steps of training, or None; training ends at the first limit.
        curriculum_steps: steps after which the curriculum has come to its end; None: there is none.
        checkpoint_every: iterations between checkpoints.
        exam_every: iterations between exams; None: one before training and one after it.
        exam_episodes: episodes of an exam, all of the most probable actions.
        exam_give_up: times the reference's outcome beyond which an episode of an exam is given up.
        torch_threads: threads of torch in every process. Two learn about 1.5 times faster on two
            idle cores, and many times slower when another process wants one of them.

    Raises:
        InputError: no limit is set.
    """

    model: Any
    parameters: Literal["shared", "separate"]
    ppo: PPO
    cloning: Cloning
    restarts: Restarts | None
    learner: Learner
    seed: int
    budget_s: Annotated[float, Gt(0.0)] | None
    max_steps: Count | None
    curriculum_steps: Count | None
    checkpoint_every: Count
    exam_every: Count | None
    exam_episodes: Count
    exam_give_up: Annotated[float, Gt(1.0)]
    torch_threads: Count

    def __post_init__(self) -> None:
        if self.budget_s is None and self.max_steps is None:
            raise InputError("set budget_s or max_steps: training needs an end", field="budget_s")
        runners = self.learner.num_env_runners
        if runners and self.ppo.num_envs % (runners * self.ppo.alike):
            raise InputError(
                f"{runners} does not divide the {self.ppo.num_envs // self.ppo.alike} groups of "
                "environments evenly",
                field="num_env_runners",
            )
