"""Everything chosen about a training run; values, and what they mean, stand in the YAML."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Annotated, Any, Literal

from annotated_types import Ge, Gt

from agents.rllib.advantages import Discounting, PerTime
from envs.bounds import Count, NonNegative, Positive, Share, bounded
from envs.errors import InputError

GRACE_S, LEFT_S = 4.0, 6.0  # beyond the budget, before a pace is judged; and still to go
TRAINING = "training"  # key of the run in RLlib's configs of runners and learners


@bounded
@dataclass(frozen=True)
class PPO:
    """Proximal policy optimisation (Schulman et al. 2017, arXiv:1707.06347).

    `conf/agent/ppo*.yaml` say what each number is. Steps are those of environments: one action of
    every agent of one of them. With several modules a minibatch is counted in decisions of the one
    that has the fewest.

    Knows:
        What the environment shows, and its rewards.

    Guarantees:
        None; evaluations apart from training say what the policy alone has learned.

    Source:
        Schulman, Wolski, Dhariwal, Radford, Klimov, "Proximal Policy Optimization Algorithms",
        arXiv:1707.06347, 2017.
    """

    num_envs: Count = 16  # environments stepped together
    steps: Count | None = 64  # of each per iteration; episodes are whole
    episodes: Count | None = None  # whole ones of each per iteration
    group_size: Count = 1  # environments in turn that share episodes and a baseline; 1: none do
    # episodes of a group that are learned from, those with the largest advantages; null: all
    group_kept: Count | None = None
    minibatch_size: Count = 512  # decisions per gradient step
    num_epochs: Count = 3  # passes over each batch
    learning_rate: Positive = 0.0003  # Adam's step at the start
    final_learning_rate: Positive = 5e-05  # from anneal_steps on; linear in between
    entropy_coefficient: NonNegative = 0.003  # weight of the entropy bonus at the start
    final_entropy_coefficient: NonNegative = 0.0003  # from anneal_steps on; linear in between
    anneal_steps: Count = 1000000  # environment steps
    discounting: Discounting = PerTime()  # what a later reward counts for
    clip: Annotated[float, Gt(0.0)] = 0.2  # how far a probability ratio may move
    # nats from the sampling policy beyond which an iteration learns no further
    target_kl: Annotated[float, Gt(0.0)] | None = 0.02
    reference_kl: NonNegative = 0.0  # weight of the divergence from the first policy; 0: none
    value_coefficient: NonNegative = 0.5  # weight of the critic's squared error
    # iterations over which a scale of values is a mean; null: they have none
    value_memory: Annotated[float, Ge(1.0)] | None = 20.0
    # whether rewards are divided by the running deviation of their sums
    normalise_rewards: bool = True
    normalise_advantages: Literal["batch", "rank"] = "batch"  # all of an iteration together
    auxiliary_coefficient: NonNegative = 0.1  # weight of the auxiliary head's loss; 0: none
    max_gradient_norm: Annotated[float, Gt(0.0)] = 0.5  # global norm to which gradients are clipped

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.episodes is None):
            raise InputError("set this or steps, and the other to null", field="episodes")
        if self.num_envs % self.group_size:
            message = f"{self.group_size} does not divide num_envs {self.num_envs}"
            raise InputError(message, field="group_size")
        if self.normalise_advantages == "rank" and self.group_size == 1:
            raise InputError("ranks are those within a group", field="normalise_advantages")
        if self.group_kept is not None and self.group_kept > self.group_size:
            raise InputError(f"a group has {self.group_size}", field="group_kept")

    def annealed(self, start: float, end: float, steps: int) -> float:
        """What falls linearly from `start` to `end`, after so many steps."""
        return start + min(steps / self.anneal_steps, 1.0) * (end - start)


@bounded
@dataclass(frozen=True)
class Cloning:
    """A teacher is imitated before PPO begins: `conf/task`."""

    iterations: Annotated[int, Ge(0)] = 0  # of imitating the teacher before PPO; 0: none
    learning_rate: Positive = 0.001  # Adam's step
    num_epochs: Count = 2  # passes over each iteration's decisions
    first_share: Share = 0.0  # of the actions that are the student's in the first iteration
    last_share: Share = 0.5  # the same in the last; linear in between

    def share(self, iteration: int) -> float:
        """Of the actions that are the student's in an iteration, from 0 on."""
        way = iteration / max(self.iterations - 1, 1)
        return self.first_share + way * (self.last_share - self.first_share)


