"""`ClusterParallelEnv` does what its docstring says."""

from __future__ import annotations

from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from cluster_instances import (
    Crowding,
    Fixed,
    cluster_of_racks,
    configured,
    instances,
    random_action,
    random_actions,
    without_too_large_jobs,
)
from hydra.utils import instantiate
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.random import default_rng
from numpy.testing import assert_allclose, assert_array_equal
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
from envs.cluster.workload.trace import Trace
from experiments.config.config_source import SHIPPED_CONFIGS
from tests.envs.cluster.environment.brute_force import least_sum_schedule
from tests.refusal import refusal
from tests.strength import examples

SMALL = partial(ClusterObservation, window=6, running=8, shares=8)
FIRST, SECOND = "scheduler_0", "scheduler_1"


def everything(scheduler: int) -> Any:
    """All jobs come to one scheduler."""
    return lambda trace, schedulers, rng: np.full(len(trace), scheduler, np.int32)


class Pair:
    """Two schedulers, reset, that act together."""

    def __init__(self, env: ClusterParallelEnv) -> None:
        self.env = env
        self.seen, _ = env.reset(seed=0)
        table = env.episode.action_table
        self.groups = table.groups
        self.forward, self.wait = table.window * table.groups, table.size - 1

    def step(self, first: int | None = None, second: int | None = None) -> dict[str, Any]:
        """An action of each, None: to wait; what the first is told, with `rewards` and `ended`."""
        actions = (self.wait if one is None else one for one in (first, second))
        self.seen, rewards, ended, _, infos = self.env.step(
            dict(zip((FIRST, SECOND), actions, strict=True))
        )
        return {**infos[FIRST], "rewards": [*rewards.values()], "ended": all(ended.values())}

    def allowed(self, agent: str) -> list[int]:
        found: list[int] = np.flatnonzero(self.seen[agent]["action_mask"]).tolist()
        return found


def two_servers(trace: Trace, **arguments: Any) -> Pair:
    """With a server of two GPUs each; all jobs come to the first."""
    cluster = Cluster.uniform(2, 2, nodes_per_rack=1)
    given = {"routing": everything(0), "observation": SMALL, **arguments}
    return Pair(ClusterParallelEnv.of_trace(cluster, trace, **given))


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
        observations, rewards, ended, _, infos = env.step(random_actions(observations, rng))
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


@pytest.mark.parametrize("scheduler", [0, 1])
def test_forwarding_reaches_the_optimum_of_the_whole_cluster(scheduler: int) -> None:
    least, best = least_sum_schedule(
        list(zip(SUBMIT_S, DURATION_S, GPUS, strict=True)), SERVER_GPUS
    )
    total = 0.0
    pair = Pair(toy_environment(routing=everything(scheduler)))
    env = pair.env
    while env.agents:
        book, now = env.episode.book, env.simulator.now
        actions: list[int | None] = [None, None]
        for me, window in enumerate(book.window):
            for row, job in enumerate(window):
                if job >= 0 and actions[me] is None:
                    start, server = best[int(job)]
                    if server != me:
                        actions[me] = pair.forward + row
                    elif start == now:
                        actions[me] = row * pair.groups
        found = pair.step(*actions)
        assert found["reward_not_allowed"] == 0.0
        total += found["rewards"][0]
    assert -total == least == OPTIMUM_S


def test_time_passes_only_when_all_wait() -> None:
    pair = two_servers(Trace.of("two", [0, 0], [5, 7], [2, 2]))
    found = pair.step(first=0)
    assert (found["now_s"], found["running"]) == (0.0, 1)
    pair.step(first=pair.forward)
    assert [pair.seen[agent]["pending_mask"].sum() for agent in (FIRST, SECOND)] == [0, 1]
    assert pair.step(second=0)["running"] == 2
    found = pair.step()
    assert (found["now_s"], found["rewards"]) == (5.0, [-10.0, -10.0])
    assert pair.groups == 3  # a server, a rack, all of the scheduler's servers


