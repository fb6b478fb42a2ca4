"""The compiled orders of priority decide as `passes` does."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

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
    SJFStrict,
)
from agents.cluster.replay import simulate
from agents.cluster.rules import gangs
from agents.cluster.rules.gangs import LeastInterference
from envs.cluster.interference.rates import PAIRS_PRODUCT
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import INCIDENT, Overheads
from envs.cluster.workload.trace import Trace
from tests.agents.cluster.small_clusters import Speeds, chain
from tests.strength import SEEDS, examples

Policy = Callable[..., Any]
RULES = (
    gangs.Count(), gangs.Yarn(), gangs.HeliosConsolidate(), gangs.BestFit(), gangs.Spread(),
    LeastInterference(),
)  # fmt: skip
# queues short enough for jobs of a few seconds
BY_SERVICE = [partial(kind, limits=[3, 8]) for kind in (LAS2D, LAS2DTiresias)]
POLICIES: list[Policy] = [FIFO, FIFOBackfill, EASY, SJF, SJFStrict, SRTF, SRSF, *BY_SERVICE]


def neighbours(jobs: int) -> Speeds:
    """Every neighbour takes a quarter of what is there: rates stay exact in binary."""
    return Speeds(np.ones((jobs, 1)), kind=PAIRS_PRODUCT, pair=np.full((1, 1), 0.75))


@examples(120)
@given(
    seed=SEEDS,
    policy=st.sampled_from(POLICIES),
    rule=st.sampled_from(RULES),
    disturbed=st.booleans(),
)
@example(seed=295218, policy=BY_SERVICE[0], rule=RULES[4], disturbed=False)  # a log that grows
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
    options: dict[str, Any] = {"keep_runs": True}
    if disturbed:
        incidents = np.array([(3.0, 1, 0), (9.0, 1, 1)], INCIDENT)
        options |= {"rates": neighbours(jobs), "overheads": Overheads(2.0, 2.0)}
        options["incidents"] = incidents
    compiled, literal = (ClusterSimulator(cluster, trace, **options) for _ in range(2))
    assert policy(rule, seed=0).run(compiled)
    found, wanted = compiled.schedule(), simulate(policy(rule, seed=0), literal)
    np.testing.assert_allclose(
        [found.start, found.finish], [wanted.start, wanted.finish], rtol=1e-12
    )
    assert found.preemptions.tolist() == wanted.preemptions.tolist()
    if not disturbed:
        undisturbed = policy(rule, seed=0).replay(cluster, trace)
        for other in (found, undisturbed or found):
            assert other.finish.tolist() == wanted.finish.tolist()


@pytest.mark.parametrize("policy", POLICIES)
def test_rules_that_draw_give_the_same_schedule_twice(policy: Policy) -> None:
    rng = np.random.default_rng(5)
    trace = Trace.of("t", np.sort(rng.integers(0, 50, 60)), rng.integers(1, 30, 60), [3] * 60)
    finishes = []
    for _ in range(2):
        simulator = ClusterSimulator(Cluster.uniform(3, 4), trace, rates=neighbours(60))
        assert policy(gangs.Random(), seed=7).run(simulator)
        finishes.append(simulator.schedule().finish.tolist())
    assert finishes[0] == finishes[1]


def test_a_gang_can_be_imagined_on_a_cluster_on_which_all_is_held() -> None:
    cluster = Cluster.uniform(2, 1)
    trace = Trace.of("full", [0, 0, 1, 1], [9, 9, 1, 2], [1, 1, 1, 2])
    full, literal, compiled = (ClusterSimulator(cluster, trace) for _ in range(3))
    full.advance()
    for job in (0, 1):
        full.start(job, [(job, 1)])
    assert len(chain(full.state.shares, full.state.clock[0]["share"])) >= cluster.num_nodes
    policy = SRTF(LeastInterference(), seed=0)
    assert policy.run(compiled)
    found = simulate(policy, literal).finish.tolist()
    assert compiled.schedule().finish.tolist() == found
