"""The schedulers of a cluster as what is learned about, and their environments in lock step."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, cast, runtime_checkable

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from agents.rllib.cluster.memory import NO_JOB, STATE, ObservationMemory
from agents.rllib.subject import ArrayMemory, Lane, Numbers, Stepped, Subject
from envs.cluster.environment.actions import FORWARDED, PREEMPTED
from envs.cluster.environment.episode import SchedulingEpisode
from envs.cluster.environment.observation import Advice, Adviser
from envs.cluster.environment.parallel_env import ClusterParallelEnv
from envs.cluster.simulation.cluster_state import NEVER, NONE, RUNNING
from envs.compilation import compiled
from envs.errors import InputError

CLUSTER = "cluster_features"
LOOKS_EVERY = 64  # steps
SHARED = "scheduler"  # the module of all


@runtime_checkable
class Staged(Protocol):
    """A generator of episodes with a curriculum."""

    progress: float  # of training, from 0 to 1


class SchedulingLane(Lane):
    """Steps the `SchedulingEpisode` of an environment as `ClusterParallelEnv.step` does.

    The environment makes episodes and says what they are worth; observations go straight to where
    a batch is taken from, and neither `info` nor dictionaries of agents are made. Time is counted
    in mean durations of the episode's jobs, and so are rewards: traces of short and of long jobs
    weigh alike.

    Args:
        env: the environment.
        per_gpu: whether rewards are divided by the GPUs of the episode's cluster, so that clusters
            of all sizes weigh alike.
    """

    def __init__(self, env: ClusterParallelEnv, per_gpu: bool) -> None:
        self.env, self.per_gpu = env, per_gpu
        self._slots: list[tuple[ObservationMemory, int]] = []
        self._masks: list[NDArray[np.int8]] = []  # of what was last observed
        self._adviser: Adviser | None = None
        self._advice: Advice | None = None
        self._unit_s = self._share = 1.0  # a step's rewards are divided by
        self._bound_s = 0.0

    @property
    def episode(self) -> SchedulingEpisode:
        return self.env.episode

    @property
    def now(self) -> float:
        """Since the episode's second 0."""
        return self.episode.simulator.now / self._unit_s

    def attach(self, slots: Sequence[tuple[ArrayMemory, int]]) -> None:
        self._slots = [(cast("ObservationMemory", memory), row) for memory, row in slots]
        rows: dict[ObservationMemory, list[int]] = {}  # of each memory they stand side by side
        for memory, row in self._slots:
            rows.setdefault(memory, []).append(row)
        self._blocks = [(memory, slice(own[0], own[-1] + 1)) for memory, own in rows.items()]

    def reset(self, seed: int, stage: float = 1.0, adviser: Adviser | None = None) -> None:
        """Begin an episode; those of one seed have the same jobs."""
        if isinstance(self.env.generator, Staged):
            self.env.generator.progress = stage
        self.env.reset(seed=seed)
        simulator = self.episode.simulator
        self._bound_s = 0.0
        self._adviser = adviser
        self._begin_advice()
        self._unit_s = float(simulator.trace.duration_s.mean())
        self._share = self._unit_s * (simulator.cluster.num_gpus if self.per_gpu else 1)

    def observe(self, time: int) -> None:
        episode = self.episode
        self._masks = []
        for memory, rows in self._blocks:
            memory.clear(time, rows)
        for scheduler, (memory, row) in enumerate(self._slots):
            graph, mask = memory.row(time, row)
            episode.fill(scheduler, graph, mask)
            remaining_seconds(episode, scheduler, memory.remaining[time, row])
            self._masks.append(mask)
        if self.env.state_in_observation:
            state = episode.shared_state(
                [{CLUSTER: memory.arrays[CLUSTER][time, row]} for memory, row in self._slots]
            )
            for memory, row in self._slots:
                memory.arrays[STATE][time, row] = state

    def step(self, actions: Sequence[Any]) -> Stepped:
        before = self.now
        done = self.env.carry_out(actions, self._masks)
        rewards = [0.0] * len(actions)
        worth = {PREEMPTED, FORWARDED}.intersection(done.outcomes)
        if done.waited or worth or not all(done.allowed):
            given = self.env.rewards(done)
            rewards = [float(sum(terms.values())) / self._share for terms in given]
        return Stepped(rewards, self.now - before, done.terminated, done.truncated)

    def advice(self, agent: int) -> int:
        assert self._advice is not None
        return self._advice.action(self.episode, agent)

    def outcome(self) -> float:
        """Mean JCT in seconds; inf: jobs were left over."""
        schedule = self.episode.simulator.schedule()
        return float(schedule.jct.mean()) if schedule.finished.all() else float("inf")

    def at_least(self) -> float:
        """Below which the mean JCT will not fall, looked up now and then."""
        if self.env.decisions % LOOKS_EVERY == 0:
            simulator = self.episode.simulator
            jobs = simulator.state.jobs
            until = np.where(jobs["finish"] == NEVER, simulator.now, jobs["finish"])
            self._bound_s = float(np.maximum(until - jobs["submit"], 0.0).mean())
        return self._bound_s

    def ended(self) -> Mapping[str, float]:
        jct = self.episode.simulator.schedule().jct
        return {
            "mean_jct_s": float(jct.mean()) if len(jct) else float("nan"),
            "finished_share": len(jct) / len(self.episode.instance.trace),
        }

    def document(self) -> tuple[Numbers, dict[str, Tensor]]:
        return {"decisions": self.env.decisions}, snapshot(self.episode)

    def restore(self, numbers: Numbers, arrays: Mapping[str, Tensor]) -> None:
        restored(self.episode, arrays)
        self.env.decisions = int(numbers["decisions"])
        self._begin_advice()

    def _begin_advice(self) -> None:
        self._advice = None if self._adviser is None else self._adviser.begin(self.episode)


