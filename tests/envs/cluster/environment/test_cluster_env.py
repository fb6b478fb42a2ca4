"""`ClusterEnv` does what its docstring says."""

from __future__ import annotations

import copy
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
import pytest
from cluster_instances import (
    SMALL,
    Fixed,
    Seen,
    begun,
    cluster_of,
    configured,
    first_action,
    instances,
    play,
)
from hydra.utils import instantiate
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from envs.cluster.environment.actions import (
    Bookkeeping,
    ClusterActions,
    QueueOrder,
    ShortestRemainingTime,
    WindowOrder,
)
from envs.cluster.environment.env import ClusterEnv, preemptive_environment, toy_environment
from envs.cluster.environment.episode import SchedulingEpisode
from envs.cluster.environment.generator import (
    DURATION_S,
    FIFO_S,
    GPUS,
    OPTIMUM_S,
    PREEMPTIVE_OPTIMUM_S,
    SERVER_GPUS,
    SJF_S,
    SUBMIT_S,
    FixedCluster,
    toy_cluster,
)
from envs.cluster.environment.instance import ClusterReward
from envs.cluster.nodes import UNLIMITED, Cluster
from envs.cluster.simulation.cluster_state import INCIDENT, Overheads
from envs.cluster.workload.trace import Trace
from tests.envs.cluster.environment.brute_force import least_preemptive_sum_jct, least_sum_schedule
from tests.refusal import refusal
from tests.strength import examples

TOY_JOBS = tuple(zip(SUBMIT_S, DURATION_S, GPUS, strict=True))
PREEMPTIVE = ClusterActions(preempt_after_s=2.0, longest_wait_s=3.0)
seeds = st.integers(0, 10_000)


def copied(episode: SchedulingEpisode) -> SchedulingEpisode:
    """An independent episode in the same state."""
    twin = copy.copy(episode)
    twin.simulator = episode.simulator.copy()
    twin.book = Bookkeeping._make(column.copy() for column in episode.book)
    twin._summaries, twin._passed = episode._summaries.copy(), episode._passed.copy()
    return twin


def least_over_all_decisions(env: ClusterEnv) -> float:
    """The least cost that any sequence of allowed actions collects in an episode."""
    known: dict[tuple[Any, ...], float] = {}

    def least(here: ClusterEnv, mask: np.ndarray) -> float:
        simulator = here.simulator.copy()
        simulator.settle()
        jobs, now = simulator.state.jobs, simulator.now
        held = tuple(tuple(simulator.shares(job)) for job in range(len(jobs)))
        fresh = (jobs["since"] < now).tobytes()
        key = (now, jobs["status"].tobytes(), jobs["remaining"].tobytes(), held, fresh)
        if key not in known:
            known[key] = np.inf
            for action in np.flatnonzero(mask):
                twin = copy.copy(here)
                twin.parallel = copy.copy(here.parallel)
                twin.parallel._episode = copied(here.episode)
                seen, reward, terminated, *_ = twin.step(int(action))
                rest = 0.0 if terminated else least(twin, seen["action_mask"])
                known[key] = min(known[key], rest - reward)
        return known[key]

    observation, _ = env.reset(seed=0)
    return least(env, observation["action_mask"])


@pytest.mark.slow
def test_the_toys_optimum_is_the_best_of_all_schedules_and_of_all_decisions() -> None:
    assert least_sum_schedule(TOY_JOBS, SERVER_GPUS)[0] == OPTIMUM_S
    assert least_over_all_decisions(toy_environment()) == OPTIMUM_S
    assert least_preemptive_sum_jct(TOY_JOBS, SERVER_GPUS) == PREEMPTIVE_OPTIMUM_S


