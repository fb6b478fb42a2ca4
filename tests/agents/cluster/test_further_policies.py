"""What holds of every policy that has no published schedule to be compared with."""

from __future__ import annotations

import csv
import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hydra.utils import get_object, instantiate
from hypothesis import given
from hypothesis import strategies as st
from omegaconf import OmegaConf

from agents.cluster.replay import simulate
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import INCIDENT, Overheads, Schedule
from envs.cluster.workload.trace import Trace
from experiments.config.config_source import SHIPPED_CONFIGS
from experiments.config.targets import name_here
from tests.agents.cluster.further_policies import POLICIES, trace_of
from tests.agents.cluster.small_clusters import Speeds, check_schedule, random_case, with_columns
from tests.strength import SEEDS, examples, trials

EVERY = pytest.mark.parametrize("name", POLICIES)


def played(name: str, cluster: Cluster, trace: Trace, **options: Any) -> Schedule:
    schedule = simulate(POLICIES[name](), ClusterSimulator(cluster, trace, **options))
    assert schedule.finished.all()
    return schedule


@EVERY
@examples(15)
@given(seed=SEEDS, types=st.integers(1, 2))
def test_gangs_are_whole_and_work_is_done(name: str, seed: int, types: int) -> None:
    cluster, trace = random_case(seed, types=types)
    check_schedule(cluster, trace, played(name, cluster, trace, keep_runs=True))


@EVERY
@pytest.mark.parametrize("seed", range(4))
def test_gpu_types_at_their_own_speeds(name: str, seed: int) -> None:
    cluster, trace = random_case(seed, types=3)
    speed = np.random.default_rng(seed).uniform(0.1, 1.0, (len(trace), 3))
    speed[:, 0] = 1.0
    schedule = played(name, cluster, trace, rates=Speeds(speed), keep_runs=True)
    check_schedule(cluster, trace, schedule, speed)


@EVERY
def test_the_same_again(name: str) -> None:
    cluster, trace = random_case(5)
    policy = POLICIES[name]()
    simulate(policy, ClusterSimulator(cluster, trace.take(slice(0, 3))))
    again = simulate(policy, ClusterSimulator(cluster, trace))
    np.testing.assert_array_equal(played(name, cluster, trace).finish, again.finish)


@pytest.mark.parametrize("name", [n for n in POLICIES if POLICIES[n]().knows != "durations"])
@pytest.mark.parametrize("seed", range(trials(8, 3)))
def test_the_future_is_not_read(name: str, seed: int) -> None:
    """Jobs that last beyond an instant may last longer without a change before it, bit for bit."""
    cluster, trace = random_case(seed, types=2)
    until = 2500.0
    speed = np.random.default_rng(seed).uniform(0.3, 1.0, (len(trace), 2))  # progress is rounded
    options: Any = {"rates": Speeds(speed), "keep_runs": True}
    usual = played(name, cluster, trace, **options)
    longer = np.where(usual.finish > until, trace.duration_s * 3 + 17, trace.duration_s)
    other = played(name, cluster, with_columns(trace, duration_s=longer), **options)
    before = []
    for log in (usual.runs, other.runs):
        early = log[log["start"] < until]
        early["end"] = early["end"].clip(max=until)
        before.append(sorted(early[["start", "end", "job", "node"]].tolist()))
    assert before[0] == before[1]


def test_some_policies_do_read_it() -> None:
    assert {POLICIES[n]().knows for n in ("afs", "themis", "finish_time_fairness")} == {"durations"}


@EVERY
def test_failing_nodes_and_restarts(name: str) -> None:
    _, trace = random_case(11)
    trace = with_columns(trace, num_gpus=np.minimum(trace.num_gpus, 3))
    downs = [(300.0, 0, 0), (900.0, 2, 0), (1500.0, 0, 1), (2500.0, 2, 1)]
    options: Any = {"incidents": np.array(downs, INCIDENT), "overheads": Overheads(7.0, 0.0)}
    held = played(name, Cluster.uniform(3, 2), trace, keep_runs=True, **options).held
    assert (held >= trace.duration_s).all()


@EVERY
def test_jobs_without_gpus_and_fractional_jobs(name: str) -> None:
    jobs = [(0, 100, 1), (0, 50, 0), (5, 80, 1), (5, 40, 2), (9, 30, 1)]
    trace = trace_of(jobs, gpu_milli=[500, 1000, 500, 1000, 250])
    held = played(name, Cluster.uniform(2, 1), trace).held
    np.testing.assert_allclose(held, trace.duration_s)


@pytest.mark.parametrize("name", sorted({n.removesuffix("_backfill") for n in POLICIES}))
def test_configuration(name: str) -> None:
    placement = {"_target_": "tests.agents.cluster.small_clusters.LowestNodes"}
    config = OmegaConf.create({"seed": 1, "placement": placement})
    config.agent = SHIPPED_CONFIGS.node(f"agent/{name}")
    policy = instantiate(config.agent)
    cluster, trace = random_case(3)
    assert policy.name == name
    assert simulate(policy, ClusterSimulator(cluster, trace)).finished.all()


@pytest.mark.parametrize(
    "name",
    [
        "fairness.FinishTimeFairness", "fairness.LeastAttainedService", "fairness.MaxMinFairness",
        "elastic.ApatheticFutureShare", "elastic.Optimus", "gittins.Gittins",
    ],
)  # fmt: skip
def test_names_in_saved_runs_are_found(name: str) -> None:
    found = get_object(name_here(f"agents.cluster.{name}"))
    assert found.__name__ == name.partition(".")[2]


@pytest.mark.slow
def test_mean_jct_on_a_public_trace(data: Path) -> None:
    """260 jobs on 16 GPUs; in the order of arrival the mean is 71,091 s."""
    path = data / "traces" / "itp" / "cluster10.csv.gz"
    columns = ("submission_time", "duration", "num_gpu")
    with gzip.open(path, "rt") as file:
        rows = sorted(csv.DictReader(file), key=lambda r: (int(r["submission_time"]), r["job_id"]))
    trace = Trace.of("cluster10", *([int(r[c]) for r in rows] for c in columns)).canonical()
    mean = {
        name: played(name, Cluster.uniform(1, 16), trace).jct.mean()
        for name in ("las_gavel", "afs", "gittins", "qssf", "themis")
    }
    assert all(trace.duration_s.mean() < value < 71_091 for value in mean.values())
    assert mean["afs"] < mean["themis"] < mean["las_gavel"]
