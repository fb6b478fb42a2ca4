"""`ClusterParallel-v0`: several schedulers, each with its own racks and its own queue."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Ge
from gymnasium import spaces
from numpy.typing import NDArray

from envs.bounds import Count, NonNegative, bounded
from envs.cluster.environment.actions import WAITED, ClusterActions
from envs.cluster.environment.episode import SchedulingEpisode
from envs.cluster.environment.generator import (
    SUBMIT_S,
    ClusterGenerator,
    FixedCluster,
    default_generator,
    toy_cluster,
)
from envs.cluster.environment.instance import ClusterReward, Credit, TeamCredit
from envs.cluster.environment.observation import (
    CLUSTER_WIDTH,
    HIGH,
    LOW,
    PEER_BASE,
    ClusterGraph,
    ClusterObservation,
)
from envs.cluster.environment.render import cluster_frame
from envs.cluster.environment.routing import ConsecutiveRacks, RackOwners, RandomRouting, Routing
from envs.cluster.interference.rates import NoInterference, RateModel
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import FREE_OF_CHARGE, ClusterSimulator
from envs.cluster.simulation.cluster_state import Overheads, Schedule
from envs.cluster.workload.trace import Trace
from envs.parallel_env import Begun, DecisionsEnv, Terms
from envs.spaces import begun, flags

HORIZON = 100_000

METADATA: dict[str, Any] = {
    "name": "meshwright/ClusterParallel-v0",
    "render_modes": ["rgb_array"],
    "render_fps": 4,
    "is_parallelizable": True,
}


class Done(NamedTuple):
    """What the actions of all schedulers came to."""

    outcomes: Sequence[int]  # of `actions.act`
    allowed: Sequence[bool]
    waited: bool  # all of them, so that time has passed
    terminated: bool
    truncated: bool


class WithEpisode:
    """An environment about a `SchedulingEpisode`."""

    _episode: SchedulingEpisode | None

    @property
    def episode(self) -> SchedulingEpisode:
        """The jobs of this episode, as far as they have come."""
        return begun(self._episode)

    @property
    def simulator(self) -> ClusterSimulator:
        """The simulator of this episode; look ahead with its `copy`."""
        return self.episode.simulator

    def schedule(self) -> Schedule:
        """What became of the jobs so far."""
        return self.simulator.schedule()


@bounded
class ClusterParallelEnv(WithEpisode, DecisionsEnv[ClusterGraph]):
    """Schedulers who each start jobs on their own racks, or forward them to each other; or one.

    ## Description
    A PettingZoo `ParallelEnv` with S agents `scheduler_0` to `scheduler_{S-1}` that all act in
    every step and all end together. The racks of a cluster are dealt out by the partition, as equal
    in number as can be, and each scheduler has a queue of its own, to which the routing sends jobs
    when they arrive. A single scheduler owns everything, and decides as the agent of
    `meshwright/Cluster-v0` does. A job that no server group of that scheduler could ever hold comes
    to the next one, by number, that could. There is one cluster and one simulator, that of
    `meshwright/Cluster-v0`; what a job does to its neighbours does not end at a partition.

    In every step each scheduler starts one job of its window on one of its server groups, forwards
    one to another scheduler's queue, or waits, all at once; their actions cannot get in each
    other's way. No time passes until all of them wait in the same step; then it passes until
    something happens: a completion, an incident, an arrival, or a forwarded job reaches its queue.
    A job can be forwarded a limited number of times and is on its way for a time; meanwhile
    it cannot start.

    ## Observation Space
    `observation_space(agent)`, the same for all: `Dict` as of `meshwright/Cluster-v0`, of the
    scheduler's own servers and jobs, with `peer_features` about the other schedulers
    (`ClusterObservation`; absent where there is one scheduler) and
    `action_mask` (int8 (A,), also in `infos`). With a `view_delay_s` that is late, and
    `sent_features` say what the scheduler has sent since. With `state_in_observation` there is also
    `state_features` (float32 (S (23 + T),)), what `state()` returns.
    To wait is allowed as long as something is to come, and where nothing else is allowed. To
    forward is allowed to schedulers whose server groups could hold the job when empty.

    ## State
    `state()`, for a critic that sees more than a scheduler may: float32 (S (23 + T),), in
    `state_space`. Scheduler by scheduler, `scheduler_0` first, its 16 cluster_features and the
    7 + T features it shows others (peer_features; the first is its GPUs / all GPUs).

    ## Action Space
    `action_space(agent)`: `Discrete(W G + W (S - 1) + P + 1)`, numbered as
    `ClusterActions` says: start job w on group g, forward job w to the f-th
    other scheduler (that of the agent's number plus 1 + f, modulo S), preempt, wait. An action
    outside the mask changes nothing, and is not to wait.

    ## Reward
    The sum of the named, weighted terms of `ClusterReward`, worked out for each
    scheduler's jobs (in its queue, on their way to it, on its servers) and shared out by `credit`:
    with `TeamCredit` everybody gets the sum of all, with `OwnCredit` its own. Each term is in
    `infos` as `reward_<term>`. When all wait for 10 s, with 3 unfinished jobs of scheduler 0 and 1
    of scheduler 1, a team gets -(3 + 1) x 10 = -40 each; on their own they get -30 and -10. The
    terms `jct` of all schedulers' own rewards add up to minus the sum of all completion times.

    ## Starting State
    A new instance from the generator and a new routing (the environment's only sources of
    randomness, seeded by `reset`), at the first arrival, with nothing running.

    ## Episode End
    All agents are terminated when all jobs have finished, and truncated after `horizon` steps or
    where jobs wait that can never start, because the nodes they need have failed for good.

    ## Information
    Flat, for every agent, after `reset` and every step: `now_s` (seconds), `jobs` (of the episode),
    `arrived`, `pending`, `running`, `finished` (numbers of jobs) and `free_gpus`, all of these of
    the whole cluster, `decisions` (steps), `action_mask`, and after a step `reward_<term>`.

    ## Arguments
    * `generator`: yields the instance of each episode; default:
      `envs.cluster.environment.generator.default_generator`.
    * `schedulers`: S, from 1 on.
    * `partition`: who owns which racks; default: consecutive ones
      (`envs.cluster.environment.routing.ConsecutiveRacks`).
    * `routing`: to whose queue jobs come; default: at random.
    * `credit`: who gets which reward; default: the team.
    * `forwards`: how often a job can be forwarded.
    * `forward_s`: seconds for which it is then on its way.
    * `view_delay_s`: seconds for which schedulers know of the others only what these last showed
      them, and what they have sent there since (`ClusterObservation`); None: they see all.
    * `rates`, `overheads`, `actions`, `reward`, `keep_runs`, `render_mode`: as of
      `meshwright/Cluster-v0`.
    * `observation`: called with the bounds of a scheduler's part and the number of other
      schedulers, makes the builder of observations.
    * `state_in_observation`: whether every observation has the state.
    * `horizon`: most steps of an episode.

    ## Guarantees
    At least one action is always allowed; equal seeds give equal episodes; PettingZoo's API
    tests pass. The toy's optimum is proved by trying all schedules.

    ## Source
    Own environment; the question is that of Mao et al., "Learning Scheduling Algorithms for Data
    Processing Clusters", SIGCOMM 2019. The interface is that of Terry et al.,
    "PettingZoo: Gym for Multi-Agent Reinforcement Learning", NeurIPS 2021.

    ## Version History
    * v0: first version.
    """

    metadata = METADATA
    episodes: Callable[..., SchedulingEpisode] = SchedulingEpisode  # begins one

    def __init__(
        self,
        generator: ClusterGenerator | None = None,
        *,
        schedulers: Count = 2,
        partition: RackOwners = ConsecutiveRacks(),
        routing: Routing = RandomRouting(),
        credit: Credit = TeamCredit(),
        forwards: Annotated[int, Ge(0)] = 1,
        forward_s: NonNegative = 0.0,
        view_delay_s: NonNegative | None = None,
        rates: RateModel | None = None,
        overheads: Overheads = FREE_OF_CHARGE,
        actions: ClusterActions = ClusterActions(),
        observation: Callable[..., ClusterObservation] = ClusterObservation,
        reward: ClusterReward = ClusterReward(),
        state_in_observation: bool = False,
        horizon: Count = HORIZON,
        keep_runs: bool = False,
        render_mode: str | None = None,
    ) -> None:
        self.generator = generator if generator is not None else default_generator()
        self.schedulers, self.forwards, self.forward_s = schedulers, forwards, forward_s
        self.partition, self.routing, self.credit = partition, routing, credit
        self.rates: RateModel = rates if rates is not None else NoInterference()
        self.overheads, self.horizon, self.keep_runs = overheads, horizon, keep_runs
        self.actions, self.reward, self.render_mode = actions, reward, render_mode
        self.bounds = self.generator.bounds.part(schedulers)
        late = {} if view_delay_s is None else {"view_delay_s": view_delay_s}
        self.observation = observation(self.bounds, peers=schedulers - 1, **late)
        self.state_in_observation = state_in_observation
        width = schedulers * (CLUSTER_WIDTH + PEER_BASE + self.bounds.gpu_types)
        self.state_space = spaces.Box(LOW, HIGH, (width,), np.float32)
        size = actions.table(self.observation.table, forwards).size
        space = {**self.observation.space.spaces, "action_mask": flags(size)}
        if state_in_observation:
            space["state_features"] = self.state_space
        self.possible_agents = [f"scheduler_{number}" for number in range(schedulers)]
        self.agents: list[str] = []
        self.observation_spaces = {agent: spaces.Dict(space) for agent in self.possible_agents}
        self.action_spaces = {agent: spaces.Discrete(size) for agent in self.possible_agents}
        self._episode: SchedulingEpisode | None = None

    @classmethod
    def of_trace(
        cls,
        cluster: Cluster | Sequence[Cluster],
        # the trace file (.json, .json.gz), or one for each class of devices: {V100-16GB:
        # <file>, P100: <file>}
        trace: Trace | Sequence[Trace],
        *,
        # of an episode: consecutive jobs of a random trace on a random cluster
        windows: Callable[[Any, Any], ClusterGenerator] = FixedCluster,
        **arguments: Any,
    ) -> ClusterParallelEnv:
        """An environment about the jobs of a trace on a cluster, as `ClusterEnv.of_trace`."""
        return cls(windows(cluster, trace), **arguments)

    def state(self) -> NDArray[np.float32]:
        """(S (23 + T),) what all schedulers know together."""
        graphs = [self.episode.observe(number)[0] for number in range(self.schedulers)]
        return self.episode.shared_state(graphs)

    def begin(self, rng: np.random.Generator) -> Begun[ClusterGraph]:
        """`reset` with a source of randomness of the caller's.

        Raises:
            InputError: the instance exceeds the bounds, has fewer racks than there are schedulers,
                or a job that none of them can hold.
        """
        instance = self.generator(rng)
        self._episode = self.episodes(
            instance,
            self.partition(instance.cluster, self.schedulers),
            self.routing(instance.trace, self.schedulers, rng),
            self.bounds,
            self.observation,
            self.actions,
            rates=self.rates,
            overheads=self.overheads,
            forwards=self.forwards,
            forward_s=self.forward_s,
            keep_runs=self.keep_runs,
        )
        self.agents = self.possible_agents.copy()
        self.decisions = 0
        return self.observe(), self.infos([{}] * self.schedulers)

    def play(self, chosen: Sequence[int]) -> tuple[Sequence[Terms], bool, bool]:
        """Start, forward and preempt jobs, or let time pass where all wait."""
        self.require_running()
        done = self.carry_out(chosen, self._masks)
        if done.terminated or done.truncated:
            self.agents = []
        return self.rewards(done), done.terminated, done.truncated

    def carry_out(self, chosen: Sequence[int], masks: Sequence[NDArray[np.int8]]) -> Done:
        """One action of every scheduler, by what it may do."""
        episode = self.episode
        wait = episode.action_table.size - 1
        allowed = [bool(mask[one]) for mask, one in zip(masks, chosen, strict=True)]
        outcomes = [
            episode.act(number, one) if may and one != wait else WAITED
            for number, (one, may) in enumerate(zip(chosen, allowed, strict=True))
        ]
        waited = all(allowed) and all(one == wait for one in chosen)
        stuck = waited and not episode.wait()
        self.decisions += 1
        terminated = waited and episode.ended
        truncated = not terminated and (stuck or self.decisions >= self.horizon)
        return Done(outcomes, allowed, waited, terminated, truncated)

    def rewards(self, done: Done) -> Sequence[Terms]:
        """The terms that every scheduler gets."""
        own = [
            self.reward.weighted(self.episode.passed(number, outcome, done.waited, may))
            for number, (outcome, may) in enumerate(zip(done.outcomes, done.allowed, strict=True))
        ]
        return self.credit(own)

    def render(self) -> Any:
        """(H, W, 3) uint8 picture of the servers now; None without a render mode."""
        return cluster_frame(self.episode) if self.render_mode == "rgb_array" else None

    def observe(self) -> dict[str, ClusterGraph]:
        """What every scheduler sees."""
        seen: dict[str, ClusterGraph] = {}
        self._masks = []
        for number, agent in enumerate(self.possible_agents):
            seen[agent], mask = self.episode.observe(number)
            seen[agent]["action_mask"] = mask
            self._masks.append(mask)
        if self.state_in_observation:
            state = self.episode.shared_state(list(seen.values()))
            for graph in seen.values():
                graph["state_features"] = state.copy()
        return seen

    def facts(self) -> dict[str, Any]:
        """Of the whole cluster, and the steps so far."""
        facts = self.episode.facts()
        facts["decisions"] = self.decisions
        return facts


TOY_SIZES = partial(ClusterObservation, window=len(SUBMIT_S), running=4, shares=4)


def toy_environment(**arguments: Any) -> ClusterParallelEnv:
    """`ClusterParallelToy-v0`: the jobs of `toy_cluster`, one scheduler for each of its servers.

    Whatever the routing, the optimum is that of `meshwright/ClusterToy-v0`: forwarding takes no
    time.
    """
    return ClusterParallelEnv.of_trace(*toy_cluster(), **{"observation": TOY_SIZES, **arguments})
