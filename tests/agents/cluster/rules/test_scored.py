"""A placement rule by one score, beside the rules that it can imitate."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.cluster.queue import FIFOBackfill
from agents.cluster.replay import simulate
from agents.cluster.rules.gangs import BestFit, FirstFit
from agents.cluster.rules.scored import ScoredNodes
from envs.arrays import FloatArray, IntArray
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.workload.trace import Trace
from tests.agents.cluster.random_clusters import clusters, traces
from tests.refusal import refusal
from tests.strength import examples


class FewestFree(ScoredNodes):
    name = "fewest_free"

    def score(self, simulator: ClusterSimulator, job: int) -> IntArray:
        return simulator.state.nodes["free"].astype(np.int64)


class Lowest(ScoredNodes):
    name = "lowest"

    def score(self, simulator: ClusterSimulator, job: int) -> IntArray:
        return np.zeros(simulator.cluster.num_nodes, np.int64)


@examples(60)
@given(data=st.data())
def test_jobs_that_fit_a_node_go_where_a_known_rule_sends_them(data: st.DataObject) -> None:
    """With GPU types, and processors that do not last for all."""
    cluster = data.draw(clusters())
    trace = data.draw(traces(cluster))
    for mine, known in ((FewestFree(), BestFit()), (Lowest(), FirstFit())):
        simulator = ClusterSimulator(cluster, trace)
        rng = np.random.default_rng(0)
        while simulator.advance():
            for job in simulator.pending().tolist():
                expected = known.place(simulator, job, rng)
                shares = mine.place(simulator, job, rng)
                one_node = trace.num_gpus[job] <= _largest(cluster, simulator, job)
                assert not one_node or shares == expected
                if shares is not None:
                    simulator.start(job, shares)  # which refuses what is not there


def _largest(cluster: Cluster, simulator: ClusterSimulator, job: int) -> int:
    permitted = simulator.state.jobs["types"][job] >> cluster.gpu_type.astype(np.int64) & 1 == 1
    return int(cluster.gpus[permitted].max())


def test_a_gang_larger_than_a_node_is_on_as_few_as_can_be() -> None:
    cluster = Cluster.uniform(4, 4)
    trace = Trace.of("t", [0, 0, 0, 0], [9, 9, 9, 9], [1, 7, 6, 5])
    simulator = ClusterSimulator(cluster, trace)
    simulator.advance()
    rng, rule = np.random.default_rng(0), FewestFree()
    simulator.start(0, [(1, 1)])
    shares = rule.place(simulator, 1, rng)
    assert shares == [(0, 4), (2, 3)]
    simulator.start(1, shares)
    assert rule.place(simulator, 2, rng) == [(3, 4), (1, 2)]  # 3 are free on node 1, 1 on node 2
    simulator.start(2, [(3, 4), (1, 2)])
    assert rule.place(simulator, 3, rng) is None
    schedule = simulate(FIFOBackfill(rule), ClusterSimulator(cluster, trace))
    assert schedule.finished.all()


def test_a_fraction_is_refused() -> None:
    trace = Trace.of("t", [0], [9], [1])
    trace = Trace(**{**vars(trace), "gpu_milli": np.array([500], np.int32)})
    simulator = ClusterSimulator(Cluster.uniform(1, 1), trace)
    simulator.advance()
    with refusal("fraction") as error:
        FewestFree().place(simulator, 0, np.random.default_rng(0))
    assert error.value.record == 0


@pytest.mark.parametrize("wrong", [[np.nan, 1.0], [1.0], 1.0])
def test_what_is_no_score_is_refused_by_the_name_of_its_rule(wrong: Any) -> None:
    class Wrong(ScoredNodes):
        name = "wrong"

        def score(self, simulator: ClusterSimulator, job: int) -> FloatArray:
            return np.array(wrong)

    simulator = ClusterSimulator(Cluster.uniform(2, 1), Trace.of("t", [0], [9], [1]))
    simulator.advance()
    with refusal("placement rule wrong.*not a finite number a node"):
        Wrong().place(simulator, 0, np.random.default_rng(0))
