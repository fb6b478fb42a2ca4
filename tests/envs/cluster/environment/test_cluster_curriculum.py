"""Stages grow from the first to the last; episodes on several clusters follow them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng

from envs.cluster.environment.generator import (
    Curriculum,
    MixedClusters,
    Stage,
    at_load,
    reference_gpus,
)
from envs.cluster.environment.parallel_env import ClusterParallelEnv
from envs.cluster.environment.routing import MixedRacks
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace
from tests.envs.cluster.environment.racks import cluster_of_racks
from tests.refusal import refusal

SMALL = cluster_of_racks({"A": 1, "B": 1}, nodes_per_rack=2, gpus_per_node=2)
MIDDLE = cluster_of_racks({"A": 0, "B": 4}, nodes_per_rack=1, gpus_per_node=4)
LARGE = cluster_of_racks({"A": 3, "B": 1}, nodes_per_rack=2, gpus_per_node=4)
GROWING = Curriculum(first_load=(0.4, 0.6), load=(0.8, 1.2), first_gpus=8, gpus=32, until=0.5)
ALL = Curriculum(first_load=(1, 1), load=(1, 1), first_gpus=32, gpus=32)
SPEEDS = {"A": 1.0, "B": 0.5}


def long_trace(name: str, seed: int, jobs: int = 300) -> Trace:
    rng = default_rng(seed)
    submit = 50 + np.cumsum(rng.integers(0, 300, jobs))
    return Trace.of(name, submit, rng.integers(100, 5000, jobs), 2 ** rng.integers(0, 4, jobs))


TRACES = (long_trace("first", 0), long_trace("second", 1))


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


def test_racks_of_types_and_what_they_are_worth() -> None:
    assert LARGE.gpu_type.tolist() == [0] * 6 + [1] * 2
    assert LARGE.rack.tolist() == [0, 0, 1, 1, 2, 2, 3, 3]
    assert MIDDLE.gpu_types == ("A", "B")
    assert (MIDDLE.gpu_type == 1).all()
    assert LARGE.name == "3 A+1 B racks of 2x4"
    assert reference_gpus(LARGE, None) == 32
    assert reference_gpus(LARGE, SPEEDS) == 24 + 4
    burst = Trace.of("burst", [5, 5], [1, 1], [1, 1])
    assert at_load(burst, 16, 1.0).submit_s.tolist() == [0, 0]
    spread = Trace.of("spread", [5, 15], [10, 10], [2, 2])
    assert at_load(spread, 2, 0.5).submit_s.tolist() == [0, 40]


def test_bad_stages_and_mixes_are_input_errors() -> None:
    good = {"first_load": (1, 1), "load": (1, 1), "first_gpus": 8, "gpus": 32, "until": 1.0}
    for field, value in (
        ("first_load", (1, 0.5)),
        ("load", (0, 1)),
        ("first_gpus", 64),
        ("until", 0.0),
        ("until", 1.5),
    ):
        with refusal() as refused:
            Curriculum(**{**good, field: value})
        assert refused.value.field == field
    for progress in (-0.1, 1.1, np.nan):
        with refusal("progress"):
            GROWING.stage(progress)
    for field, value in (
        ("stages", Curriculum(**{**good, "gpus": 16})),
        ("stages", Curriculum(**{**good, "first_gpus": 4})),
        ("jobs_per_gpu", (2, 1)),
        ("jobs_per_gpu", (50, 50)),
        ("max_share", 0.0),
        ("max_share", 1.5),
        ("speeds.B", {"A": 1.0}),
        ("speeds.B", {"A": 1.0, "B": 0.0}),
    ):
        with refusal() as refused:
            mixed(**{field.split(".")[0]: value})
        assert refused.value.field == field
    for clusters, traces in (((), TRACES), (SMALL, ())):
        with refusal("no "):
            MixedClusters(clusters, traces, stages=ALL, jobs_per_gpu=(1, 1), max_share=1.0)
    with refusal():
        mixed().progress = 2.0


def test_a_cluster_of_equal_nodes_is_one_of_racks() -> None:
    one = Cluster.uniform(6, 4, nodes_per_rack=2, gpu_types=("A", "B", "C"))
    other = cluster_of_racks({"A": 1, "B": 1, "C": 1}, nodes_per_rack=2, gpus_per_node=4)
    for column in ("gpus", "rack", "gpu_type", "cpu_milli", "memory_mib"):
        np.testing.assert_array_equal(getattr(one, column), getattr(other, column))
