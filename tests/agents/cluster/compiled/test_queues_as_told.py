"""All ways to the schedule of a queue policy against the disciplines as they are told."""

from __future__ import annotations

from pathlib import Path

import literal_queues as literal
import pytest
from hypothesis import given
from hypothesis import strategies as st

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
    QueuePolicy,
    SJFStrict,
)
from agents.cluster.replay import replay, simulate
from agents.cluster.rules.gangs import BestFit, Count, FirstFit, HeliosConsolidate, Yarn
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import Schedule
from envs.cluster.workload.readers.job_logs import ItpReader
from envs.cluster.workload.trace import Trace
from tests.strength import examples

NON_PREEMPTIVE = {
    FIFO: {"shortest": False, "strict": True},
    FIFOBackfill: {"shortest": False, "strict": False},
    SJF: {"shortest": True, "strict": False},
    SJFStrict: {"shortest": True, "strict": True},
}
RULES = {
    Count: literal.count,
    Yarn: literal.yarn,
    FirstFit: literal.yarn,  # the same on equal nodes
    BestFit: literal.best_fit,
    HeliosConsolidate: literal.helios,
}


def same(schedule: Schedule, *expected: list[int]) -> bool:
    found = (schedule.start, schedule.finish, schedule.preemptions)
    return all(list(column) == wanted for column, wanted in zip(found, expected, strict=False))


def ways(policy: QueuePolicy, cluster: Cluster, trace: Trace) -> list[Schedule]:
    """By the trace alone, compiled with the simulator, and decision by decision."""
    alone, compiled = policy.replay(cluster, trace), ClusterSimulator(cluster, trace)
    found = [] if alone is None else [alone]
    if policy.run(compiled):
        found.append(compiled.schedule())
    return [*found, simulate(policy, ClusterSimulator(cluster, trace))]


def all_agree(policy: QueuePolicy, cluster: Cluster, trace: Trace, *expected: list[int]) -> bool:
    return all(same(schedule, *expected) for schedule in ways(policy, cluster, trace))


@pytest.mark.parametrize("policy", NON_PREEMPTIVE)
@pytest.mark.parametrize("rule", RULES)
@examples(40)
@given(data=st.data(), nodes=st.sampled_from([1, 2, 3, 5, 70]), size=st.integers(1, 5))
def test_non_preemptive(
    policy: type[NonPreemptive], rule: type[Count], data: st.DataObject, nodes: int, size: int
) -> None:
    jobs = data.draw(literal.dense_jobs(nodes * size))
    expected = literal.non_preemptive(jobs, nodes, size, RULES[rule], **NON_PREEMPTIVE[policy])
    cluster, trace = Cluster.uniform(nodes, size), jobs.trace
    for schedule in ways(policy(rule(), seed=0), cluster, trace):
        assert same(schedule, expected)
        assert literal.usage_is_possible(trace, schedule.start, schedule.finish, nodes * size)


@examples(150)
@given(data=st.data(), gpus=st.integers(1, 8))
def test_easy(data: st.DataObject, gpus: int) -> None:
    jobs = data.draw(literal.dense_jobs(gpus))
    policy, cluster = EASY(Count(), seed=0), Cluster.uniform(1, gpus)
    assert all_agree(policy, cluster, jobs.trace, literal.easy(jobs, gpus))


@examples(400)
@given(data=st.data(), gpus=st.integers(1, 8), times_gpus=st.booleans())
def test_shortest_remaining(data: st.DataObject, gpus: int, times_gpus: bool) -> None:
    jobs = data.draw(literal.dense_jobs(gpus))
    policy = (SRSF if times_gpus else SRTF)(Count(), seed=0)
    expected = literal.shortest_remaining(jobs, gpus, times_gpus=times_gpus)
    assert all_agree(policy, Cluster.uniform(1, gpus), jobs.trace, *expected)


@examples(300)
@given(
    data=st.data(),
    gpus=st.integers(1, 8),
    limits=st.lists(st.integers(1, 40), min_size=1, max_size=3, unique=True).map(sorted),
    tiresias=st.booleans(),
)
def test_attained_service(
    data: st.DataObject, gpus: int, limits: list[int], tiresias: bool
) -> None:
    jobs = data.draw(literal.dense_jobs(gpus))
    kind: type[AttainedService] = LAS2DTiresias if tiresias else LAS2D
    policy = kind(Count(), limits=limits, seed=0)
    expected = literal.las_2d(jobs, gpus, limits, tiresias=tiresias)
    assert all_agree(policy, Cluster.uniform(1, gpus), jobs.trace, *expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cluster06", "cluster02"])
def test_real_traces(data: Path, name: str) -> None:
    trace = ItpReader().read(data / "traces" / "itp" / f"{name}.csv.gz").trace
    trace = trace.take(slice(2_500))
    jobs, cluster = literal.Jobs.of(trace), Cluster.uniform(16, 8)
    gpus, limits, count = cluster.num_gpus, [3250, 7200], Count()
    expected: list[tuple[QueuePolicy, tuple[list[int], ...]]] = [
        (EASY(count, seed=0), (literal.easy(jobs, gpus),)),
        (SRTF(count, seed=0), literal.shortest_remaining(jobs, gpus, times_gpus=False)),
        (SRSF(count, seed=0), literal.shortest_remaining(jobs, gpus, times_gpus=True)),
        (
            LAS2DTiresias(count, limits=limits, seed=0),
            literal.las_2d(jobs, gpus, limits, tiresias=True),
        ),
    ]
    for kind in (FIFOBackfill, SJFStrict):
        for rule, reference in RULES.items():
            start = literal.non_preemptive(jobs, 16, 8, reference, **NON_PREEMPTIVE[kind])
            expected.append((kind(rule(), seed=0), (start,)))
    for policy, columns in expected:
        assert same(replay(policy, cluster, trace), *columns), policy.name


@examples(60)
@given(data=st.data(), size=st.integers(8, 300))
def test_large_nodes_and_gangs(data: st.DataObject, size: int) -> None:
    """Words of bits, levels and gang sizes far from those of the other tests."""
    nodes = data.draw(st.integers(1, 3))
    jobs = data.draw(literal.dense_jobs(nodes * size))
    for rule, reference in RULES.items():
        expected = literal.non_preemptive(jobs, nodes, size, reference, shortest=True, strict=False)
        assert all_agree(SJF(rule(), seed=0), Cluster.uniform(nodes, size), jobs.trace, expected)