@pytest.mark.parametrize(
    ("order", "expected"), [(QueueOrder(), FIFO_S), (ShortestRemainingTime(), SJF_S)]
)
def test_the_toys_simple_rules_take_longer_than_the_optimum(
    order: WindowOrder, expected: float
) -> None:
    env = toy_environment(observation=partial(SMALL, window=len(GPUS), order=order))

    def tightest(seen: Seen, rng: np.random.Generator) -> int:
        groups = env.episode.action_table.groups
        starts = np.flatnonzero(seen["action_mask"][: len(GPUS) * groups])
        if not len(starts):
            return len(seen["action_mask"]) - 1
        starts = starts[starts // groups == starts[0] // groups]
        return int(starts[np.argmin(env.simulator.state.nodes["free"][starts % groups])])

    total, terminated, _ = play(env, 0, tightest)
    assert (terminated, -total) == (True, expected)


def test_preemption_at_whole_seconds_reaches_the_preemptive_optimum() -> None:
    groups = ClusterActions(racks=False, all_servers=False, preempt_after_s=0.0, longest_wait_s=1.0)
    jobs = ((0, 4, 3), (1, 1, 3), (1, 2, 3))
    trace = Trace.of("three jobs", *(list(column) for column in zip(*jobs, strict=True)))
    env, _ = begun(toy_cluster()[0], trace, actions=groups)
    assert least_over_all_decisions(env) == least_preemptive_sum_jct(jobs, SERVER_GPUS) == 11
    assert least_sum_schedule(jobs, SERVER_GPUS)[0] == 12


def test_the_worked_example_of_the_docstring() -> None:
    env = toy_environment()
    env.reset(seed=0)
    wait = env.action_space.n - 1
    assert env.step(0)[1] == 0.0
    assert env.step(wait)[1] == -1.0
    assert env.step(wait)[1] == -4.0


def gpus_are_there(env: ClusterEnv, *_: Any) -> None:
    """No GPU is given twice, none of a node that is down or of a type not permitted."""
    state, cluster = env.simulator.state, env.simulator.cluster
    whole, parts = np.zeros((2, cluster.num_nodes), int)
    for job in env.simulator.running():
        shares = env.simulator.shares(int(job))
        record = state.jobs[job]
        assert sum(gpus for _, gpus in shares) == record["gpus"]
        for node, gpus in shares:
            assert state.nodes[node]["up"]
            assert record["types"] >> int(cluster.gpu_type[node]) & 1
            if record["milli"] == 1000:
                whole[node] += gpus
            else:
                parts[node] += record["milli"] * gpus
    shared, up = cluster.gpus - whole - state.nodes["free"], state.nodes["up"] == 1
    assert (shared * 1000 >= parts)[up].all()
    assert (shared >= 0)[up].all()
    assert (whole <= cluster.gpus).all()


@examples(60)
@given(fixed=instances(), seed=seeds, preempt=st.booleans())
def test_rewards_sum_to_minus_the_completion_times_and_no_gpu_is_given_twice(
    fixed: Fixed, seed: int, preempt: bool
) -> None:
    env = ClusterEnv(fixed, actions=PREEMPTIVE if preempt else ClusterActions(), observation=SMALL)
    total, terminated, info = play(env, seed, each=gpus_are_there)
    assert terminated
    schedule = env.schedule()
    assert schedule.finished.all()
    assert total == -schedule.jct.sum()
    assert info["finished"] == info["jobs"] == len(fixed.instance.trace)
    up = env.simulator.state.nodes["up"] == 1
    assert env.simulator.state.clock[0]["free"] == fixed.instance.cluster.gpus[up].sum()
    if not preempt and not len(fixed.instance.incidents):
        assert_array_equal(schedule.finish - schedule.start, schedule.work)


@examples(20)
@given(fixed=instances(), seed=seeds)
def test_every_term_sums_to_what_its_table_says(fixed: Fixed, seed: int) -> None:
    weights = dict.fromkeys(ClusterReward().weights, 1.0)
    sums = dict.fromkeys(weights, 0.0)
    env = ClusterEnv(fixed, observation=SMALL, reward=ClusterReward(weights), keep_runs=True)

    def add(env: ClusterEnv, seen: Seen, info: Seen) -> None:
        for key in sums:
            sums[key] += info.get(f"reward_{key}", 0.0)

    assert play(env, seed, each=add)[1]
    schedule = env.schedule()
    runs = schedule.runs
    assert runs is not None
    held = (runs["end"] - runs["start"]) * runs["gpus"] * runs["milli"] / 1000
    first = np.unique(np.stack([runs["job"], runs["start"], runs["end"]]), axis=1)
    queued = schedule.jct.sum() - (first[2] - first[1]).sum()
    nothing = {key: sums.pop(key) for key in ("preemptions", "forwards", "not_allowed")}
    assert set(nothing.values()) == {0.0}
    assert sums == pytest.approx(
        {
            "jct": -schedule.jct.sum(),
            "gpu_jct": -(schedule.jct * schedule.gpus).sum(),
            "slowdown": -(schedule.jct / schedule.work).sum(),
            "utilisation": held.sum() / fixed.instance.cluster.num_gpus,
            "queueing": -queued,
        }
    )


def test_a_wait_is_masked_where_nothing_is_to_come_and_alone_where_nothing_fits() -> None:
    env, seen = begun(Cluster.uniform(1, 2), Trace.of("two", [0, 0], [5, 7], [2, 2]))
    assert seen["action_mask"][-1] == 0
    assert seen["action_mask"].sum() == 2
    seen, *_ = env.step(first_action(seen, np.random.default_rng()))
    assert np.flatnonzero(seen["action_mask"]).tolist() == [env.action_space.n - 1]
    seen, reward, terminated, _, info = env.step(env.action_space.n - 1)
    assert (reward, terminated, info["now_s"]) == (-10.0, False, 5.0)


def test_an_action_outside_the_mask_changes_nothing() -> None:
    env = toy_environment()
    seen, before = env.reset(seed=0)
    forbidden = int(np.flatnonzero(seen["action_mask"] == 0)[0])
    after, reward, terminated, truncated, info = env.step(forbidden)
    assert (reward, terminated, truncated) == (-1.0, False, False)
    for key, values in seen.items():
        assert_array_equal(after[key], values)
    assert {**info, "decisions": 0, "action_mask": None} == {
        **{key: value for key, value in info.items() if key.startswith("reward_")},
        **before,
        "action_mask": None,
    }


def test_gangs_are_consolidated() -> None:
    trace = Trace.of("gangs", [0] * 6, [9] * 6, [1, 3, 2, 6, 5, 4])
    env, _ = begun(Cluster.uniform(4, 4, nodes_per_rack=2), trace)
    groups = env.episode.action_table.groups
    rack, everywhere = 4, groups - 1
    held = []
    for job, group in ((0, 0), (1, 1), (2, 0), (3, rack + 1)):
        row = int(np.flatnonzero(env.window == job)[0])
        seen, *_, info = env.step(row * groups + group)
        assert info["reward_not_allowed"] == 0.0
        held.append(env.simulator.shares(job))
    assert held == [[(0, 1)], [(1, 3)], [(0, 2)], [(2, 4), (3, 2)]]
    mask = seen["action_mask"][: 12 * groups].reshape(12, groups)
    assert not mask[0].any()  # job 4 asks for 5 GPUs, 1 + 1 + 2 are free
    assert np.flatnonzero(mask[1]).tolist() == [everywhere]  # job 5 asks for 4, no rack has them
    env.step(groups + everywhere)
    assert env.simulator.shares(5) == [(3, 2), (0, 1), (1, 1)]


def test_fractions_fill_the_fullest_gpu_that_has_room() -> None:
    trace = Trace.of("parts", [0] * 4, [9] * 4, [1] * 4)
    trace = replace(trace, gpu_milli=np.array([700, 500, 300, 500], np.int32))
    env, _ = begun(Cluster.uniform(1, 3), trace)
    for _ in range(4):
        env.step(0)
    assert sorted(env.simulator.state.partials["left"][:2].tolist()) == [0, 0]
    assert env.simulator.state.clock[0]["free"] == 1


def test_gangs_that_ask_for_fractions_fill_sets_of_their_size() -> None:
    """On all servers at once: what each job takes, and what that leaves of the GPUs it is on."""
    story = {
        (1, 1000): ([(0, 1)], []),
        (2, 500): ([(0, 2)], [500]),  # free GPUs of the tightest server
        (1, 500): ([(0, 1)], [500]),  # none of a set of two
        (2, 300): ([(0, 2)], [200]),
        (2, 600): ([(1, 2)], [400]),
        (2, 200): ([(0, 2)], [0]),  # of two sets the fuller one
        (3, 500): ([(2, 3)], [500]),
        (3, 400): ([(2, 3)], [100]),
        (3, 200): ([(1, 2), (2, 1)], [800, 800]),  # one server has two free GPUs, another one
        (2, 400): ([(1, 2)], [0]),
        (2, 700): ([(1, 2)], [100]),  # beside a part of the gang of three
        (2, 101): None,
    }
    gpus, milli = np.array(list(story), np.int32).T
    trace = Trace.of("sets", [0] * len(story), [9] * len(story), gpus)
    trace = replace(trace, gpu_milli=milli.copy())
    actions = ClusterActions(servers=False, racks=False)
    env, seen = begun(Cluster.uniform(3, 4), trace, actions=actions)
    everywhere = env.episode.action_table.groups - 1
    state = env.simulator.state
    for job, found in enumerate(story.values()):
        assert int(env.window[0]) == job
        assert seen["action_mask"][everywhere] == (found is not None)
        if found is None:
            break
        seen, *_, info = env.step(everywhere)
        assert info["reward_not_allowed"] == 0.0
        shares, left = found
        assert env.simulator.shares(job) == shares
        first = state.shares[state.jobs[job]["share"]]
        sets = [first] if len(shares) == 1 else [state.shares[first["next"]], first]
        on = [int(share["partial"]) for share in sets if share["partial"] >= 0]
        assert state.partials["left"][on].tolist() == left
    assert state.clock[0]["free"] == 0


def test_a_preempted_job_keeps_its_progress_and_pays_for_its_restart() -> None:
    actions = ClusterActions(preempt_after_s=2.0, longest_wait_s=2.0)
    env, _ = begun(
        Cluster.uniform(1, 1),
        Trace.of("two", [0, 1], [10, 1], [1, 1]),
        actions=actions,
        overheads=Overheads(restart_s=3.0, checkpoint_s=0.0),
        reward=ClusterReward({"preemptions": 1.0, "not_allowed": 10.0}),
    )
    table = env.episode.action_table
    stop, wait = table.window * table.groups, table.size - 1
    assert not env.step(0)[0]["action_mask"][stop]  # it has just begun to run
    seen, *_ = env.step(wait)  # to the arrival at 1
    assert not seen["action_mask"][stop]
    seen, *_ = env.step(wait)  # to 3, two seconds later
    assert seen["action_mask"][stop]
    seen, reward, *_, info = env.step(stop)
    assert (reward, info["running"], info["pending"]) == (-1.0, 0, 2)
    assert env.window[:2].tolist() == [1, 0]
    env.step(0)
    env.step(wait)
    env.step(0)
    assert env.simulator.now == 4.0
    while not env.simulator.done:
        env.step(wait)
    assert env.schedule().finish.tolist() == [4.0 + 3.0 + 7.0, 4.0]


def test_an_episode_that_cannot_go_on_is_truncated() -> None:
    fails = np.array([(2.0, 0, 0)], INCIDENT)
    trace = Trace.of("stuck", [0], [10], [1])
    env = ClusterEnv(Fixed(Cluster.uniform(1, 1), trace, fails), observation=SMALL)
    env.reset(seed=0)
    env.step(0)
    wait = env.action_space.n - 1
    seen, _, terminated, truncated, info = env.step(wait)
    assert (info["now_s"], info["pending"], terminated, truncated) == (2.0, 1, False, False)
    assert np.flatnonzero(seen["action_mask"]).tolist() == [wait]
    _, _, terminated, truncated, _ = env.step(wait)
    assert (terminated, truncated) == (False, True)
    with pytest.raises(gym.error.ResetNeeded):
        env.step(wait)


def test_the_horizon_truncates() -> None:
    env = toy_environment(horizon=3)
    env.reset(seed=0)
    for step in range(3):
        _, _, terminated, truncated, info = env.step(env.action_space.n - 1)
        assert (info["decisions"], terminated, truncated) == (step + 1, False, step == 2)


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda: ClusterActions(servers=False, racks=False, all_servers=False), "no server group"),
        (
            lambda: ClusterEnv(
                observation=partial(SMALL, known_durations=False, order=ShortestRemainingTime())
            ),
            "needs known durations",
        ),
        (
            lambda: begun(
                toy_cluster()[0],
                Trace.of("wide", [0], [1], [5]),
                actions=ClusterActions(all_servers=False),
            ),
            "no server group can hold it",
        ),
        (lambda: ClusterReward({"jtc": 1.0}), "unknown reward term"),
    ],
)
def test_bad_arguments_are_input_errors(make: Any, words: str) -> None:
    with refusal(words):
        make()


