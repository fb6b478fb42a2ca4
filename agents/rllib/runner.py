"""Steps all environments together, with one call per module for all its agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import ray
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.env.env_runner import EnvRunner
from torch import Tensor

from agents.rllib.config import TRAINING, Patience, Training
from agents.rllib.module import ARCHITECTURE_KEY, NO_LABEL, Composer, PolicyModule
from agents.rllib.ppo import under
from agents.rllib.subject import Array, ArrayMemory, Lane, Numbers, Solution, Subject
from envs.arrays import BoolArray, FloatArray, IntArray
from envs.errors import InputError

SUBJECT = "subject"  # in `env_config`, beside `TRAINING`; each a `Shared`

T = TypeVar("T")


class Shared(Generic[T]):
    """One object, however often RLlib copies the config that holds it."""

    def __init__(self, value: T) -> None:
        self.value = value

    def __deepcopy__(self, memo: dict[int, Any]) -> Shared[T]:
        return self


@dataclass(frozen=True)
class Order:
    """What a runner is to sample.

    Attributes:
        iteration: of the run, from 0 on.
        stage: progress of the curriculum, from 0 to 1.
        steps: of every environment.
        pupil: share of the decisions that the pupil drives; None: nobody teaches.
        weights: of the policies, by module and name, or a reference to them in Ray's object store;
            None: the runner shares the learner's.
        document: what a runner that has lost its own goes on from; None: nothing.
    """

    iteration: int
    stage: float
    steps: int
    pupil: float | None = None
    weights: Any = None
    document: Numbers | None = None


@dataclass(eq=False)
class Part:
    """What the B agents of one module do in T steps.

    Where an agent has no choice nobody is asked, and it is no decision. In the first step all are,
    where episodes go on, so that the critic learns what to expect of such states too: fragments end
    in them. Observations belong to the runner and hold until it samples again.
    """

    lanes: IntArray  # (B,) number of the environment of each, in the run
    decides: BoolArray  # (T, B)
    actions: Array  # (T, B, ...) taken
    log_probabilities: NDArray[np.float32]  # (T, B), or (T, B, A) of tokens; 0: there is no choice
    scores: FloatArray  # (T, B) of the critic, before each decision
    after: FloatArray  # (T, B) of the critic, after the last step and where cut
    rewards: FloatArray  # (T, B)
    taught: IntArray | None = None  # as actions, what the teacher would do; None: not asked
    observations: Mapping[str, Array] = field(default_factory=dict)  # (T x B, ...)
    labels: IntArray | None = None  # (T x B, K) of the auxiliary head

    @classmethod
    def empty(cls, lanes: IntArray, steps: int, module: PolicyModule) -> Part:
        space, shape = module.action_space, (steps, len(lanes))
        of_actions = (*shape, *(space.shape or ()))
        composes = isinstance(module.policy, Composer)
        return cls(
            lanes,
            decides=np.ones(shape, np.bool_),
            actions=np.zeros(of_actions, space.dtype),
            log_probabilities=np.zeros(of_actions if composes else shape, np.float32),
            scores=np.zeros(shape),
            after=np.zeros(shape),
            rewards=np.zeros(shape),
        )


@dataclass(eq=False)
class Fragment:
    """T steps of E environments."""

    parts: Mapping[str, Part]  # by module
    lanes: IntArray  # (E,) numbers of the environments in the run
    elapsed: FloatArray  # (T, E) time that each step takes
    now: FloatArray  # (T, E) time of the episode before each step
    episode: IntArray  # (T, E) number of the episode in its environment
    terminated: BoolArray  # (T, E) the episode is over
    cut: BoolArray  # (T, E) the episode is truncated
    ended: list[Mapping[str, float]] = field(default_factory=list)  # episodes, by chart
    best: Solution | None = None
    document: Numbers = field(default_factory=dict)  # of the runner, without running episodes

    @classmethod
    def empty(cls, parts: Mapping[str, Part], lanes: IntArray, steps: int) -> Fragment:
        shape = (steps, len(lanes))
        (elapsed, now), episode = np.zeros((2, *shape)), np.zeros(shape, np.int64)
        return cls(parts, lanes, elapsed, now, episode, *np.zeros((2, *shape), np.bool_))

    @property
    def steps(self) -> int:
        """T x E."""
        return self.elapsed.size


class Drawn(NamedTuple):
    """n decisions."""

    actions: Array  # (n, ...) as drawn
    log_probabilities: NDArray[np.float32]  # (n,), or (n, A) of tokens
    scores: NDArray[np.float32]  # (n,) of the critic


def draw(module: PolicyModule, observations: Mapping[str, Tensor]) -> Drawn:
    """One draw of a policy for each observation, by torch's global generator."""
    with torch.inference_mode():
        if isinstance(module.policy, Composer):
            made = module.policy.compose(observations)
            return Drawn(made.actions.numpy(), made.log_probabilities.numpy(), made.scores.numpy())
        inputs, scores = module.policy.decide(observations)
        if isinstance(module.action_space, spaces.Discrete):
            logs = torch.log_softmax(inputs, dim=-1)
            actions = drawn(logs.exp())
            of_actions = logs.gather(1, actions.unsqueeze(1)).squeeze(1)
        else:
            distribution = module.get_exploration_action_dist_cls().from_logits(inputs)
            actions = distribution.sample()
            of_actions = distribution.logp(actions)
    return Drawn(actions.numpy(), of_actions.numpy(), scores.numpy())