def remaining_seconds(episode: SchedulingEpisode, scheduler: int, out: NDArray[np.float32]) -> None:
    """Write the seconds of work left, on the reference GPU and alone, of the jobs shown.

    Args:
        episode: whose `scheduler` has just been observed.
        scheduler: its number.
        out: (W + M,) the window first, then the running jobs; `NO_JOB` where there is none.
    """
    state, book = episode.simulator.state, episode.book
    now = float(state.clock[0]["now"])
    _fill(state.jobs, now, book.window[scheduler], book.shown[scheduler], out)


@compiled
def _fill(
    jobs: NDArray[np.void],
    now: float,
    window: NDArray[np.int32],
    shown: NDArray[np.int32],
    out: NDArray[np.float32],
) -> None:
    out[:] = NO_JOB
    for row in range(len(out)):
        job = window[row] if row < len(window) else shown[row - len(window)]
        if job == NONE:
            continue
        record = jobs[job]
        left = record.remaining
        progressing = max(record.settled, record.ready)
        if record.status == RUNNING and now > progressing:
            left = max(left - (now - progressing) * record.rate, 0.0)
        out[row] = left


def snapshot(episode: SchedulingEpisode) -> dict[str, Tensor]:
    """Every array of the simulator's state and of what schedulers know, as (n,) uint8."""
    return {
        name: torch.from_numpy(np.frombuffer(array.tobytes(), np.uint8).copy())
        for name, array in _arrays(episode)
    }


def restored(episode: SchedulingEpisode, arrays: Mapping[str, Tensor]) -> None:
    """Bring a fresh episode of the same instance to the state of a snapshot.

    Advice begins anew from there: what it has gathered of jobs that finished it gathers again, by
    their number and not in the order in which they finished.

    Raises:
        InputError: the snapshot is of another instance.
    """
    for name, array in _arrays(episode):
        if name not in arrays or arrays[name].numel() != array.nbytes:
            raise InputError("is not of this run's episode", record=name, field="episodes")
        saved = np.frombuffer(arrays[name].numpy().tobytes(), array.dtype)
        array[...] = saved.reshape(array.shape)
    adviser = episode.observation.adviser
    if adviser is not None:
        episode.advice = adviser.begin(episode)


def _arrays(episode: SchedulingEpisode) -> Iterator[tuple[str, NDArray[Any]]]:
    for group, record in (("state", episode.simulator.state), ("book", episode.book)):
        for field, value in record._asdict().items():
            yield f"{group}.{field}", value


class Schedulers(Subject):
    """Its agents are the schedulers of a `ClusterParallelEnv`.

    Args:
        make: makes an environment to train in.
        make_exam: makes one with the same spaces to be examined in, by the number of the window;
            episode k of an exam is that of `reset(seed=k)`.
        parameters: whether schedulers share one policy, or each has its own.
        per_gpu: whether rewards are divided by the GPUs of the cluster.
        teacher: who is imitated; None: nobody can be.
        reference: whose mean JCTs those of the exams are divided by.
    """

    charts: Sequence[str] = ("mean_jct_s", "finished_share")

    def __init__(
        self,
        make: Callable[[], ClusterParallelEnv],
        make_exam: Callable[[int], ClusterParallelEnv],
        *,
        parameters: Literal["shared", "separate"],
        per_gpu: bool,
        teacher: Adviser | None,
        reference: Adviser,
    ) -> None:
        self.make, self.make_exam = make, make_exam
        self.parameters, self.per_gpu = parameters, per_gpu
        self.teacher, self.reference = teacher, reference
        self.env = make()  # asked for its spaces alone
        self.agents: Sequence[str] = self.env.possible_agents

    def module_of(self, agent: str) -> str:
        return SHARED if self.parameters == "shared" else agent

    def spaces_of(self, agent: str) -> tuple[spaces.Dict, spaces.Space[Any]]:
        return self.env.observation_space(agent), self.env.action_space(agent)

    def memory(self, module: str, times: int, rows: int) -> ObservationMemory:
        del module  # all schedulers have the same spaces
        space, _ = self.spaces_of(self.agents[0])
        return ObservationMemory(self.env.observation, space, times, rows)

    def lane(self, index: int) -> SchedulingLane:
        del index
        return SchedulingLane(self.make(), self.per_gpu)

    def exam_lane(self, number: int) -> SchedulingLane:
        return SchedulingLane(self.make_exam(number), self.per_gpu)
