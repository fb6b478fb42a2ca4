"""Steps all environments together, with one call per module for all its agents."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Generic, NamedTuple, TypeVar

import numpy as np
import ray
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from ray.rllib.core.rl_module.rl_module import RLModuleSpec
from ray.rllib.env.env_runner import EnvRunner
from torch import Tensor

from agents.rllib.config import Training
from agents.rllib.module import ARCHITECTURE_KEY, PolicyModule
from agents.rllib.subject import Array, Lane, Memory, Numbers, Solution, Subject
from envs.errors import InputError

SUBJECT, TRAINING = "subject", "training"  # keys of `env_config`; each a `Shared`

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


@dataclass(frozen=True, eq=False)
class Part:
    """What the B agents of one module did in T steps.

    Where an agent has no choice nobody is asked, and it is no decision. In the first step all are,
    where episodes go on, so that the critic learns what to expect of such states too: fragments end
    in them. Observations belong to the runner and hold until it samples again.
    """

    lanes: NDArray[np.int64]  # (B,) environment of each
    observations: Mapping[str, Array]  # (T x B, ...)
    labels: NDArray[np.int64] | None  # (T x B, K) of the auxiliary head
    decides: NDArray[np.bool_]  # (T, B)
    actions: Array  # (T, B, ...) taken
    taught: NDArray[np.int64] | None  # (T, B) what the teacher would have done; None: not asked
    log_probabilities: NDArray[np.float32]  # (T, B) of the actions; 0 where there is no choice
    scores: NDArray[np.float64]  # (T, B) of the critic, before each decision
    after: NDArray[np.float64]  # (T, B) of the critic, after the last step and where cut
    rewards: NDArray[np.float64]  # (T, B)


@dataclass(frozen=True, eq=False)
class Fragment:
    """T steps of E environments."""

    parts: Mapping[str, Part]  # by module
    lanes: NDArray[np.int64]  # (E,) numbers of the environments in the run
    elapsed: NDArray[np.float64]  # (T, E) time that each step takes
    now: NDArray[np.float64]  # (T, E) time of the episode before each step
    episode: NDArray[np.int64]  # (T, E) number of the episode in its environment
    problem: NDArray[np.int64]  # (T, E) what the episode is about
    terminated: NDArray[np.bool_]  # (T, E) the episode is over
    cut: NDArray[np.bool_]  # (T, E) the episode is truncated
    ended: Sequence[Mapping[str, float]]  # episodes, by chart
    best: Solution | None
    document: Numbers  # as of `LockStepRunner.document`, without arrays

    @property
    def steps(self) -> int:
        """T x E."""
        return self.elapsed.size


class Drawn(NamedTuple):
    """n decisions."""

    actions: Array  # (n, ...) as drawn
    log_probabilities: NDArray[np.float32]  # (n,)
    scores: NDArray[np.float32]  # (n,) of the critic


def draw(module: PolicyModule, observations: Mapping[str, Tensor]) -> Drawn:
    """One draw of a policy for each observation, by torch's global generator."""
    with torch.inference_mode():
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
    """(n, ...) the most probable actions."""
    with torch.inference_mode():
        inputs, _ = module.policy.decide(observations)
        if isinstance(module.action_space, spaces.Discrete):
            actions: Array = inputs.argmax(dim=-1).numpy()
        else:
            distribution = module.get_inference_action_dist_cls().from_logits(inputs)
            actions = distribution.to_deterministic().sample().numpy()
    return actions


def critic(module: PolicyModule, observations: Mapping[str, Tensor]) -> NDArray[np.float64]:
    """(n,) scores of the critic."""
    with torch.inference_mode():
        return module.policy.decide(observations)[1].double().numpy()


