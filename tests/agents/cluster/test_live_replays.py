"""Drawn replays of the shipped scheduler and of untrained ones: told states, the same actions."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from exported_schedulers import environment, exported, trained_config
from hypothesis import given
from hypothesis import strategies as st
from live_replays import agrees_with_the_simulator, asked_beside_a_replay
from small_clusters import Speeds, with_columns

from agents.cluster.checkpoint_expert import described
from agents.cluster.joint_choice import JointChoice
from agents.cluster.migrating.expert import MigrationExpert
from agents.cluster.migrating.priorities import AttainedServiceClasses, RemainingService
from agents.cluster.prediction import Gittins
from agents.cluster.queue import EASY, FIFO, LAS2D, SJF, SRTF, LAS2DTiresias
from envs.cluster.nodes import UNLIMITED, Cluster
from envs.cluster.simulation.cluster_state import INCIDENT
from envs.cluster.workload.trace import Trace
from tests.strength import SEEDS, examples

pytestmark = [pytest.mark.proof, pytest.mark.timeout(1800)]

TYPES = ("V100", "P100", "K80")


def drawn(seed: int) -> tuple[Cluster, Trace, Any, Any]:
    """A cluster of three types, jobs of some users, their speeds, and servers that fail."""
    rng = np.random.default_rng(seed)
    nodes, size = 3 * int(rng.integers(1, 5)), int(rng.integers(1, 9))
    cluster = Cluster.uniform(nodes, size, nodes_per_rack=int(rng.integers(1, 4)), gpu_types=TYPES)
    jobs = int(rng.integers(1, 40))
    most = nodes // 3 * size  # of one type
    trace = Trace.of(
        "drawn",
        np.sort(rng.integers(0, int(rng.integers(1, 20_000)), jobs)),
        rng.integers(1, 20_000, jobs),
        np.minimum(rng.choice([1, 1, 1, 2, 2, 4, 8], jobs), most),
    )
    trace = with_columns(
        trace,
        user=rng.choice(["", "ann", "bob"], jobs),
        queue=rng.choice(["", "vc1", "vc2"], jobs),
        gpu_type=rng.choice(["", "V100", "V100|P100"], jobs),
    )
    speed = rng.uniform(0.2, 1.0, (jobs, 3)) if rng.random() < 0.5 else np.ones((jobs, 3))
    times = np.sort(rng.integers(1, 20_000, 4))
    broken = np.repeat(rng.integers(0, nodes, 2), 2)
    incidents = np.array([*zip(times, broken, [0, 1, 0, 1], strict=True)], INCIDENT)
    return cluster, trace, Speeds(speed), incidents if rng.random() < 0.5 else incidents[:0]


@examples(40)
@given(SEEDS)
def test_the_shipped_scheduler(seed: int) -> None:
    cluster, trace, rates, incidents = drawn(seed)
    agrees_with_the_simulator(
        "unknown_durations", cluster, trace,
        rates=rates, restart_s=float(seed % 3 * 30), incidents=incidents,
    )  # fmt: skip


@pytest.fixture(scope="module", params=["history", "known", "las", "srsf"])
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> str:
    """An untrained policy: alone, with durations, and beside two experts."""
    cluster, trace, _, _ = drawn(0)
    orders = {"las": lambda: AttainedServiceClasses(600.0), "srsf": RemainingService}
    expert = None
    if request.param in orders:
        expert = MigrationExpert(orders[request.param], 1.33, 120.0)
    config = trained_config(known=request.param == "known")
    env = environment(cluster, trace, config, expert)
    target: Path = tmp_path_factory.mktemp(request.param) / "checkpoint"
    exported(target, env, config, expert=described(expert))
    return str(target)


@examples(25)
@given(SEEDS)
def test_untrained_schedulers(folder: str, seed: int) -> None:
    cluster, trace, rates, incidents = drawn(seed)
    agrees_with_the_simulator(
        folder, cluster, trace, rates=rates, restart_s=30.0, incidents=incidents
    )


@examples(25)
@given(SEEDS)
def test_fractions_of_gpus_and_limits_of_processors(folder: str, seed: int) -> None:
    cluster, trace, rates, _ = drawn(seed)
    if "las" in folder or "srsf" in folder:
        return  # their plans are of whole GPUs
    rng = np.random.default_rng(seed)
    milli = np.where(trace.num_gpus == 1, rng.choice([250, 500, 700, 1000], len(trace)), 1000)
    cpu = [16_000 if rng.random() < 0.5 else UNLIMITED] * cluster.num_nodes
    trace = with_columns(trace, gpu_milli=milli, cpu_milli=1000 * trace.num_gpus)
    agrees_with_the_simulator(folder, with_columns(cluster, cpu_milli=cpu), trace, rates=rates)


POLICIES = {
    "fifo": FIFO, "easy": EASY, "sjf": SJF, "srtf": SRTF, "gittins": Gittins,
    "joint_choice": JointChoice, "las_2d": LAS2D, "las_2d_tiresias": LAS2DTiresias,
}  # fmt: skip


@examples(40)
@given(SEEDS, st.sampled_from(sorted(POLICIES)))
def test_any_memoryless_policy(seed: int, name: str) -> None:
    cluster, trace, _, incidents = drawn(seed)
    asked_beside_a_replay(POLICIES[name], cluster, trace, incidents)
