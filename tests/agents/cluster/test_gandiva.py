"""Gandiva by hand: residents, turns, packing, migration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from agents.cluster.gandiva import Gandiva, Residents
from agents.cluster.replay import simulate
from envs.cluster.interference.rates import ON_GPU, PAIRS_LEAST
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import INCIDENT, Overheads
from envs.cluster.workload.trace import Trace
from tests.agents.cluster.further_policies import Jobs, on_nodes, trace_of
from tests.agents.cluster.small_clusters import Speeds
from tests.strength import trials

GOLDEN = (228840.12575762667, 370)  # sum of completion times, preemptions


@pytest.mark.parametrize(
    ("jobs", "nodes", "gpus", "finish"),
    [
        ([(0, 120, 1), (0, 120, 1)], 1, 1, [180, 240]),  # turns
        # a newcomer does not make up for the past: the first has had 6000 s when the second comes,
        # which starts level with it, and they alternate
        ([(0, 6120, 1), (6000, 120, 1)], 1, 1, [6180, 6240]),
        ([(0, 60, 4), (0, 60, 2), (0, 60, 2)], 2, 2, [60, 120, 120]),  # on several nodes, whole
        # who waits moves to the node that another has left, at 10 s
        ([(0, 1000, 2), (0, 10, 2), (1, 500, 2)], 2, 2, [1000, 10, 510]),
    ],
)
def test_turns(jobs: Jobs, nodes: int, gpus: int, finish: list[float]) -> None:
    assert on_nodes(Gandiva(), jobs, nodes, gpus).finish.tolist() == finish


def test_gangs_that_ask_for_fractions_take_turns_on_whole_gpus() -> None:
    trace = trace_of([(0, 60, 3), (0, 60, 3), (0, 30, 1)])
    trace = replace(trace, gpu_milli=np.array([500, 400, 100], np.int32))
    schedule = simulate(Gandiva(), ClusterSimulator(Cluster.uniform(1, 3), trace))
    assert schedule.finished.all()
    assert schedule.makespan == 150.0


def test_affinity() -> None:
    """Gangs of 2 and of 1 keep to nodes of their own while there is room."""
    trace = trace_of([(0, 1000, gang) for gang in (2, 1, 2, 1, 1, 1)])
    residents = Residents(ClusterSimulator(Cluster.uniform(2, 4), trace))
    found = []
    for job in range(6):
        residence = residents.find(job)
        assert residence is not None
        residents.join(job, residence)
        found.append(residence[0][0])
    assert found == [0, 1, 0, 1, 1, 1]
    assert not residents.have_room()
    residents.leave(2)
    assert residents.find_room(2) == ((0, 2),)
    assert residents.on({1}) == {1, 3, 4, 5}


@pytest.mark.parametrize(("defragment_free", "nodes"), [(0.7, {0}), (0.8, {0, 1})])
def test_nearly_empty_nodes_are_emptied(defragment_free: float, nodes: set[int]) -> None:
    """Jobs of 3 on node 0 and of 1 and 3 on node 1; when the 3 leaves, the 1 stays or moves."""
    jobs = [(0, 900, 3), (0, 900, 1), (0, 50, 3)]
    schedule = on_nodes(Gandiva(60.0, defragment_free), jobs, 2, 4, keep_runs=True)
    assert schedule.runs is not None
    late = schedule.runs[schedule.runs["end"] > 100.0]
    assert set(late["node"].tolist()) == nodes
    assert schedule.finish.tolist() == [900.0, 900.0, 50.0]


@pytest.mark.parametrize(("rate", "finish"), [(0.6, [200.0, 200.0]), (0.4, [180.0, 240.0])])
def test_packing_only_if_it_pays(rate: float, finish: list[float]) -> None:
    """Two halves on one GPU: 2 x 0.6 is more than turns give, 2 x 0.4 is less."""
    trace = replace(trace_of([(0, 120, 1)] * 2), gpu_milli=np.array([500, 500], np.int32))
    beside = Speeds(np.ones((2, 1)), kind=PAIRS_LEAST, scope=ON_GPU, pair=np.array([[rate]]))
    simulator = ClusterSimulator(Cluster.uniform(1, 1), trace, rates=beside)
    assert simulate(Gandiva(), simulator).finish.tolist() == pytest.approx(finish)


def random_simulator(seed: int) -> ClusterSimulator:
    """Gangs up to four nodes, stops that cost, speeds of two GPU types, nodes that fail."""
    rng = np.random.default_rng(seed)
    cluster = Cluster.uniform(5, 2, gpu_types=["V100", "P100"])
    gangs = rng.choice([1, 1, 1, 2, 2, 4], 40)
    submit = np.sort(rng.integers(0, 3000, 40)).tolist()
    trace = Trace.of("random", submit, rng.integers(1, 1500, 40).tolist(), gangs.tolist())
    incidents = np.array([(900.0, 1, 0), (1000.5, 4, 0), (2000.0, 1, 1), (4000.0, 4, 1)], INCIDENT)
    rates, overheads = Speeds(rng.uniform(0.5, 1.5, (40, 2))), Overheads(20.0, 0.0)
    return ClusterSimulator(cluster, trace, rates=rates, overheads=overheads, incidents=incidents)


def test_golden() -> None:
    """What the policy made of these jobs when it was written."""
    schedule = simulate(Gandiva(60.0, 0.75), random_simulator(0))
    assert float(schedule.finish.sum()) == pytest.approx(GOLDEN[0], rel=1e-12)
    assert int(schedule.preemptions.sum()) == GOLDEN[1]


@pytest.mark.parametrize("seed", range(trials(20)))
def test_homes_are_the_best_of_all_nodes(seed: int) -> None:
    """Against a search in Python over sorted candidates."""
    rng = np.random.default_rng(seed)
    simulator = random_simulator(seed)
    residents = Residents(simulator)
    gpus = simulator.state.jobs["gpus"]
    lived: dict[int, list[int]] = {node: [] for node in range(5)}
    for job in range(30):
        gang = int(gpus[job])
        used = [sum(int(gpus[other]) for other in lived[node]) for node in range(5)]
        alike = [bool(lived[n]) and int(gpus[lived[n][0]]) == gang for n in range(5)]
        room = [n for n in range(5) if gang <= 2 - used[n]]
        ranked = [(not alike[n], bool(lived[n]), used[n], n) for n in room]
        crowded = [(not alike[n], used[n], n) for n in range(5) if gang <= 2]
        free, residence = residents.find_room(job), residents.find(job)
        if gang <= 2:
            assert free == (((min(ranked)[-1]), gang),) if ranked else free is None
            assert residence == (free or ((min(crowded)[-1], gang),))
        assert residence is not None
        assert sum(share[1] for share in residence) == gang
        if rng.random() < 0.5 and len(residence) == 1:
            residents.join(job, residence)
            lived[residence[0][0]].append(job)


def test_a_job_without_gpus_lives_nowhere_while_all_nodes_are_down() -> None:
    incidents = np.array([(1.0, 0, 0), (100.0, 0, 1)], INCIDENT)
    schedule = on_nodes(Gandiva(), [(5, 10, 0)], 1, 2, incidents=incidents)
    assert schedule.start.tolist() == [100.0]
