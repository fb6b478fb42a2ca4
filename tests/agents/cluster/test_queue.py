"""Queue policies: nothing lost, nothing better than the best."""

from __future__ import annotations

import numpy as np
import pytest
from best_schedule import best_non_preemptive, best_preemptive
from hypothesis import given
from hypothesis import strategies as st
from random_clusters import clusters, traces

from agents.cluster.queue import (
    EASY,
    FIFO,
    LAS2D,
    SJF,
    SRSF,
    SRTF,
    AttainedService,
    FIFOBackfill,
    LAS2DTiresias,
    NonPreemptive,
    ShortestRemaining,
    SJFStrict,
)
from agents.cluster.replay import replay, simulate
from agents.cluster.rules.gangs import (
    BestFit,
    Count,
    FirstFit,
    GangRule,
    HeliosConsolidate,
    Random,
    Spread,
    Yarn,
)
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import INCIDENT, Overheads, Schedule
from envs.cluster.workload.trace import Trace
from envs.text_table import EXACT
from tests.refusal import refusal
from tests.strength import examples

Policy = NonPreemptive | EASY | ShortestRemaining | AttainedService
NON_PREEMPTIVE = [FIFO, FIFOBackfill, EASY, SJF, SJFStrict]
POLICIES = [*NON_PREEMPTIVE, SRTF, SRSF, LAS2D, LAS2DTiresias]
PLACES: list[type[GangRule]] = [
    Count, Yarn, HeliosConsolidate, FirstFit, BestFit, Random, Spread,
]  # fmt: skip


def policy_of(kind: type, rule: GangRule) -> Policy:
    limits = {"limits": [6, 15]} if issubclass(kind, AttainedService) else {}
    policy: Policy = kind(rule, seed=1, **limits)
    return policy


def same(a: Schedule, b: Schedule) -> bool:
    return all(
        np.array_equal(getattr(a, name), getattr(b, name))
        for name in ("start", "finish", "preemptions", "work", "gpus", "submit")
    )


@pytest.mark.parametrize("kind", POLICIES)
@examples(25)
@given(data=st.data(), rule=st.sampled_from(PLACES))
def test_gangs_run_whole_and_finish_their_work(
    kind: type, data: st.DataObject, rule: type[GangRule]
) -> None:
    cluster = data.draw(clusters())
    trace = data.draw(traces(cluster))
    policy = policy_of(kind, rule())
    try:
        schedule = simulate(policy, ClusterSimulator(cluster, trace, keep_runs=True))
    except Exception as error:
        raise AssertionError(policy.name) from error
    assert schedule.finished.all()
    assert (schedule.start >= trace.submit_s).all()
    assert (schedule.finish - schedule.start >= trace.duration_s).all()
    runs = schedule.runs
    assert runs is not None
    assert (runs["end"] > runs["start"]).all()
    for job in range(len(trace)):
        own = runs[runs["job"] == job]
        begins = np.unique(own["start"])
        assert sum(own["end"][own["start"] == t][0] - t for t in begins) == trace.duration_s[job]
        assert all(own["gpus"][own["start"] == t].sum() == trace.num_gpus[job] for t in begins)
    for node in range(cluster.num_nodes):
        own = runs[runs["node"] == node]
        for time in own["start"]:
            under_way = (own["start"] <= time) & (own["end"] > time)
            assert own["gpus"][under_way].sum() <= cluster.gpus[node]


@examples(40)
@given(data=st.data(), gpus=st.integers(1, 4))
def test_nothing_beats_the_best_schedule(data: st.DataObject, gpus: int) -> None:
    count = data.draw(st.integers(1, 5))
    each = {"min_size": count, "max_size": count}
    trace = Trace.of(
        "drawn",
        sorted(data.draw(st.lists(st.integers(0, 4), **each))),
        data.draw(st.lists(st.integers(1, 4), **each)),
        data.draw(st.lists(st.integers(1, gpus), **each)),
    )
    bound, without = best_preemptive(trace, gpus), best_non_preemptive(trace, gpus)
    assert bound <= without
    sums = {}
    for kind in POLICIES:
        schedule = replay(policy_of(kind, Count()), Cluster.uniform(1, gpus), trace)
        sums[kind] = schedule.jct.sum()
        assert sums[kind] >= (without if kind in NON_PREEMPTIVE else bound)
    if gpus == 1:
        assert sums[SRTF] == sums[SRSF] == bound  # optimal on one machine


