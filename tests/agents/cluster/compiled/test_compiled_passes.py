"""The compiled orders of priority decide as `passes` does."""

from __future__ import annotations

from collections.abc import Callable

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
    AttainedService,
    FIFOBackfill,
    LAS2DTiresias,
    NonPreemptive,
    ShortestRemaining,
    SJFStrict,
)
from agents.cluster.replay import simulate
from agents.cluster.rules.gangs import (
    BestFit,
    Count,
    HeliosConsolidate,
    LeastInterference,
    Random,
    Spread,
    Yarn,
)
from envs.cluster.interference.rates import PAIRS_PRODUCT, RateTables, without_neighbours
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import INCIDENT, NONE, Overheads
from envs.cluster.workload.trace import Trace
from tests.strength import SEEDS, examples

Policy = Callable[[PlacementRule, int], EASY | NonPreemptive | ShortestRemaining | AttainedService]


def by_service(policy: Callable[..., AttainedService]) -> Policy:
    """Queues short enough for jobs of a few seconds."""
    return lambda placement, seed: policy(placement, [3, 8], seed)


RULES = (Count(), Yarn(), HeliosConsolidate(), BestFit(), Spread(), LeastInterference())
POLICIES = (
    FIFO,
    FIFOBackfill,
    EASY,
    SJF,
    SJFStrict,
    SRTF,
    SRSF,
    by_service(LAS2D),
    by_service(LAS2DTiresias),
)


class Neighbours:
    """Every neighbour takes a quarter of what is there: rates stay exact in binary."""

    name = "neighbours"

    def tables(self, trace: Trace, cluster: Cluster) -> RateTables:
        """One case."""
        alone = without_neighbours(
            np.zeros(len(trace), np.int32), np.ones((1, len(cluster.gpu_types)))
        )
        return alone._replace(kind=PAIRS_PRODUCT, pair=np.full((1, 1), 0.75))


@examples(120)
@given(
    seed=SEEDS,
    policy=st.sampled_from(POLICIES),
    rule=st.sampled_from(RULES),
    disturbed=st.booleans(),
)
@example(seed=295218, policy=by_service(LAS2D), rule=Spread(), disturbed=False)  # a log that grows
def test_compiled_and_literal_passes_agree(
    seed: int, policy: Policy, rule: PlacementRule, disturbed: bool
) -> None:
    rng = np.random.default_rng(seed)
    jobs = int(rng.integers(1, 14))
    cluster = Cluster.uniform(3, 4, nodes_per_rack=2)
    trace = Trace.of(
        "dense",
        np.sort(rng.integers(0, 8, jobs)),
        rng.integers(1, 6, jobs),
        rng.choice([1, 1, 2, 3, 4, 5, 8], jobs),
    )
    incidents = np.zeros(0, INCIDENT)
    rates, overheads = None, Overheads(0.0, 0.0)
    if disturbed:
        rates, overheads = Neighbours(), Overheads(2.0, 2.0)
        incidents = np.array([(3.0, 1, 0), (9.0, 1, 1)], INCIDENT)

    def simulator() -> ClusterSimulator:
        return ClusterSimulator(
            cluster,
            trace,
            rates=rates,
            overheads=overheads,
            incidents=incidents,
            keep_runs=True,
        )

    compiled, literal = simulator(), simulator()
    assert policy(rule, 0).run(compiled)
    simulate(policy(rule, 0), literal)
    found, wanted = compiled.schedule(), literal.schedule()
    np.testing.assert_allclose(found.start, wanted.start, rtol=1e-12)
    np.testing.assert_allclose(found.finish, wanted.finish, rtol=1e-12)
    assert found.preemptions.tolist() == wanted.preemptions.tolist()
    if not disturbed:
        assert found.finish.tolist() == wanted.finish.tolist()
        undisturbed = policy(rule, 0).replay(cluster, trace)
        if undisturbed is not None:
            assert undisturbed.finish.tolist() == wanted.finish.tolist()


@pytest.mark.parametrize("policy", POLICIES)
def test_rules_that_draw_give_the_same_schedule_twice(policy: Policy) -> None:
    rng = np.random.default_rng(5)
    trace = Trace.of("t", np.sort(rng.integers(0, 50, 60)), rng.integers(1, 30, 60), [3] * 60)
    finishes = []
    for _ in range(2):
        simulator = ClusterSimulator(Cluster.uniform(3, 4), trace, rates=Neighbours())
        assert policy(Random(), 7).run(simulator)
        finishes.append(simulator.schedule().finish.tolist())
    assert finishes[0] == finishes[1]


def test_a_gang_can_be_imagined_on_a_cluster_on_which_all_is_held() -> None:
    cluster = Cluster.uniform(2, 1)
    trace = Trace.of("full", [0, 0, 1, 1], [9, 9, 1, 2], [1, 1, 1, 2])
    simulator = ClusterSimulator(cluster, trace)
    simulator.advance()
    simulator.start(0, [(0, 1)])
    simulator.start(1, [(1, 1)])
    share, spare = int(simulator.state.clock[0]["share"]), 0
    while share != NONE:
        share, spare = int(simulator.state.shares[share]["next"]), spare + 1
    assert spare >= cluster.num_nodes
    literal = simulate(SRTF(LeastInterference(), 0), ClusterSimulator(cluster, trace))
    compiled = ClusterSimulator(cluster, trace)
    assert SRTF(LeastInterference(), 0).run(compiled)
    assert compiled.schedule().finish.tolist() == literal.finish.tolist()