def test_a_forwarded_job_is_on_its_way_and_then_cannot_come_back() -> None:
    pair = two_servers(Trace.of("one", [0], [5], [2]), forward_s=3.0, credit=OwnCredit())
    pair.step(first=pair.forward)
    assert pair.allowed(FIRST) == pair.allowed(SECOND) == [pair.wait]
    assert pair.seen[SECOND]["cluster_features"][14] > 0
    found = pair.step()
    assert (found["now_s"], found["rewards"]) == (3.0, [0.0, -3.0])
    assert pair.allowed(SECOND) == [0]
    pair.step(second=0)
    found = pair.step()
    assert (found["ended"], found["rewards"]) == (True, [0.0, -5.0])
    assert pair.env.agents == []
    assert pair.env.schedule().jct.tolist() == [8.0]


def test_a_job_is_not_forwarded_to_servers_that_cannot_hold_it() -> None:
    pair = Pair(toy_environment(routing=everything(1)))
    book = pair.env.episode.book
    assert book.home.tolist() == [0 if gpus > SERVER_GPUS[1] else 1 for gpus in GPUS]
    pair.step()
    pair.step(second=pair.forward)
    rows = np.flatnonzero(book.window[0] >= 0)  # too large for the other, or forwarded before
    assert len(rows)
    assert not pair.seen[FIRST]["action_mask"][pair.forward + rows].any()
    assert pair.groups * 6 == pair.forward


def test_one_cluster_couples_all_parts() -> None:
    """A single scheduler who does the same things has the same completion times."""
    trace = Trace.of("pair", [0, 0, 0], [8, 8, 8], [1, 1, 2])
    pair = two_servers(trace, rates=Crowding())
    for first, second in ((0, None), (0, None), (pair.forward, None), (None, 0)):
        pair.step(first, second)
    while pair.env.agents:
        pair.step()
    alone = ClusterEnv.of_trace(
        Cluster.uniform(2, 2, nodes_per_rack=1), trace, rates=Crowding(), observation=SMALL
    )
    alone.reset(seed=0)
    for action in (0, 0, 1):
        alone.step(action)
    while not alone.step(alone.action_space.n - 1)[2]:
        pass
    finish = pair.env.schedule().finish
    assert_array_equal(finish, alone.schedule().finish)
    assert finish[2] == 8.0 < finish[0]


RACKS = cluster_of_racks({"A": 3, "B": 3}, nodes_per_rack=2, gpus_per_node=2)


JOBS = RandomJobs(RACKS, jobs=(20, 20), load=(1, 1), max_gpus=4, duration_s=(60, 3600))


@pytest.mark.slow
@pytest.mark.parametrize("partition", [ConsecutiveRacks(), MixedRacks()])
@pytest.mark.parametrize("schedulers", [1, 2, 3])
def test_pettingzoo_finds_nothing_wrong(schedulers: int, partition: RackOwners) -> None:
    make = partial(
        ClusterParallelEnv,
        JOBS,
        schedulers=schedulers,
        partition=partition,
        actions=ClusterActions(preempt_after_s=60.0),
        observation=partial(SMALL, history=2, known_durations=False),
        state_in_observation=True,
        render_mode="rgb_array",
    )
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
        observations, *_ = env.step(random_actions(observations, rng))
    assert env.simulator.done


