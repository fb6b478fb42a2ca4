"""Random clusters, traces and incidents, and random play on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from numpy.random import default_rng

from envs.cluster.environment.env import ClusterEnv
from envs.cluster.environment.generator import FixedCluster
from envs.cluster.environment.instance import ClusterInstance
from envs.cluster.interference.rates import ON_NODE, PAIRS_PRODUCT, RateTables, without_neighbours
from envs.cluster.nodes import UNLIMITED, Cluster
from envs.cluster.simulation.cluster_state import INCIDENT
from envs.cluster.workload.trace import Labels, Trace
from envs.errors import InputError
from tests.strength import SEEDS


class Crowding:
    """Each neighbour on a node takes a tenth of the rate; several nodes and racks cost as much."""

    name = "crowding"

    def tables(self, trace: Trace, cluster: Cluster) -> RateTables:
        """One case for all jobs."""
        locality = np.array([1.0, 0.9, 0.8])[None, None, :, None]
        speed = np.ones((1, len(cluster.gpu_types)))
        speed[0, 1:] = 0.5
        tables = without_neighbours(np.zeros(len(trace), np.int32), speed, locality)
        return tables._replace(
            kind=PAIRS_PRODUCT, scope=ON_NODE, pair=np.full((1, 1), 0.9), floor=0.1
        )


class Fixed(FixedCluster):
    """`FixedCluster` with incidents."""

    def __init__(self, cluster: Cluster, trace: Trace, incidents: np.ndarray) -> None:
        super().__init__(cluster, trace)
        self.instance = ClusterInstance(cluster, trace, incidents)


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Two to five nodes of one to four GPUs of two types in up to three racks."""
    nodes = draw(st.integers(2, 5))
    rng = default_rng(draw(SEEDS))
    gpus = rng.integers(1, 5, nodes).astype(np.int32)
    limited = draw(st.booleans())
    return Cluster(
        name="random",
        gpus=gpus,
        rack=rng.integers(0, 3, nodes).astype(np.int32),
        gpu_type=rng.integers(0, 2, nodes).astype(np.int32),
        gpu_types=("A", "B"),
        cpu_milli=gpus * 1000 if limited else np.full(nodes, UNLIMITED),
        memory_mib=np.full(nodes, UNLIMITED),
    )


@st.composite
def instances(draw: st.DrawFn) -> Fixed:
    """Up to twelve jobs, some on parts of GPUs, some on one GPU type; nodes that fail.

    Few or many gang sizes, users and queues, which some jobs do not say.
    """
    cluster = draw(clusters())
    rng = default_rng(draw(SEEDS))
    jobs = draw(st.integers(1, 12))
    of_type = np.bincount(cluster.gpu_type, cluster.gpus, 2)
    wanted = [None, *(name for name, there in zip("AB", of_type, strict=True) if there)]
    types = [wanted[i] for i in rng.integers(0, len(wanted), jobs)]
    there = [int(cluster.num_gpus if t is None else of_type["AB".index(t)]) for t in types]
    largest = draw(st.sampled_from([2, 99]))
    gpus = np.array([int(rng.integers(1, min(most, largest) + 1)) for most in there], np.int32)
    milli = np.where((gpus <= 3) & (rng.random(jobs) < 0.5), rng.integers(1, 11, jobs) * 100, 1000)
    names = draw(st.sampled_from([[None], [None, "a", "b"]]))
    users, queues = ([names[i] for i in rng.integers(0, len(names), jobs)] for _ in range(2))
    none = Labels.unknown(jobs)
    submit = np.sort(rng.integers(0, 40, jobs))
    trace = Trace(
        name="random",
        job_id=np.arange(jobs).astype(np.str_),
        submit_s=submit,
        duration_s=rng.integers(1, 30, jobs),
        num_gpus=gpus,
        gpu_milli=milli.astype(np.int32),
        cpu_milli=rng.integers(0, 1001, jobs) * gpus,
        memory_mib=np.zeros(jobs, np.int64),
        user=Labels.of(users),
        queue=Labels.of(queues),
        gpu_type=Labels.of(types),
        model=none,
    )
    failures = []
    if draw(st.booleans()):
        node = int(rng.integers(cluster.num_nodes))
        failures = [(float(rng.integers(1, 30)), node, 0), (40.0, node, 1)]
    return Fixed(cluster, trace, np.array(failures, INCIDENT))


def without_too_large_jobs(fixed: Fixed, begin: Callable[[Fixed], object]) -> Fixed:
    """`fixed` without the jobs that `begin` says no server group can hold."""
    while True:
        try:
            begin(fixed)
        except InputError as refused:
            if "no server group can hold it" not in refused.message:
                raise
            trace = fixed.instance.trace
            kept = np.arange(len(trace)) != refused.record
            assume(kept.any())
            fixed = Fixed(fixed.instance.cluster, trace.take(kept), fixed.instance.incidents)
        else:
            return fixed


def random_action(observation: Mapping[str, Any], rng: np.random.Generator) -> int:
    """Any allowed action."""
    return int(rng.choice(np.flatnonzero(observation["action_mask"])))


def first_action(observation: Mapping[str, Any], rng: np.random.Generator) -> int:
    """The first allowed action: start what fits, wait only where nothing does."""
    return int(np.flatnonzero(observation["action_mask"])[0])


def play(
    env: ClusterEnv,
    seed: int,
    choose: Callable[[Mapping[str, Any], np.random.Generator], int] = random_action,
    each: Callable[[ClusterEnv, Mapping[str, Any]], None] | None = None,
) -> tuple[float, bool, dict[str, Any]]:
    """The sum of rewards of one episode, whether it was terminated, and its last info."""
    rng = default_rng(seed)
    observation, info = env.reset(seed=seed)
    total, over, terminated = 0.0, False, False
    while not over:
        if each is not None:
            each(env, observation)
        observation, reward, terminated, truncated, info = env.step(choose(observation, rng))
        total += reward
        over = terminated or truncated
    return total, terminated, info