def drawn(probabilities: Tensor) -> Tensor:
    """(n,) one place of each row of (n, A) probabilities, never one of probability 0.

    By the inverse of the distribution function: `torch.multinomial` draws a number for every place.
    """
    below = probabilities.double().cumsum(dim=1)
    level = torch.rand(len(below), 1, dtype=torch.float64) * below[:, -1:]
    actions = (below <= level).sum(dim=1)
    # a level rounded up to the whole lies beyond the last place that is possible
    return torch.minimum(actions, (below < below[:, -1:]).sum(dim=1))


def most_probable(module: PolicyModule, observations: Mapping[str, Tensor]) -> Array:
    """(n, ...) the most probable actions, token by token where they are composed."""
    with torch.inference_mode():
        if isinstance(module.policy, Composer):
            composed: Array = module.policy.compose(observations, greedy=True).actions.numpy()
            return composed
        inputs, _ = module.policy.decide(observations)
        if isinstance(module.action_space, spaces.Discrete):
            actions: Array = inputs.argmax(dim=-1).numpy()
        else:
            distribution = module.get_inference_action_dist_cls().from_logits(inputs)
            actions = distribution.to_deterministic().sample().numpy()
    return actions


def critic(module: PolicyModule, observations: Mapping[str, Tensor]) -> FloatArray:
    """(n,) scores of the critic."""
    with torch.inference_mode():
        return module.policy.decide(observations)[1].double().numpy()


def masks_of(module: PolicyModule, memory: ArrayMemory) -> NDArray[np.int8] | None:
    """(T, B, A) which of A actions are allowed; None where actions are no single choice.

    Of policies that compose, two: the second says that there is a choice.
    """
    single = isinstance(module.action_space, spaces.Discrete)
    return memory.masks if single or isinstance(module.policy, Composer) else None


def forced(module: PolicyModule, masks: NDArray[np.int8]) -> tuple[IntArray, BoolArray]:
    """(n, ...) the first allowed of actions by (n, A) masks, and (n,) where there is a choice."""
    shape = module.action_space.shape or ()
    first = masks.argmax(axis=1).reshape(-1, *(1 for _ in shape))
    return np.tile(first, shape), masks.sum(axis=1, dtype=np.int64) > 1


def within(space: spaces.Space[Any], actions: Array) -> Array:
    """`actions` as they act: real numbers beyond the bounds of a `Box` as the bounds."""
    return np.clip(actions, space.low, space.high) if isinstance(space, spaces.Box) else actions


class Seats:
    """Who sits where: agents of many lanes, and the rows of their modules' memories.

    Args:
        subject: whose lanes they are.
        lanes: all with the subject's agents.
        times: of the memories.
    """

    def __init__(self, subject: Subject, lanes: Sequence[Lane], times: int) -> None:
        self.lanes, self.times = lanes, times
        self.agents: dict[str, list[int]] = {}  # of a lane, by module
        for number, who in enumerate(subject.agents):
            self.agents.setdefault(subject.module_of(who), []).append(number)
        self.memories: dict[str, ArrayMemory] = {}
        self.of_row: dict[str, list[tuple[int, int]]] = {}  # lane and agent
        slots: list[list[Any]] = [[None] * len(subject.agents) for _ in lanes]
        for name, agents in self.agents.items():
            rows = [(number, agent) for number in range(len(lanes)) for agent in agents]
            memory = self.memories[name] = subject.memory(name, times, len(rows))
            self.of_row[name] = rows
            for row, (number, agent) in enumerate(rows):
                slots[number][agent] = (memory, row)
        for lane, slot in zip(lanes, slots, strict=True):
            lane.attach(slot)

    def lane_of(self, name: str) -> IntArray:
        """(B,) the lane of every row of a module."""
        return np.array([lane for lane, _ in self.of_row[name]])

    def rows_of(self, name: str, lane: int) -> slice:
        """The rows of a lane's agents in the memory of a module."""
        size = len(self.agents[name])
        return slice(lane * size, (lane + 1) * size)


