"""The vector runner: all environments step together, with one network call per module."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

import numpy as np
import ray
import torch
from numpy.typing import NDArray
from ray.rllib.env.env_runner import EnvRunner
from torch import Tensor

from agents.rllib.config import TRAINING, BudgetGuard, Training
from agents.rllib.module import NO_LABEL, PolicyModule, modules_of
from agents.rllib.ppo import under
from agents.rllib.task import Array, Numbers, RLTask, RunnerEnv, Solution
from agents.rllib.vector import VectorEnv
from envs.arrays import BoolArray, FloatArray, IntArray
from envs.errors import InputError

TASK = "task"  # in `env_config`, beside `TRAINING`; each a `Shared`

T = TypeVar("T")


class Shared(Generic[T]):
    """One object, however often RLlib copies the config that holds it."""

    def __init__(self, value: T) -> None:
        self.value = value

    def __deepcopy__(self, memo: dict[int, Any]) -> Shared[T]:
        return self


@dataclass(frozen=True)
class SampleRequest:
    """What a runner is to sample.

    Attributes:
        iteration: of the run, from 0 on.
        progress: of the curriculum, from 0 to 1.
        steps: of every environment.
        student_share: of the actions that are the student's and not the expert's; None: nothing is
            imitated.
        weights: of the policies, by module and name, or a reference to them in Ray's object store;
            None: the runner shares the learner's.
        state: what a runner that has lost its own goes on from; None: nothing.
    """

    iteration: int
    progress: float
    steps: int
    student_share: float | None = None
    weights: Any = None
    state: Numbers | None = None


@dataclass(eq=False)
class ModuleRollout:
    """What the B agents of one module do in T steps.

    Where an agent has no choice the policy is not asked, and it is no decision. In the first step
    all are, where episodes go on, so that the critic learns what to expect of such states too:
    rollouts end in them. Observations belong to the runner and hold until it samples again.
    """

    env_index: IntArray  # (B,) number of the environment of each, in the run
    decides: BoolArray  # (T, B)
    actions: Array  # (T, B, ...) taken
    log_probabilities: NDArray[np.float32]  # (T, B), or (T, B, A) of tokens; 0: there is no choice
    values: FloatArray  # (T, B) of the critic, before each decision
    next_values: FloatArray  # (T, B) of the critic, after the last step and where truncated
    rewards: FloatArray  # (T, B)
    expert_actions: IntArray | None = None  # as actions; None: nothing is imitated
    observations: Mapping[str, Array] = field(default_factory=dict)  # (T, B, ...)
    labels: IntArray | None = None  # (T, B, K) of the auxiliary head

    @classmethod
    def empty(
        cls, env_index: IntArray, steps: int, module: PolicyModule, imitates: bool
    ) -> ModuleRollout:
        space, shape = module.action_space, (steps, len(env_index))
        of_actions = (*shape, *(space.shape or ()))
        return cls(
            env_index,
            decides=np.ones(shape, np.bool_),
            actions=np.zeros(of_actions, space.dtype),
            log_probabilities=np.zeros(of_actions if module.autoregressive else shape, np.float32),
            values=np.zeros(shape),
            next_values=np.zeros(shape),
            rewards=np.zeros(shape),
            expert_actions=np.zeros(of_actions, np.int64) if imitates else None,
        )


@dataclass(eq=False)
class Rollout:
    """T steps of E environments."""

    modules: Mapping[str, ModuleRollout]
    env_index: IntArray  # (E,) numbers of the environments in the run
    elapsed: FloatArray  # (T, E) time that each step takes
    time: FloatArray  # (T, E) of the episode before each step
    episode: IntArray  # (T, E) number of the episode in its environment
    terminated: BoolArray  # (T, E)
    truncated: BoolArray  # (T, E)
    ended: list[Mapping[str, float]] = field(default_factory=list)  # episodes, by metric
    best: Solution | None = None
    state: Numbers = field(default_factory=dict)  # of the runner, without running episodes

    @classmethod
    def empty(
        cls, modules: Mapping[str, ModuleRollout], env_index: IntArray, steps: int
    ) -> Rollout:
        shape = (steps, len(env_index))
        (elapsed, time), episode = np.zeros((2, *shape)), np.zeros(shape, np.int64)
        return cls(modules, env_index, elapsed, time, episode, *np.zeros((2, *shape), np.bool_))

    @property
    def steps(self) -> int:
        """T x E."""
        return self.elapsed.size


class VectorRunner(EnvRunner):
    """Samples T steps of E environments; RLlib's own runners spend more time on it than ours do.

    Episode k of environment i is seeded by (seed, i // group_size, k), so that a checkpoint keeps
    counters alone of the environments' randomness, and the environments of a group meet the same
    episodes. Actions of an iteration are drawn from (seed, iteration, runner).

    With `steps` in the config an episode goes on in the next rollout, and where one ends the next
    begins at once. With `episodes` every rollout starts from fresh ones, so that nothing but
    counters carries over; where some end sooner others start, and those that run at last are
    truncated.
    """

    vector: VectorEnv  # of `envs`, from the first request on

    def __init__(self, *, config: Any, **arguments: Any) -> None:
        super().__init__(config=config, **arguments)
        self.task: RLTask = config.env_config[TASK].value
        self.training: Training = config.env_config[TRAINING].value
        ppo, runners = self.training.ppo, max(self.training.learner.num_env_runners, 1)
        self.number = max((self.worker_index or 0) - 1, 0)  # among the runners
        count = ppo.num_envs // runners
        self.numbers = range(self.number * count, (self.number + 1) * count)  # of environments
        if self.worker_index:
            torch.set_num_threads(self.training.torch_threads)
        self.modules: Mapping[str, PolicyModule] = {}
        self.teacher = self.task.teacher if self.training.cloning.iterations else None
        self.goes_on = ppo.steps is not None
        self.envs: list[RunnerEnv] = []  # made with the first request
        self.started = [0] * count  # episodes
        self.progress = [0.0] * count  # of the curriculum when the episode began
        self.returns = [0.0] * count  # of the episode so far, mean over agents
        self.lengths = [0] * count  # of the episode so far
        self.begun = False
        self.guard = BudgetGuard(self.training.budget_s)

    def sample(self, request: SampleRequest) -> Rollout:
        """T steps of all environments."""
        if request.state is not None and not self.begun and not any(self.started):
            self._load_counters(request.state)
        if request.weights is not None:
            stored = isinstance(request.weights, ray.ObjectRef)
            weights = ray.get(request.weights) if stored else request.weights
            self.modules = self.modules or modules_of(self.task, self.training.model)
            for name, module in self.modules.items():
                module.policy.load_state_dict(weights[name])
        with torch.random.fork_rng(devices=[]):
            key = (self.training.seed, request.iteration, 2 + self.number)
            torch.manual_seed(int(np.random.SeedSequence(key).generate_state(1)[0]))
            return self._rollout(request)

    def _rollout(self, request: SampleRequest) -> Rollout:
        steps = request.steps
        self._make_vector(steps)
        vector = self.vector
        if self.begun and self.goes_on:
            for buffer in vector.buffers.values():
                buffer.move(steps, 0)
        else:
            for index in range(len(self.envs)):
                self.guard.check("num_envs", index, len(self.envs))
                self._reset(index, 0, request.progress)
            self.begun = True
        numbers, imitates = np.array(self.numbers), request.student_share is not None
        modules = {
            name: ModuleRollout.empty(
                numbers[vector.env_index(name)], steps, self.modules[name], imitates
            )
            for name in vector.buffers
        }
        rollout = Rollout.empty(modules, numbers, steps)
        for t in range(steps):
            self.guard.check("steps", t, steps)
            actions = self._act(rollout, t, request.student_share)
            for index, env in enumerate(self.envs):
                rollout.time[t, index] = env.time
                rollout.episode[t, index] = self.started[index]
                step = env.step(actions[index])
                rollout.elapsed[t, index] = step.elapsed
                for name, own in modules.items():
                    rewards = [step.rewards[agent] for agent in vector.agents[name]]
                    own.rewards[t, vector.rows_of(name, index)] = rewards
                self.returns[index] += sum(step.rewards) / len(step.rewards)
                self.lengths[index] += 1
                if not step.terminated:
                    env.observe(t + 1)
                if not (step.terminated or step.truncated):
                    continue
                self._end(rollout, t, index, step.terminated)
                if t + 1 < steps or self.goes_on:
                    self._reset(index, t + 1, request.progress)
        running = ~(rollout.terminated[-1] | rollout.truncated[-1])
        labelled = self.training.ppo.auxiliary_coefficient > 0.0
        for name, buffer in vector.buffers.items():
            own, goes_on = modules[name], running[vector.env_index(name)]
            if goes_on.any():
                last = self.modules[name].values(buffer.at(steps, np.arange(len(goes_on))))
                own.next_values[-1] = np.where(goes_on, last, own.next_values[-1])
            own.observations = {key: array[:steps] for key, array in buffer.arrays.items()}
            own.labels = buffer.labels(steps) if labelled else None
        rollout.best, rollout.state = self.task.best, self.counters()
        self.guard.over = True
        return rollout

    def counters(self) -> Numbers:
        """All that a runner needs to go on, but for the running episodes."""
        return {
            "number": self.number,
            "started": list(self.started),
            "progress": list(self.progress),
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "begun": self.begun,
            "task": self.task.state(),
        }

    def state(self) -> tuple[Numbers, dict[str, Tensor]]:
        """All that a runner needs to go on from here: plain numbers, and arrays by name."""
        numbers, arrays = {**self.counters(), "envs": []}, dict[str, Tensor]()
        for number, env in zip(self.numbers, self.envs if self.goes_on else [], strict=False):
            own, of_env = env.state()
            numbers["envs"].append(own)
            arrays |= {f"{number}.{name}": value for name, value in of_env.items()}
        return numbers, arrays

    def load(self, numbers: Numbers, arrays: Mapping[str, Tensor]) -> None:
        """Go on from what `state` gave.

        Args:
            numbers: of this runner; without `envs`, when it had died, it begins new episodes.
            arrays: of all runners.

        Raises:
            InputError: the arrays are of other episodes.
        """
        self._load_counters(numbers)
        steps = self.training.ppo.steps
        if not numbers.get("envs"):
            return
        assert steps is not None
        self._make_vector(steps)
        for index, env in enumerate(self.envs):
            self.started[index] = int(numbers["started"][index]) - 1
            self._begin(index, float(numbers["progress"][index]))
            env.load(numbers["envs"][index], under(arrays, f"{self.numbers[index]}."))
            env.observe(steps)
        self.returns, self.lengths = list(numbers["returns"]), list(numbers["lengths"])
        self.begun = True

    def assert_healthy(self) -> None:
        """It has a task."""
        assert self.task.agents

    def get_spaces(self) -> dict[str, tuple[Any, Any]]:
        """Of observations and actions, by module."""
        task = self.task
        return {task.module_of(agent): task.spaces_of(agent) for agent in task.agents}

    def get_state(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Nothing: weights come with every request."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Nothing to take over."""

    def _make_vector(self, steps: int) -> None:
        if self.envs and self.vector.times == steps + 1:
            return
        if self.envs and self.goes_on:
            raise InputError("episodes go on: rollouts have one length", field="steps")
        for index in self.numbers[len(self.envs) :]:
            self.guard.check("num_envs", len(self.envs), len(self.numbers))
            self.envs.append(self.task.make_env(index))
        self.vector = VectorEnv(self.task, self.envs, steps + 1)

    def _load_counters(self, numbers: Numbers) -> None:
        self.started = [int(count) for count in numbers["started"]]
        self.task.load(numbers["task"])

    def _reset(self, index: int, time: int, progress: float) -> None:
        self._begin(index, progress)
        self.returns[index], self.lengths[index] = 0.0, 0
        self.envs[index].observe(time)

    def _begin(self, index: int, progress: float) -> None:
        group = self.numbers[index] // self.training.ppo.group_size
        entropy = np.random.SeedSequence((self.training.seed, group, self.started[index]))
        self.started[index] += 1
        self.progress[index] = progress
        self.envs[index].reset(int(entropy.generate_state(1)[0]), progress, self.teacher)

    def _end(self, rollout: Rollout, t: int, index: int, terminated: bool) -> None:
        """An episode ends with step t; where it is truncated, its end has been observed."""
        (rollout.terminated if terminated else rollout.truncated)[t, index] = True
        for name, buffer in () if terminated else self.vector.buffers.items():
            rows = self.vector.rows_of(name, index)
            seen = buffer.at(t + 1, np.arange(rows.start, rows.stop))
            rollout.modules[name].next_values[t, rows] = self.modules[name].values(seen)
        own = {"episodic_return": self.returns[index], "episodic_length": self.lengths[index]}
        rollout.ended.append({**self.envs[index].metrics(), **own})

    def _act(self, rollout: Rollout, t: int, student_share: float | None) -> list[list[Any]]:
        """One action of every agent of every environment."""
        actions: list[list[Any]] = [[None] * self.vector.num_agents for _ in self.envs]
        for name, own in rollout.modules.items():
            module = self.modules[name]
            masks = module.masks(self.vector.buffers[name])
            if masks is not None:
                own.actions[t], own.decides[t] = module.forced(masks[t])
                own.decides[t] |= self.goes_on and t == 0
            rows = np.flatnonzero(own.decides[t])
            if len(rows):
                if student_share is None:
                    self._sample(own, name, t, rows)
                else:
                    self._imitate(own, name, t, rows, student_share)
            acted = module.clipped(own.actions[t])
            for (index, agent), action in zip(self.vector.rows[name], acted, strict=True):
                actions[index][agent] = action
        return actions

    def _sample(self, own: ModuleRollout, name: str, t: int, rows: IntArray) -> None:
        """The policy decides in some rows."""
        made = self.modules[name].sample(self.vector.buffers[name].at(t, rows))
        own.values[t, rows], own.actions[t, rows] = made.values, made.actions
        own.log_probabilities[t, rows] = made.log_probabilities

    def _imitate(
        self, own: ModuleRollout, name: str, t: int, rows: IntArray, student_share: float
    ) -> None:
        """The expert decides in some rows, or the student now and then.

        So the student learns in states that its own mistakes lead to (DAgger: Ross et al., "A
        reduction of imitation learning and structured prediction to no-regret online learning",
        AISTATS 2011). Of actions of several tokens each token is the student's or not; those that
        the expert does not name are the student's, or 0 where it does not act.

        Raises:
            InputError: the expert does what is not allowed.
        """
        expert = np.array(self.vector.expert_actions(name, rows), np.int64)
        masks = self.modules[name].masks(self.vector.buffers[name])
        if masks is not None and not masks[t, rows, expert].all():
            raise InputError("does what is not allowed", field="teacher")
        assert own.expert_actions is not None
        own.expert_actions[t, rows] = expert
        student = expert == NO_LABEL
        if student_share > 0.0:
            self._sample(own, name, t, rows)
            student |= torch.rand(expert.shape).numpy() < student_share
        own.actions[t, rows] = np.where(student, own.actions[t, rows], expert)
