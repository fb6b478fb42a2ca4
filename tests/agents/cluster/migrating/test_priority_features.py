"""What is told of a job and its siblings, beside the same worked out job by job."""

from __future__ import annotations

import math

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from agents.cluster.migrating.learned_priority import COLUMNS, NAMES, SIBLINGS, PriorityFeatures
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import FINISHED, FUTURE, RUNNING, Overheads
from envs.cluster.workload.trace import Trace
from tests.strength import examples


def time(seconds: float) -> float:
    return math.log(1.0 + seconds / 60.0) / 4.0


def worked_out(simulator: ClusterSimulator, job: int, expected: NDArray[np.float64]) -> list[float]:
    """The columns of a job, by name, from the trace and the state."""
    state, trace, now = simulator.state, simulator.trace, simulator.now
    records = state.jobs
    did = trace.duration_s - records["remaining"]
    alike = [j for j in range(len(trace)) if trace.num_gpus[j] == trace.num_gpus[job]]
    place = alike.index(job)
    gpus = math.log(trace.num_gpus[job])
    row = dict.fromkeys(COLUMNS, 0.0)
    row |= {"gpus": gpus, "fresh": float(did[job] == 0.0), "attained": time(did[job]) - 1.0}
    row |= {"gpus_attained": gpus * (did[job] > 0.0), "age": time(now - trace.submit_s[job]) - 1.5}
    row |= {"expected": (expected[0] - 10.0) / 3.0, "spread": expected[1] / 2.0 - 1.0}
    seen, ended = 0, []
    for rank, other in enumerate(alike):
        away = abs(rank - place)
        status = records["status"][other]
        if not 1 <= away <= SIBLINGS or status == FUTURE:
            continue
        seen += 1
        near = math.exp(-away / 4.0)
        hours = abs(trace.submit_s[other] - trace.submit_s[job]) / 3600.0
        together = math.exp(-hours)
        if status == FINISHED:
            ended.append(time(trace.duration_s[other]))
            row["finished"] += near / 4.0
        elif did[other] > did[job]:
            row["ahead_running" if status == RUNNING else "ahead_waiting"] += near
            row["ahead_together"] += together / 2.0
        else:
            row["behind"] += near / 3.0
            row["behind_together"] += together / 4.0
            row["behind_running"] += near * (status == RUNNING)
            if did[job] == 0.0 and other < job:
                row["before"] += near / 2.0
                row["before_together"] += together / 4.0
    row["unseen"] = 1.0 - seen / (2 * SIBLINGS)
    if ended:
        usual = np.mean([time(t) for t in trace.duration_s[records["status"] == FINISHED]])
        row["finished_long"] = float(np.mean(ended) - usual)
    return list(row.values())


@given(st.integers(0, 2**31 - 1), st.sampled_from([300.0, 20_000.0]))
@examples(25)
def test_columns_are_what_they_are_called(seed: int, apart: float) -> None:
    rng = np.random.default_rng(seed)
    jobs = 40
    submit = np.sort(rng.integers(0, int(apart * jobs / 4), jobs))
    trace = Trace.of("drawn", submit, rng.integers(60, 9000, jobs), rng.choice([1, 2], jobs))
    simulator = ClusterSimulator(Cluster.uniform(3, 4), trace, overheads=Overheads(30.0, 0.0))
    features, whole = PriorityFeatures(simulator), None
    while simulator.advance():
        simulator.settle()
        for job in list(simulator.running()):
            if rng.random() < 0.2:
                simulator.preempt(int(job))
        free = simulator.state.nodes["free"].copy()
        for job in rng.permutation(simulator.pending()):
            nodes = np.flatnonzero(free >= trace.num_gpus[job])
            if len(nodes) and rng.random() < 0.8:
                node = int(rng.choice(nodes))
                simulator.start(int(job), [(node, int(trace.num_gpus[job]))])
                free[node] -= trace.num_gpus[job]
        simulator.settle()
        there = np.concatenate([simulator.pending(), simulator.running()]).astype(np.int64)
        if len(there) == 0 or rng.random() < 0.5:
            continue
        expected = rng.normal(size=(len(there), 2))
        found = features.rows(simulator.state, there, expected)
        wanted = [worked_out(simulator, int(j), e) for j, e in zip(there, expected, strict=True)]
        np.testing.assert_allclose(found, wanted, rtol=1e-9, atol=1e-9)
        whole = features.copy()
    assert whole is not None
    assert len(NAMES) == len(COLUMNS) + 1


def test_a_copy_learns_for_itself_alone() -> None:
    trace = Trace.of("jobs", [0, 0, 0], [60, 600, 900], [1, 1, 1])
    simulator = ClusterSimulator(Cluster.uniform(1, 4), trace)
    features = PriorityFeatures(simulator)
    simulator.advance()
    for job in range(3):
        simulator.start(job, [(0, 1)])
    twin, ahead = features.copy(), simulator.copy()
    ahead.advance(60.0)
    ahead.settle()
    later = twin.rows(ahead.state, np.array([2]), np.zeros((1, 2)))
    assert later[0, COLUMNS.index("finished")] > 0.0
    simulator.settle()
    now = features.rows(simulator.state, np.array([2]), np.zeros((1, 2)))
    assert now[0, COLUMNS.index("finished")] == 0.0
    assert features._finished[0] == 0.0
