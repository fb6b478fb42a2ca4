"""Clusters, traces and incidents, made by hand or at random, and play on them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
from hypothesis import assume
from hypothesis import strategies as st
from numpy.random import default_rng
from numpy.typing import ArrayLike
from omegaconf import OmegaConf

from envs.cluster.environment.env import ClusterEnv
from envs.cluster.environment.generator import FixedCluster
from envs.cluster.environment.instance import ClusterInstance
from envs.cluster.environment.observation import ClusterObservation
from envs.cluster.interference.rates import ON_NODE, PAIRS_PRODUCT, RateTables, without_neighbours
from envs.cluster.nodes import UNLIMITED, Cluster
from envs.cluster.simulation.cluster_state import INCIDENT
from envs.cluster.workload.trace import Trace
from envs.errors import InputError
from experiments.config.config_source import SHIPPED_CONFIGS
from experiments.config.targets import check_targets
from tests.strength import SEEDS

SMALL = partial(ClusterObservation, window=12, running=12, shares=24)
Seen = Mapping[str, Any]


def cluster_of(
    gpus: Sequence[int],
    rack: ArrayLike,
    gpu_type: ArrayLike = 0,
    gpu_types: Sequence[str] = ("A", "B"),
    cpu_milli: ArrayLike = UNLIMITED,
) -> Cluster:
    """Nodes by their columns; a number holds for all of them."""
    columns = {"gpus": gpus, "rack": rack, "gpu_type": gpu_type, "cpu_milli": cpu_milli}
    return Cluster(
        name=f"{list(gpus)} {gpu_type}",
        gpu_types=tuple(gpu_types),
        memory_mib=np.full(len(gpus), UNLIMITED),
        **{
            name: np.broadcast_to(column, len(gpus)).astype(
                np.int64 if name == "cpu_milli" else np.int32
            )
            for name, column in columns.items()
        },
    )


def cluster_of_racks(
    racks: Mapping[str, int], *, nodes_per_rack: int, gpus_per_node: int
) -> Cluster:
    """So many racks of each GPU type; with 0 the type has a number, but no rack."""
    types = np.repeat(np.arange(len(racks)), [n * nodes_per_rack for n in racks.values()])
    gpus, rack = [gpus_per_node] * len(types), np.arange(len(types)) // nodes_per_rack
    return cluster_of(gpus, rack, types, list(racks))


def long_trace(name: str = "long", seed: int = 0, jobs: int = 500) -> Trace:
    """Jobs of 1 to 8 GPUs."""
    rng = default_rng(seed)
    submit = 50 + np.cumsum(rng.integers(0, 300, jobs))
    return Trace.of(name, submit, rng.integers(100, 5000, jobs), 2 ** rng.integers(0, 4, jobs))


def configured(name: str, **changes: Any) -> Any:
    """The node `env/<name>` of the shipped configs, with other values by their dotted names."""
    chosen = OmegaConf.create(SHIPPED_CONFIGS.node(f"env/{name}"))
    for key, value in changes.items():
        OmegaConf.update(chosen, key.replace("__", "."), value)
    check_targets(OmegaConf.to_container(chosen), "env")
    return chosen


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
    nodes, rng = draw(st.integers(2, 5)), default_rng(draw(SEEDS))
    gpus, limited = rng.integers(1, 5, nodes), draw(st.booleans())
    rack, types = rng.integers(0, 3, nodes), rng.integers(0, 2, nodes)
    return cluster_of(gpus, rack, types, cpu_milli=gpus * 1000 if limited else UNLIMITED)


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
    submit, seconds = np.sort(rng.integers(0, 40, jobs)), rng.integers(1, 30, jobs)
    labels: Any = {"user": users, "queue": queues, "gpu_type": types}
    trace = replace(
        Trace.of("random", submit, seconds, gpus, **labels),
        gpu_milli=milli.astype(np.int32),
        cpu_milli=rng.integers(0, 1001, jobs) * gpus,
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


def random_action(seen: Seen, rng: np.random.Generator) -> int:
    """Any allowed action."""
    return int(rng.choice(np.flatnonzero(seen["action_mask"])))


def random_actions(seen: Mapping[str, Seen], rng: np.random.Generator) -> dict[str, int]:
    """The same for every agent."""
    return {agent: random_action(one, rng) for agent, one in seen.items()}


def first_action(seen: Seen, rng: np.random.Generator) -> int:
    """The first allowed action: start what fits, wait only where nothing does."""
    return int(np.flatnonzero(seen["action_mask"])[0])


def begun(cluster: Cluster, trace: Trace, **arguments: Any) -> tuple[ClusterEnv, Seen]:
    """The environment of a trace, and what is seen at first."""
    env = ClusterEnv.of_trace(cluster, trace, **{"observation": SMALL, **arguments})
    return env, env.reset(seed=0)[0]


def play(
    env: ClusterEnv,
    seed: int,
    choose: Callable[[Seen, np.random.Generator], int] = random_action,
    each: Callable[[ClusterEnv, Seen, Mapping[str, Any]], None] = lambda *_: None,
) -> tuple[float, bool, dict[str, Any]]:
    """The sum of rewards of one episode, whether it was terminated, and its last info."""
    rng = default_rng(seed)
    seen, info = env.reset(seed=seed)
    total, over, terminated = 0.0, False, False
    while not over:
        each(env, seen, info)
        seen, reward, terminated, truncated, info = env.step(choose(seen, rng))
        total, over = total + reward, terminated or truncated
    each(env, seen, info)
    return total, terminated, info
