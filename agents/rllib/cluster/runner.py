"""Steps all environments together, with one call of the network for all their schedulers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from agents.rllib.cluster.drivers import Driver
from agents.rllib.cluster.lane import Lane, restored, snapshot
from agents.rllib.cluster.memory import ObservationMemory
from envs.cluster.environment.parallel_env import ClusterParallelEnv
from envs.cluster.environment.views import Adviser
from models.architecture import Policy


@dataclass(frozen=True)
class EpisodeEnd:
    mean_jct: float  # seconds, of the jobs that finished; nan without any
    jobs: int
    finished: int  # jobs
    decisions: int  # steps
    reward: float  # of all schedulers together


@dataclass(frozen=True, eq=False)
class Fragment:
    """T steps of B agents: S schedulers in each of B / S environments.

    Where an agent has no choice nobody is asked. In the first step all are, so that the critic
    learns what to expect of such states too: fragments end in them.

    Arrays belong to the runner and hold until it samples again.
    """

    memory: ObservationMemory  # T + 1 times; what the last step led to is the last
    remaining: NDArray[np.float32]  # (T, B, W + M) labels of `labels.remaining_seconds`
    decides: NDArray[np.bool_]  # (T, B) more than one action is allowed; all in the first step
    actions: NDArray[np.int64]  # (T, B) taken
    taught: NDArray[np.int64] | None  # (T, B) what the teacher would have done; None: not asked
    log_probabilities: NDArray[np.float32]  # (T, B) of the actions; 0 where there is no choice
    scores: NDArray[np.float64]  # (T, B) of the critic, before each decision
    after: NDArray[np.float64]  # (T, B) of the critic, after the last step and where cut
    rewards: NDArray[np.float64]  # (T, B)
    times: NDArray[np.float64]  # (T, B) that each step takes, in mean durations of the jobs
    terminated: NDArray[np.bool_]  # (T, B) the episode is over
    cut: NDArray[np.bool_]  # (T, B) the episode is truncated
    now: NDArray[np.float64]  # (T, B) time of the episode before each step, in the same
    episode: NDArray[np.int64]  # (T, B) number of the episode in its environment
    ended: Sequence[EpisodeEnd]

    @property
    def decisions(self) -> int:
        """T x B."""
        return self.actions.size


@runtime_checkable
class Staged(Protocol):
    """A generator of episodes with a curriculum."""

    progress: float  # of training, from 0 to 1


class LockStepRunner:
    """Samples fragments of T steps in E environments of S schedulers, B = E S agents.

    An episode goes on in the next fragment; where one ends, the next begins at once. Episode k of
    environment i is seeded by (seed, i // alike, k), so that a checkpoint keeps counters alone of
    the environments' randomness, and `alike` environments in turn meet the same jobs.

    Args:
        envs: E environments, with the same spaces.
        steps: T.
        seed: of the run.
        alike: environments in turn that meet the same episodes.
        per_gpu: whether rewards are divided by the GPUs of the episode's cluster.
        teacher: whose advice on an episode begins with it; None: nobody's.
    """

    def __init__(
        self,
        envs: Sequence[ClusterParallelEnv],
        steps: int,
        seed: int,
        *,
        alike: int = 1,
        per_gpu: bool = False,
        teacher: Adviser | None = None,
    ) -> None:
        self.lanes = [Lane(env, index) for index, env in enumerate(envs)]
        self.agents = [(lane, s) for lane in self.lanes for s in range(lane.schedulers)]
        self.steps, self.seed, self.alike = steps, seed, alike
        self.per_gpu = per_gpu
        self.teacher = teacher
        env = envs[0]
        self.schedulers = env.schedulers
        agents = len(envs) * env.schedulers
        space = env.observation_space(env.possible_agents[0])
        self.memory = ObservationMemory(env.observation, space, steps + 1, agents)
        table = env.observation.table
        self.remaining = np.zeros((steps + 1, agents, table.window + table.running), np.float32)
        self.started = [0] * len(envs)  # episodes
        self.stages = [0.0] * len(envs)  # progress when the episode began
        self.rewards = [0.0] * len(envs)  # of the episode so far
        self.units_s = [1.0] * len(envs)  # seconds that count as 1 in the episode
        self.stage = 0.0  # progress of the curriculum now, from 0 to 1
        self._begun = False

    def sample(self, driver: Driver, policy: Policy) -> Fragment:
        """T steps of all environments.

        Args:
            driver: decides.
            policy: its critic says what is to come where the fragment ends.
        """
        if not self._begun:
            for index in range(len(self.lanes)):
                self._reset(index, 0)
            self._begun = True
        else:
            self.memory.move(self.steps, 0)
            self.remaining[0] = self.remaining[self.steps]
        shape = (self.steps, len(self.lanes) * self.schedulers)
        actions, taught, episode = np.zeros((3, *shape), np.int64)
        teaches = False
        log_probabilities = np.zeros(shape, np.float32)
        scores, after, rewards, times, now = np.zeros((5, *shape))
        terminated, cut, decides = np.zeros((3, *shape), np.bool_)
        ended: list[EpisodeEnd] = []
        for t in range(self.steps):
            masks = self.memory.masks[t]
            decides[t] = masks.sum(axis=1, dtype=np.int64) > 1
            decides[t] |= t == 0
            numbers = np.flatnonzero(decides[t])
            actions[t] = masks.argmax(axis=1)
            made = None
            if len(numbers):
                agents = [self.agents[number] for number in numbers]
                made = driver(self.memory.at(t, numbers), agents)
                actions[t, numbers], scores[t, numbers] = made.actions, made.scores
                log_probabilities[t, numbers] = made.log_probabilities
            taught[t] = actions[t]
            if made is not None and made.taught is not None:
                taught[t, numbers], teaches = made.taught, True
            for index, lane in enumerate(self.lanes):
                rows = lane.rows
                unit = self.units_s[index]
                now[t, rows], episode[t, rows] = lane.now / unit, self.started[index]
                step = lane.step(actions[t, rows].tolist(), self.memory.masks[t, rows])
                share = lane.episode.simulator.cluster.num_gpus if self.per_gpu else 1
                rewards[t, rows] = np.array(step.rewards) / (share * unit)
                times[t, rows] = step.seconds / unit
                self.rewards[index] += sum(step.rewards)
                if not (step.terminated or step.truncated):
                    lane.observe(self.memory, t + 1, self.remaining[t + 1])
                    continue
                if step.truncated:
                    lane.observe(self.memory, t + 1)
                    of_lane = np.arange(rows.start, rows.stop)
                    after[t, rows] = critic(policy, self.memory.at(t + 1, of_lane))
                terminated[t, rows], cut[t, rows] = step.terminated, step.truncated
                ended.append(self._end(index))
                self._reset(index, t + 1)
        going_on = ~(terminated[-1] | cut[-1])
        last = critic(policy, self.memory.at(self.steps, np.arange(shape[1])))
        after[-1] = np.where(going_on, last, after[-1])
        return Fragment(
            memory=self.memory,
            remaining=self.remaining[: self.steps],
            decides=decides,
            actions=actions,
            taught=taught if teaches else None,
            log_probabilities=log_probabilities,
            scores=scores,
            after=after,
            rewards=rewards,
            times=times,
            terminated=terminated,
            cut=cut,
            now=now,
            episode=episode,
            ended=ended,
        )

    def document(self) -> tuple[dict[str, Any], dict[str, Tensor]]:
        """All that a runner needs to go on from here: plain numbers, and arrays by name."""
        numbers = {
            "started": self.started,
            "stages": self.stages,
            "rewards": self.rewards,
            "decisions": [lane.decisions for lane in self.lanes],
            "begun": self._begun,
        }
        arrays = {}
        if self._begun:
            for index, lane in enumerate(self.lanes):
                for name, value in snapshot(lane.episode).items():
                    arrays[f"{index}.{name}"] = value
        return numbers, arrays

    def restore(self, numbers: Mapping[str, Any], arrays: Mapping[str, Tensor]) -> None:
        """Go on from what `document` gave.

        Raises:
            InputError: the arrays are of other episodes.
        """
        self._begun = bool(numbers["begun"])
        self.rewards = list(numbers["rewards"])
        if not self._begun:
            return
        for index, lane in enumerate(self.lanes):
            self.started[index] = int(numbers["started"][index]) - 1
            self.stage = float(numbers["stages"][index])
            self._begin(index)
            of_lane = {
                name.partition(".")[2]: value
                for name, value in arrays.items()
                if name.partition(".")[0] == str(index)
            }
            restored(lane.episode, of_lane)
            lane.advice = None if self.teacher is None else self.teacher.begin(lane.episode)
            lane.decisions = int(numbers["decisions"][index])
            lane.observe(self.memory, self.steps, self.remaining[self.steps])

    def _reset(self, index: int, time: int) -> None:
        self._begin(index)
        self.rewards[index] = 0.0
        self.lanes[index].observe(self.memory, time, self.remaining[time])

    def _begin(self, index: int) -> None:
        lane = self.lanes[index]
        key = (self.seed, index // self.alike, self.started[index])
        if isinstance(lane.env.generator, Staged):
            lane.env.generator.progress = self.stage
        lane.reset(int(np.random.SeedSequence(key).generate_state(1)[0]), self.teacher)
        self.stages[index] = self.stage
        self.units_s[index] = float(lane.episode.simulator.trace.duration_s.mean())
        self.started[index] += 1

    def _end(self, index: int) -> EpisodeEnd:
        lane = self.lanes[index]
        jct = lane.episode.simulator.schedule().jct
        return EpisodeEnd(
            mean_jct=float(jct.mean()) if len(jct) else float("nan"),
            jobs=len(lane.episode.instance.trace),
            finished=len(jct),
            decisions=lane.decisions,
            reward=self.rewards[index] / self.schedulers,
        )


def critic(policy: Policy, observations: Mapping[str, Tensor]) -> NDArray[np.float64]:
    """(B,) scores of the critic."""
    with torch.inference_mode():
        return policy.decide(observations)[1].double().numpy()
