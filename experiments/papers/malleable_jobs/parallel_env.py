"""`AllocationParallel-v0`: several queues that give workers to their own jobs, on one cluster."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envs.arrays import IntArray
from envs.bounds import Count, bounded
from envs.frame import new_frame, pixels
from envs.parallel_env import Begun, DecisionsEnv, Terms
from envs.reward import WeightedTerms
from envs.spaces import begun
from experiments.papers.malleable_jobs.episode import AllocationEpisode
from experiments.papers.malleable_jobs.generated import random_problem
from experiments.papers.malleable_jobs.observation import AllocationGraph, AllocationObservation
from experiments.papers.malleable_jobs.problem import AllocationProblem

Problems = Callable[[np.random.Generator], AllocationProblem]


# Every term and its weight.
TERMS: Mapping[str, float] = MappingProxyType({"utility": 1.0, "not_allowed": 1.0})


def default_generator(rng: np.random.Generator) -> AllocationProblem:
    """Twelve random jobs on three machines, in twelve slots."""
    return random_problem(rng, jobs=12, machines=3, slots=12)


@bounded
class AllocationParallelEnv(DecisionsEnv[AllocationGraph]):
    """Malleable jobs of several queues on one cluster, slot by slot; or of one queue.

    ## Description
    A PettingZoo `ParallelEnv` with Q agents `queue_0` to `queue_{Q-1}`, to which jobs are dealt at
    random. All act in every step, one after another, queue t mod Q first in slot t: an agent gives
    one of its jobs its next unit, or ends the slot, after which it can do nothing else in it. When
    all have ended, the slot passes. Where the workers go is one rule (`placing.placed`), which places
    a job anew as it grows. Slots in which nothing can be given pass by themselves.

    ## Observation Space
    `Dict`, for each agent that of `AllocationObservation`, about its own jobs. The `action_mask`,
    also in `info`, allows every job shown, and always the end.

    ## Action Space
    `Discrete(K + 1)`: row k of the observation, K being the end. A unit that does not find the room
    that it seemed to have, or that an agent before took, changes nothing; the job gets no more in
    this slot.

    ## Reward
    For all agents the same: the sum of the named, weighted terms; each is in `info` as
    `reward_<term>`. `utility` is what jobs become worth in the slot that passes, so that an episode
    collects the utility of its plan; `not_allowed` is -1 for an action outside the mask.

    ## Starting State
    A new problem from the generator, in the first slot in which something can be given.

    ## Episode End
    `terminated` when all slots have passed.

    ## Information
    Flat: `slot`, `slots`, `jobs`, `finished`, `utility` (so far), `action_mask`, and after a step
    `reward_<term>`.

    ## Arguments
    * `generator`: makes the problem of each episode; default: `default_generator`.
    * `queues`: Q.
    * `observation`: the builder.
    * `weights`: of the terms of the reward.
    * `render_mode`: `"rgb_array"` draws the workers of every job in every slot.

    ## Guarantees
    At least one action is always allowed; equal seeds give equal episodes; the utility is that of
    `play` for the plan. The optimum of `toy_problem` is proved by trying all plans.

    ## Source
    Own environment; decisions one after another in a slot are those of DL2 (Peng et al., "DL2: a
    deep learning-driven scheduler for deep learning clusters", TPDS 2021).

    ## Version History
    * v0: first version.
    """

    metadata: dict[str, Any] = {  # noqa: RUF012
        "name": "meshwright/AllocationParallel-v0",
        "render_modes": ["rgb_array"],
        "render_fps": 4,
        "is_parallelizable": True,
    }

    def __init__(
        self,
        generator: Problems = default_generator,
        *,
        queues: Count = 2,  # agents, each with its own jobs
        # what is seen; null: as the problem needs
        observation: AllocationObservation = AllocationObservation(),
        weights: Mapping[str, float] = TERMS,  # weight of each term of the reward
        render_mode: str | None = None,  # rgb_array: pictures are drawn; null: none
    ) -> None:
        self.generator, self.queues, self.render_mode = generator, queues, render_mode
        self.observation, self.reward = observation, WeightedTerms(weights, TERMS)
        self.possible_agents = [f"queue_{number}" for number in range(queues)]
        self.agents: list[str] = []
        self.observation_spaces = dict.fromkeys(self.possible_agents, self.observation.space)
        self.action_spaces = {
            agent: spaces.Discrete(self.observation.candidates + 1)
            for agent in self.possible_agents
        }
        self._episode: AllocationEpisode | None = None

    @property
    def episode(self) -> AllocationEpisode:
        """The slots so far."""
        return begun(self._episode)

    def begin(self, rng: np.random.Generator) -> Begun[AllocationGraph]:
        """`reset` with a source of randomness of the caller's."""
        problem = self.generator(rng)
        queue = rng.permutation(len(problem.jobs)) % self.queues
        self._episode = AllocationEpisode(problem, queue)
        self.agents = self.possible_agents.copy()
        self.ended, self.utility = [False] * self.queues, 0.0
        return self.observe(), self.infos([{}] * self.queues)

    def play(self, chosen: Sequence[int]) -> tuple[Sequence[Terms], bool, bool]:
        """Give a unit to a job of every queue, or end the slot."""
        episode, wrong, worth = self.episode, 0, 0.0
        self.require_running()
        for turn in range(self.queues):
            number = (turn + episode.slot) % self.queues
            jobs, action = self._jobs[number], chosen[number]
            if action == self.observation.candidates:
                self.ended[number] = True
            elif action >= len(jobs):
                wrong += 1
            elif episode.open[jobs[action]]:
                episode.grow(int(jobs[action]))
        if all(self.ended):
            worth, self.ended = episode.end(), [False] * self.queues
            self.utility += worth
        if episode.over:
            self.agents = []
        terms = self.reward.weighted({"utility": worth, "not_allowed": -float(wrong)})
        return [terms] * self.queues, episode.over, False

    def observe(self) -> dict[str, AllocationGraph]:
        """What every queue sees."""
        seen, self._jobs = {}, list[IntArray]()
        for number, agent in enumerate(self.possible_agents):
            seen[agent], jobs = self.observation.of(self.episode, number, self.ended[number])
            self._jobs.append(jobs)
        self._masks = [graph["action_mask"] for graph in seen.values()]
        return seen

    def shown(self, number: int) -> IntArray:
        """The jobs of the rows that this queue has observed last."""
        return self._jobs[number]

    def simple_rules(self) -> dict[str, float]:
        """What the usual online rules collect in the problem of this episode, by name."""
        from experiments.papers.malleable_jobs.baselines import BASELINES

        problem = self.episode.problem
        return {name: make().solve(problem).value for name, make in BASELINES.items()}

    def facts(self) -> dict[str, Any]:
        """The slots, and what has come of them."""
        episode = self.episode
        return {
            "slot": episode.slot,
            "slots": episode.problem.slots,
            "jobs": len(episode.done),
            "finished": episode.finished,
            "utility": self.utility,
        }

    def render(self) -> NDArray[np.uint8] | None:
        """(320, 640, 3) the workers of every job in every slot; None without a render mode."""
        if self.render_mode != "rgb_array":
            return None
        figure = new_frame()
        axes = figure.add_subplot()
        given = self.episode.plan.workers.sum(axis=2).T.astype(np.float64)
        axes.imshow(given, aspect="auto", interpolation="nearest", cmap="viridis")
        axes.axvline(self.episode.slot - 0.5, color="white")
        axes.set_xlabel("slot")
        axes.set_ylabel("job")
        axes.set_title(f"workers, at most {given.max():.0f}; utility {self.utility:.4g}")
        return pixels(figure)
