"""Gandiva by hand: residents, turns, packing, migration."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from small_clusters import Speeds

from agents.cluster.gandiva import Gandiva
from agents.cluster.replay import simulate
from agents.cluster.time_slicing import Residents
from envs.cluster.interference.rates import ON_GPU, PAIRS_LEAST, RateTables, without_neighbours
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import INCIDENT, Overheads, Schedule
from envs.cluster.workload.trace import Trace
from tests.refusal import refusal
from tests.strength import trials

GOLDEN = (228840.12575762667, 370)  # sum of completion times, preemptions


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


def test_gangs_that_ask_for_fractions_take_turns_on_whole_gpus() -> None:
    trace = Trace.of("t", [0, 0, 0], [60, 60, 30], [3, 3, 1])
    trace = replace(trace, gpu_milli=np.array([500, 400, 100], np.int32))
    schedule = run(ClusterSimulator(Cluster.uniform(1, 3), trace))
    assert schedule.finished.all()
    assert schedule.makespan == 150.0


def test_affinity() -> None:
    """Gangs of 2 and of 1 keep to nodes of their own while there is room."""
    trace = Trace.of("many", [0] * 6, [1000] * 6, [2, 1, 2, 1, 1, 1])
    simulator = ClusterSimulator(Cluster.uniform(2, 4), trace)
    residents = Residents(simulator)
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
    with refusal():
        Gandiva(quantum, free)


def random_simulator(seed: int, *, keep_runs: bool) -> ClusterSimulator:
    """Gangs up to four nodes, stops that cost, speeds of two GPU types, nodes that fail."""
    rng = np.random.default_rng(seed)
    cluster = Cluster.uniform(5, 2, gpu_types=["V100", "P100"])
    gangs = rng.choice([1, 1, 1, 2, 2, 4], 40)
    submit = np.sort(rng.integers(0, 3000, 40)).tolist()
    trace = Trace.of("random", submit, rng.integers(1, 1500, 40).tolist(), gangs.tolist())
    incidents = np.array([(900.0, 1, 0), (1000.5, 4, 0), (2000.0, 1, 1), (4000.0, 4, 1)], INCIDENT)
    return ClusterSimulator(
        cluster,
        trace,
        rates=Speeds(rng.uniform(0.5, 1.5, (40, 2))),
        overheads=Overheads(restart_s=20.0, checkpoint_s=0.0),
        incidents=incidents,
        keep_runs=keep_runs,
    )


@pytest.mark.parametrize("seed", range(5))
def test_turns_of_whole_gpus_are_those_of_jobs_that_may_share(seed: int) -> None:
    expected = simulate(Gandiva(60.0, 0.75), random_simulator(seed, keep_runs=True))
    found = simulate(JobByJob(60.0, 0.75), random_simulator(seed, keep_runs=True))
    for name in ("start", "finish", "held", "preemptions"):
        assert getattr(found, name).tolist() == getattr(expected, name).tolist()
    assert expected.preemptions.sum() > 40


class JobByJob(Gandiva):
    """Takes turns as jobs that may share GPUs do."""

    def reset(self, simulator: ClusterSimulator) -> None:
        super().reset(simulator)
        self._shares_gpus = True


def test_golden() -> None:
    """What the policy made of the same jobs before any of it was compiled."""
    schedule = simulate(Gandiva(60.0, 0.75), random_simulator(0, keep_runs=False))
    assert float(schedule.finish.sum()) == pytest.approx(GOLDEN[0], rel=1e-12)
    assert int(schedule.preemptions.sum()) == GOLDEN[1]


@pytest.mark.parametrize("seed", range(trials(20)))
def test_homes_are_the_best_of_all_nodes(seed: int) -> None:
    """Against a search in Python over sorted candidates."""
    rng = np.random.default_rng(seed)
    simulator = random_simulator(seed, keep_runs=False)
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
        free = residents.find_room(job)
        if gang <= 2:
            assert free == (((min(ranked)[-1]), gang),) if ranked else free is None
            expected = free or ((min(crowded)[-1], gang),)
            assert residents.find(job) == expected
        residence = residents.find(job)
        assert residence is not None
        assert sum(share[1] for share in residence) == gang
        if rng.random() < 0.5 and len(residence) == 1:
            residents.join(job, residence)
            lived[residence[0][0]].append(job)
    table = residents.table()
    assert table.jobs.tolist() == sorted(residents.of)
    assert table.node.tolist() == [residents.of[job][0][0] for job in sorted(residents.of)]


def test_a_job_without_gpus_lives_nowhere_while_all_nodes_are_down() -> None:
    trace = Trace.of("none", [5], [10], [0])
    incidents = np.array([(1.0, 0, 0), (100.0, 0, 1)], INCIDENT)
    simulator = ClusterSimulator(Cluster.uniform(1, 2), trace, incidents=incidents)
    assert run(simulator).start.tolist() == [100.0]