@bounded
@dataclass(frozen=True)
class Learner:
    """Where sampling and learning take place; what is learned does not depend on it.

    `device` is that of this process, for `num_learners=0`. With no runner and no learner there is
    no actor, and no Ray.
    """

    num_env_runners: Annotated[int, Ge(0)] = 0  # remote actors that sample; 0: this process does
    num_learners: Annotated[int, Ge(0)] = 0  # remote actors that learn; 0: this process does
    num_gpus_per_learner: NonNegative = 0.0  # GPUs of each of them
    device: Literal["cpu", "cuda"] = "cpu"  # that this process learns on: cpu or cuda
    ray_address: str | None = None  # of a Ray cluster

    @property
    def remote(self) -> bool:
        """Whether there are actors."""
        return self.num_env_runners > 0 or self.num_learners > 0


class BudgetGuard:
    """The budget of a run, for the parts of its first iteration, which is not cut at the budget.

    What would take it far beyond is refused, by the pace of the part once it has begun; its first
    piece counts for nothing, as kernels may be compiled in it. Seconds are those of this process
    on a core, so that a busy machine refuses nothing that an idle one does not.
    """

    def __init__(self, budget_s: float | None) -> None:
        self._budget_s, self._start = budget_s, time.process_time()
        self._begun: dict[str, float] = {}
        self.over = False  # the first iteration

    def check(self, field: str, done: int, whole: int) -> None:
        """Of what `field` of the config asks for, so much is done.

        Raises:
            InputError: the rest would take the run far beyond its budget.
        """
        now = time.process_time()
        begun = self._begun[field] = now if done < 2 else self._begun[field]
        if self.over or self._budget_s is None or done < 2:
            return
        if now - self._start < self._budget_s + GRACE_S:
            return
        left = (now - begun) / (done - 1) * (whole - done)
        if left > LEFT_S:
            raise InputError(
                f"the first iteration would take about {now - self._start + left:,.0f} s, the "
                f"budget is {self._budget_s:g} s",
                field=field,
            )


@bounded
@dataclass(frozen=True, kw_only=True)
class Training:
    """One training run: `conf/task/cluster.yaml` and `conf/training` say what each key is.

    Raises:
        InputError: no limit is set, or runners cannot share the environments evenly.
    """

    model: Any
    # one policy for all schedulers; separate: each has its own
    parameters: Literal["shared", "separate"] = "shared"
    ppo: PPO
    cloning: Cloning
    learner: Learner
    seed: int = 0
    # seconds of training, compilation not counted; null: no limit
    budget_s: Annotated[float, Gt(0.0)] | None = 600.0
    max_steps: Count | None = None  # steps of environments; null: no limit
    # steps after which the curriculum of the windows has ended; null: all at once
    curriculum_steps: Count | None = None
    checkpoint_every: Count = 10  # iterations
    evaluate_every: Count | None = 20  # iterations; null: before training and after it
    evaluation_episodes: Count = 8
    # times the reference's objective beyond which an episode is given up: infinite
    evaluation_give_up: Annotated[float, Gt(1.0)] = 5.0
    # threads of torch; two are faster only where no other process wants one
    torch_threads: Count = 1
    min_iterations: Annotated[int, Ge(0)] = 0  # done even when the budget is over

    def __post_init__(self) -> None:
        if self.budget_s is None and self.max_steps is None:
            raise InputError("set budget_s or max_steps: training needs an end", field="budget_s")
        runners = self.learner.num_env_runners
        if runners and self.ppo.num_envs % (runners * self.ppo.group_size):
            raise InputError(
                f"{runners} does not divide the {self.ppo.num_envs // self.ppo.group_size} groups "
                "of environments evenly",
                field="num_env_runners",
            )
