"""Environments of one training step as lanes, and the memory of the best that was met in them."""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
from gymnasium import spaces
from torch import Tensor

from agents.rllib.config import Training
from agents.rllib.subject import Array, ArrayMemory, Numbers, Solution, Stepped
from envs.errors import InputError
from models.architecture import Architecture
from models.step.allocator import LOWER, RAISE

INF, NAN = float("inf"), float("nan")

Decisions = Mapping[str, Array]  # of a plan, by name


class Archive:
    """One solution per environment: many, so that the search does not hang on a single plan.

    Returning to good states and exploring from there is the first half of Go-Explore (Ecoffet et
    al., "First return, then explore", Nature 590, 2021). Objectives are step times in seconds,
    simulated on every operator.

    Args:
        size: number of environments.
    """

    def __init__(self, size: int) -> None:
        self.held: list[Solution | None] = [None] * size
        self.fastest = [INF] * size  # seconds of a plan offered, by the environment's simulation

    @property
    def best(self) -> Solution | None:
        """The fastest of all; None before the first."""
        return min(self._found, key=lambda solution: solution.objective, default=None)

    def offer(self, index: int, solution: Solution) -> None:
        """Keep `solution` if it is environment `index`'s fastest."""
        held = self.held[index]
        if held is None or solution.objective < held.objective:
            self.held[index] = solution

    def draw(self, rng: np.random.Generator) -> Solution | None:
        """The faster of two drawn at random; None before the first."""
        found = self._found
        if not found:
            return None
        drawn = [found[int(rng.integers(len(found)))] for _ in range(2)]
        return min(drawn, key=lambda solution: solution.objective)

    def document(self) -> Numbers:
        """All of it, as JSON takes it."""
        held = [None if one is None else [one.objective, one.lists()] for one in self.held]
        return {"held": held, "fastest": list(self.fastest)}

    def restore(self, numbers: Numbers) -> None:
        """Go on from what `document` gave."""
        self.fastest = list(numbers["fastest"])
        self.held = [None if one is None else Solution.of(*one) for one in numbers["held"]]

    @property
    def _found(self) -> list[Solution]:
        return [solution for solution in self.held if solution is not None]


def look_ahead(observation: Mapping[str, Array]) -> int:
    """The yardstick without learning: the allowed choice of least look-ahead.

    An allocator's is 0 for keeping all weights.
    """
    if "pipe_features" in observation:
        pipes = observation["pipe_features"]
        ahead = np.concatenate([[0.0], pipes[:, RAISE], pipes[:, LOWER]])
    else:
        ahead = observation["candidate_features"][:, -1]
    return int(np.where(observation["action_mask"] == 1, ahead, INF).argmin())


class StepLane:
    """`agents.rllib.subject.Lane` about one training step.

    Every state that is a whole plan counts, not only an episode's last. One that the environment
    finds faster than all that fit before it, or nearly as fast (`StepSubject.margin`) and the best
    of its episode so far, is simulated on every operator, memory included, and offered to the
    archive.

    Args:
        subject: whose it is.
        env: `info` holds `step_time_s` and `feasible`, `plan_outcome()` gives step time and
            feasibility of the present plan on every operator.
        index: its place in the archive; None: what is met in it is not kept.
    """

    problem = 0

    def __init__(self, subject: StepSubject, env: Any, index: int | None) -> None:
        self.subject, self.env, self.index = subject, env, index
        self.slots: Sequence[tuple[Any, int]] = ()

    @property
    def now(self) -> float:
        return float(self.steps)

    def attach(self, slots: Sequence[tuple[Any, int]]) -> None:
        self.slots = slots

    def reset(
        self,
        seed: int,
        stage: float = 1.0,
        adviser: Any = None,
        explorer: np.random.Generator | None = None,
    ) -> None:
        self.adviser, self.steps = adviser, 0
        self.info: Mapping[str, Any] = {}
        self._limit = -INF  # seconds below which a plan is simulated on every operator
        if self.index is not None:
            self._limit = self.subject.archive.fastest[self.index] * (1.0 + self.subject.margin)
        self._see(self.env.reset(seed=seed)[0])
        start = None if explorer is None else self.subject.start(self.env, explorer)
        if start is not None:
            self._see(self.env.reset(seed=seed, options=start)[0])

    def observe(self, time: int) -> None:
        for (memory, row), seen in zip(self.slots, self.seen, strict=True):
            memory.write(time, row, seen)

    def step(self, actions: Sequence[Any]) -> Stepped:
        agents = self.subject.agents
        given = dict(zip(agents, actions, strict=True)) if self.subject.team else actions[0]
        observation, reward, terminated, truncated, info = self.env.step(given)
        if self.subject.team:
            terminated, truncated = all(terminated.values()), all(truncated.values())
            reward, info = reward[agents[0]], info[agents[0]]
        self._see(observation)
        self.steps, self.info = self.steps + 1, info
        self._offer()
        return Stepped([float(reward)] * len(agents), 1.0, bool(terminated), bool(truncated))

    def advice(self, agent: int) -> int:
        advised: int = self.adviser(self.seen[agent])
        return advised

    def outcome(self) -> float:
        """Step time in seconds, simulated on every operator."""
        step_time, fits = self.env.plan_outcome()
        return float(step_time) if fits and self.info["feasible"] else INF

    def at_least(self) -> float:
        return 0.0

    def ended(self) -> Mapping[str, float]:
        feasible = bool(self.info["feasible"])
        return {
            "step_time_s_mean": float(self.info["step_time_s"]) if feasible else NAN,
            "feasible_share": float(feasible),
        }

    def document(self) -> tuple[Numbers, dict[str, Tensor]]:
        """Nothing: episodes do not go on in the next iteration."""
        return {}, {}

    def restore(self, numbers: Numbers, arrays: Mapping[str, Tensor]) -> None:
        """Nothing to take over."""

    def _see(self, observation: Any) -> None:
        """Keep what every agent sees."""
        agents = self.subject.agents
        self.seen = [observation[agent] for agent in agents] if self.subject.team else [observation]

    def _offer(self) -> None:
        if self.index is None or not self.info["step_time_s"] < self._limit:
            return
        if not self.subject.whole(self.env, self.info):
            return
        step_time, fits = self.env.plan_outcome()
        if fits:
            archive = self.subject.archive
            self._limit = float(self.info["step_time_s"])
            archive.fastest[self.index] = min(archive.fastest[self.index], self._limit)
            found = Solution(float(step_time), dict(self.subject.decisions(self.env)))
            archive.offer(self.index, found)