def masks_of(module: PolicyModule, memory: Memory) -> NDArray[np.int8] | None:
    """(T, B, A) which of A actions are allowed; None where actions are no single choice."""
    return memory.masks if isinstance(module.action_space, spaces.Discrete) else None


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
        self.memories: dict[str, Memory] = {}
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
                self._reset(index, 0, order.stage)
            self.begun = True
        log = _Log(self, seats, steps)
        for t in range(steps):
            actions = log.decide(t, order.pupil)
            for index, lane in enumerate(self.lanes):
                log.now[t, index], log.episode[t, index] = lane.now, self.started[index]
                log.problem[t, index] = lane.problem
                step = lane.step(actions[index])
                log.note(t, index, step.rewards, step.elapsed)
                self.returns[index] += sum(step.rewards) / len(step.rewards)
                self.lengths[index] += 1
                over = step.terminated or step.truncated
                if not over or step.truncated:
                    lane.observe(t + 1)
                if over:
                    log.end(t, index, step.terminated)
                    log.ended.append(self._ended(index))
                    if t + 1 < steps or self.goes_on:
                        self._reset(index, t + 1, order.stage)
        log.finish()
        return log.fragment(self.numbers, self.subject.best, self.numbers_now())

    def numbers_now(self) -> Numbers:
        """All that a runner needs to go on, but for the running episodes."""
        return {
            "started": list(self.started),
            "stages": list(self.stages),
            "returns": list(self.returns),
            "lengths": list(self.lengths),
            "begun": self.begun,
            "subject": self.subject.document(),
        }

    def document(self) -> tuple[Numbers, dict[str, Tensor]]:
        """All that a runner needs to go on from here: plain numbers, and arrays by name."""
        numbers = self.numbers_now()
        arrays: dict[str, Tensor] = {}
        numbers["lanes"] = []
        if self.begun and self.goes_on:
            for index, lane in enumerate(self.lanes):
                own, of_lane = lane.document()
                numbers["lanes"].append(own)
                arrays |= {f"{index}.{name}": value for name, value in of_lane.items()}
        return numbers, arrays

    def restore(self, numbers: Numbers, arrays: Mapping[str, Tensor]) -> None:
        """Go on from what `document` gave.

        Raises:
            InputError: the arrays are of other episodes.
        """
        self._recall(numbers)
        if not (numbers["begun"] and self.goes_on):
            return
        assert self.training.ppo.steps is not None
        self._seated(self.training.ppo.steps)
        for index, lane in enumerate(self.lanes):
            self.started[index] = int(numbers["started"][index]) - 1
            self._begin(index, float(numbers["stages"][index]))
            of_lane = {
                name.partition(".")[2]: value
                for name, value in arrays.items()
                if name.partition(".")[0] == str(index)
            }
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
                self.lanes = [self.subject.lane(index) for index in self.numbers]
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
        seed, explorer = int(entropy.generate_state(1)[0]), np.random.default_rng(entropy)
        self.lanes[index].reset(seed, stage, self.teacher, explorer)

    def _ended(self, index: int) -> Mapping[str, float]:
        return {
            **self.lanes[index].ended(),
            "episodic_return": self.returns[index],
            "episodic_length": self.lengths[index],
        }


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