def test_six_jobs_where_preemption_pays() -> None:
    trace = Trace.of("by hand", [0, 3, 3, 4, 5, 5], [9, 1, 1, 1, 1, 2], [2, 1, 2, 1, 1, 2])
    cluster = Cluster.uniform(1, 2)
    bound, without = best_preemptive(trace, 2), best_non_preemptive(trace, 2)
    found = {kind: replay(policy_of(kind, Count()), cluster, trace) for kind in (SRTF, SJF)}
    srtf, sjf = found[SRTF], found[SJF]
    assert bound <= srtf.jct.sum() < without <= sjf.jct.sum()


@pytest.mark.parametrize("kind", POLICIES)
def test_failing_nodes_and_restarts(kind: type) -> None:
    rng = np.random.default_rng(3)
    trace = Trace.of("drawn", np.sort(rng.integers(0, 60, 30)), rng.integers(1, 20, 30),
                     rng.integers(1, 9, 30))  # fmt: skip
    incidents = np.array([(10, 0, 0), (25, 0, 1), (30, 2, 0), (70, 2, 1)], INCIDENT)
    policy = policy_of(kind, BestFit())
    cluster = Cluster.uniform(4, 4)
    schedule = replay(policy, cluster, trace, overheads=Overheads(2.0, 5.0), incidents=incidents)
    assert schedule.finished.all()
    assert schedule.preemptions.sum() > 0
    again = replay(policy, cluster, trace, overheads=Overheads(2.0, 5.0), incidents=incidents)
    assert same(schedule, again)


@pytest.mark.parametrize("kind", POLICIES)
def test_a_job_larger_than_the_cluster(kind: type) -> None:
    trace = Trace.of("large.csv", [0, 0], [1, 1], [1, 9], job_id=["small", "large"])
    with refusal("'large' asks for 9 GPUs") as error:
        replay(policy_of(kind, Count()), Cluster.uniform(1, 8), trace)
    assert (error.value.file, error.value.record, error.value.field) == ("large.csv", 1, "num_gpus")


@pytest.mark.parametrize("kind", POLICIES)
def test_an_empty_trace(kind: type) -> None:
    none = Trace.of("none", [], [], [])
    schedule = replay(policy_of(kind, Count()), Cluster.uniform(1, 8), none)
    assert len(schedule.jct) == 0


def test_times_too_long_for_the_loop() -> None:
    trace = Trace.of("long", [0] * 200, [EXACT] * 200, [1] * 200)
    with refusal("too long"):
        FIFO(Count(), seed=0).replay(Cluster.uniform(1, 8), trace)


def test_keys_that_are_no_exact_floats_are_left_to_the_simulator() -> None:
    trace = Trace.of("long", [0], [1 << 50], [1])
    assert SRSF(Count(), seed=0).replay(Cluster.uniform(1, 8), trace) is None
    assert SRSF(Count(), seed=0).replay(Cluster.uniform(1, 7), trace) is not None


@pytest.mark.parametrize("limits", [[5, 5], [0], [3.5], [7, 3]])
def test_limits_of_queues(limits: list[int]) -> None:
    with refusal("whole numbers above 0, ascending") as error:
        LAS2D(Count(), limits=limits, seed=0)
    assert error.value.field == "limits"


def test_tiresias_looks_again_too_late() -> None:
    """8 GPUs reach 3250 GPU-seconds after 407 seconds, seen after 406 and then after 761."""
    trace = Trace.of("by hand", [0, 0], [10_000, 100], [8, 1])
    cluster, limits = Cluster.uniform(1, 8), [3250, 7200]
    exact = replay(LAS2D(Count(), limits=limits, seed=0), cluster, trace)
    late = replay(LAS2DTiresias(Count(), limits=limits, seed=0), cluster, trace)
    assert exact.start[1] == 407.0
    assert late.start[1] == 761.0