class LockStepRunner(EnvRunner):
    """Samples T steps of E environments; RLlib's own runners spend more time on it than ours do.

    Episode k of environment i is seeded by (seed, i // alike, k), so that a checkpoint keeps
    counters alone of the environments' randomness, and `alike` environments in turn meet the same
    episodes. Actions of an iteration are drawn from (seed, iteration, runner).

    With `steps` in the config an episode goes on in the next fragment, and where one ends the next
    begins at once. With `episodes` every fragment starts from fresh ones, so that nothing but
    counters carries over; where some end sooner others start, and those that run at last are cut.
    """

    def __init__(self, *, config: Any, **arguments: Any) -> None:
        super().__init__(config=config, **arguments)
        self.subject: Subject = config.env_config[SUBJECT].value
        self.training: Training = config.env_config[TRAINING].value
        ppo, runners = self.training.ppo, max(self.training.learner.num_env_runners, 1)
        self.number = max((self.worker_index or 0) - 1, 0)  # among the runners
        share = ppo.num_envs // runners
        self.numbers = range(self.number * share, (self.number + 1) * share)
        if self.worker_index:
            torch.set_num_threads(self.training.torch_threads)
        self.lanes: list[Lane] = []  # made with the first order
        self.modules: Mapping[str, PolicyModule] = {}
        self.teacher = self.subject.teacher if self.training.cloning.iterations else None
        self.goes_on = ppo.steps is not None
        self.seats: Seats | None = None
        count = len(self.numbers)
        self.started = [0] * count  # episodes
        self.stages = [0.0] * count  # progress when the episode began
        self.returns = [0.0] * count  # of the episode so far, mean over agents
        self.lengths = [0] * count  # of the episode so far
        self.begun = False
        self.patience = Patience(self.training.budget_s)

    def sample(self, order: Order) -> Fragment:
        """T steps of all environments."""
        if order.document is not None and not self.begun and not any(self.started):
            self._recall(order.document)
        if order.weights is not None:
            stored = isinstance(order.weights, ray.ObjectRef)
            self._take_weights(ray.get(order.weights) if stored else order.weights)
        with torch.random.fork_rng(devices=[]):
            key = (self.training.seed, order.iteration, 2 + self.number)
            torch.manual_seed(int(np.random.SeedSequence(key).generate_state(1)[0]))
            return self._sampled(order)

    def _sampled(self, order: Order) -> Fragment:
        seats, steps = self._seated(order.steps), order.steps
        if self.begun and self.goes_on:
            for memory in seats.memories.values():
                memory.move(steps, 0)
        else:
            for index in range(len(self.lanes)):
                self.patience.check("num_envs", index, len(self.lanes))
                self._reset(index, 0, order.stage)
            self.begun = True
        numbers = np.array(self.numbers)
        parts = {
            name: Part.empty(numbers[seats.lane_of(name)], steps, self.modules[name])
            for name in seats.memories
        }
        fragment = Fragment.empty(parts, numbers, steps)
        for t in range(steps):
            self.patience.check("steps", t, steps)
            actions = self._decide(fragment, t, order.pupil)
            for index, lane in enumerate(self.lanes):
                fragment.now[t, index] = lane.now
                fragment.episode[t, index] = self.started[index]
                step = lane.step(actions[index])
                fragment.elapsed[t, index] = step.elapsed
                for name, part in parts.items():
                    rewards = [step.rewards[agent] for agent in seats.agents[name]]
                    part.rewards[t, seats.rows_of(name, index)] = rewards
                self.returns[index] += sum(step.rewards) / len(step.rewards)
                self.lengths[index] += 1
                if not step.terminated:
                    lane.observe(t + 1)
                if not (step.terminated or step.truncated):
                    continue
                self._end(fragment, t, index, step.terminated)
                if t + 1 < steps or self.goes_on:
                    self._reset(index, t + 1, order.stage)
        running = ~(fragment.terminated[-1] | fragment.cut[-1])
        labelled = self.training.ppo.auxiliary_coefficient > 0.0
        for name, memory in seats.memories.items():
            part, goes_on = parts[name], running[seats.lane_of(name)]
            if goes_on.any():
                last = critic(self.modules[name], memory.at(steps, np.arange(len(goes_on))))
                part.after[-1] = np.where(goes_on, last, part.after[-1])
            part.observations = memory.observations(steps)
            part.labels = memory.labels(steps) if labelled else None
        fragment.best, fragment.document = self.subject.best, self.numbers_now()
        self.patience.over = True
        return fragment

    def numbers_now(self) -> Numbers:
        """All that a runner needs to go on, but for the running episodes."""
        return {
            "number": self.number,
            "started": list(self.started),
            "stages": list(self.stages),
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "begun": self.begun,
            "subject": self.subject.document(),
        }

    def document(self) -> tuple[Numbers, dict[str, Tensor]]:
        """All that a runner needs to go on from here: plain numbers, and arrays by name."""
        numbers, lanes = self.numbers_now(), self.lanes if self.goes_on else []
        arrays: dict[str, Tensor] = {}
        numbers["lanes"] = []
        for number, lane in zip(self.numbers, lanes, strict=False):
            own, of_lane = lane.document()
            numbers["lanes"].append(own)
            arrays |= {f"{number}.{name}": value for name, value in of_lane.items()}
        return numbers, arrays

    def restore(self, numbers: Numbers, arrays: Mapping[str, Tensor]) -> None:
        """Go on from what `document` gave.

        Args:
            numbers: of this runner; without `lanes`, when it had died, it begins new episodes.
            arrays: of all runners.

        Raises:
            InputError: the arrays are of other episodes.
        """
        self._recall(numbers)
        if not numbers.get("lanes"):
            return
        assert self.training.ppo.steps is not None
        self._seated(self.training.ppo.steps)
        for index, lane in enumerate(self.lanes):
            self.started[index] = int(numbers["started"][index]) - 1
            self._begin(index, float(numbers["stages"][index]))
            of_lane = under(arrays, f"{self.numbers[index]}.")
            lane.restore(numbers["lanes"][index], of_lane)
            lane.observe(self.training.ppo.steps)
        self.returns, self.lengths = list(numbers["returns"]), list(numbers["lengths"])
        self.begun = True

    def assert_healthy(self) -> None:
        """It has a subject."""
        assert self.subject.agents

    def get_spaces(self) -> dict[str, tuple[Any, Any]]:
        """Of observations and actions, by module."""
        subject = self.subject
        return {subject.module_of(agent): subject.spaces_of(agent) for agent in subject.agents}

    def get_state(self, *_: Any, **__: Any) -> dict[str, Any]:
        """Nothing: weights come with every order."""
        return {}

    def set_state(self, state: Mapping[str, Any]) -> None:
        """Nothing to take over."""

    def _seated(self, steps: int) -> Seats:
        if self.seats is None or self.seats.times != steps + 1:
            if self.seats is not None and self.goes_on:
                raise InputError("episodes go on: fragments have one length", field="steps")
            if not self.lanes:
                for made, index in enumerate(self.numbers):
                    self.patience.check("num_envs", made, len(self.numbers))
                    self.lanes.append(self.subject.lane(index))
            self.seats = Seats(self.subject, self.lanes, steps + 1)
        return self.seats

    def _take_weights(self, weights: Mapping[str, Any]) -> None:
        if not self.modules:
            self.modules = policies(self.subject, self.training.model)
        for name, module in self.modules.items():
            module.policy.load_state_dict(weights[name])

    def _recall(self, numbers: Numbers) -> None:
        self.started = [int(count) for count in numbers["started"]]
        self.subject.restore(numbers["subject"])

    def _reset(self, index: int, time: int, stage: float) -> None:
        self._begin(index, stage)
        self.returns[index], self.lengths[index] = 0.0, 0
        self.lanes[index].observe(time)

    def _begin(self, index: int, stage: float) -> None:
        group = self.numbers[index] // self.training.ppo.alike
        entropy = np.random.SeedSequence((self.training.seed, group, self.started[index]))
        self.started[index] += 1
        self.stages[index] = stage
        self.lanes[index].reset(int(entropy.generate_state(1)[0]), stage, self.teacher)

    def _end(self, fragment: Fragment, t: int, index: int, terminated: bool) -> None:
        """The episode of a lane ends with step t; where it is cut, its end has been observed."""
        assert self.seats is not None
        (fragment.terminated if terminated else fragment.cut)[t, index] = True
        for name, memory in () if terminated else self.seats.memories.items():
            rows = self.seats.rows_of(name, index)
            seen = memory.at(t + 1, np.arange(rows.start, rows.stop))
            fragment.parts[name].after[t, rows] = critic(self.modules[name], seen)
        own = {"episodic_return": self.returns[index], "episodic_length": self.lengths[index]}
        fragment.ended.append({**self.lanes[index].ended(), **own})

    def _decide(self, fragment: Fragment, t: int, pupil: float | None) -> list[list[Any]]:
        """One action of every agent of every lane."""
        seats = self.seats
        assert seats is not None
        actions: list[list[Any]] = [[None] * len(self.subject.agents) for _ in self.lanes]
        for name, part in fragment.parts.items():
            module, rows = self.modules[name], seats.of_row[name]
            masks = masks_of(module, seats.memories[name])
            if masks is not None:
                part.actions[t], part.decides[t] = forced(module, masks[t])
                part.decides[t] |= self.goes_on and t == 0
            numbers = np.flatnonzero(part.decides[t])
            if len(numbers) and pupil is None:
                self._draw(part, name, t, numbers)
            elif len(numbers) and pupil is not None:
                self._be_taught(part, name, t, numbers, pupil)
            acted = within(module.action_space, part.actions[t])
            for (lane, agent), action in zip(rows, acted, strict=True):
                actions[lane][agent] = action
        return actions

    def _draw(self, part: Part, name: str, t: int, numbers: IntArray) -> None:
        """The policy decides for some rows."""
        assert self.seats is not None
        made = draw(self.modules[name], self.seats.memories[name].at(t, numbers))
        part.scores[t, numbers], part.actions[t, numbers] = made.scores, made.actions
        part.log_probabilities[t, numbers] = made.log_probabilities

    def _be_taught(self, part: Part, name: str, t: int, numbers: IntArray, pupil: float) -> None:
        """The teacher decides for some rows, or the policy now and then.

        So the policy is taught in states that its own mistakes lead to (DAgger: Ross et al., "A
        reduction of imitation learning and structured prediction to no-regret online learning",
        AISTATS 2011). Of actions of several tokens each token is driven or not; those that nobody
        teaches are the policy's, or 0 where it does not drive.

        Raises:
            InputError: the teacher does what is not allowed.
        """
        assert self.seats is not None
        asked = (self.seats.of_row[name][number] for number in numbers)
        taught = np.array([self.lanes[lane].advice(agent) for lane, agent in asked], np.int64)
        masks = masks_of(self.modules[name], self.seats.memories[name])
        if masks is not None and not masks[t, numbers, taught].all():
            raise InputError("does what is not allowed", field="teacher")
        if part.taught is None:
            part.taught = np.zeros(part.actions.shape, np.int64)
        part.taught[t, numbers] = taught
        driven = taught == NO_LABEL
        if pupil > 0.0:
            self._draw(part, name, t, numbers)
            driven |= torch.rand(taught.shape).numpy() < pupil
        part.actions[t, numbers] = np.where(driven, part.actions[t, numbers], taught)


def policies(subject: Subject, model: Any) -> dict[str, PolicyModule]:
    """A fresh module of every policy, as RLlib builds it.

    Raises:
        InputError: `model` is not what the subject needs.
    """
    return {name: spec.build() for name, spec in specs(subject, model).items()}


def specs(subject: Subject, model: Any) -> dict[str, RLModuleSpec]:
    """What RLlib builds the modules from.

    Raises:
        InputError: `model` is not what the subject needs.
    """
    seen = {subject.module_of(agent): subject.spaces_of(agent) for agent in subject.agents}
    return {
        name: RLModuleSpec(
            module_class=PolicyModule,
            observation_space=seen[name][0],
            action_space=seen[name][1],
            model_config={ARCHITECTURE_KEY: architecture},
        )
        for name, architecture in subject.architectures(model).items()
    }
