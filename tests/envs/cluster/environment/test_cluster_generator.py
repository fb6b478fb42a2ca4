"""Episodes are windows of traces at the load and stage asked for; racks are dealt out evenly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from cluster_instances import cluster_of, cluster_of_racks, clusters, long_trace
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng

from envs.cluster.environment.env import ClusterEnv
from envs.cluster.environment.generator import (
    Curriculum,
    FixedCluster,
    MixedClusters,
    RandomJobs,
    Stage,
    TraceWindows,
    at_load,
    reference_gpus,
)
from envs.cluster.environment.instance import ClusterBounds
from envs.cluster.environment.parallel_env import ClusterParallelEnv
from envs.cluster.environment.routing import ConsecutiveRacks, MixedRacks, RackOwners
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace
from tests.refusal import refusal

CLUSTER = Cluster.uniform(4, 4, nodes_per_rack=2)


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


SMALL = cluster_of_racks({"A": 1, "B": 1}, nodes_per_rack=2, gpus_per_node=2)
MIDDLE = cluster_of_racks({"A": 0, "B": 4}, nodes_per_rack=1, gpus_per_node=4)
LARGE = cluster_of_racks({"A": 3, "B": 1}, nodes_per_rack=2, gpus_per_node=4)
GROWING = Curriculum(first_load=(0.4, 0.6), load=(0.8, 1.2), first_gpus=8, gpus=32, until=0.5)
ALL = Curriculum(first_load=(1, 1), load=(1, 1), first_gpus=32, gpus=32)
SPEEDS = {"A": 1.0, "B": 0.5}


TRACES = (long_trace("first", 0, 300), long_trace("second", 1, 300))


def mixed(**arguments: object) -> MixedClusters:
    given = {"stages": GROWING, "jobs_per_gpu": (2, 4), "max_share": 0.25, "speeds": SPEEDS}
    return MixedClusters((LARGE, SMALL, MIDDLE), TRACES, **{**given, **arguments})


def test_stages_at_the_ends_and_half_way() -> None:
    assert GROWING.stage(0.0) == Stage((0.4, 0.6), 8.0)
    half = GROWING.stage(0.25)
    assert half.load == pytest.approx((0.6, 0.9))
    assert half.gpus == pytest.approx(16.0)
    for progress in (0.5, 0.7, 1.0):
        assert GROWING.stage(progress) == Stage((0.8, 1.2), 32.0)


@given(early=st.floats(0, 1), late=st.floats(0, 1))
def test_stages_only_grow(early: float, late: float) -> None:
    first, second = GROWING.stage(min(early, late)), GROWING.stage(max(early, late))
    assert first.gpus <= second.gpus <= 32
    assert first.load is not None
    assert second.load is not None
    assert all(a <= b + 1e-12 for a, b in zip(first.load, second.load, strict=True))


@pytest.mark.parametrize(
    ("progress", "sizes", "least", "most"),
    [(0.0, {8}, 0.4, 0.6), (0.25, {8, 16}, 0.6, 0.9), (1.0, {8, 16, 32}, 0.8, 1.2)],
)
def test_episodes_follow_the_stage(
    progress: float, sizes: set[int], least: float, most: float
) -> None:
    generator, rng = mixed(), default_rng(0)
    generator.progress = progress
    seen, names, loads = set(), set(), []
    for _ in range(60):
        instance = generator(rng)
        cluster, trace = instance.cluster, instance.trace
        gpus = cluster.num_gpus
        assert trace.submit_s[0] == 0
        assert 2 * gpus <= len(trace) <= 4 * gpus
        assert trace.num_gpus.max() <= gpus / 4
        of_a = int(cluster.gpus[cluster.gpu_type == 0].sum())
        capacity = of_a + 0.5 * (gpus - of_a)
        loads.append(float(trace.gpu_seconds.sum() / capacity / trace.span_s))
        seen.add(gpus)
        names.add(trace.name)
        first = int(trace.job_id[0])
        source = TRACES[trace.name == "second"]
        fits = np.flatnonzero(source.num_gpus <= gpus // 4)
        at = int(np.searchsorted(fits, first))
        assert trace.job_id.tolist() == source.job_id[fits[at : at + len(trace)]].tolist()
    assert seen == sizes
    assert names == {"first", "second"}
    assert least * 0.99 < min(loads) < max(loads) < most * 1.01
    assert max(loads) - min(loads) > 0.6 * (most - least)


def test_one_observation_serves_all_clusters() -> None:
    generator = mixed()
    bounds = generator.bounds
    assert (bounds.servers, bounds.racks, bounds.rack_servers, bounds.gpus) == (8, 4, 2, 4)
    env = ClusterParallelEnv.of_trace(
        (SMALL, MIDDLE, LARGE),
        TRACES,
        windows=lambda clusters, traces: MixedClusters(
            clusters, traces, stages=ALL, jobs_per_gpu=(1, 1), max_share=0.5
        ),
        partition=MixedRacks(),
    )
    seen = set()
    for seed in range(12):
        observations, _ = env.reset(seed=seed)
        for agent, one in observations.items():
            assert env.observation_space(agent).contains(one)
        seen.add(env.simulator.cluster.name)
    assert len(seen) == 3


def test_one_cluster_and_one_trace_need_no_list() -> None:
    one = MixedClusters(LARGE, TRACES[0], stages=ALL, jobs_per_gpu=(1, 1), max_share=1.0)(
        default_rng(0)
    )
    assert len(one.trace) == 32
    first = int(one.trace.job_id[0])
    durations = TRACES[0].duration_s[first : first + 32]
    assert one.trace.duration_s.tolist() == durations.tolist()


def test_what_clusters_are_worth() -> None:
    assert reference_gpus(LARGE, None) == 32
    assert reference_gpus(LARGE, SPEEDS) == 24 + 4


@pytest.mark.parametrize(
    ("submit", "gpus", "load", "found"), [([5, 5], 1, 1.0, [0, 0]), ([5, 15], 2, 0.5, [0, 40])]
)
def test_submissions_are_stretched_to_the_load(
    submit: list[int], gpus: int, load: float, found: list[int]
) -> None:
    trace = Trace.of("two", submit, [10, 10], [gpus, gpus])
    assert at_load(trace, 2, load).submit_s.tolist() == found


GOOD = {"first_load": (1, 1), "load": (1, 1), "first_gpus": 8, "gpus": 32, "until": 1.0}
FEW = long_trace(jobs=10)


def stages(**changes: Any) -> Curriculum:
    return Curriculum(**{**GOOD, **changes})


@pytest.mark.parametrize(
    ("make", "field", "arguments"),
    [
        *(
            (stages, field, {field: value})
            for field, value in (
                ("first_load", (1, 0.5)),
                ("load", (0, 1)),
                ("first_gpus", 64),
            )
        ),
        *((GROWING.stage, "progress", {"progress": value}) for value in (-0.1, 1.1, np.nan)),
        *(
            (mixed, field, {field.partition(".")[0]: value})
            for field, value in (
                ("stages", stages(gpus=16)),
                ("stages", stages(first_gpus=4)),
                ("jobs_per_gpu", (2, 1)),
                ("jobs_per_gpu", (50, 50)),
                ("speeds.B", {"A": 1.0}),
                ("speeds.B", {"A": 1.0, "B": 0.0}),
            )
        ),
        *(
            (MixedClusters, field, {"clusters": SMALL, "traces": TRACES, field: ()})
            for field in ("clusters", "traces")
        ),
        *(
            (TraceWindows, field, {"cluster": CLUSTER, "trace": FEW, "jobs": (2, 3), field: value})
            for field, value in (
                ("jobs", (5, 4)),
                ("jobs", (0, 4)),
                ("jobs", (3,)),
                ("jobs", (2, 11)),
                ("load", (0, 1)),
            )
        ),
        (FixedCluster, None, {"cluster": CLUSTER, "trace": FEW.take(slice(0, 0))}),
        (
            RandomJobs,
            "max_gpus",
            {
                "cluster": CLUSTER,
                "jobs": (1, 2),
                "load": (1, 1),
                "max_gpus": 17,
                "duration_s": (1, 2),
            },
        ),
    ],
)
def test_bad_arguments_are_input_errors(
    make: Any, field: str | None, arguments: dict[str, Any]
) -> None:
    with refusal() as refused:
        make(**arguments)
    assert refused.value.field == field


def test_refusals_say_what_is_lacking() -> None:
    with refusal("11 are needed"):
        TraceWindows(CLUSTER, FEW, jobs=(2, 11))
    with refusal("no job"):
        FixedCluster(CLUSTER, FEW.take(slice(0, 0)))
    for arguments in (((), TRACES), (SMALL, ())):
        with refusal("no "):
            MixedClusters(*arguments)


def test_the_progress_of_training_is_checked() -> None:
    with refusal():
        mixed().progress = 2.0


def test_a_cluster_of_equal_nodes_is_one_of_racks() -> None:
    one = Cluster.uniform(6, 4, nodes_per_rack=2, gpu_types=("A", "B", "C"))
    other = cluster_of_racks({"A": 1, "B": 1, "C": 1}, nodes_per_rack=2, gpus_per_node=4)
    for column in ("gpus", "rack", "gpu_type", "cpu_milli", "memory_mib"):
        np.testing.assert_array_equal(getattr(one, column), getattr(other, column))


def test_consecutive_racks() -> None:
    cluster = Cluster.uniform(10, 2, nodes_per_rack=2)
    consecutive = ConsecutiveRacks()
    assert consecutive(cluster, 2).tolist() == [0] * 6 + [1] * 4
    assert consecutive(cluster, 5).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4, 4]
    assert not consecutive(cluster, 1).any()


def test_racks_of_each_type_are_dealt_out_in_turn() -> None:
    cluster = cluster_of_racks({"A": 3, "B": 1, "C": 2}, nodes_per_rack=2, gpus_per_node=4)
    assert MixedRacks()(cluster, 2)[::2].tolist() == [0, 1, 0, 1, 0, 1]
    assert MixedRacks()(cluster, 3)[::2].tolist() == [0, 1, 2, 0, 1, 2]
    shuffled = cluster_of([4, 1, 4, 4, 4], [7, 7, 2, 5, 9], [1, 0, 0, 1, 0])
    assert MixedRacks()(shuffled, 2).tolist() == [1, 1, 0, 0, 1]  # A: racks 2, 9; B: 5, 7


@given(
    racks=st.lists(st.integers(0, 5), min_size=1, max_size=3).filter(any),
    schedulers=st.integers(1, 4),
)
def test_of_each_type_nobody_has_two_racks_more(racks: list[int], schedulers: int) -> None:
    named = dict(zip("ABC", racks, strict=False))
    cluster = cluster_of_racks(named, nodes_per_rack=1, gpus_per_node=2)
    if sum(racks) < schedulers:
        with refusal(f"{sum(racks)} racks for {schedulers} schedulers"):
            MixedRacks()(cluster, schedulers)
        return
    owner = MixedRacks()(cluster, schedulers)
    for kind in (cluster.gpu_type == t for t in range(len(racks))):
        assert np.ptp(np.bincount(owner[kind], minlength=schedulers)) <= 1
    assert np.ptp(np.bincount(owner, minlength=schedulers)) <= 1


@pytest.mark.parametrize("partition", [ConsecutiveRacks(), MixedRacks()])
@given(cluster=clusters(), schedulers=st.integers(1, 4))
def test_every_part_is_within_the_bounds(
    partition: RackOwners, cluster: Cluster, schedulers: int
) -> None:
    racks = len(np.unique(cluster.rack))
    if racks < schedulers:
        with refusal(f"{racks} racks for {schedulers} schedulers"):
            partition(cluster, schedulers)
        return
    owner = partition(cluster, schedulers)
    bounds = ClusterBounds.of(cluster).part(schedulers)
    assert set(owner.tolist()) == set(range(schedulers))
    for scheduler in range(schedulers):
        bounds.check_fits(cluster, np.flatnonzero(owner == scheduler))
    for rack in np.unique(cluster.rack):
        assert len(set(owner[cluster.rack == rack].tolist())) == 1