@pytest.mark.parametrize("view_delay_s", [0.0, 20.0, 90.0])
def test_late_views_are_those_of_the_last_broadcast(view_delay_s: float) -> None:
    """Beside an environment that sees all, given the same actions."""
    arguments = {"schedulers": 3, "forwards": 2, "forward_s": 5.0, "observation": SMALL}
    late = ClusterParallelEnv(JOBS, view_delay_s=view_delay_s, **arguments)
    fresh = ClusterParallelEnv(JOBS, **arguments)
    assert "sent_features" not in fresh.observation_space(FIRST).spaces
    seen, _ = late.reset(seed=2)
    truth, _ = fresh.reset(seed=2)
    table, rng, broadcast_s, late_rows = late.episode.action_table, default_rng(0), -np.inf, 0
    first_forward = table.window * table.groups
    shown: dict[str, Any] = {}
    sent: dict[tuple[int, int], list[float]] = {}
    while late.agents:
        now = late.simulator.now
        if now - broadcast_s >= view_delay_s:
            broadcast_s, sent = now, {}
            shown = {agent: truth[agent]["peer_features"].copy() for agent in late.agents}
        for number, agent in enumerate(late.agents):
            assert late.observation_space(agent).contains(seen[agent])
            for key, values in truth[agent].items():
                expected = shown[agent] if key == "peer_features" else values
                assert_array_equal(seen[agent][key], expected, err_msg=key)
            late_rows += not np.array_equal(shown[agent], truth[agent]["peer_features"])
            for peer, row in enumerate(seen[agent]["sent_features"]):
                other = (number + 1 + peer) % 3
                gpus = sent.get((number, other), [])
                owned = late.simulator.cluster.gpus[late.episode.views[other].node].sum()
                expected = [np.log(1 + len(gpus)) / 4, min(sum(gpus) / owned, 4)]
                assert_allclose(row[:2], expected, rtol=1e-6)
                assert row[2] == pytest.approx(np.log(1 + (now - broadcast_s) / 60) / 4)
        actions = random_actions(seen, rng)
        for number, action in enumerate(actions.values()):
            job, peer = divmod(action - first_forward, table.peers)
            if 0 <= job < table.window:
                record = late.simulator.state.jobs[late.episode.book.window[number, job]]
                asked = float(record["gpus"] * record["milli"] / 1000)
                sent.setdefault((number, (number + 1 + peer) % 3), []).append(asked)
        seen, *_ = late.step(actions)
        truth, *_ = fresh.step(actions)
    assert (late_rows > 0) == (view_delay_s > 0.0)


def test_a_single_scheduler_is_the_agent_of_the_central_environment() -> None:
    given = {
        "rates": Crowding(),
        "observation": partial(SMALL, history=1),
        "actions": ClusterActions(preempt_after_s=9),
    }
    trace = JOBS(default_rng(0)).trace
    env = ClusterParallelEnv.of_trace(RACKS, trace, schedulers=1, **given)
    central = ClusterEnv.of_trace(RACKS, trace, **given)
    assert env.observation_space(FIRST) == central.observation_space
    assert env.action_space(FIRST).n == central.action_space.n
    seen, _ = env.reset(seed=0)
    alone, _ = central.reset(seed=0)
    rng = default_rng(1)
    while env.agents:
        for key, values in alone.items():
            assert_array_equal(seen[FIRST][key], values, err_msg=key)
        action = random_action(alone, rng)
        seen, rewards, *_ = env.step({FIRST: action})
        alone, reward, ended, *_ = central.step(action)
        assert rewards[FIRST] == pytest.approx(reward)
    assert ended


def test_queues_choose_schedulers() -> None:
    trace = Trace.of("queues", [0] * 6, [1] * 6, [1] * 6, queue=["a", "b", "c", "a", None, "b"])
    homes = QueueRouting()(trace, 2, default_rng(0))
    assert homes[[0, 1, 2, 3, 5]].tolist() == [0, 1, 0, 0, 1]
    drawn = {int(QueueRouting()(trace, 2, default_rng(s))[4]) for s in range(20)}
    assert drawn == {0, 1}


def test_bad_calls_are_refused() -> None:
    with refusal("field 'schedulers'"):
        ClusterParallelEnv(schedulers=3)
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
    chosen = configured("cluster_parallel", windows__jobs=[6, 6])
    env = instantiate(chosen)(*toy_cluster())
    assert isinstance(env, ClusterParallelEnv)
    env.reset(seed=0)
    assert env.observation.table[3:7] == (16, 128, 256, 1)
    chosen = configured(
        "cluster_mixed",
        observation__expert=SHIPPED_CONFIGS.node("expert/las"),
        windows__jobs_per_gpu=[1, 1],
        windows__stages__first_gpus=16,
    )
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
    toy = instantiate(configured("cluster_parallel_toy"))
    assert toy.reset(seed=0)[1][FIRST]["jobs"] == len(GPUS)
