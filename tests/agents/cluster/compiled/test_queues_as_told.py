"""All ways to the schedule of a queue policy, against each other and the literal disciplines."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import literal_queues as literal
import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from agents.cluster.policy import PlacementRule
from agents.cluster.queue import (
    EASY,
    FIFO,
    LAS2D,
    SJF,
    SRSF,
    SRTF,
    FIFOBackfill,
    LAS2DTiresias,
    NonPreemptive,
    SJFStrict,
)
from agents.cluster.replay import replay, simulate
from agents.cluster.rules import gangs
from agents.cluster.rules.gangs import Count, LeastInterference, Spread
from envs.cluster.interference.rates import PAIRS_PRODUCT
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import INCIDENT, Overheads, Schedule
from envs.cluster.workload.readers.job_logs import ItpReader
from envs.cluster.workload.trace import Trace
from tests.agents.cluster.small_clusters import Speeds, chain
from tests.agents.cluster.test_queue import EVERY, POLICIES, policy_of
from tests.strength import SEEDS, examples, trials

NON_PREEMPTIVE = {
    FIFO: {"shortest": False, "strict": True},
    FIFOBackfill: {"shortest": False, "strict": False},
    SJF: {"shortest": True, "strict": False},
    SJFStrict: {"shortest": True, "strict": True},
}
RULES = {
    Count: literal.count,
    gangs.Yarn: literal.yarn,
    gangs.FirstFit: literal.yarn,  # the same on equal nodes
    gangs.BestFit: literal.best_fit,
    gangs.HeliosConsolidate: literal.helios,
}


def same(schedule: Schedule, *expected: list[int]) -> bool:
    found = (schedule.start, schedule.finish, schedule.preemptions)
    return all(list(column) == wanted for column, wanted in zip(found, expected, strict=False))


def ways(policy: Any, cluster: Cluster, trace: Trace, **options: Any) -> list[Schedule]:
    """Decision by decision, compiled with the simulator, and by the trace alone."""
    steps, compiled = (ClusterSimulator(cluster, trace, **options) for _ in range(2))
    found = [simulate(policy, steps)]
    if policy.run(compiled):
        found.append(compiled.schedule())
    alone = None if options else policy.replay(cluster, trace)
    return found if alone is None else [*found, alone]


def all_agree(policy: Any, cluster: Cluster, trace: Trace, *expected: list[int]) -> bool:
    return all(same(schedule, *expected) for schedule in ways(policy, cluster, trace))


def neighbours(jobs: int) -> Speeds:
    """Every neighbour takes a quarter of what is there: rates stay exact in binary."""
    return Speeds(np.ones((jobs, 1)), kind=PAIRS_PRODUCT, pair=np.full((1, 1), 0.75))


@examples(120)
@given(
    seed=SEEDS,
    kind=st.sampled_from(POLICIES),
    rule=st.sampled_from([*RULES, Spread, LeastInterference]),
    disturbed=st.booleans(),
)
@example(seed=295218, kind=LAS2D, rule=Spread, disturbed=False)  # a log that grows
def test_all_ways_agree(seed: int, kind: type, rule: type[PlacementRule], disturbed: bool) -> None:
    rng = np.random.default_rng(seed)
    jobs = int(rng.integers(1, 14))
    columns = np.sort(rng.integers(0, 8, jobs)), rng.integers(1, 6, jobs)
    trace = Trace.of("dense", *columns, rng.choice([1, 1, 2, 3, 4, 5, 8], jobs))
    cluster, policy = Cluster.uniform(3, 4, nodes_per_rack=2), policy_of(kind, rule())
    options: dict[str, Any] = {"keep_runs": True}
    if disturbed:
        options |= {"rates": neighbours(jobs), "overheads": Overheads(2.0, 2.0)}
        options["incidents"] = np.array([(3.0, 1, 0), (9.0, 1, 1)], INCIDENT)
    wanted, found = ways(policy, cluster, trace, **options)
    np.testing.assert_allclose(
        [found.start, found.finish], [wanted.start, wanted.finish], rtol=1e-12
    )
    assert found.preemptions.tolist() == wanted.preemptions.tolist()
    if not disturbed:
        for other in (found, *ways(policy, cluster, trace)):
            assert other.finish.tolist() == wanted.finish.tolist()


@EVERY
def test_rules_that_draw_give_the_same_schedule_twice(kind: type) -> None:
    rng = np.random.default_rng(5)
    trace = Trace.of("t", np.sort(rng.integers(0, 50, 60)), rng.integers(1, 30, 60), [3] * 60)
    finishes = []
    for _ in range(2):
        simulator = ClusterSimulator(Cluster.uniform(3, 4), trace, rates=neighbours(60))
        assert policy_of(kind, gangs.Random()).run(simulator)
        finishes.append(simulator.schedule().finish.tolist())
    assert finishes[0] == finishes[1]


def test_a_gang_can_be_imagined_on_a_cluster_on_which_all_is_held() -> None:
    trace = Trace.of("full", [0, 0, 1, 1], [9, 9, 1, 2], [1, 1, 1, 2])
    cluster = Cluster.uniform(2, 1)
    full = ClusterSimulator(cluster, trace)
    full.advance()
    for job in (0, 1):
        full.start(job, [(job, 1)])
    assert len(chain(full.state.shares, full.state.clock[0]["share"])) >= cluster.num_nodes
    steps, compiled = ways(policy_of(SRTF, LeastInterference()), cluster, trace, keep_runs=True)
    assert compiled.finish.tolist() == steps.finish.tolist()


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
    for schedule in ways(policy_of(policy, rule()), cluster, trace):
        assert same(schedule, expected)
        assert literal.usage_is_possible(trace, schedule.start, schedule.finish, nodes * size)


@examples(150)
@given(data=st.data(), gpus=st.integers(1, 8))
def test_easy(data: st.DataObject, gpus: int) -> None:
    jobs = data.draw(literal.dense_jobs(gpus))
    cluster = Cluster.uniform(1, gpus)
    assert all_agree(policy_of(EASY), cluster, jobs.trace, literal.easy(jobs, gpus))


@examples(400)
@given(data=st.data(), gpus=st.integers(1, 8), times_gpus=st.booleans())
def test_shortest_remaining(data: st.DataObject, gpus: int, times_gpus: bool) -> None:
    jobs = data.draw(literal.dense_jobs(gpus))
    policy = policy_of(SRSF if times_gpus else SRTF)
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
    policy = policy_of(LAS2DTiresias if tiresias else LAS2D, Count(), *limits)
    expected = literal.las_2d(jobs, gpus, limits, tiresias=tiresias)
    assert all_agree(policy, Cluster.uniform(1, gpus), jobs.trace, *expected)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["cluster06", "cluster02"])
def test_real_traces(data: Path, name: str) -> None:
    trace = ItpReader().read(data / "traces" / "itp" / f"{name}.csv.gz").trace
    trace = trace.take(slice(trials(2_500, 400)))
    jobs, cluster = literal.Jobs.of(trace), Cluster.uniform(16, 8)
    gpus, limits = cluster.num_gpus, [3250, 7200]
    expected: list[tuple[Any, tuple[list[int], ...]]] = [
        (policy_of(EASY), (literal.easy(jobs, gpus),)),
        (policy_of(SRTF), literal.shortest_remaining(jobs, gpus, times_gpus=False)),
        (policy_of(SRSF), literal.shortest_remaining(jobs, gpus, times_gpus=True)),
        (
            policy_of(LAS2DTiresias, Count(), *limits),
            literal.las_2d(jobs, gpus, limits, tiresias=True),
        ),
    ]
    for kind in (FIFOBackfill, SJFStrict):
        for rule, reference in RULES.items():
            start = literal.non_preemptive(jobs, 16, 8, reference, **NON_PREEMPTIVE[kind])
            expected.append((policy_of(kind, rule()), (start,)))
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
        assert all_agree(policy_of(SJF, rule()), Cluster.uniform(nodes, size), jobs.trace, expected)
