"""PPO as an RLlib `Algorithm`: our runner samples, RLlib's learner group learns ready batches."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
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

from agents.rllib.batch import BatchMaker
from agents.rllib.config import TRAINING, Learner, Training
from agents.rllib.connection import connect
from agents.rllib.metrics import NAN, loss_columns, mean
from agents.rllib.module import Foresighted, PolicyModule
from agents.rllib.ppo import Instruction, Metrics, PPOLearner, parts_of
from agents.rllib.runner import (
    SUBJECT,
    Fragment,
    LockStepRunner,
    Order,
    Shared,
    policies,
    specs,
)
from agents.rllib.subject import Numbers, Solution, Subject
from envs.errors import InputError
from models.architecture import Policy

RESTART_S = 120.0  # seconds within which some runner must come back when all have died

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
    them; weights travel with each order to sample, so that a runner that was restarted is no
    different from the others. `training_step` is all that is asked of it: `training.train` is the
    loop, and saves a run, which Tune and `Algorithm.save_to_path` do not know how to.
    """

    def setup(self, config: PPOConfig) -> None:
        """Make runners and learners."""
        self.training: Training = config.env_config[TRAINING].value
        self.subject: Subject = config.env_config[SUBJECT].value
        self.counters = Counters()
        self.documents: dict[int, Numbers] = {}  # of remote runners, by number
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
            local: LockStepRunner = self.env_runner_group.local_env_runner
            self.runner = None if self.training.learner.num_env_runners else local
        else:
            spec = MultiRLModuleSpec(rl_module_specs=specs(self.subject, self.training.model))
            self.learner_group = self.config.build_learner_group(rl_module_spec=spec)
            self.runner = LockStepRunner(config=config, worker_index=0)
        self.modules = self._modules()
        self._refresh()
        agents = Counter(map(self.subject.module_of, self.subject.agents))
        self.batches = BatchMaker(self.training.ppo, agents)

    @property
    def cloning(self) -> bool:
        """Whether the next iteration imitates the teacher."""
        return self.counters.iteration < self.training.cloning.iterations

    @property
    def stage(self) -> float:
        """Of the curriculum, from 0 to 1."""
        whole = self.training.curriculum_steps
        return 1.0 if whole is None else min(self.counters.steps / whole, 1.0)

    def training_step(self) -> None:
        """Sample, learn, and give the runners of this process the new weights."""
        if self.training.learner.remote:  # runners that died come back
            self.env_runner_group.probe_unhealthy_env_runners()
        start = time.perf_counter()
        cloning, stage = self.cloning, self.stage
        pupil = self.training.cloning.share(self.counters.iteration) if cloning else None
        fragments = self._sample(stage, pupil)
        sampled = time.perf_counter()
        instruction, losses = self._learn(fragments)
        learned = time.perf_counter()
        before = self.counters.steps
        self._count(fragments)
        known = [fragment.best for fragment in fragments if fragment.best is not None]
        self.best = min(known, key=lambda solution: solution.objective, default=None)
        ended = [episode for fragment in fragments for episode in fragment.ended]
        names = ("episodic_return", "episodic_length", *self.subject.charts)
        self.row = {
            "charts/global_step": self.counters.steps,
            "charts/episodes": self.counters.episodes,
            "charts/SPS": (self.counters.steps - before) / (learned - start),
            "charts/sample_seconds": sampled - start,
            "charts/learn_seconds": learned - sampled,
            "charts/gradient_steps": max(own.get("gradient_steps", 0) for own in losses.values()),
            "charts/cloning": float(cloning),
            "charts/pupil_share": NAN if pupil is None else pupil,
            "charts/curriculum": stage,
            "charts/learning_rate": instruction.learning_rate,
            "charts/entropy_coefficient": instruction.entropy_coefficient,
            **{f"charts/{name}": mean([one[name] for one in ended]) for name in names},
            **loss_columns(losses),
        }

    def document(self) -> tuple[Numbers, dict[str, Tensor]]:
        """What sampling needs to go on: plain numbers, and arrays by name."""
        numbers: Numbers = {"counters": asdict(self.counters), "scales": self.batches.document()}
        if self.runner is not None:
            found = [self.runner.document()]
        else:
            found = self._asked(dict.fromkeys(self._runners(), LockStepRunner.document))
        runners = self.documents | {own["number"]: own for own, _ in found}
        numbers["runners"] = [runners[number] for number in sorted(runners)]
        return numbers, {name: x for _, arrays in found for name, x in arrays.items()}

    def restore_sampling(self, numbers: Numbers, arrays: Mapping[str, Tensor]) -> None:
        """Go on from what `document` gave."""
        self.counters = Counters(**numbers["counters"])
        self.batches.restore(numbers["scales"])
        if self.runner is not None:
            self.runner.restore(numbers["runners"][0], arrays)
            return
        self.documents = {own["number"]: own for own in numbers["runners"]}
        self._asked(
            {
                number: partial(LockStepRunner.restore, numbers=own, arrays=arrays)
                for number, own in self.documents.items()
            }
        )

    def tensors(self) -> dict[str, dict[str, Tensor]]:
        """What learning needs to go on, as of `PPOLearner.tensors`."""
        return self._of_learners(PPOLearner.tensors)[0]

    def restore_learning(self, files: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Go on from what `tensors` gave.

        Raises:
            RuntimeError: they are another policy's.
        """
        self._of_learners(partial(PPOLearner.restore, files=files))
        self._refresh()

    def policies(self) -> dict[str, Policy]:
        """The policies as they are now, by module."""
        return {name: module.policy for name, module in self.modules.items()}

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
            modules = policies(self.subject, self.training.model)
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

    def _sample(self, stage: float, pupil: float | None) -> list[Fragment]:
        """A fragment of every runner that is alive."""
        ppo, counters = self.training.ppo, self.counters
        steps = ppo.steps or (ppo.episodes or 1) * counters.horizon
        order = Order(counters.iteration, stage, steps, pupil)
        if self.runner is not None:
            return [self.runner.sample(order)]
        stored = ray.put({name: one.state_dict() for name, one in self.policies().items()})
        deadline = time.monotonic() + RESTART_S
        while time.monotonic() < deadline:
            sent = replace(order, weights=stored)
            calls = {
                number: partial(
                    LockStepRunner.sample, order=replace(sent, document=self.documents.get(number))
                )
                for number in self._runners()
            }
            fragments: list[Fragment] = self._asked(calls)
            if fragments:
                for fragment in fragments:
                    self.documents[fragment.document["number"]] = fragment.document
                return fragments
            time.sleep(1.0)
            self.env_runner_group.probe_unhealthy_env_runners()
        raise RuntimeError(f"no env runner came back within {RESTART_S:.0f} s")

    def _learn(self, fragments: Sequence[Fragment]) -> tuple[Instruction, dict[str, Metrics]]:
        ppo, counters, cloning = self.training.ppo, self.counters, self.training.cloning
        learners = max(self.training.learner.num_learners, 1)
        ready = self.batches.ready(fragments, learners)
        seed = np.random.SeedSequence((self.training.seed, counters.iteration, 1))
        size = ppo.minibatch_size if learners == 1 else -(-ppo.minibatch_size // learners)
        rate = ppo.fallen(ppo.learning_rate, ppo.final_learning_rate, counters.learned)
        bonus = ppo.fallen(ppo.entropy_coefficient, ppo.final_entropy_coefficient, counters.learned)
        instruction = Instruction(
            seed=int(seed.generate_state(1)[0]),
            num_epochs=cloning.num_epochs if self.cloning else ppo.num_epochs,
            parts=parts_of(ready.fewest, size),
            learning_rate=cloning.learning_rate if self.cloning else rate,
            entropy_coefficient=bonus,
        )
        losses: dict[str, Metrics] = {name: {} for name in self.modules}
        if ready.fewest:
            given = {"batch": ready.batches[0]} if learners == 1 else {"batches": ready.batches}
            results = self.learner_group.update(**given, instruction=instruction)
            losses |= _mean_of(results)
            self._refresh()
        return instruction, losses

    def _count(self, fragments: Sequence[Fragment]) -> None:
        counters, cloning = self.counters, self.cloning
        steps = sum(fragment.steps for fragment in fragments)
        counters.iteration += 1
        counters.steps += steps
        counters.learned += 0 if cloning else steps
        for fragment in fragments:
            counters.episodes += len(fragment.ended)
            counters.horizon = longer_horizon(counters.horizon, fragment)

    def _of_learners(self, call: Callable[[PPOLearner], R]) -> list[R]:
        found = self.learner_group.foreach_learner(func=call)
        return [one.get() for one in found]

    def _runners(self) -> list[int]:
        """Numbers of the remote ones that are alive; those of their actors count from 1."""
        return [actor - 1 for actor in self.env_runner_group.healthy_env_runner_ids()]

    def _asked(self, calls: Mapping[int, Callable[[LockStepRunner], Any]]) -> list[Any]:
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


def _tried(runner: LockStepRunner, call: Callable[[LockStepRunner], R]) -> R | Exception:
    try:
        return call(runner)
    except Exception as error:
        return error


def _mean_of(results: Sequence[Mapping[str, Metrics]]) -> dict[str, Metrics]:
    """Over learners."""
    return {
        module: {name: float(np.mean([one[module][name] for one in results])) for name in metrics}
        for module, metrics in results[0].items()
    }


def longer_horizon(horizon: int, fragment: Fragment) -> int:
    """Steps per episode of the next fragment: those of the longest met.

    Twice as many as before when one was cut at the horizon itself.
    """
    ended = [int(episode["episodic_length"]) for episode in fragment.ended]
    over = fragment.terminated | fragment.cut
    reached = False
    for lane in range(over.shape[1]):
        (ends,) = np.nonzero(over[:, lane])
        last = int(ends[-1]) + 1 if len(ends) else 0
        reached |= len(over) - last >= horizon
    return max([2 * horizon if reached else horizon, *ended])


def algorithm(training: Training, subject: Subject) -> LockStepPPO:
    """The algorithm of a run, built.

    Raises:
        InputError: the policy is not for these environments, or the config asks for something that
            policy, subject, machine or Ray cluster do not have.
    """
    learner, modules = training.learner, specs(subject, training.model)
    if training.cloning.iterations and subject.teacher is None:
        raise InputError("there is no teacher to imitate: 0 it must be", field="iterations")
    if training.ppo.auxiliary_coefficient:
        for policy in (module.policy for module in policies(subject, training.model).values()):
            if not isinstance(policy, Foresighted):
                message = f"{type(policy).__name__} has no auxiliary head: 0 it must be"
                raise InputError(message, field="auxiliary_coefficient")
    if learner.device == "cuda" and not torch.cuda.is_available():
        raise InputError("this machine has no GPU that torch can use", field="device")
    if learner.remote:
        require_ray(learner)
    config = (
        PPOConfig(algo_class=LockStepPPO)
        .environment(
            env_config={TRAINING: Shared(training), SUBJECT: Shared(subject)},
            disable_env_checking=True,
        )
        .framework(
            "torch",
            torch_ddp_kwargs={"find_unused_parameters": True},  # heads that nothing is taught
        )
        .env_runners(
            env_runner_cls=LockStepRunner,
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
            policy_mapping_fn=lambda agent, *_, **__: subject.module_of(agent),
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
