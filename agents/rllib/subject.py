"""The one adapter between what is learned about and the learner.

A *subject* makes *lanes*, environments that are stepped together, and the *memories* their
observations are written into. Neither knows Ray.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, from_numpy

from envs.arrays import IntArray
from envs.errors import InputError
from models.architecture import Architecture

Array = NDArray[Any]
Numbers = dict[str, Any]  # what JSON takes


@dataclass(frozen=True, eq=False)
class Solution:
    """The best decisions met in training."""

    objective: float  # less is better
    decisions: Mapping[str, Array]  # by name

    @classmethod
    def of(cls, objective: float, lists: Mapping[str, Any]) -> Solution:
        """What `lists` was taken of."""
        return cls(objective, {name: np.array(values) for name, values in lists.items()})

    def lists(self) -> dict[str, Any]:
        """The decisions as JSON takes them."""
        return {name: values.tolist() for name, values in self.decisions.items()}


class Stepped(NamedTuple):
    """What one joint action of a lane's agents led to."""

    rewards: Sequence[float]  # of every agent
    elapsed: float  # time that passed, in the units of discounting
    terminated: bool
    truncated: bool


class Lane:
    """One environment of many that are stepped together.

    As it stands here no episode goes on in the next iteration.
    """

    slots: Sequence[tuple[Any, int]] = ()

    @property
    def now(self) -> float:
        """Time of the running episode, in the units of discounting."""
        return 0.0

    def attach(self, slots: Sequence[tuple[Any, int]]) -> None:
        """Where observations of every agent are written from now on: a memory and a row of it."""
        self.slots = slots

    def reset(self, seed: int, stage: float = 1.0, adviser: Any = None) -> None:
        """Begin an episode.

        Args:
            seed: of the environment.
            stage: progress of a curriculum, from 0 to 1.
            adviser: whose advice on the episode is asked for; None: nobody's.
        """
        raise NotImplementedError

    def views(self) -> Sequence[Mapping[str, Array]]:
        """What every agent sees."""
        raise NotImplementedError

    def observe(self, time: int) -> None:
        """Write what every agent sees."""
        for (memory, row), seen in zip(self.slots, self.views(), strict=True):
            memory.write(time, row, seen)

    def step(self, actions: Sequence[Any]) -> Stepped:
        """Carry out one action of every agent."""
        raise NotImplementedError

    def advice(self, agent: int) -> Any:
        """What the adviser would do for the agent with this number."""
        raise NotImplementedError("nobody teaches this")

    def outcome(self) -> float:
        """The objective of the ended episode, less being better; inf: it failed."""
        raise NotImplementedError

    def at_least(self) -> float:
        """What the outcome of the running episode will not fall below."""
        return 0.0

    def ended(self) -> Mapping[str, float]:
        """The ended episode in numbers, by the name of their chart; nan: not known."""
        raise NotImplementedError

    def document(self) -> tuple[Numbers, dict[str, Tensor]]:
        """What the running episode needs to go on: plain numbers, and arrays by name."""
        return {}, {}

    def restore(self, numbers: Numbers, arrays: Mapping[str, Tensor]) -> None:
        """Bring the episode that `reset` has just begun to where `document` was taken.

        Raises:
            InputError: the arrays are of another episode.
        """


def one_architecture(model: Any) -> Architecture:
    """`model`, which must describe a single policy.

    Raises:
        InputError: it describes something else.
    """
    if not isinstance(model, Architecture):
        fault = f"{type(model).__name__} describes no policy of a single agent"
        raise InputError(fault, field="model")
    return model


class ArrayMemory:
    """T x B observations of the agents of one module.

    Args:
        space: of what an agent sees: arrays by name.
        times: T.
        rows: B.
    """

    def __init__(self, space: spaces.Dict, times: int, rows: int) -> None:
        self.arrays: dict[str, Array] = {}
        for name, box in space.spaces.items():
            assert box.shape is not None
            self.arrays[name] = np.zeros((times, rows, *box.shape), box.dtype)
        self.rows = rows

    @property
    def masks(self) -> NDArray[np.int8] | None:
        """(T, B, A) which actions are allowed; None where all are."""
        return self.arrays.get("action_mask")

    def write(self, time: int, row: int, observation: Mapping[str, Array]) -> None:
        for name, array in self.arrays.items():
            array[time, row] = observation[name]

    def move(self, source: int, target: int) -> None:
        """Copy all observations of a time to another."""
        for array in self.arrays.values():
            array[target] = array[source]

    def at(self, time: int, rows: IntArray) -> dict[str, Tensor]:
        """(n, ...) observations of some rows at one time, as a policy takes them."""
        if len(rows) == self.rows:  # all, without a copy
            return {name: from_numpy(array[time]) for name, array in self.arrays.items()}
        return {name: from_numpy(array[time, rows]) for name, array in self.arrays.items()}

    def observations(self, times: int) -> dict[str, Array]:
        """(times x B, ...) those of the first times, without a copy."""
        return {
            name: array[:times].reshape(times * self.rows, *array.shape[2:])
            for name, array in self.arrays.items()
        }

    def labels(self, times: int) -> IntArray | None:
        """(times x B, K) classes that an auxiliary head is taught, -1: none; None: it is not."""
        return None


class Subject:
    """What is learned about.

    Attributes:
        agents: of a lane, in the order of its rewards and actions.
        charts: names of the numbers of ended episodes, `Lane.ended`.
        teacher: who is imitated; None: nobody can be.
        reference: whose outcomes those of an exam are divided by; None: the first exam's own.
        best: met in its lanes so far; None: there is none, or solutions are not kept.
    """

    agents: Sequence[str]
    charts: Sequence[str]
    teacher: Any = None
    reference: Any = None
    best: Solution | None = None

    def module_of(self, agent: str) -> str:
        """The module that decides for `agent`."""
        return agent

    def architectures(self, model: Any) -> dict[str, Architecture]:
        """The policy of every module, by its name.

        Raises:
            InputError: `model` is not what this subject needs.
        """
        return dict.fromkeys(map(self.module_of, self.agents), one_architecture(model))

    def spaces_of(self, agent: str) -> tuple[spaces.Dict, spaces.Space[Any]]:
        """Of its observations and of its actions."""
        raise NotImplementedError

    def memory(self, module: str, times: int, rows: int) -> ArrayMemory:
        """A memory for observations of agents that `module` decides for."""
        agent = next(agent for agent in self.agents if self.module_of(agent) == module)
        return ArrayMemory(self.spaces_of(agent)[0], times, rows)

    def lane(self, index: int) -> Lane:
        """An environment to train in, the one with this number of the run's."""
        raise NotImplementedError

    def exam_lane(self, number: int) -> Lane:
        """The environment of the exam's episode with this number."""
        raise NotImplementedError

    def document(self) -> Numbers:
        """What its lanes share, for a checkpoint."""
        return {}

    def restore(self, numbers: Numbers) -> None:
        """Go on from what `document` gave."""


class KeepsBest(Subject):
    """The fastest plan met in training is kept."""

    def offer(self, found: Solution) -> None:
        """Keep `found` if it is faster than all before."""
        if self.best is None or found.objective < self.best.objective:
            self.best = found

    def document(self) -> Numbers:
        best = self.best
        return {"best": None if best is None else [best.objective, best.lists()]}

    def restore(self, numbers: Numbers) -> None:
        best = numbers["best"]
        self.best = None if best is None else Solution.of(*best)
