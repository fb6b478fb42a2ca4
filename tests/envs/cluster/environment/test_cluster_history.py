"""What is shown of jobs before and after: of the right ones, and nothing of the future."""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from typing import Any

import gymnasium as gym
import numpy as np
from cluster_instances import (
    Crowding,
    Fixed,
    first_action,
    instances,
    play,
    random_action,
    without_too_large_jobs,
)
from gymnasium.utils.env_checker import check_env
from hypothesis import assume, given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

import envs  # noqa: F401  registers the environments
from envs.cluster.environment.actions import ClusterActions, LeastService
from envs.cluster.environment.env import ClusterEnv
from envs.cluster.environment.observation import (
    JOB_BASE,
    ClusterObservation,
    add_finished,
    gangs,
    neighbours,
)
from envs.cluster.environment.parallel_env import ClusterParallelEnv
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster_state import FINISHED, FUTURE
from envs.cluster.workload.trace import Trace
from tests.envs.cluster.environment.reference_observation import exponential, kin, time
from tests.strength import examples

SIZES = partial(
    ClusterObservation, window=6, running=8, shares=8, known_durations=False, history=2,
    order=LeastService(),
)  # fmt: skip


def parallel(fixed: Fixed, seed: int) -> ClusterParallelEnv:
    """As many schedulers as racks, with preemption and forwarding; begun."""
    env = ClusterParallelEnv(
        fixed,
        schedulers=len(np.unique(fixed.instance.cluster.rack)),
        rates=Crowding(),
        forward_s=1.0,
        actions=ClusterActions(preempt_after_s=1.0, longest_wait_s=4.0),
        observation=SIZES,
        state_in_observation=True,
    )
    env.reset(seed=seed)
    return env


def playable(fixed: Fixed, seed: int) -> Fixed:
    return without_too_large_jobs(fixed, lambda fixed: parallel(fixed, seed))


def same(one: dict[str, Any], other: dict[str, Any]) -> None:
    for agent, seen in one.items():
        for key, values in seen.items():
            assert_array_equal(values, other[agent][key], err_msg=f"{agent} {key}")


def chosen(seen: dict[str, Any], rng: np.random.Generator) -> dict[str, int]:
    """Random allowed actions; all wait together in two steps of three."""
    together = rng.random() < 2 / 3 and all(one["action_mask"][-1] for one in seen.values())
    return {
        agent: len(one["action_mask"]) - 1 if together else random_action(one, rng)
        for agent, one in seen.items()
    }


@given(fixed=instances(), most=st.integers(1, 5))
def test_neighbours_are_the_nearest_of_the_same_kind(fixed: Fixed, most: int) -> None:
    trace = fixed.instance.trace
    found, gang = neighbours(trace, most), gangs(trace)
    sizes = list(zip(trace.num_gpus, trace.gpu_milli, strict=True))
    for job in range(len(trace)):
        padded = [(others + [-1] * most)[:most] for others in kin(trace, job)]
        assert found[job].tolist() == padded[0] + padded[1]
        assert (gang == gang[job]).tolist() == [size == sizes[job] for size in sizes]