class StepSubject(ABC):
    """`agents.rllib.subject.Subject` about one problem of one training step.

    Args:
        env: the environment before its first reset, of which every lane has a copy. If it is a
            `team`, a PettingZoo `ParallelEnv` with one reward for all; otherwise of Gymnasium.
        training: the run.

    Raises:
        InputError: episodes are to go on in the next iteration.
    """

    agents: Sequence[str]
    charts: Sequence[str] = ("step_time_s_mean", "feasible_share")
    teacher: Any
    reference: Any
    team: ClassVar[bool] = False
    looks_ahead: ClassVar[bool] = True  # whether agents see what the step would come to
    margin: ClassVar[float] = 0.0  # of the step time; plans so much slower are simulated as well

    def __init__(self, env: Any, training: Training) -> None:
        if training.ppo.steps is not None:
            message = "every iteration starts from fresh episodes: set episodes, and this to null"
            raise InputError(message, field="steps")
        self.env, self.parameters, self.restarts = env, training.parameters, training.restarts
        self.archive = Archive(training.ppo.num_envs)
        self.teacher = self.reference = look_ahead if self.looks_ahead else None

    def module_of(self, agent: str) -> str:
        return agent

    def architectures(self, model: Any) -> dict[str, Architecture]:
        return {agent: one_architecture(model) for agent in self.agents}

    def spaces_of(self, agent: str) -> tuple[spaces.Dict, spaces.Space[Any]]:
        return self.env.observation_space, self.env.action_space

    def memory(self, module: str, times: int, rows: int) -> ArrayMemory:
        agent = next(agent for agent in self.agents if self.module_of(agent) == module)
        return ArrayMemory(self.spaces_of(agent)[0], times, rows)

    def lane(self, index: int) -> StepLane:
        return StepLane(self, copy.copy(self.env), index)

    def exam_lane(self, number: int) -> StepLane:
        return StepLane(self, copy.copy(self.env), None)

    @property
    def best(self) -> Solution | None:
        return self.archive.best

    def document(self) -> Numbers:
        return self.archive.document()

    def restore(self, numbers: Numbers) -> None:
        self.archive.restore(numbers)

    def start(self, env: Any, rng: np.random.Generator) -> dict[str, Any] | None:
        """Options of a reset that starts near a solution; None: as the environment does.

        A share of the episodes starts from the archive, once there is something in it.
        """
        if self.restarts is None or self.restarts.share == 0.0:
            return None
        near = self.archive.draw(rng) if rng.random() < self.restarts.share else None
        if near is None:
            return None
        other = self.archive.draw(rng) or near
        return self.restart(env, near.decisions, other.decisions, rng)

    @abstractmethod
    def whole(self, env: Any, info: Mapping[str, Any]) -> bool:
        """Whether the present state of `env`, which `info` tells of, is a whole plan."""

    @abstractmethod
    def decisions(self, env: Any) -> Decisions:
        """Those of the present plan."""

    def restart(
        self, env: Any, near: Decisions, other: Decisions, rng: np.random.Generator
    ) -> dict[str, Any]:
        """The start of an episode close to `near`, with something of `other`, maybe itself."""
        raise NotImplementedError


def one_architecture(model: Any) -> Architecture:
    """`model`, which must describe a single policy.

    Raises:
        InputError: it describes something else.
    """
    if not isinstance(model, Architecture):
        raise InputError(f"{type(model).__name__} is no policy of a single agent", field="model")
    return model
