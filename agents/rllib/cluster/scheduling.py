"""The schedulers of a cluster as a task of the learner."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Literal, Protocol, cast, runtime_checkable

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from torch import Tensor

from agents.cluster.greedy_action import greedy_action
from agents.rllib.cluster.buffer import NO_JOB, STATE, ClusterBuffer
from agents.rllib.task import Numbers, ObservationBuffer, RLTask, RunnerEnv, Step
from envs.arrays import IntArray
from envs.cluster.environment.actions import FORWARDED, PREEMPTED
from envs.cluster.environment.episode import SchedulingEpisode
from envs.cluster.environment.observation import ExpertActions, ExpertPolicy
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


class SchedulingRunnerEnv(RunnerEnv):
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
        self._rows: list[tuple[ClusterBuffer, int]] = []
        self._masks: list[NDArray[np.int8]] = []  # of what was last observed
        self._expert: ExpertPolicy | None = None
        self._actions: ExpertActions | None = None
        self._unit_s = self._share = 1.0  # a step's rewards are divided by
        self._bound_s = 0.0

    @property
    def episode(self) -> SchedulingEpisode:
        return self.env.episode

    @property
    def time(self) -> float:
        """Since the episode's second 0."""
        return self.episode.simulator.now / self._unit_s

    def attach(self, rows: Sequence[tuple[ObservationBuffer, int]]) -> None:
        self._rows = [(cast("ClusterBuffer", buffer), row) for buffer, row in rows]
        own: dict[ClusterBuffer, list[int]] = {}  # in each buffer they stand side by side
        for buffer, row in self._rows:
            own.setdefault(buffer, []).append(row)
        self._blocks = [(buffer, slice(of[0], of[-1] + 1)) for buffer, of in own.items()]

    def reset(self, seed: int, progress: float = 1.0, expert: ExpertPolicy | None = None) -> None:
        """Begin an episode; those of one seed have the same jobs."""
        if isinstance(self.env.generator, Staged):
            self.env.generator.progress = progress
        self.env.reset(seed=seed)
        simulator = self.episode.simulator
        self._bound_s = 0.0
        self._expert = expert
        self._begin_expert()
        self._unit_s = float(simulator.trace.duration_s.mean())
        self._share = self._unit_s * (simulator.cluster.num_gpus if self.per_gpu else 1)

    def observe(self, time: int) -> None:
        episode = self.episode
        self._masks = []
        for buffer, rows in self._blocks:
            buffer.clear(time, rows)
        for scheduler, (buffer, row) in enumerate(self._rows):
            graph, mask = buffer.row(time, row)
            episode.fill(scheduler, graph, mask)
            remaining_seconds(episode, scheduler, buffer.remaining[time, row])
            self._masks.append(mask)
        if self.env.state_in_observation:
            state = episode.shared_state(
                [{CLUSTER: buffer.arrays[CLUSTER][time, row]} for buffer, row in self._rows]
            )
            for buffer, row in self._rows:
                buffer.arrays[STATE][time, row] = state

    def step(self, actions: Sequence[Any]) -> Step:
        before = self.time
        done = self.env.carry_out(actions, self._masks)
        rewards = [0.0] * len(actions)
        worth = {PREEMPTED, FORWARDED}.intersection(done.outcomes)
        if done.waited or worth or not all(done.allowed):
            given = self.env.rewards(done)
            rewards = [float(sum(terms.values())) / self._share for terms in given]
        return Step(rewards, self.time - before, done.terminated, done.truncated)

    def expert_action(self, agent: int) -> int:
        assert self._actions is not None
        return self._actions.action(self.episode, agent)

    def objective(self) -> float:
        """Mean JCT in seconds; inf: jobs were left over."""
        schedule = self.episode.simulator.schedule()
        return float(schedule.jct.mean()) if schedule.finished.all() else float("inf")

    def lower_bound(self) -> float:
        """Below which the mean JCT will not fall, looked up now and then."""
        if self.env.decisions % LOOKS_EVERY == 0:
            simulator = self.episode.simulator
            jobs = simulator.state.jobs
            until = np.where(jobs["finish"] == NEVER, simulator.now, jobs["finish"])
            self._bound_s = float(np.maximum(until - jobs["submit"], 0.0).mean())
        return self._bound_s

    def metrics(self) -> Mapping[str, float]:
        jct = self.episode.simulator.schedule().jct
        return {
            "mean_jct_s": float(jct.mean()) if len(jct) else float("nan"),
            "finished_share": len(jct) / len(self.episode.instance.trace),
        }

    def state(self) -> tuple[Numbers, dict[str, Tensor]]:
        return {"decisions": self.env.decisions}, snapshot(self.episode)

    def load(self, numbers: Numbers, arrays: Mapping[str, Tensor]) -> None:
        restored(self.episode, arrays)
        self.env.decisions = int(numbers["decisions"])
        self._begin_expert()

    def _begin_expert(self) -> None:
        self._actions = None if self._expert is None else self._expert.begin(self.episode)


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

    The expert begins anew from there: what it gathered of jobs that finished it gathers again, by
    their number and not in the order in which they finished.

    Raises:
        InputError: the snapshot is of another instance.
    """
    for name, array in _arrays(episode):
        if name not in arrays or arrays[name].numel() != array.nbytes:
            raise InputError("is not of this run's episode", record=name, field="episodes")
        saved = np.frombuffer(arrays[name].numpy().tobytes(), array.dtype)
        array[...] = saved.reshape(array.shape)
    expert = episode.observation.expert
    if expert is not None:
        episode.expert = expert.begin(episode)


def _arrays(episode: SchedulingEpisode) -> Iterator[tuple[str, NDArray[Any]]]:
    for group, record in (("state", episode.simulator.state), ("book", episode.book)):
        for field, value in record._asdict().items():
            yield f"{group}.{field}", value


class SchedulingRLTask(RLTask):
    """Its agents are the schedulers of a `ClusterParallelEnv`.

    Args:
        make: makes an environment to train in.
        make_evaluation: makes one with the same spaces to be evaluated in, by the number of the
            window; episode k of an evaluation is that of `reset(seed=k)`.
        parameters: whether schedulers share one policy, or each has its own.
        per_gpu: whether rewards are divided by the GPUs of the cluster.
        teacher: the expert policy that is imitated; None: none can be.
        reference: the one whose mean JCTs those of the evaluations are divided by.
    """

    metrics: Sequence[str] = ("mean_jct_s", "finished_share")

    def __init__(
        self,
        make: Callable[[], ClusterParallelEnv],
        make_evaluation: Callable[[int], ClusterParallelEnv],
        *,
        parameters: Literal["shared", "separate"],
        per_gpu: bool,
        teacher: ExpertPolicy | None,
        reference: ExpertPolicy,
    ) -> None:
        self.make, self.make_evaluation = make, make_evaluation
        self.parameters, self.per_gpu = parameters, per_gpu
        self.teacher, self.reference = teacher, reference
        self.env = make()  # asked for its spaces alone
        self.agents: Sequence[str] = self.env.possible_agents

    def module_of(self, agent: str) -> str:
        return SHARED if self.parameters == "shared" else agent

    def spaces_of(self, agent: str) -> tuple[spaces.Dict, spaces.Space[Any]]:
        return self.env.observation_space(agent), self.env.action_space(agent)

    def greedy(self, logits: NDArray[np.float32]) -> IntArray:
        """As the exported scheduler decides."""
        table, by_job = self.env.observation.table, self.env.observation.expert is None
        rows = [greedy_action(row, table.window, table.groups, by_job) for row in logits]
        return np.array(rows, np.int64)

    def buffer(self, module: str, times: int, rows: int) -> ClusterBuffer:
        del module  # all schedulers have the same spaces
        space, _ = self.spaces_of(self.agents[0])
        return ClusterBuffer(self.env.observation, space, times, rows)

    def make_env(self, index: int) -> SchedulingRunnerEnv:
        del index
        return SchedulingRunnerEnv(self.make(), self.per_gpu)

    def make_evaluation_env(self, number: int) -> SchedulingRunnerEnv:
        return SchedulingRunnerEnv(self.make_evaluation(number), self.per_gpu)
