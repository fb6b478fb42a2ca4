"""`ClusterParallelEnv` does what its docstring says."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from cluster_instances import Crowding, Fixed, instances, without_too_large_jobs
from hydra.utils import instantiate
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.random import default_rng
from numpy.testing import assert_allclose, assert_array_equal
from omegaconf import OmegaConf
from pettingzoo.test import parallel_api_test, parallel_seed_test

from envs.cluster.environment.actions import ClusterActions
from envs.cluster.environment.env import ClusterEnv
from envs.cluster.environment.generator import (
    DURATION_S,
    GPUS,
    OPTIMUM_S,
    SERVER_GPUS,
    SUBMIT_S,
    FixedCluster,
    RandomJobs,
    toy_cluster,
)
from envs.cluster.environment.instance import OwnCredit
from envs.cluster.environment.observation import ClusterObservation
from envs.cluster.environment.parallel_env import ClusterParallelEnv, toy_environment
from envs.cluster.environment.routing import ConsecutiveRacks, MixedRacks, QueueRouting, RackOwners
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Labels, Trace
from experiments.config.config_source import SHIPPED_CONFIGS
from experiments.config.targets import check_targets
from tests.envs.cluster.environment.racks import cluster_of_racks
from tests.refusal import refusal
from tests.strength import examples

SMALL = partial(ClusterObservation, window=6, running=8, shares=8)
FIRST, SECOND = "scheduler_0", "scheduler_1"


class Everything:
    """All jobs come to one scheduler."""

    def __init__(self, scheduler: int) -> None:
        self.scheduler = scheduler

    def __call__(self, trace: Trace, schedulers: int, rng: np.random.Generator) -> Any:
        return np.full(len(trace), self.scheduler, np.int32)


def two_servers(trace: Trace, **arguments: Any) -> ClusterParallelEnv:
    """Two schedulers with a server of two GPUs each; all jobs come to the first."""
    cluster = Cluster.uniform(2, 2, nodes_per_rack=1)
    given = {"routing": Everything(0), "observation": SMALL, **arguments}
    return ClusterParallelEnv.of_trace(cluster, trace, **given)


def numbers(env: ClusterParallelEnv) -> tuple[int, int, int]:
    """Groups, the number of the first action that forwards, and that of the wait."""
    table = env.episode.action_table
    return table.groups, table.window * table.groups, table.size - 1


@examples(40)
@given(fixed=instances(), seed=st.integers(0, 10_000), forward_s=st.sampled_from([0.0, 2.0]))
def test_own_rewards_sum_to_the_completion_times_and_forwards_are_limited(
    fixed: Fixed, seed: int, forward_s: float
) -> None:
    cluster = fixed.instance.cluster
    schedulers = len(np.unique(cluster.rack))
    assume(schedulers > 1)

    def make(fixed: Fixed) -> ClusterParallelEnv:
        env = ClusterParallelEnv(
            fixed,
            schedulers=schedulers,
            credit=OwnCredit(),
            forwards=2,
            forward_s=forward_s,
            actions=ClusterActions(preempt_after_s=1.0, longest_wait_s=4.0),
            observation=SMALL,
        )
        env.reset(seed=seed)
        return env

    fixed = without_too_large_jobs(fixed, make)
    env, trace = make(fixed), fixed.instance.trace
    rng, total, own = default_rng(seed), 0.0, np.zeros(schedulers)
    owner = ConsecutiveRacks()(cluster, schedulers)
    observations, _ = env.reset(seed=seed)
    terminated = False
    while env.agents:
        assert env.agents == env.possible_agents == list(observations)
        actions = {
            agent: int(rng.choice(np.flatnonzero(seen["action_mask"])))
            for agent, seen in observations.items()
        }
        observations, rewards, ended, _, infos = env.step(actions)
        terminated = ended["scheduler_0"]
        own += list(rewards.values())
        total += sum(info["reward_jct"] for info in infos.values())
        for job in env.simulator.running():
            home = env.episode.book.home[job]
            assert {int(owner[node]) for node, _ in env.simulator.shares(int(job))} == {home}
    assert terminated
    assert total == own.sum() == -env.schedule().jct.sum()
    assert len(env.schedule().jct) == len(trace)
    assert env.episode.book.forwards.max() <= 2


def test_forwarding_reaches_the_optimum_of_the_whole_cluster() -> None:
    best = best_start_times()
    for scheduler in (0, 1):
        env = toy_environment(routing=Everything(scheduler))
        env.reset(seed=0)
        groups, forward, wait = numbers(env)
        total = 0.0
        while env.agents:
            book, now = env.episode.book, env.simulator.now
            actions = dict.fromkeys(env.agents, wait)
            for me, agent in enumerate(env.agents):
                for row, job in enumerate(book.window[me]):
                    if job < 0 or actions[agent] != wait:
                        continue
                    start, server = best[int(job)]
                    if server != me:
                        actions[agent] = forward + row
                    elif start == now:
                        actions[agent] = row * groups
            _, rewards, *_, infos = env.step(actions)
            assert infos[FIRST]["reward_not_allowed"] == 0.0
            total += rewards[FIRST]
        assert -total == OPTIMUM_S


def best_start_times() -> list[tuple[int, int]]:
    """(start, server) of each toy job in a schedule of the least sum.

    Tries all orders of starting and all servers; in an order each job starts as early as it can.
    """
    best: tuple[float, list[tuple[int, int]]] = (np.inf, [])

    def extend(chosen: dict[int, tuple[int, int]], latest: int, cost: int) -> None:
        nonlocal best
        if cost >= best[0]:
            return
        if len(chosen) == len(GPUS):
            best = (cost, [chosen[job] for job in range(len(GPUS))])
            return
        for job in set(range(len(GPUS))) - set(chosen):
            for server, gpus in enumerate(SERVER_GPUS):
                if GPUS[job] > gpus:
                    continue
                start = max(latest, SUBMIT_S[job])
                while GPUS[job] > gpus - sum(
                    GPUS[j]
                    for j, (began, where) in chosen.items()
                    if where == server and began <= start < began + DURATION_S[j]
                ):
                    start += 1
                jct = start + DURATION_S[job] - SUBMIT_S[job]
                extend({**chosen, job: (start, server)}, start, cost + jct)

    extend({}, 0, 0)
    assert best[0] == OPTIMUM_S
    return best[1]


def test_time_passes_only_when_all_wait() -> None:
    env = two_servers(Trace.of("two", [0, 0], [5, 7], [2, 2]))
    env.reset(seed=0)
    groups, forward, wait = numbers(env)
    *_, infos = env.step({FIRST: 0, SECOND: wait})
    assert (infos[FIRST]["now_s"], infos[FIRST]["running"]) == (0.0, 1)
    observations, *_ = env.step({FIRST: forward, SECOND: wait})
    assert observations[SECOND]["pending_mask"].sum() == 1
    assert observations[FIRST]["pending_mask"].sum() == 0
    *_, infos = env.step({FIRST: wait, SECOND: 0})
    assert infos[FIRST]["running"] == 2
    _, rewards, *_, infos = env.step({FIRST: wait, SECOND: wait})
    assert infos[FIRST]["now_s"] == 5.0
    assert rewards == {FIRST: -10.0, SECOND: -10.0}
    assert groups == 3  # a server, a rack, all of the scheduler's servers


def test_a_forwarded_job_is_on_its_way_and_then_cannot_come_back() -> None:
    env = two_servers(Trace.of("one", [0], [5], [2]), forward_s=3.0, credit=OwnCredit())
    env.reset(seed=0)
    _, forward, wait = numbers(env)
    observations, *_ = env.step({FIRST: forward, SECOND: wait})
    for seen in observations.values():
        assert np.flatnonzero(seen["action_mask"]).tolist() == [wait]
    assert observations[SECOND]["cluster_features"][14] > 0
    observations, rewards, *_, infos = env.step({FIRST: wait, SECOND: wait})
    assert infos[FIRST]["now_s"] == 3.0
    assert rewards == {FIRST: 0.0, SECOND: -3.0}
    assert np.flatnonzero(observations[SECOND]["action_mask"]).tolist() == [0]
    env.step({FIRST: wait, SECOND: 0})
    _, rewards, ended, *_ = env.step({FIRST: wait, SECOND: wait})
    assert rewards == {FIRST: 0.0, SECOND: -5.0}
    assert all(ended.values())
    assert env.agents == []
    assert env.schedule().jct.tolist() == [8.0]


def test_a_job_is_not_forwarded_to_servers_that_cannot_hold_it() -> None:
    env = toy_environment(routing=Everything(1))
    observations, _ = env.reset(seed=0)
    homes = env.episode.book.home
    assert homes.tolist() == [0 if gpus > SERVER_GPUS[1] else 1 for gpus in GPUS]
    groups, forward, wait = numbers(env)
    env.step({FIRST: wait, SECOND: wait})
    observations, *_ = env.step({FIRST: wait, SECOND: forward})
    mask = observations[FIRST]["action_mask"]
    window = env.episode.book.window[0]
    for row, job in enumerate(window):
        if job >= 0:
            assert not mask[forward + row]  # too large for the other, or forwarded before
    assert groups * 6 == forward


def test_one_cluster_couples_all_parts() -> None:
    """A single scheduler who does the same things has the same completion times."""
    trace = Trace.of("pair", [0, 0, 0], [8, 8, 8], [1, 1, 2])
    env = two_servers(trace, rates=Crowding())
    env.reset(seed=0)
    _, forward, wait = numbers(env)
    for first, second in ((0, wait), (0, wait), (forward, wait), (wait, 0)):
        env.step({FIRST: first, SECOND: second})
    while env.agents:
        env.step({FIRST: wait, SECOND: wait})
    alone = ClusterEnv.of_trace(
        Cluster.uniform(2, 2, nodes_per_rack=1), trace, rates=Crowding(), observation=SMALL
    )
    alone.reset(seed=0)
    over = False
    for action in (0, 0, 1):
        alone.step(action)
    while not over:
        over = alone.step(alone.action_space.n - 1)[2]
    assert_array_equal(env.schedule().finish, alone.schedule().finish)
    assert env.schedule().finish[2] == 8.0 < env.schedule().finish[0]


RACKS = cluster_of_racks({"A": 3, "B": 3}, nodes_per_rack=2, gpus_per_node=2)


def on_racks(schedulers: int, partition: RackOwners, **arguments: Any) -> ClusterParallelEnv:
    """Random jobs on six racks of two GPU types."""
    jobs = RandomJobs(RACKS, jobs=(20, 20), load=(1, 1), max_gpus=4, duration_s=(60, 3600))
    return ClusterParallelEnv(
        jobs,
        schedulers=schedulers,
        partition=partition,
        actions=ClusterActions(preempt_after_s=60.0),
        observation=partial(SMALL, history=2, known_durations=False),
        state_in_observation=True,
        **arguments,
    )


@pytest.mark.parametrize("partition", [ConsecutiveRacks(), MixedRacks()])
@pytest.mark.parametrize("schedulers", [1, 2, 3])
def test_pettingzoo_finds_nothing_wrong(schedulers: int, partition: RackOwners) -> None:
    make = partial(on_racks, schedulers, partition, render_mode="rgb_array")
    parallel_api_test(make(), num_cycles=60)
    parallel_seed_test(make, num_cycles=30)
    env = make()
    observations, _ = env.reset(seed=3)
    rng = default_rng(0)
    owner = partition(RACKS, schedulers)
    while env.agents:
        state = env.state()
        assert env.state_space.contains(state)
        rows = state.reshape(schedulers, 16 + 7 + 2)
        for number, agent in enumerate(env.agents):
            seen = observations[agent]
            assert env.observation_space(agent).contains(seen)
            assert not np.shares_memory(seen["state_features"], state)
            assert_array_equal(seen["state_features"], state)
            assert_array_equal(rows[number, :16], seen["cluster_features"])
            types = RACKS.gpu_type[owner == number]
            assert_allclose(rows[number, 23:], [(types == t).mean() for t in (0, 1)])
            assert rows[number, 16] == pytest.approx(len(types) / 12)
            for peer, row in enumerate(seen.get("peer_features", ())):
                other = (number + 1 + peer) % schedulers
                assert_allclose(row[1:], rows[other, 17:], rtol=1e-6)
                assert row[0] == pytest.approx(rows[other, 16] / rows[number, 16])
        observations, *_ = env.step(
            {
                agent: int(rng.choice(np.flatnonzero(seen["action_mask"])))
                for agent, seen in observations.items()
            }
        )
    assert env.simulator.done


def test_a_single_scheduler_is_the_agent_of_the_central_environment() -> None:
    sizes = {"observation": partial(SMALL, history=1), "actions": ClusterActions(preempt_after_s=9)}
    jobs = RandomJobs(RACKS, jobs=(15, 15), load=(1, 1), max_gpus=4, duration_s=(60, 3600))
    trace = jobs(default_rng(0)).trace
    env = ClusterParallelEnv.of_trace(RACKS, trace, schedulers=1, rates=Crowding(), **sizes)
    central = ClusterEnv.of_trace(RACKS, trace, rates=Crowding(), **sizes)
    assert env.observation_space(FIRST) == central.observation_space
    assert env.action_space(FIRST).n == central.action_space.n
    seen, _ = env.reset(seed=0)
    alone, _ = central.reset(seed=0)
    rng = default_rng(1)
    while env.agents:
        for key, values in alone.items():
            assert_array_equal(seen[FIRST][key], values, err_msg=key)
        action = int(rng.choice(np.flatnonzero(alone["action_mask"])))
        seen, rewards, *_ = env.step({FIRST: action})
        alone, reward, ended, *_ = central.step(action)
        assert rewards[FIRST] == pytest.approx(reward)
    assert ended


def test_queues_choose_schedulers() -> None:
    trace = Trace.of("queues", [0] * 6, [1] * 6, [1] * 6)
    object.__setattr__(trace, "queue", Labels.of(["a", "b", "c", "a", None, "b"]))
    homes = QueueRouting()(trace, 2, default_rng(0))
    assert homes[[0, 1, 2, 3, 5]].tolist() == [0, 1, 0, 0, 1]
    drawn = {int(QueueRouting()(trace, 2, default_rng(s))[4]) for s in range(20)}
    assert drawn == {0, 1}


def test_bad_arguments_are_input_errors() -> None:
    for field, value in (
        ("schedulers", 0),
        ("schedulers", 3),
        ("forwards", -1),
        ("horizon", 0),
        ("forward_s", -1.0),
    ):
        with refusal() as refused:
            ClusterParallelEnv(**{field: value})
        assert refused.value.field == field
    env = toy_environment()
    for early in (partial(env.step, {}), env.state):
        with pytest.raises(gym.error.ResetNeeded):
            early()
    env.reset()
    for actions in ({FIRST: 0}, {FIRST: 0, SECOND: 1000}, {FIRST: 0, SECOND: 0.5}):
        with refusal("actions"):
            env.step(actions)
    wide = Trace.of("wide", [0], [1], [5])
    with refusal("no server group"):
        ClusterParallelEnv(FixedCluster(toy_cluster()[0], wide)).reset()


def test_the_configs_make_the_environments() -> None:
    chosen = OmegaConf.create(SHIPPED_CONFIGS.node("env/cluster_parallel"))
    check_targets(OmegaConf.to_container(chosen), "env")
    chosen.windows.jobs = [6, 6]
    env = instantiate(chosen)(*toy_cluster())
    assert isinstance(env, ClusterParallelEnv)
    env.reset(seed=0)
    assert env.observation.table[3:7] == (16, 128, 256, 1)
    chosen = OmegaConf.create(SHIPPED_CONFIGS.node("env/cluster_mixed"))
    chosen.observation.adviser = SHIPPED_CONFIGS.node("adviser/las")
    check_targets(OmegaConf.to_container(chosen), "env")
    chosen.windows.jobs_per_gpu = [1, 1]
    chosen.windows.stages.first_gpus = 16
    racks = [
        cluster_of_racks({"V100": 1, "P100": n, "K80": n}, nodes_per_rack=2, gpus_per_node=2)
        for n in (1, 3)
    ]
    trace = Trace.of("even", range(0, 3000, 60), [100] * 50, [1, 2] * 25)
    env = instantiate(chosen)(racks, [trace, trace])
    observations, _ = env.reset(seed=0)
    assert (env.simulator.cluster, len(env.simulator.trace)) == (racks[0], 12)
    assert observations[FIRST]["pending_features"].shape == (64, 25 + 3 + 8 * 4 + 5)
    assert observations[FIRST]["state_features"].shape == env.state().shape == (2 * (23 + 3),)
    mask = observations[FIRST]["action_mask"]
    assert mask[observations[FIRST]["advised"]].tolist() == [1]
    chosen = OmegaConf.create(SHIPPED_CONFIGS.node("env/cluster_parallel_toy"))
    check_targets(OmegaConf.to_container(chosen), "env")
    toy = instantiate(chosen)
    assert toy.reset(seed=0)[1][FIRST]["jobs"] == len(GPUS)
