"""What an environment needs to be trained on: two small classes that know nothing of Ray.

An `RLTask` makes environments and says what agents see and which module decides for them. A
`RunnerEnv` is one of those environments as the runner steps it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor, from_numpy

from envs.arrays import IntArray
from envs.errors import InputError
from models.architecture import Architecture

if TYPE_CHECKING:
    from models.export.checkpoint import ModelCard

Array = NDArray[Any]
Numbers = dict[str, Any]  # what JSON takes
Greedy = Callable[[NDArray[np.float32]], IntArray]  # (n,) actions, of (n, A) logits


@dataclass(frozen=True, eq=False)
class Solution:
    """The best decisions met in training."""

    objective: float  # less is better
    decisions: Mapping[str, Array]  # by name


def better(first: Solution | None, second: Solution | None) -> Solution | None:
    """The one whose objective is less; of equal ones the first."""
    if first is None or second is None:
        return first or second
    return second if second.objective < first.objective else first


def saved(found: Solution | None) -> list[Any] | None:
    """What was found, or that nothing was, as JSON takes it."""
    if found is None:
        return None
    return [found.objective, {name: x.tolist() for name, x in found.decisions.items()}]


def restored(document: Sequence[Any] | None) -> Solution | None:
    """What `saved` was given."""
    if document is None:
        return None
    objective, lists = document
    return Solution(objective, {name: np.array(values) for name, values in lists.items()})


class Step(NamedTuple):
    """What one joint action of an environment's agents led to."""

    rewards: Sequence[float]  # of every agent
    elapsed: float  # time that passed, in the units of discounting
    terminated: bool
    truncated: bool


class ObservationBuffer:
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

    def labels(self, times: int) -> IntArray | None:
        """(times, B, K) classes that an auxiliary head is to predict, -1: unknown; None: none."""
        return None


class RunnerEnv:
    """One environment of the many that a runner steps together.

    `state` and `load` are for environments whose episodes go on in the next iteration.
    """

    rows: Sequence[tuple[Any, int]] = ()  # of every agent: its buffer, and the row of it

    @property
    def time(self) -> float:
        """Of the running episode, in the units of discounting."""
        return 0.0

    def attach(self, rows: Sequence[tuple[Any, int]]) -> None:
        """Where observations of every agent are written from now on."""
        self.rows = rows

    def reset(self, seed: int, progress: float = 1.0, expert: Any = None) -> None:
        """Begin an episode.

        Args:
            seed: of the environment.
            progress: of a curriculum, from 0 to 1.
            expert: the policy whose actions are asked for; None: none.
        """
        raise NotImplementedError

    def observations(self) -> Sequence[Mapping[str, Array]]:
        """What every agent sees."""
        raise NotImplementedError

    def observe(self, time: int) -> None:
        """Write what every agent sees."""
        for (buffer, row), seen in zip(self.rows, self.observations(), strict=True):
            buffer.write(time, row, seen)

    def step(self, actions: Sequence[Any]) -> Step:
        """Carry out one action of every agent."""
        raise NotImplementedError

    def expert_action(self, agent: int) -> Any:
        """What the expert would do for the agent with this number."""
        raise NotImplementedError("there is no expert policy")

    def objective(self) -> float:
        """Of the ended episode, less being better; inf: it failed."""
        raise NotImplementedError

    def lower_bound(self) -> float:
        """What the objective of the running episode will not fall below."""
        return 0.0

    def metrics(self) -> Mapping[str, float]:
        """Of the ended episode, by `RLTask.metrics`; nan: not known."""
        raise NotImplementedError

    def state(self) -> tuple[Numbers, dict[str, Tensor]]:
        """What the running episode needs to go on: plain numbers, and arrays by name."""
        return {}, {}

    def load(self, numbers: Numbers, arrays: Mapping[str, Tensor]) -> None:
        """Bring the episode that `reset` has just begun to where `state` was taken.

        Raises:
            InputError: the arrays are of another episode.
        """


class RLTask:
    """What is trained by reinforcement learning.

    Attributes:
        agents: of an environment, in the order of its rewards and actions.
        metrics: names of the numbers of ended episodes.
        teacher: the expert policy that is imitated; None: none can be.
        reference: the expert policy whose objectives those of evaluations are divided by; None:
            the first evaluation's own.
        best: met in its environments so far; None: there is none, or solutions are not kept.
        title: of what is exported.
        measure: what evaluations compare, in the plural.
        unit: of an objective, in pictures.
    """

    agents: Sequence[str]
    metrics: Sequence[str]
    teacher: Any = None
    reference: Any = None
    best: Solution | None = None
    title = "A policy"
    measure = "objectives"
    unit = "objective"

    def module_of(self, agent: str) -> str:
        """The module that decides for `agent`."""
        return agent

    def architectures(self, model: Any) -> dict[str, Architecture]:
        """The policy of every module, by its name.

        Raises:
            InputError: `model` is not what this task needs.
        """
        return dict.fromkeys(map(self.module_of, self.agents), one_architecture(model))

    def spaces_of(self, agent: str) -> tuple[spaces.Dict, spaces.Space[Any]]:
        """Of its observations and of its actions."""
        raise NotImplementedError

    def buffer(self, module: str, times: int, rows: int) -> ObservationBuffer:
        """For observations of agents that `module` decides for."""
        agent = next(agent for agent in self.agents if self.module_of(agent) == module)
        return ObservationBuffer(self.spaces_of(agent)[0], times, rows)

    def make_env(self, index: int) -> RunnerEnv:
        """The training environment with this number."""
        raise NotImplementedError

    def make_evaluation_env(self, number: int) -> RunnerEnv:
        """The environment of the evaluation's episode with this number."""
        raise NotImplementedError

    def news(self, row: Mapping[str, float]) -> str:
        """An iteration in a few words, by its metrics."""
        figures = (f"{name} {row[f'charts/{name}']:.4g}" for name in self.metrics)
        return f"{', '.join(figures)}, {row['charts/SPS']:,.0f} steps/s"

    def greedy(self, logits: NDArray[np.float32]) -> IntArray:
        """(n,) single choices that evaluations take, of (n, A) logits."""
        chosen: IntArray = logits.argmax(axis=1)
        return chosen

    def export(self, policies: Mapping[str, Any], folder: Path, card: ModelCard) -> None:
        """Write the policies, by module; of several each in a folder with its name."""
        from models.export.policy import export_policy

        for name, policy in policies.items():
            place = folder if len(policies) == 1 else folder / name
            agent = next(agent for agent in self.agents if self.module_of(agent) == name)
            export_policy(policy, *self.spaces_of(agent), place, card)

    def keep(self, found: Solution) -> None:
        """Keep `found` if it is better than all before."""
        self.best = better(self.best, found)

    def state(self) -> Numbers:
        """What its environments share, for a checkpoint."""
        return {"best": saved(self.best)}

    def load(self, numbers: Numbers) -> None:
        """Go on from what `state` gave."""
        self.best = restored(numbers["best"])


def one_architecture(model: Any) -> Architecture:
    """`model`, which must describe a single policy.

    Raises:
        InputError: it describes something else.
    """
    if not isinstance(model, Architecture):
        fault = f"{type(model).__name__} describes no policy of a single agent"
        raise InputError(fault, field="model")
    return model
