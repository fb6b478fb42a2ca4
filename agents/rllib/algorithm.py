"""PPO as an RLlib `Algorithm`: our runner samples, RLlib's learner group learns."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial, reduce
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import ray
import torch
from ray.rllib.algorithms import ppo as rllib_ppo
from ray.rllib.algorithms.ppo import PPOConfig
from ray.rllib.core.rl_module.multi_rl_module import MultiRLModuleSpec
from ray.rllib.policy.policy import PolicySpec
from torch import Tensor

from agents.rllib.config import TRAINING, Learner, Training
from agents.rllib.connection import connect
from agents.rllib.connector import LearnerConnector
from agents.rllib.module import PolicyModule, WithAuxiliaryHead, module_specs, modules_of
from agents.rllib.ppo import Metrics, PPOLearner, UpdateRequest, num_minibatches
from agents.rllib.runner import TASK, Rollout, SampleRequest, Shared, VectorRunner
from agents.rllib.task import Numbers, RLTask, Solution, better
from envs.errors import InputError

RESTART_S = 120.0  # seconds within which some runner must come back when all have died
CHARTS = (  # of an iteration, besides those of the task's metrics
    "charts/global_step",  # steps of environments so far
    "charts/episodes",  # so far
    "charts/SPS",  # steps per second, learning included
    "charts/sample_seconds",
    "charts/learn_seconds",
    "charts/gradient_steps",
    "charts/cloning",  # 1: the teacher is imitated, 0: PPO
    "charts/student_share",  # of the actions of cloning; nan in PPO
    "charts/curriculum",  # progress, 0 to 1
    "charts/learning_rate",
    "charts/entropy_coefficient",
    "charts/episodic_return",  # mean over the episodes that ended and over agents
    "charts/episodic_length",  # mean, steps
    "charts/best_objective",  # of the decisions met in training; inf before any
)
LOSSES = (  # all of the last minibatch of the iteration; nan where there is none
    "policy_loss",
    "value_loss",
    "total_loss",
    "entropy",  # nats
    "old_approx_kl",  # from the sampling policy, nats; unbiased and may be negative
    "approx_kl",  # the same, never negative
    "clipfrac",  # share of the decisions beyond the clip
    "explained_variance",
    "gradient_norm",  # before clipping
    "cross_entropy",  # of the expert's actions, nats
    "agreement",  # share of the expert's actions that are the most probable ones
    "auxiliary_loss",  # cross entropy of the auxiliary head, nats
    "reference_kl",  # from the policy that PPO began with, nats
)
NAN = float("nan")

R = TypeVar("R")


@dataclass
class Counters:
    """How far sampling and learning are."""

    iteration: int = 0
    steps: int = 0  # of environments
    learned: int = 0  # of them, by PPO
    episodes: int = 0
    horizon: int = 1  # steps of the longest episode met


class LockStepPPO(rllib_ppo.PPO):
    """PPO whose environments step together, on one machine or on a Ray cluster.

    With no remote actor nothing of Ray runs: one runner and one learner of this process share their
    modules. That is what `setup` is overridden for: RLlib's puts the config into Ray's object store
    even then, which starts a cluster on this machine. With remote actors RLlib's own groups hold
    them; weights travel with each request to sample, so that a runner that was restarted is no
    different from the others. `training_step` is all that is asked of it: the trainer is the loop,
    and saves a run, which Tune and `Algorithm.save_to_path` do not know how to.
    """

    def setup(self, config: PPOConfig) -> None:
        """Make runners and learners."""
        self.training: Training = config.env_config[TRAINING].value
        self.task: RLTask = config.env_config[TASK].value
        self.counters = Counters()
        self.runner_states: dict[int, Numbers] = {}  # of remote ones, by number
        self.row: dict[str, float] = {}  # metrics of the last training step
        self.best: Solution | None = None  # of the decisions met in it, or before
        if self.training.learner.remote:
            try:
                super().setup(config)
            except IndexError as error:  # what RLlib makes of it when no runner answers
                message = (
                    "no runner could start: workers need the package, installed or on PYTHONPATH"
                )
                raise InputError(message, field="learner.num_env_runners") from error
            local: VectorRunner = self.env_runner_group.local_env_runner
            self.runner = None if self.training.learner.num_env_runners else local
        else:
            specs = module_specs(self.task, self.training.model)
            spec = MultiRLModuleSpec(rl_module_specs=specs)
            self.learner_group = self.config.build_learner_group(rl_module_spec=spec)
            self.runner = VectorRunner(config=config, worker_index=0)
        self.modules = self._modules()
        self._refresh()
        agents = Counter(map(self.task.module_of, self.task.agents))
        self.connector = LearnerConnector(self.training.ppo, agents)

    @property
    def cloning(self) -> bool:
        """Whether the next iteration imitates the teacher."""
        return self.counters.iteration < self.training.cloning.iterations

    @property
    def progress(self) -> float:
        """Of the curriculum, from 0 to 1."""
        whole = self.training.curriculum_steps
        return 1.0 if whole is None else min(self.counters.steps / whole, 1.0)

    def training_step(self) -> None:
        """Sample, learn, and give the runners of this process the new weights."""
        if self.training.learner.remote:  # runners that died come back
            self.env_runner_group.probe_unhealthy_env_runners()
        start = time.perf_counter()
        cloning, progress = self.cloning, self.progress
        share = self.training.cloning.share(self.counters.iteration) if cloning else None
        rollouts = self._sample(progress, share)
        sampled = time.perf_counter()
        request, losses = self._learn(rollouts)
        learned = time.perf_counter()
        before = self.counters.steps
        self._count(rollouts)
        self.best = reduce(better, [rollout.best for rollout in rollouts])
        ended = [episode for rollout in rollouts for episode in rollout.ended]
        names = ("episodic_return", "episodic_length", *self.task.metrics)
        self.row = {
            "charts/global_step": self.counters.steps,
            "charts/episodes": self.counters.episodes,
            "charts/SPS": (self.counters.steps - before) / (learned - start),
            "charts/sample_seconds": sampled - start,
            "charts/learn_seconds": learned - sampled,
            "charts/gradient_steps": max(own.get("gradient_steps", 0) for own in losses.values()),
            "charts/cloning": float(cloning),
            "charts/student_share": NAN if share is None else share,
            "charts/curriculum": progress,
            "charts/learning_rate": request.learning_rate,
            "charts/entropy_coefficient": request.entropy_coefficient,
            **{f"charts/{name}": known_mean([one[name] for one in ended]) for name in names},
            **loss_columns(losses),
        }

    def sampling_state(self) -> tuple[Numbers, dict[str, Tensor]]:
        """What sampling needs to go on: plain numbers, and arrays by name."""
        numbers: Numbers = {"counters": asdict(self.counters), "scales": self.connector.state()}
        if self.runner is not None:
            found = [self.runner.state()]
        else:
            found = self._asked(dict.fromkeys(self._runners(), VectorRunner.state))
        runners = self.runner_states | {own["number"]: own for own, _ in found}
        numbers["runners"] = [runners[number] for number in sorted(runners)]
        return numbers, {name: x for _, arrays in found for name, x in arrays.items()}

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """What learning needs to go on, as of `PPOLearner.tensors`."""
        return self._of_learners(PPOLearner.tensors)[0]

    def restore_run(
        self, numbers: Numbers, arrays: Mapping[str, Tensor], files: Mapping[str, Any]
    ) -> None:
        """Go on from what `sampling_state` and `tensors` gave.

        Raises:
            RuntimeError: the weights are another policy's.
        """
        self._of_learners(partial(PPOLearner.restore, files=files))
        self._refresh()
        self.counters = Counters(**numbers["counters"])
        self.connector.load(numbers["scales"])
        if self.runner is not None:
            self.runner.load(numbers["runners"][0], arrays)
            return
        self.runner_states = {own["number"]: own for own in numbers["runners"]}
        self._asked(
            {
                number: partial(VectorRunner.load, numbers=own, arrays=arrays)
                for number, own in self.runner_states.items()
            }
        )

    def cleanup(self) -> None:
        """Let go of remote actors, if there are any."""
        if self.training.learner.remote:
            super().cleanup()

    def _modules(self) -> dict[str, PolicyModule]:
        """Modules of this process with the learner's weights: its own, where it learns here."""
        learner = self.training.learner
        shared = not learner.num_learners and learner.device == "cpu"
        if shared:
            (found,) = self._of_learners(lambda one: dict(one.module.items()))
            modules: dict[str, PolicyModule] = found
        else:
            modules = modules_of(self.task, self.training.model)
        if self.runner is not None:
            self.runner.modules = modules
        self.shared = shared
        return modules

    def _refresh(self) -> None:
        """Give the modules of this process the learner's weights."""
        if self.shared:
            return
        weights = self._of_learners(PPOLearner.weights)[0]
        for name, module in self.modules.items():
            module.policy.load_state_dict(weights[name])

    def _sample(self, progress: float, student_share: float | None) -> list[Rollout]:
        """A rollout of every runner that is alive."""
        ppo, counters = self.training.ppo, self.counters
        steps = ppo.steps or (ppo.episodes or 1) * counters.horizon
        request = SampleRequest(counters.iteration, progress, steps, student_share)
        if self.runner is not None:
            return [self.runner.sample(request)]
        stored = ray.put({name: one.policy.state_dict() for name, one in self.modules.items()})
        deadline = time.monotonic() + RESTART_S
        while time.monotonic() < deadline:
            requests = {
                number: replace(request, weights=stored, state=self.runner_states.get(number))
                for number in self._runners()
            }
            rollouts: list[Rollout] = self._asked(
                {k: partial(VectorRunner.sample, request=own) for k, own in requests.items()}
            )
            if rollouts:
                self.runner_states |= {own.state["number"]: own.state for own in rollouts}
                return rollouts
            time.sleep(1.0)
            self.env_runner_group.probe_unhealthy_env_runners()
        raise RuntimeError(f"no env runner came back within {RESTART_S:.0f} s")

    def _learn(self, rollouts: Sequence[Rollout]) -> tuple[UpdateRequest, dict[str, Metrics]]:
        ppo, counters, cloning = self.training.ppo, self.counters, self.training.cloning
        learners = max(self.training.learner.num_learners, 1)
        ready = self.connector(rollouts, learners)
        seed = np.random.SeedSequence((self.training.seed, counters.iteration, 1))
        size = ppo.minibatch_size if learners == 1 else -(-ppo.minibatch_size // learners)
        done = counters.learned
        rate = ppo.annealed(ppo.learning_rate, ppo.final_learning_rate, done)
        request = UpdateRequest(
            seed=int(seed.generate_state(1)[0]),
            num_epochs=cloning.num_epochs if self.cloning else ppo.num_epochs,
            num_minibatches=num_minibatches(ready.fewest, size),
            learning_rate=cloning.learning_rate if self.cloning else rate,
            entropy_coefficient=ppo.annealed(
                ppo.entropy_coefficient, ppo.final_entropy_coefficient, done
            ),
        )
        losses: dict[str, Metrics] = {name: {} for name in self.modules}
        if ready.fewest:
            given = {"batch": ready.batches[0]} if learners == 1 else {"batches": ready.batches}
            results = self.learner_group.update(**given, request=request)
            losses |= _mean_of(results)
            self._refresh()
        return request, losses

    def _count(self, rollouts: Sequence[Rollout]) -> None:
        counters, cloning = self.counters, self.cloning
        steps = sum(rollout.steps for rollout in rollouts)
        counters.iteration += 1
        counters.steps += steps
        counters.learned += 0 if cloning else steps
        for rollout in rollouts:
            counters.episodes += len(rollout.ended)
            counters.horizon = longer_horizon(counters.horizon, rollout)

    def _of_learners(self, call: Callable[[PPOLearner], R]) -> list[R]:
        found = self.learner_group.foreach_learner(func=call)
        return [one.get() for one in found]

    def _runners(self) -> list[int]:
        """Numbers of the remote ones that are alive; those of their actors count from 1."""
        return [actor - 1 for actor in self.env_runner_group.healthy_env_runner_ids()]

    def _asked(self, calls: Mapping[int, Callable[[VectorRunner], Any]]) -> list[Any]:
        """One call of every runner, by its number; what those return that survive it.

        Raises:
            Exception: that of a runner; Ray would log it and go on without its samples.
        """
        alive = [number for number in self._runners() if number in calls]
        if not alive:
            return []
        found = self.env_runner_group.foreach_env_runner(
            [partial(_tried, call=calls[number]) for number in alive],
            remote_worker_ids=[number + 1 for number in alive],
            local_env_runner=False,
        )
        for one in found:
            if isinstance(one, Exception):
                raise one
        return list(found)


def _tried(runner: VectorRunner, call: Callable[[VectorRunner], R]) -> R | Exception:
    try:
        return call(runner)
    except Exception as error:
        return error


def loss_columns(losses: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
    """Losses by module as columns; with several modules these say whose."""
    return {
        f"losses/{name}" if len(losses) == 1 else f"losses/{module}/{name}": own.get(name, NAN)
        for module, own in losses.items()
        for name in LOSSES
    }


def known_mean(values: Sequence[float]) -> float:
    """Over those that are known; nan without any."""
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else NAN


def _mean_of(results: Sequence[Mapping[str, Metrics]]) -> dict[str, Metrics]:
    """Over learners."""
    return {
        module: {name: float(np.mean([one[module][name] for one in results])) for name in metrics}
        for module, metrics in results[0].items()
    }


def longer_horizon(horizon: int, rollout: Rollout) -> int:
    """Steps per episode of the next rollout: those of the longest met.

    Twice as many as before when one was truncated at the horizon itself.
    """
    ended = [int(episode["episodic_length"]) for episode in rollout.ended]
    over = rollout.terminated | rollout.truncated
    running = np.where(over.any(axis=0), over[::-1].argmax(axis=0), len(over))
    return max([2 * horizon if (running >= horizon).any() else horizon, *ended])


def algorithm(training: Training, task: RLTask) -> LockStepPPO:
    """The algorithm of a run, built.

    Raises:
        InputError: the policy is not for these environments, or the config asks for something that
            policy, task, machine or Ray cluster do not have.
    """
    learner, modules = training.learner, module_specs(task, training.model)
    if training.cloning.iterations and task.teacher is None:
        raise InputError("there is no teacher to imitate: 0 it must be", field="iterations")
    if training.ppo.auxiliary_coefficient:
        for policy in (module.policy for module in modules_of(task, training.model).values()):
            if not isinstance(policy, WithAuxiliaryHead):
                message = f"{type(policy).__name__} has no auxiliary head: 0 it must be"
                raise InputError(message, field="auxiliary_coefficient")
    if learner.device == "cuda" and not torch.cuda.is_available():
        raise InputError("this machine has no GPU that torch can use", field="device")
    if learner.remote:
        require_ray(learner)
    config = (
        PPOConfig(algo_class=LockStepPPO)
        .environment(
            env_config={TRAINING: Shared(training), TASK: Shared(task)},
            disable_env_checking=True,
        )
        .framework(
            "torch",
            torch_ddp_kwargs={"find_unused_parameters": True},  # heads that nothing is taught
        )
        .env_runners(
            env_runner_cls=VectorRunner,
            num_env_runners=learner.num_env_runners,
        )
        .learners(
            num_learners=learner.num_learners,
            num_gpus_per_learner=learner.num_gpus_per_learner
            or int(not learner.num_learners and learner.device == "cuda"),
            learner_class=PPOLearner,
            learner_config_dict={TRAINING: Shared(training)},
        )
        .multi_agent(
            policies={name: PolicySpec() for name in modules},  # a mapping: a set has no order
            policy_mapping_fn=lambda agent, *_, **__: task.module_of(agent),
        )
        .rl_module(rl_module_spec=MultiRLModuleSpec(rl_module_specs=modules))
    )
    built: LockStepPPO = config.build_algo()
    Path(built.logdir).rmdir()  # RLlib's own place for results, in which nothing is written
    return built


def require_ray(learner: Learner) -> None:
    """Connect to the Ray cluster, or start one on this machine.

    Raises:
        InputError: as `connect`, or it has not what the learner asks for, which
            Ray would wait for without a word.
    """
    connect(learner.ray_address)
    held = ray.cluster_resources()
    gpus = learner.num_learners * learner.num_gpus_per_learner
    cpus = learner.num_env_runners + (0 if gpus else learner.num_learners)
    for kind, asked in (("CPU", cpus), ("GPU", gpus)):
        if asked > held.get(kind, 0.0):
            raise InputError(
                f"{learner.num_env_runners} runners and {learner.num_learners} learners ask for "
                f"{asked:g} {kind}s, Ray has {held.get(kind, 0.0):g}",
                field="learner.num_env_runners"
                if kind == "CPU"
                else "learner.num_gpus_per_learner",
            )
