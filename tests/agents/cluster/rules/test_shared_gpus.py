"""Packing rules inside the simulator: jobs come and go, and nothing is allocated twice."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np
import pytest
from fractional_cases import Row, cluster_of, requests_of, rows
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng

from agents.cluster.backfilling import preempt_in_order, start_in_order
from agents.cluster.rules.fractional import BestFit, FirstFit, FractionalRule, GpuPacking, RandomFit
from agents.cluster.rules.fragmentation import FragmentationGradientDescent
from agents.cluster.rules.gangs import FirstFit as FirstFitOfGangs
from agents.cluster.rules.shared_gpus import SharedGpuPlacement
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import INCIDENT, NONE
from envs.cluster.workload.trace import Trace
from experiments.config.config_source import SHIPPED_CONFIGS
from experiments.config.targets import build, check_targets
from tests.strength import examples

Starts = Callable[..., list[int]]
NODES = [(4000, 4096, 4, "A"), (4000, 4096, 4, "B"), (4000, 4096, 2, "A")]
FGD = FragmentationGradientDescent(0.95, 100)
RULES: tuple[FractionalRule, ...] = (FGD, BestFit(), RandomFit(), FirstFit(), GpuPacking())


def trace_of(rows: Sequence[Row], times: Sequence[tuple[int, int]]) -> Trace:
    """Jobs of (gap since the one before, duration)."""
    gaps, durations = zip(*times, strict=True)
    asked = requests_of(rows)
    trace = Trace.of("test", np.cumsum(gaps), durations, asked.num_gpus)
    return Trace(**{**vars(trace), **vars(asked)})


def waiting(
    cluster: Cluster, trace: Trace, rule: FractionalRule
) -> tuple[ClusterSimulator, Starts]:
    """At the first arrival; what starts jobs by the rule, and says which have started."""
    simulator, rng = ClusterSimulator(cluster, trace), default_rng(0)
    simulator.advance()
    placement = SharedGpuPlacement(rule, FirstFitOfGangs())
    return simulator, lambda *jobs: start_in_order(
        simulator, jobs or simulator.pending().tolist(), placement, rng, blocking=False
    )


def check(simulator: ClusterSimulator, cluster: Cluster) -> None:
    """What runs, job by job, is exactly what is missing from nodes and GPUs."""
    state = simulator.state
    cpu, memory = cluster.cpu_milli.copy(), cluster.memory_mib.copy()
    whole = cluster.gpus.astype(np.int64)
    on_partial: dict[int, int] = {}
    for job in simulator.running():
        record = state.jobs[job]
        index = int(record["share"])
        while index != NONE:
            share = state.shares[index]
            node, partial = int(share["node"]), int(share["partial"])
            if record["gpus"] <= 1:
                cpu[node] -= record["cpu"]
                memory[node] -= record["memory"]
            assert int(record["types"]) >> int(cluster.gpu_type[node]) & 1
            if partial == NONE:
                whole[node] -= share["gpus"]
            else:
                assert state.partials[partial]["node"] == node
                whole[node] -= partial not in on_partial
                on_partial[partial] = on_partial.get(partial, 0) + int(record["milli"])
            index = int(share["next"])
    for partial, milli in on_partial.items():
        assert milli <= 1000
        assert state.partials[partial]["left"] == 1000 - milli
    up = state.nodes["up"] == 1
    assert (state.nodes["free"][up] == whole[up]).all()
    assert (whole >= 0).all()
    assert (cpu >= 0).all()
    assert (memory >= 0).all()


times = st.tuples(st.integers(0, 5), st.integers(1, 30))
cases = rows.flatmap(
    lambda jobs: st.tuples(st.just(jobs), st.lists(times, min_size=len(jobs), max_size=len(jobs)))
)


@pytest.mark.parametrize("failing", [False, True])
@examples(25)
@given(st.sampled_from(RULES), cases, st.booleans())
def test_every_job_finishes_and_nothing_is_allocated_twice(
    failing: bool,
    rule: FractionalRule,
    case: tuple[list[Row], list[tuple[int, int]]],
    preempts: bool,
) -> None:
    jobs, seconds = case
    cluster = cluster_of(NODES)
    incidents = np.array([(7.0, 0, 0), (19.0, 0, 1)] if failing else [], INCIDENT)
    simulator = ClusterSimulator(cluster, trace_of(jobs, seconds), incidents=incidents)
    placement, rng = SharedGpuPlacement(rule, FirstFitOfGangs()), default_rng(0)
    while not simulator.done:
        assert simulator.advance()
        if preempts:
            order = np.sort(np.concatenate([simulator.pending(), simulator.running()]))
            preempt_in_order(simulator, order.tolist(), placement, rng)
        else:
            start_in_order(simulator, simulator.pending().tolist(), placement, rng, blocking=False)
        check(simulator, cluster)
    assert (simulator.schedule().finish >= 0).all()


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_fractional_jobs_share_gpus(rule: FractionalRule) -> None:
    """Ten GPUs take twenty halves at once, and a 21st waits for the first to leave."""
    cluster = cluster_of([(64_000, 65_536, gpus, kind) for _, _, gpus, kind in NODES])
    trace = trace_of([(0, 0, 1, 500, "")] * 21, [(0, 10 + job) for job in range(21)])
    simulator, start = waiting(cluster, trace, rule)
    assert start() == list(range(20))
    assert simulator.state.nodes["free"].tolist() == [0, 0, 0]
    simulator.advance()
    assert start(20) == [20]
    assert simulator.now == 10.0


def test_a_gang_that_no_node_holds_goes_where_gangs_go() -> None:
    trace = trace_of([(0, 0, 8, 1000, ""), (0, 0, 1, 500, "")], [(0, 5), (0, 5)])
    simulator, start = waiting(cluster_of(NODES), trace, FGD)
    start(0, 1)
    assert simulator.shares(0) == [(0, 4), (1, 4)]
    assert simulator.shares(1) == [(2, 1)]


def test_a_gang_too_large_for_the_nodes_of_its_type_goes_there_too() -> None:
    """Four GPUs of type B, whose nodes have two; and 8 cores for 2 GPUs, on nodes of 4 cores."""
    cluster = cluster_of([(4000, 4096, 4, "A"), (4000, 4096, 2, "B"), (4000, 4096, 2, "B")])
    trace = trace_of([(0, 0, 4, 1000, "B"), (8000, 0, 4, 1000, "B")], [(0, 5), (0, 5)])
    simulator, start = waiting(cluster, trace, FGD)
    for job in (0, 1):
        start()
        assert simulator.shares(job) == [(1, 2), (2, 2)]
        simulator.advance()


CONFIGS = ("fgd", "best_fit_fractional", "random_fractional", "first_fit_fractional",
           "dot_product", "gpu_packing")  # fmt: skip


@pytest.mark.parametrize("config", CONFIGS)
def test_every_configured_rule_places_a_job(config: str) -> None:
    node = SHIPPED_CONFIGS.node(f"placement/{config}")
    check_targets(node)
    trace = trace_of([(0, 0, 1, 500, "")], [(0, 5)])
    simulator, _ = waiting(cluster_of(NODES), trace, FGD)
    assert start_in_order(simulator, [0], build(node), default_rng(0), blocking=True) == [0]


def test_the_rule_sees_departures_and_copies() -> None:
    """One GPU: a half is joined while it runs, in the simulator and in its copy alike."""
    cluster = cluster_of([(8000, 8192, 1, "A")])
    jobs = [(0, 0, 1, 500, ""), (0, 0, 1, 500, ""), (0, 0, 1, 1000, "")]
    simulator = ClusterSimulator(cluster, trace_of(jobs, [(0, 5), (1, 5), (0, 5)]))
    placement, rng = SharedGpuPlacement(FGD, FirstFitOfGangs()), default_rng(0)
    simulator.advance()
    start_in_order(simulator, [0], placement, rng, blocking=False)
    simulator.advance()
    twin = simulator.copy()
    twin.preempt(0)
    assert placement.place(simulator, 2, rng) is None
    assert placement.place(twin, 2, rng) == [(0, 1)]
    assert placement.place(simulator, 1, rng) == ((0, 1),)
    start_in_order(simulator, [1, 2], placement, rng, blocking=False)
    assert simulator.running().tolist() == [0, 1]
    while simulator.advance():
        start_in_order(simulator, simulator.pending().tolist(), placement, rng, blocking=False)
    assert simulator.schedule().finish.tolist() == [5.0, 6.0, 11.0]


@pytest.mark.parametrize("rule", RULES, ids=lambda rule: rule.name)
def test_gangs_that_ask_for_fractions_have_gpus_of_their_own(rule: FractionalRule) -> None:
    """Two fractions of one GPU have to share the only GPU left, and join no larger set."""
    trace = Trace.of("gangs", [0] * 5, [9] * 5, [2, 7, 1, 1, 2])
    trace = replace(trace, gpu_milli=np.array([500, 500, 400, 400, 100], np.int32))
    simulator, start = waiting(Cluster.uniform(2, 5), trace, rule)
    assert start() == [0, 1, 2, 3]
    state = simulator.state
    jobs = state.shares["job"][: state.jobs["nodes"].sum()].tolist()
    sets = state.shares["partial"][: len(jobs)].tolist()
    assert jobs == [0, 1, 1, 2, 3]
    assert sets[-1] == sets[-2]
    assert len(set(sets)) == 4
    assert state.partials["gpus"][sets].tolist() == state.shares["gpus"][: len(jobs)].tolist()
    assert state.clock[0]["free"] == 0
