"""`SlurmCluster-v0`: what a real Slurm makes of jobs is what the simulator would make of them."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.random import default_rng

from envs.cluster.environment.actions import ClusterActions
from envs.cluster.environment.slurm_env import ON_SERVERS, SlurmClusterEnv
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster_state import INCIDENT
from envs.cluster.workload.trace import Trace
from tests.envs.cluster.environment.cluster_instances import (
    SMALL,
    Fixed,
    Seen,
    begun,
    cluster_of,
    first_action,
)
from tests.refusal import refusal
from tests.slurm_here import needs_slurm

UNKNOWN = partial(SMALL, known_durations=False)
ROUNDING_S = 1e-6


def check_as_simulated(
    env: SlurmClusterEnv, choose: Callable[[Seen], int], actions: ClusterActions = ON_SERVERS
) -> None:
    """Play to the end; the simulator shows the same where jobs take what they have taken live."""
    seen, info = env.reset(seed=0)
    instance, steps, over = env.episode.instance, [], False
    while not over:
        chosen = choose(seen)
        seen, _, terminated, truncated, info = env.step(chosen)
        over = terminated or truncated
        steps.append((chosen, seen, info))
    assert terminated
    live = env.schedule()
    taken = replace(instance.trace, duration_s=live.held)
    twin, other = begun(instance.cluster, taken, actions=actions, observation=UNKNOWN)
    compared, wait = 0, env.action_space.n - 1
    for chosen, seen, info in steps:
        if chosen != wait:
            other, *_ = twin.step(chosen)
        while twin.simulator.now < info["now_s"] - ROUNDING_S:
            other, *_ = twin.step(wait)
        facts = twin.episode.facts()
        # ends of one instant are one event or several, by what rounding and polling make of them
        if all(facts[key] == info[key] for key in ("arrived", "pending", "running", "finished")):
            compared += 1
            for key in seen:
                np.testing.assert_allclose(other[key], seen[key], atol=1e-5, err_msg=key)
    assert compared > len(steps) / 2
    while not twin.episode.ended:
        twin.step(wait)
    for column in ("start", "finish", "preemptions"):
        np.testing.assert_allclose(getattr(twin.schedule(), column), getattr(live, column))


@pytest.mark.slow
@needs_slurm
def test_fifo_takes_what_it_takes_simulated_and_what_slurm_takes_to_launch() -> None:
    trace = Trace.of("few", [7, 8, 60, 200, 300], [100, 300, 150, 200, 50], [2, 2, 1, 1, 2])
    cluster = Cluster.uniform(2, 2)
    twin, seen = begun(cluster, trace, actions=ON_SERVERS)
    rng, over = default_rng(0), False
    while not over:
        seen, _, over, *_ = twin.step(first_action(seen, rng))
    env = SlurmClusterEnv.of_trace(cluster, trace, scale=500.0, observation=UNKNOWN)
    try:
        check_as_simulated(env, partial(first_action, rng=rng))
        live, late = env.schedule(), env.schedule().held - trace.duration_s
        assert (late > 0).all()
        assert (live.jct > twin.schedule().jct).all()
        assert (live.jct < twin.schedule().jct + late.sum() + ROUNDING_S).all()
        with pytest.raises(TypeError, match="live cluster"):
            copy.deepcopy(env)
    finally:
        env.close()
    assert copy.deepcopy(env).observation_space == env.observation_space


@pytest.mark.slow
@needs_slurm
def test_a_preempted_job_sleeps_on_for_what_was_left(tmp_path: Path) -> None:
    trace = Trace.of("two", [0, 0], [2000, 300], [2, 2])
    actions = replace(ON_SERVERS, preempt_after_s=0.0, longest_wait_s=100.0)
    env = SlurmClusterEnv.of_trace(
        Cluster.uniform(1, 2), trace, scale=1000.0, folder=tmp_path,
        actions=actions, observation=UNKNOWN,
    )  # fmt: skip
    wait = int(env.action_space.n) - 1
    stop = 3 * 12  # behind the window's starts on a server, a rack and everything

    def decisions() -> Iterator[int]:
        yield from (0, wait, stop, 3)  # the first job has hardly begun, and starts behind the other
        while not any(job.state == "RUNNING" for job in env.episode.machine.slurm.jobs()):
            yield wait
        yield from (*[wait] * 9, stop)
        while True:
            yield 0 if env.action_masks()[0] else wait

    one = decisions()
    try:
        check_as_simulated(env, lambda seen: next(one), actions)
        (log,) = tmp_path.glob("*/slept/*-0.log")
        spans = np.diff(env.episode.machine.slept(log.stem)).ravel()
        assert len(spans) >= 2
        assert spans[:-1].sum() > 0.1  # a busy machine begins to sleep late
        assert spans.sum() > 1.99, "it has slept for its two seconds"
        assert spans[-1] < 2.0, "and not begun again"
        assert env.schedule().preemptions.tolist() == [2, 0]
    finally:
        env.close()


@pytest.mark.parametrize(
    ("changes", "gpus", "field"),
    [
        ({"gpu_milli": np.array([1000, 500], np.int32)}, [4, 4], "gpu_milli"),
        ({"num_gpus": np.array([1, 0], np.int32)}, [4, 4], "num_gpus"),
        ({}, [4, 4], "incidents"),
        ({}, [4, 2], "not alike"),
    ],
)
def test_what_slurm_cannot_do_is_refused(
    changes: dict[str, Any], gpus: list[int], field: str
) -> None:
    trace = replace(Trace.of("two", [0, 0], [10, 10], [1, 1]), **changes)
    cluster = cluster_of(gpus, 0, gpu_types=["A"])
    env = SlurmClusterEnv(Fixed(cluster, trace, np.array([(5.0, 0, 0)], INCIDENT)))
    with refusal(field):
        env.reset(seed=0)


def test_gangs_over_servers_are_refused() -> None:
    with refusal("actions"):
        SlurmClusterEnv(actions=ClusterActions())
