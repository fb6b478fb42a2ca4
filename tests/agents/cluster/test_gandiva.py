"""Gandiva by hand: homes, turns, packing, migration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agents.cluster.gandiva import Gandiva
from agents.cluster.homes import Homes
from agents.cluster.simulate import simulate
from envs.errors import InputError
from envs.hardware.cluster import Cluster
from envs.interference.rates import ON_GPU, PAIRS_LEAST, RateTables, without_neighbours
from envs.simulation.cluster import ClusterSimulator
from envs.simulation.schedule import Schedule
from envs.workload.trace import Trace


class Beside:
    """The rate beside any other job on the same GPU."""

    name = "beside"

    def __init__(self, rate: float) -> None:
        self.rate = rate

    def tables(self, trace: Trace, cluster: Cluster) -> RateTables:
        alone = without_neighbours(np.zeros(len(trace), np.int32), np.ones((1, 1)))
        return alone._replace(kind=PAIRS_LEAST, scope=ON_GPU, pair=np.array([[self.rate]]))


def run(simulator: ClusterSimulator, defragment_free: float = 0.75) -> Schedule:
    return simulate(Gandiva(60.0, defragment_free), simulator)


def test_turns() -> None:
    trace = Trace.of("two", [0, 0], [120, 120], [1, 1])
    schedule = run(ClusterSimulator(Cluster.uniform(1, 1), trace))
    assert schedule.finish.tolist() == [180.0, 240.0]


def test_a_newcomer_does_not_make_up_for_the_past() -> None:
    """The first job has had 6000 s; the second starts level with it and they alternate."""
    trace = Trace.of("two", [0, 6000], [6120, 120], [1, 1])
    schedule = run(ClusterSimulator(Cluster.uniform(1, 1), trace))
    assert schedule.finish.tolist() == [6180.0, 6240.0]


def test_gangs_on_several_nodes_run_whole() -> None:
    trace = Trace.of("three", [0, 0, 0], [60, 60, 60], [4, 2, 2])
    simulator = ClusterSimulator(Cluster.uniform(2, 2), trace, keep_runs=True)
    schedule = run(simulator)
    assert schedule.finish.tolist() == [60.0, 120.0, 120.0]


def test_affinity() -> None:
    """Gangs of 2 and of 1 keep to nodes of their own while there is room."""
    trace = Trace.of("many", [0] * 6, [1000] * 6, [2, 1, 2, 1, 1, 1])
    simulator = ClusterSimulator(Cluster.uniform(2, 4), trace)
    homes = Homes(simulator)
    found = []
    for job in range(6):
        home = homes.find(job)
        assert home is not None
        homes.join(job, home)
        found.append(home[0][0])
    assert found == [0, 1, 0, 1, 1, 1]
    assert not homes.have_room()
    homes.leave(2)
    assert homes.find_room(2) == ((0, 2),)
    assert homes.on({1}) == {1, 3, 4, 5}


def test_waiting_jobs_move_to_nodes_that_others_have_left() -> None:
    trace = Trace.of("three", [0, 0, 1], [1000, 10, 500], [2, 2, 2])
    schedule = run(ClusterSimulator(Cluster.uniform(2, 2), trace))
    assert schedule.start.tolist() == [0.0, 0.0, 10.0]
    assert schedule.finish.tolist() == [1000.0, 10.0, 510.0]


def test_nearly_empty_nodes_are_emptied() -> None:
    """Jobs of 4 on node 0 and of 1 and 3 on node 1; when the 3 leaves, the 1 stays or moves."""
    trace = Trace.of("three", [0, 0, 0], [900, 900, 50], [3, 1, 3])
    for defragment_free, nodes in ((0.7, {0}), (0.8, {0, 1})):
        simulator = ClusterSimulator(Cluster.uniform(2, 4), trace, keep_runs=True)
        schedule = run(simulator, defragment_free)
        assert schedule.runs is not None
        late = schedule.runs[schedule.runs["end"] > 100.0]
        assert set(late["node"].tolist()) == nodes
        assert schedule.finish.tolist() == [900.0, 900.0, 50.0]


@pytest.mark.parametrize(("rate", "finish"), [(0.6, [200.0, 200.0]), (0.4, [180.0, 240.0])])
def test_packing_only_if_it_pays(rate: float, finish: list[float]) -> None:
    """Two halves on one GPU: 2 x 0.6 is more than turns give, 2 x 0.4 is less."""
    trace = Trace.of("halves", [0, 0], [120, 120], [1, 1])
    trace = replace(trace, gpu_milli=np.array([500, 500], np.int32))
    simulator = ClusterSimulator(Cluster.uniform(1, 1), trace, rates=Beside(rate))
    schedule = run(simulator)
    assert schedule.finish.tolist() == pytest.approx(finish)


@pytest.mark.parametrize(("quantum", "free"), [(0.0, 0.5), (60.0, 1.5), (60.0, -0.1)])
def test_what_is_refused(quantum: float, free: float) -> None:
    with pytest.raises(InputError):
        Gandiva(quantum, free)
