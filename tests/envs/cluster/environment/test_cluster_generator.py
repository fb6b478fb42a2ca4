"""Episodes are windows of a trace at the load asked for, or random jobs."""

from __future__ import annotations

import numpy as np
import pytest
from numpy.random import default_rng

from envs.cluster.environment.env import ClusterEnv
from envs.cluster.environment.generator import FixedCluster, RandomJobs, TraceWindows
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace
from tests.refusal import refusal

CLUSTER = Cluster.uniform(4, 4, nodes_per_rack=2)


def long_trace(jobs: int = 500) -> Trace:
    rng = default_rng(0)
    submit = 1000 + np.cumsum(rng.integers(0, 300, jobs))
    return Trace.of("long", submit, rng.integers(10, 5000, jobs), 2 ** rng.integers(0, 4, jobs))


def test_a_window_is_a_run_of_jobs_from_second_0() -> None:
    trace, rng = long_trace(), default_rng(1)
    windows = TraceWindows(CLUSTER, trace, jobs=(20, 30))
    firsts = set()
    for _ in range(40):
        window = windows(rng).trace
        first = int(window.job_id[0])
        assert window.job_id.tolist() == trace.job_id[first : first + len(window)].tolist()
        assert 20 <= len(window) <= 30
        np.testing.assert_array_equal(
            window.submit_s, trace.submit_s[first : first + len(window)] - trace.submit_s[first]
        )
        firsts.add(first)
    assert len(firsts) > 20


def test_gaps_are_stretched_to_the_load() -> None:
    windows = TraceWindows(CLUSTER, long_trace(), jobs=(100, 100), load=(0.7, 1.3))
    loads = [windows(default_rng(s)).trace.offered_load(16) for s in range(30)]
    assert 0.69 < min(loads) < 0.8
    assert 1.2 < max(loads) < 1.31


def test_the_load_counts_gpus_by_their_speed() -> None:
    mixed = Cluster.uniform(4, 4, gpu_types=("V100", "K80"))
    speeds = {"V100": 1.0, "K80": 0.25, "P100": 0.5}
    windows = TraceWindows(mixed, long_trace(), jobs=(100, 100), load=(0.8, 0.8), speeds=speeds)
    trace = windows(default_rng(0)).trace
    assert trace.gpu_seconds.sum() / (8 + 8 * 0.25) / trace.span_s == pytest.approx(0.8, rel=1e-3)


def test_large_jobs_are_left_out_where_that_is_asked_for() -> None:
    windows = TraceWindows(CLUSTER, long_trace(), jobs=(50, 50), max_gpus=4)
    assert windows(default_rng(0)).trace.num_gpus.max() == 4


def test_several_clusters_share_one_observation() -> None:
    clusters = (CLUSTER, Cluster.uniform(2, 8), Cluster.uniform(6, 2, nodes_per_rack=1))
    windows = TraceWindows(clusters, long_trace(), jobs=(5, 5))
    bounds = windows.bounds
    assert (bounds.servers, bounds.racks, bounds.rack_servers, bounds.gpus) == (6, 6, 2, 8)
    env = ClusterEnv(windows)
    seen = set()
    for seed in range(12):
        observation, _ = env.reset(seed=seed)
        assert env.observation_space.contains(observation)
        seen.add(env.simulator.cluster.name)
    assert len(seen) == 3


def test_random_jobs_have_their_gang_sizes_durations_and_load() -> None:
    jobs = RandomJobs(CLUSTER, jobs=(4000, 4000), load=(1, 1), max_gpus=8, duration_s=(60, 3600))
    trace = jobs(default_rng(0)).trace
    sizes, counts = np.unique(trace.num_gpus, return_counts=True)
    assert sizes.tolist() == [1, 2, 4, 8]
    np.testing.assert_allclose(counts / 4000, [2 / 3, 2 / 9, 2 / 27, 1 / 27], atol=0.02)
    assert trace.duration_s.min() >= 60
    assert trace.duration_s.max() <= 3600
    assert np.median(trace.duration_s) == pytest.approx(np.sqrt(60 * 3600), rel=0.1)
    assert trace.offered_load(16) == pytest.approx(1.0, rel=1e-3)


def test_bad_arguments_are_input_errors() -> None:
    trace = long_trace(10)
    for jobs in ((5, 4), (0, 4), (3,)):
        with refusal("jobs"):
            TraceWindows(CLUSTER, trace, jobs=jobs)
    with refusal("load"):
        TraceWindows(CLUSTER, trace, jobs=(2, 3), load=(0, 1))
    with refusal("11 are needed"):
        TraceWindows(CLUSTER, trace, jobs=(2, 11))
    with refusal("no job"):
        FixedCluster(CLUSTER, trace.take(slice(0, 0)))
    with refusal("max_gpus"):
        RandomJobs(CLUSTER, jobs=(1, 2), load=(1, 1), max_gpus=17, duration_s=(1, 2))
