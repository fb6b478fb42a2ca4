"""Queue policies: nothing lost, nothing better than the best."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.cluster.policy import PlacementRule
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
    SJFStrict,
)
from agents.cluster.replay import StuckError, replay, simulate
from agents.cluster.rules import gangs
from agents.cluster.rules.gangs import BestFit, Count, GangRule
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import INCIDENT, Overheads
from envs.cluster.workload.trace import Trace
from envs.text_table import EXACT
from tests.agents.cluster.random_clusters import clusters, traces
from tests.agents.cluster.small_clusters import check_schedule, with_columns
from tests.envs.cluster.environment.brute_force import least_preemptive_sum_jct, least_sum_schedule
from tests.refusal import refusal
from tests.strength import examples

NON_PREEMPTIVE = [FIFO, FIFOBackfill, EASY, SJF, SJFStrict]
POLICIES = [*NON_PREEMPTIVE, SRTF, SRSF, LAS2D, LAS2DTiresias]
EVERY = pytest.mark.parametrize("kind", POLICIES)
PLACES = [
    Count, gangs.Yarn, gangs.HeliosConsolidate, gangs.FirstFit, BestFit, gangs.Random, gangs.Spread,
]  # fmt: skip


def policy_of(kind: type, rule: PlacementRule = Count(), *limits: int) -> Any:
    """Its queues are short enough for jobs of a few seconds."""
    queues = {"limits": limits or [3, 8]} if issubclass(kind, AttainedService) else {}
    return kind(rule, seed=1, **queues)


@EVERY
@examples(25)
@given(data=st.data(), rule=st.sampled_from(PLACES))
def test_gangs_run_whole_and_finish_their_work(
    kind: type, data: st.DataObject, rule: type[GangRule]
) -> None:
    cluster = data.draw(clusters())
    trace = data.draw(traces(cluster))
    simulator = ClusterSimulator(cluster, trace, keep_runs=True)
    schedule = simulate(policy_of(kind, rule()), simulator)
    check_schedule(cluster, trace, schedule)
    assert (schedule.finish - schedule.start >= trace.duration_s).all()
    assert schedule.runs is not None
    assert (schedule.runs["end"] > schedule.runs["start"]).all()


@examples(40)
@given(data=st.data(), gpus=st.integers(1, 4))
def test_nothing_beats_the_best_schedule(data: st.DataObject, gpus: int) -> None:
    jobs = st.tuples(st.integers(0, 4), st.integers(1, 4), st.integers(1, gpus))
    drawn = sorted(data.draw(st.lists(jobs, min_size=1, max_size=5)), key=lambda job: job[0])
    trace = Trace.of("drawn", *zip(*drawn, strict=True))
    bound, (without, _) = least_preemptive_sum_jct(drawn, [gpus]), least_sum_schedule(drawn, [gpus])
    assert bound <= without
    sums = {}
    for kind in POLICIES:
        sums[kind] = replay(policy_of(kind), Cluster.uniform(1, gpus), trace).jct.sum()
        assert sums[kind] >= (without if kind in NON_PREEMPTIVE else bound)
    if gpus == 1:
        assert sums[SRTF] == sums[SRSF] == bound  # optimal on one machine


def test_six_jobs_where_preemption_pays() -> None:
    jobs = [(0, 9, 2), (3, 1, 1), (3, 1, 2), (4, 1, 1), (5, 1, 1), (5, 2, 2)]
    trace = Trace.of("by hand", *zip(*jobs, strict=True))
    bound, (without, _) = least_preemptive_sum_jct(jobs, [2]), least_sum_schedule(jobs, [2])
    srtf, sjf = (
        replay(policy_of(kind), Cluster.uniform(1, 2), trace).jct.sum() for kind in (SRTF, SJF)
    )
    assert bound <= srtf < without <= sjf


@EVERY
def test_failing_nodes_and_restarts(kind: type) -> None:
    rng = np.random.default_rng(3)
    columns = np.sort(rng.integers(0, 60, 30)), rng.integers(1, 20, 30), rng.integers(1, 9, 30)
    incidents = np.array([(10, 0, 0), (25, 0, 1), (30, 2, 0), (70, 2, 1)], INCIDENT)
    options: Any = {"overheads": Overheads(2.0, 5.0), "incidents": incidents}
    policy, trace = policy_of(kind, BestFit()), Trace.of("drawn", *columns)
    once, again = (replay(policy, Cluster.uniform(4, 4), trace, **options) for _ in range(2))
    assert once.finished.all()
    assert once.preemptions.sum() > 0
    for name in ("start", "finish", "preemptions", "work", "gpus", "submit"):
        np.testing.assert_array_equal(getattr(once, name), getattr(again, name))


@EVERY
def test_a_job_larger_than_the_cluster_and_no_job(kind: type) -> None:
    cluster = Cluster.uniform(1, 8)
    trace = Trace.of("large.csv", [0, 0], [1, 1], [1, 9], job_id=["small", "large"])
    with refusal("'large' asks for 9 GPUs") as error:
        replay(policy_of(kind), cluster, trace)
    assert (error.value.file, error.value.record, error.value.field) == ("large.csv", 1, "num_gpus")
    assert len(replay(policy_of(kind), cluster, Trace.of("none", [], [], [])).jct) == 0


@pytest.mark.parametrize(("kind", "waiting"), [(FIFO, 2), (FIFOBackfill, 1), (SRTF, 1), (EASY, 1)])
def test_a_job_that_no_node_can_hold_leaves_the_policy_stuck(kind: type, waiting: int) -> None:
    """Every way to a schedule ends like that; jobs that fit all finish."""
    cluster = with_columns(Cluster.uniform(2, 4), cpu_milli=[1000, 1000])
    trace = Trace.of("t", [0, 1], [5, 5], [1, 1])
    with pytest.raises(StuckError, match=f"{kind.name} leaves {waiting} jobs"):
        replay(policy_of(kind, BestFit()), cluster, with_columns(trace, cpu_milli=[5000, 10]))
    trace = with_columns(trace, cpu_milli=[1000, 1000])
    assert replay(policy_of(kind, BestFit()), cluster, trace).finish.tolist() == [5.0, 6.0]


def test_what_the_loop_over_whole_seconds_leaves_to_others() -> None:
    with refusal("too long"):
        trace = Trace.of("long", [0] * 200, [EXACT] * 200, [1] * 200)
        policy_of(FIFO).replay(Cluster.uniform(1, 8), trace)
    trace = Trace.of("keys that are no exact floats", [0], [1 << 50], [1])
    assert policy_of(SRSF).replay(Cluster.uniform(1, 8), trace) is None
    assert policy_of(SRSF).replay(Cluster.uniform(1, 7), trace) is not None


@pytest.mark.parametrize("limits", [[5, 5], [0], [3.5], [7, 3]])
def test_limits_of_queues(limits: list[int]) -> None:
    with refusal("whole numbers above 0, ascending") as error:
        policy_of(LAS2D, Count(), *limits)
    assert error.value.field == "limits"


@pytest.mark.parametrize(("kind", "start"), [(LAS2D, 407.0), (LAS2DTiresias, 761.0)])
def test_tiresias_looks_again_too_late(kind: type, start: float) -> None:
    """8 GPUs reach 3250 GPU-seconds after 407 seconds, seen after 406 and then after 761."""
    trace = Trace.of("by hand", [0, 0], [10_000, 100], [8, 1])
    policy = policy_of(kind, Count(), 3250, 7200)
    assert replay(policy, Cluster.uniform(1, 8), trace).start[1] == start
