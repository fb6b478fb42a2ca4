"""Malleable jobs as environments: which job gets a worker more, slot by slot."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

from envs.arrays import FloatArray, IntArray
from envs.bounds import Count, bounded
from envs.frame import new_frame, pixels
from envs.parallel_env import Begun, DecisionsEnv, OneAgentEnv, Terms
from envs.reward import WeightedTerms
from envs.spaces import begun, flags, padding
from experiments.papers.malleable_jobs.generated import random_problem
from experiments.papers.malleable_jobs.planners import BASELINES
from experiments.papers.malleable_jobs.problem import (
    DONE,
    NIC,
    RESOURCES,
    AllocationPlan,
    AllocationProblem,
    MalleableJob,
    placed,
)
from experiments.papers.malleable_jobs.slots import Slot

CHOSEN, END = 0, 1  # columns of a candidate: the rule takes it; it ends the slot
CANDIDATE_WIDTH, CLUSTER_WIDTH = 23, 9
AllocationGraph = dict[str, NDArray[Any]]
LOW, HIGH = -6.0, 8.0


class Level(NamedTuple):
    """A size of a job, as it is on an empty cluster; the first is nothing."""

    workers: int
    servers: int
    pace: float  # progress in a slot
    demand: FloatArray  # (R,) of all machines together
    share: float  # dominant, of the cluster


class AllocationEpisode:
    """Jobs grow by *units*, from one of their levels to the next, and are placed anew as they do.

    Levels are `least_workers`, twice, four times as many, ... and `most_workers`, of these only
    what an empty cluster holds, each with a server for every worker, every other, ..., or one:
    with which it is fastest for its dominant share there.

    Args:
        problem: the jobs; only those that have arrived are looked at.
        queue: (J,) whose they are.
    """

    def __init__(self, problem: AllocationProblem, queue: IntArray) -> None:
        jobs = len(problem.jobs)
        self.problem, self.queue = problem, queue
        self.plan = AllocationPlan.empty(problem)
        self.levels = levels_of(problem)
        self.worth = sum(job.utility.at(1) for job in problem.jobs)  # of all, done at once
        self.unit = self.worth / max(jobs, 1)
        self.done = np.zeros(jobs)
        # of the next units: the rule's score, whether a job can take it, features, what it takes
        self.score, self.open = np.zeros(jobs), np.zeros(jobs, np.bool_)
        self.rows = np.zeros((jobs, CANDIDATE_WIDTH), np.float32)
        self.takes = np.zeros((jobs, len(RESOURCES)))
        self.spare: FloatArray  # (R,)
        self.slot = -1
        self._next()

    @property
    def over(self) -> bool:
        """Whether all slots have passed."""
        return self.slot >= self.problem.slots

    @property
    def finished(self) -> int:
        """Jobs that are done."""
        return int((self.done >= DONE).sum())

    def candidates(self, queue: int, most: int) -> IntArray:
        """Jobs of a queue that can take a unit, the best first by the rule; at most so many."""
        jobs = np.flatnonzero(self.open & (self.queue == queue))
        return jobs[np.argsort(-self.score[jobs], kind="stable")][:most]

    def grow(self, j: int) -> None:
        """Give a job its next unit; where there is no room, it gets none in this slot."""
        level = self.level.get(j, 0) + 1
        self.open[j] = False
        if self.filling.give(j, *self.levels[j][level][:2]):
            self.level[j] = level
            self.spare = self.filling.left.sum(axis=0)
            self._show(j)
            self.open &= (self.takes[:, :NIC] <= self.spare[:NIC] + 1e-9).all(axis=1)

    def end(self) -> float:
        """Let the slot pass, and those after it in which there is nothing to decide; the worth."""
        worth = 0.0
        self.plan.given[self.slot] = self.filling.given
        for j in self.level:
            job, before = self.problem.jobs[j], float(self.done[j])
            after = self.done[j] = min(before + float(self.filling.made[j]), 1.0)
            if job.utility.partial:
                worth += job.utility.of(after) - job.utility.of(before)
            elif after >= DONE:
                worth += job.utility.at(self.slot - job.arrival + 1)
        self._next()
        return worth

    def _next(self) -> None:
        """The next slot in which there is a job to grow, or the end."""
        self.level: dict[int, int] = {}
        self.spare = self.problem.total
        self.open[:] = False
        while not self.open.any() and not self.over:
            self.slot += 1
            for j in self.problem.active(self.slot, self.done):
                self._show(j)
        self.filling = Slot(self.problem, self.slot, self.done)
        live = [(self.levels[j][1], 1.0 - self.done[j]) for j in np.flatnonzero(self.open)]
        asked = sum(level.share for level, _ in live)
        work = sum(level.share * left / max(level.pace, 1e-9) for level, left in live)
        self._crowd = [math.log1p(len(live)), math.log1p(asked), math.log1p(work)]

    def _show(self, j: int) -> None:
        """Open a job for its next unit, if it has one and can still come to be worth something."""
        job, levels, at = self.problem.jobs[j], self.levels[j], self.level.get(j, 0)
        if at + 1 == len(levels):
            return
        workers, _, pace, held, share = levels[at]
        count, _, faster, demand, larger = levels[at + 1]
        left, rest = float(1.0 - self.done[j]), self.problem.windows[j].stop - self.slot
        most, soonest = self._reached(job, left, levels[-1].pace, rest)
        if most <= 0.0:
            return
        worth, slots = self._reached(job, left, pace, rest)
        more, sooner = self._reached(job, left, faster, rest)
        lost = most - self._reached(job, left, levels[-1].pace, rest, 1)[0]
        adds = larger - share + 1e-9
        if job.utility.partial:
            low, high = (job.utility.of(min(1.0 - left + p, 1.0)) for p in (pace, faster))
            score = (high - low) / adds
        else:
            score = most * (min(faster, left) - min(pace, left)) / left / adds
        unit, log = self.unit, math.log1p
        self.rows[j] = (
            0.0, 0.0, _log(score / unit), left, log(workers), log(count), share, larger,
            log(slots), log(sooner), log(soonest), log(rest), sooner / rest,
            worth / unit, more / unit, most / unit,
            _log(more / (larger * sooner) / unit), _log((more - worth) / adds / unit),
            faster * levels[1].workers / (count * levels[1].pace), log(self.slot - job.arrival),
            log(adds * sooner), float(job.utility.partial), lost / unit,
        )  # fmt: skip
        self.score[j], self.takes[j], self.open[j] = score, demand - held, True

    def _reached(
        self, job: MalleableJob, left: float, pace: float, rest: int, waits: int = 0
    ) -> tuple[float, float]:
        """What a job adds to its worth at a pace, after waiting; and for how many slots it runs."""
        if pace <= 0.0:
            return 0.0, float(rest)
        slots, rest = min(left / pace, float(rest)), rest - waits
        if job.utility.partial:
            done = 1.0 - left
            return job.utility.of(min(done + pace * rest, 1.0)) - job.utility.of(done), slots
        ends = math.ceil((left - (1.0 - DONE)) / pace)
        worth = job.utility.at(self.slot + waits - job.arrival + ends) if ends <= rest else 0.0
        return worth, max(slots, 1.0)

    def cluster(self) -> list[float]:
        """What is free, how far the time is, and how much the jobs that are here would take."""
        gone = min(self.slot / self.problem.slots, 1.0)
        return [1.0, *(self.spare / self.problem.total).tolist(), gone, *self._crowd]


def _log(value: float) -> float:
    return math.log10(max(value, 1e-6))


@lru_cache(maxsize=4)
def levels_of(problem: AllocationProblem) -> list[list[Level]]:
    """Those of each job behind none at all, for alike episodes once."""
    every = []
    for job in problem.jobs:
        found, count = [Level(0, 0, 0.0, np.zeros(len(RESOURCES)), 0.0)], 0
        while count < job.most_workers:
            count = min(2 * count or job.least_workers, job.most_workers)
            most, options = job.servers_for(count), list[Level]()
            for servers in (most >> n for n in range(max(most.bit_length(), 1))):
                at = placed(job, count, servers, problem.capacity)
                if at is not None:
                    demand = job.demand(*at).sum(axis=0)
                    share = max(float((demand / problem.total).max()), 1e-9)
                    pace = problem.progress(job, *at)
                    options.append(Level(count, servers, pace, demand, share))
            if not options:
                break
            found.append(max(options, key=lambda one: one.pace / one.share))
        every.append(found)
    return every


@bounded
class AllocationObservation:
    """The first K candidates of a queue by the rule, and the end of the slot as the last row.

    | key | dtype, shape | padding |
    |---|---|---|
    | pair | float32 (K + 1, 23) | 0 |
    | node | float32 (1, 9), the cluster | none |
    | edge | float32 (K + 1, 1, 4): of each resource, what the unit takes / what is free | 0 |
    | action_mask | int8 (K + 1,) | 0 |

    *Count* of n is ln(1 + n); *worth* is in means of what the problem's jobs are worth at once;
    *log* is to the base of 10. Now, next and best are the level that a job has in this slot, the
    one it would have, and its highest, held from now on; all is cut off at -6 and 8.

    | pair | |
    |---|---|
    | 0, 1 | 1: what the rule does; 1: ends the slot |
    | 2, 3 | log of the rule's score, fraction that is left |
    | 4, 5; 6, 7 | count of workers now, next; dominant share of the cluster now, next |
    | 8, 9, 10, 11 | count of slots until the end: now, next, best; until the deadline |
    | 12 | slots until the end, next / until the deadline |
    | 13, 14, 15 | worth that is reached: now, next, best |
    | 16, 17 | log of worth next / (share x slots); of the worth / the share that the unit adds |
    | 18, 19 | speed of a worker, next / at the first level; count of slots since the arrival |
    | 20, 21, 22 | count of share x slots of the unit; 1: part work counts; worth lost by a slot |

    `node`: 1; free / all of each resource; time / all slots; count of the jobs that are here, of
    the shares that they ask for at least, of their shares x slots.
    """

    def __init__(
        self,
        candidates: Count = 16,  # jobs that are shown and can be chosen
    ) -> None:
        self.candidates, rows = candidates, candidates + 1
        shapes = {
            "pair": (rows, CANDIDATE_WIDTH), "node": (1, CLUSTER_WIDTH),
            "edge": (rows, 1, len(RESOURCES)),
        }  # fmt: skip
        boxes = {name: spaces.Box(LOW, HIGH, shape, np.float32) for name, shape in shapes.items()}
        self.space = spaces.Dict({**boxes, "action_mask": flags(rows)})

    def of(
        self, episode: AllocationEpisode, queue: int, ended: bool = False
    ) -> tuple[AllocationGraph, IntArray]:
        """The observation, and the jobs of its rows."""
        jobs = episode.candidates(queue, 0 if ended else self.candidates)
        seen, count = padding(self.space), len(jobs)
        seen["pair"][:count] = episode.rows[jobs].clip(LOW, HIGH)
        taken = episode.takes[jobs] / np.maximum(episode.spare, 1e-9)
        seen["edge"][:count, 0] = taken.clip(LOW, HIGH)
        seen["action_mask"][[*range(count), -1]] = 1
        takes = count > 0 and episode.score[jobs[0]] > 0.0
        seen["pair"][-1, END], seen["pair"][0 if takes else -1, CHOSEN] = 1.0, 1.0
        seen["node"][0] = np.clip(episode.cluster(), LOW, HIGH)
        return seen, jobs


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
    `AllocationParallel-v0`, a PettingZoo `ParallelEnv` with Q agents `queue_0` to `queue_{Q-1}`, to
    which jobs are dealt at random. All act in every step, one after another, queue t mod Q first in
    slot t: an agent gives one of its jobs its next unit, or ends the slot, after which it can do
    nothing else in it. When all have ended, the slot passes. Where the workers go is one rule
    (`problem.placed`), which places a job anew as it grows. Slots in which nothing can be given
    pass by themselves.

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
    `play` for the plan. Tests prove that actions reach the optimum of a small problem, by trying
    all plans.

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
            jobs, action = self.shown[number], chosen[number]
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
        seen, self.shown = {}, list[IntArray]()  # the jobs of the rows that each queue sees
        for number, agent in enumerate(self.possible_agents):
            seen[agent], jobs = self.observation.of(self.episode, number, self.ended[number])
            self.shown.append(jobs)
        self._masks = [graph["action_mask"] for graph in seen.values()]
        return seen

    def simple_rules(self) -> dict[str, float]:
        """What the usual online rules collect in the problem of this episode, by name."""
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
        title = f"workers, at most {given.max():.0f}; utility {self.utility:.4g}"
        axes.set(xlabel="slot", ylabel="job", title=title)
        return pixels(figure)


class AllocationEnv(OneAgentEnv[AllocationGraph]):
    """Give workers to malleable jobs, slot by slot, one decision after another.

    `meshwright/Allocation-v0` is `AllocationParallelEnv` with one queue: its docstring is the
    specification of description, reward, episode end and information. Actions are
    `Discrete(K + 1)`: give row k of the observation (`AllocationObservation`) its next unit; K ends
    the slot. Arguments are those of `AllocationParallelEnv` but for `queues`; `self.np_random` is
    the only source of randomness.

    ## Guarantees
    At least one action is always allowed; equal seeds give equal episodes; tests prove that
    actions reach the optimum of a small problem, by trying all plans.

    ## Source
    As of `AllocationParallelEnv`.

    ## Version History
    * v0: first version.
    """

    parallel: AllocationParallelEnv
    metadata: dict[str, Any] = {"render_modes": ["rgb_array"], "render_fps": 4}  # noqa: RUF012

    def __init__(
        self,
        generator: Problems = default_generator,  # draws the problem of each episode
        *,
        # what is seen; null: as the problem needs
        observation: AllocationObservation = AllocationObservation(),
        weights: Mapping[str, float] = TERMS,  # weight of each term of the reward
        render_mode: str | None = None,  # rgb_array: pictures are drawn; null: none
    ) -> None:
        super().__init__(
            AllocationParallelEnv(
                generator,
                queues=1,
                observation=observation,
                weights=weights,
                render_mode=render_mode,
            )
        )