class _Log:
    """The arrays of a fragment while it is sampled."""

    def __init__(self, runner: LockStepRunner, seats: Seats, steps: int) -> None:
        self.runner, self.seats, self.steps = runner, seats, steps
        lanes = len(runner.lanes)
        self.elapsed, self.now = np.zeros((2, steps, lanes))
        self.episode, self.problem = np.zeros((2, steps, lanes), np.int64)
        self.terminated, self.cut = np.zeros((2, steps, lanes), np.bool_)
        self.ended: list[Mapping[str, float]] = []
        self.modules: dict[str, _Module] = {}
        for name, memory in seats.memories.items():
            module, rows = runner.modules[name], len(seats.of_row[name])
            self.modules[name] = _Module(module, memory, steps, rows)

    def decide(self, t: int, pupil: float | None) -> list[list[Any]]:
        """One action of every agent of every lane."""
        count = sum(len(agents) for agents in self.seats.agents.values())
        actions: list[list[Any]] = [[None] * count for _ in self.runner.lanes]
        for name, log in self.modules.items():
            rows = self.seats.of_row[name]
            log.choose(t, all_first=self.runner.goes_on)
            numbers = np.flatnonzero(log.decides[t])
            if len(numbers):
                taught = None
                if pupil is not None:
                    asked = (rows[number] for number in numbers)
                    taught = np.array(
                        [self.runner.lanes[lane].advice(agent) for lane, agent in asked], np.int64
                    )
                log.take(t, numbers, taught, pupil)
            acted = within(log.module.action_space, log.actions[t])
            for (lane, agent), action in zip(rows, acted, strict=True):
                actions[lane][agent] = action
        return actions

    def note(self, t: int, index: int, rewards: Sequence[float], elapsed: float) -> None:
        self.elapsed[t, index] = elapsed
        for name, log in self.modules.items():
            agents = self.seats.agents[name]
            log.rewards[t, self.seats.rows_of(name, index)] = [rewards[s] for s in agents]

    def end(self, t: int, index: int, terminated: bool) -> None:
        """The episode of a lane ends with step t; where it is cut, its end has been observed."""
        self.terminated[t, index], self.cut[t, index] = terminated, not terminated
        if terminated:
            return
        for name, log in self.modules.items():
            rows = self.seats.rows_of(name, index)
            of_lane = np.arange(rows.start, rows.stop)
            log.after[t, rows] = critic(log.module, log.memory.at(t + 1, of_lane))

    def finish(self) -> None:
        """Ask the critic what is to come where the fragment ends."""
        running = ~(self.terminated[-1] | self.cut[-1])
        for name, log in self.modules.items():
            goes_on = running[[lane for lane, _ in self.seats.of_row[name]]]
            if goes_on.any():
                last = critic(log.module, log.memory.at(self.steps, np.arange(len(goes_on))))
                log.after[-1] = np.where(goes_on, last, log.after[-1])

    def fragment(
        self, numbers: Sequence[int], best: Solution | None, document: Numbers
    ) -> Fragment:
        """All that was sampled."""
        parts, taught = {}, self.runner.training.ppo.auxiliary_coefficient > 0.0
        for name, log in self.modules.items():
            lanes = np.array([numbers[lane] for lane, _ in self.seats.of_row[name]])
            parts[name] = Part(
                lanes=lanes,
                observations=log.memory.observations(self.steps),
                labels=log.memory.labels(self.steps) if taught else None,
                decides=log.decides,
                actions=log.actions,
                taught=log.taught,
                log_probabilities=log.log_probabilities,
                scores=log.scores,
                after=log.after,
                rewards=log.rewards,
            )
        return Fragment(
            parts=parts,
            lanes=np.array(numbers),
            elapsed=self.elapsed,
            now=self.now,
            episode=self.episode,
            problem=self.problem,
            terminated=self.terminated,
            cut=self.cut,
            ended=self.ended,
            best=best,
            document=document,
        )


class _Module:
    """The part of a fragment that one module decides."""

    def __init__(self, module: PolicyModule, memory: Memory, steps: int, rows: int) -> None:
        self.module, self.memory = module, memory
        space = module.action_space
        self.actions: Array = np.zeros((steps, rows, *space.shape), space.dtype)
        self.taught: NDArray[np.int64] | None = None
        self.log_probabilities = np.zeros((steps, rows), np.float32)
        self.scores, self.after, self.rewards = np.zeros((3, steps, rows))
        self.decides = np.ones((steps, rows), np.bool_)

    def choose(self, t: int, *, all_first: bool) -> None:
        """Who has a choice, and what those do who have none."""
        masks = masks_of(self.module, self.memory)
        if masks is None:
            return
        self.decides[t] = masks[t].sum(axis=1, dtype=np.int64) > 1
        self.decides[t] |= all_first and t == 0
        self.actions[t] = masks[t].argmax(axis=1)

    def take(
        self,
        t: int,
        numbers: NDArray[np.int64],
        taught: NDArray[np.int64] | None,
        pupil: float | None,
    ) -> None:
        """Decide for the rows `numbers`: the policy, or its teacher now and then.

        So the policy is taught in states that its own mistakes lead to (DAgger: Ross et al., "A
        reduction of imitation learning and structured prediction to no-regret online learning",
        AISTATS 2011).

        Raises:
            InputError: the teacher does what is not allowed.
        """
        if taught is not None:
            masks = masks_of(self.module, self.memory)
            if masks is not None and not masks[t, numbers, taught].all():
                raise InputError("does what is not allowed", field="teacher")
            if self.taught is None:
                self.taught = np.zeros(self.actions.shape, np.int64)
            self.taught[t, numbers] = taught
            if pupil == 0.0:
                self.actions[t, numbers] = taught
                return
        made = draw(self.module, self.memory.at(t, numbers))
        self.scores[t, numbers] = made.scores
        self.log_probabilities[t, numbers] = made.log_probabilities
        self.actions[t, numbers] = made.actions
        if taught is not None:
            driven = torch.rand(len(taught)).numpy() < pupil
            self.actions[t, numbers] = np.where(driven, made.actions, taught)