def test_a_worked_example() -> None:
    trace = Trace.of("four", [0, 60, 120, 600], [180, 240, 60, 60], [1, 1, 2, 1])
    env = ClusterEnv.of_trace(
        Cluster.uniform(2, 2), trace, observation=partial(SIZES, history=1, known_durations=True)
    )
    env.reset(seed=0)
    wait, last = env.action_space.n - 1, np.log(4) / 4

    def check(action: int, now: float, expected: list[float]) -> None:
        """The history of the second job after an action."""
        seen, *_ = env.step(action)
        assert env.simulator.now == now
        rows = np.concatenate([seen["running_features"], seen["pending_features"]])
        second = int(np.flatnonzero(np.append(env.episode.book.shown[0], env.window) == 1)[0])
        assert_allclose(rows[second, JOB_BASE + 1 :], expected, rtol=1e-5)

    minute = np.log(2) / 4
    env.step(0)
    check(wait, 60.0, [1, minute, 0, minute, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    check(0, 60.0, [1, minute, 0, minute, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    check(wait, 120.0, [1, np.log(3) / 4, 0, minute, 0, 0, 0, 0, 0, 0, 0, 0, 0])
    env.step(1)  # the job of two GPUs, on the other server, for a minute
    both, apart = (last + minute) / 2, (last - minute) / 2
    finished = [last, 0, minute, both, apart]
    check(wait, 180.0, [1, last, 1, minute, 0, 0, 0, 0, *finished])
    later = np.log(1 + 9) / 4  # the fourth job comes nine minutes after the second
    env.step(wait)
    assert env.simulator.now == 300.0
    env.step(wait)
    env.simulator.settle()
    assert env.simulator.now == 600.0
    near = neighbours(trace, 1)
    assert near.tolist() == [[-1, 1], [0, 3], [-1, -1], [1, -1]]
    seen, *_ = env.step(0)
    row = seen["running_features"][0, JOB_BASE + 1 :]
    five = np.log(5) / 4  # the second job took four minutes
    assert_allclose(row[:8], [1, five, 1, later, 0, 0, 0, 0], rtol=1e-5)
    alike = [(last + five) / 2, (five - last) / 2, np.log(3) / 4]
    assert_allclose(row[8:11], alike, rtol=1e-5)


@given(values=st.lists(st.floats(0, 4), min_size=1, max_size=60))
def test_means_are_exponential(values: list[float]) -> None:
    means = np.zeros((2, 3))
    for number, value in enumerate(values, start=1):
        add_finished(means, 0, value)
        row = means[0]
        assert_array_equal(row, means[1])
        if number <= 20:
            expected = number, np.mean(values[:number]), np.var(values[:number])
            assert_allclose(row, expected, atol=1e-12)
    mean, deviation = exponential(values)
    assert_allclose(row, [len(values), mean, deviation**2], atol=1e-12)


def test_of_jobs_that_finish_at_once_the_first_submitted_counts_first() -> None:
    jobs = 24  # beyond 20 the order counts
    trace = Trace.of(
        "together", [0] * 23 + [500], [10] * 22 + [1000, 500], np.full(jobs, 1, np.int32)
    )
    env = ClusterEnv.of_trace(Cluster.uniform(6, 4), trace, observation=SIZES)
    play(env, 0, first_action)
    held = [time(seconds) for seconds in [10] * 22 + [1000, 500]]
    assert (env.schedule().finish[-2:] == 1000).all()
    found = env.episode.book.finished[-1]
    mean, deviation = exponential(held)
    assert_allclose(found, [jobs, mean, deviation**2], rtol=1e-9)
    assert mean != exponential(held[:22] + held[:21:-1])[0]


@examples(40)
@given(fixed=instances(), seed=st.integers(0, 10_000), steps=st.integers(1, 60))
def test_nothing_of_the_future_is_seen(fixed: Fixed, seed: int, steps: int) -> None:
    fixed = playable(fixed, seed)
    env, rng = parallel(fixed, seed), np.random.default_rng(seed)
    seen, _ = env.reset(seed=seed)
    kept, played = [seen], []
    for _ in range(steps):
        played.append(chosen(seen, rng))
        seen, *_ = env.step(played[-1])
        kept.append(seen)
        if not env.agents:
            break
    status, now = env.simulator.state.jobs["status"], env.simulator.now
    trace = fixed.instance.trace
    longer = np.where(status == FINISHED, 0, rng.integers(0, 50, len(trace)))
    coming = np.flatnonzero(status == FUTURE)
    assume(longer.any())
    order = np.arange(len(trace))
    order[coming] = rng.permutation(coming)
    submit = trace.submit_s.copy()
    submit[coming] = np.sort(rng.integers(int(now) + 1, int(now) + 90, len(coming)))
    other = trace.take(np.arange(len(trace)))
    labels = {name: getattr(trace, name).take(order) for name in ("user", "queue", "gpu_type")}
    columns = {name: getattr(trace, name)[order] for name in ("num_gpus", "gpu_milli", "cpu_milli")}
    other = replace(
        other,
        submit_s=submit,
        duration_s=trace.duration_s + np.maximum(longer, 0),
        **labels,
        **columns,
    )
    env = parallel(Fixed(fixed.instance.cluster, other, fixed.instance.incidents), seed)
    seen, _ = env.reset(seed=seed)
    same(seen, kept[0])
    for actions, expected in zip(played, kept[1:], strict=True):
        seen, *_ = env.step(actions)
        same(seen, expected)


def test_an_environment_with_a_history_is_a_gymnasium_environment() -> None:
    actions = ClusterActions(preempt_after_s=60.0)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        env = gym.make("meshwright/Cluster-v0", observation=SIZES, actions=actions).unwrapped
        check_env(env)
    seen, _ = env.reset(seed=0)
    assert seen["pending_features"].shape == (6, JOB_BASE + 1 + 8 * 2 + 5)