def test_bad_actions_are_input_errors() -> None:
    env = ClusterEnv(FixedCluster(*toy_cluster()))
    with pytest.raises(gym.error.ResetNeeded):
        _ = env.simulator
    env.reset()
    for action in (-1, env.action_space.n, 0.5, None):
        with refusal("action"):
            env.step(action)


def test_memory_and_processor_limit_how_many_gpus_a_server_has_room_for() -> None:
    trace = replace(Trace.of("hungry", [0], [5], [6]), cpu_milli=np.array([6000]))
    env, seen = begun(cluster_of([4, 4], 0, gpu_types=["A"], cpu_milli=[2000, UNLIMITED]), trace)
    assert np.flatnonzero(seen["action_mask"]).tolist() == [2]  # the rack
    env.step(2)
    assert env.simulator.shares(0) == [(1, 4), (0, 2)]


@pytest.mark.parametrize("name", ["cluster", "cluster_preemptive"])
def test_the_configs_make_the_environments(name: str) -> None:
    env = instantiate(configured(name, windows__jobs=[3, 5]))(*toy_cluster())
    assert isinstance(env, ClusterEnv)
    assert env.parallel.observation.table[3:5] == (16, 128)
    total, terminated, info = play(env, 0, first_action)
    assert terminated
    assert 3 <= info["jobs"] <= 5
    assert total == -env.schedule().jct.sum()


def test_the_toys_config_makes_the_toy() -> None:
    toy = instantiate(configured("cluster_toy"))
    assert toy.reset(seed=0)[1]["jobs"] == len(GPUS)
    assert toy.observation_space == toy_environment().observation_space
    assert preemptive_environment().parallel.actions.preempt_after_s == 0.0
