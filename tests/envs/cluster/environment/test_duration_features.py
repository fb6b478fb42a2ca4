"""What is known of how long jobs take: literally, and without anything of the future."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray

from envs.cluster.environment.duration_features import DurationFeatures, columns, width
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import FINISHED, FUTURE, RUNNING, Overheads
from envs.cluster.workload.trace import Trace
from tests.agents.cluster.migrating.migrating_cases import OneSpeed
from tests.envs.cluster.environment.reference_observation import count, exponential, kin, time
from tests.strength import SEEDS, examples

CLUSTER = Cluster.uniform(3, 4, gpu_types=("A", "B", "C"))


def trace_of(seed: int) -> Trace:
    rng = default_rng(seed)
    jobs = int(rng.integers(2, 25))
    submit, seconds = np.sort(rng.integers(0, 2000, jobs)), rng.integers(10, 900, jobs)
    users = [["a", "b", None][u] for u in rng.integers(0, 3, jobs)]
    labels = {"user": users} if rng.random() < 0.5 else {}
    return Trace.of("jobs", submit, seconds, rng.choice([1, 2, 4], jobs), **labels)


def simulator_of(trace: Trace) -> ClusterSimulator:
    return ClusterSimulator(
        CLUSTER, trace, rates=OneSpeed(1.0, 0.5, 0.2), overheads=Overheads(30.0, 0.0)
    )


def start_what_fits(simulator: ClusterSimulator, nodes: Callable[[int], Iterable[int]]) -> None:
    """Start waiting jobs on the first of some nodes that has room."""
    for job in simulator.pending().tolist():
        wanted = int(simulator.state.jobs[job]["gpus"])
        for node in nodes(job):
            if simulator.state.nodes[node]["free"] >= wanted:
                simulator.start(job, [(node, wanted)])
                break


def play(
    simulator: ClusterSimulator, seed: int, each: Callable[[ClusterSimulator], object]
) -> None:
    """Start jobs where there is room and stop some, by what has arrived alone; to the end."""
    while not simulator.done and simulator.advance(simulator.now + 100.0):
        rng = default_rng([seed, int(simulator.now * 16)])
        simulator.settle()
        for job in simulator.running():
            if rng.random() < 0.1 and simulator.state.jobs[job]["since"] < simulator.now:
                simulator.preempt(int(job))
        start_what_fits(simulator, lambda job: range(3))
        each(simulator)


def literal(
    simulator: ClusterSimulator, history: int, jobs: NDArray[np.int64]
) -> list[list[float]]:
    """The rows of `DurationFeatures` as its docstring says them, after settling."""
    trace, records, now = simulator.trace, simulator.state.jobs, simulator.now

    def done(job: int) -> float:
        return float(trace.duration_s[job] - records[job]["remaining"])

    ended = [j for j in range(len(trace)) if records[j]["status"] == FINISHED]
    ended.sort(key=lambda j: (records[j]["finish"], j))
    rows = []
    for job in jobs.tolist():
        alike = [j for j in ended if trace.num_gpus[j] == trace.num_gpus[job]]
        row = [
            float(np.log2(trace.num_gpus[job]) / 4.0),
            time(now - trace.submit_s[job]),
            time(done(job)),
            time(float(records[job]["executed"])),
            *exponential(time(float(trace.duration_s[j])) for j in alike),
            count(len(alike)),
            *exponential(time(float(trace.duration_s[j])) for j in ended),
        ]
        for others in kin(trace, job):
            for near in others[:history] + [None] * (history - len(others)):
                if near is None or records[near]["status"] == FUTURE:
                    row += [0.0] * 4
                else:
                    apart = abs(float(trace.submit_s[near] - trace.submit_s[job]))
                    over = float(records[near]["status"] == FINISHED)
                    row += [1.0, time(done(near)), over, time(apart)]
        rows.append(row)
    return rows


def arrived(simulator: ClusterSimulator) -> NDArray[np.int64]:
    return np.flatnonzero(simulator.state.jobs["status"] != FUTURE)


@examples(25)
@given(SEEDS, st.integers(1, 3))
def test_rows_are_the_literal_ones(seed: int, history: int) -> None:
    simulator = simulator_of(trace_of(seed))
    features = DurationFeatures(simulator, history)
    looks = default_rng(seed)

    def look(now: ClusterSimulator) -> None:
        if looks.random() < 0.5:
            return
        jobs = arrived(now)
        found = features.rows(now.state, jobs)
        assert found.shape == (len(jobs), width(history)) == (len(jobs), len(columns(history)))
        if len(jobs):
            assert_allclose(found, literal(now, history, jobs), atol=2e-6)

    play(simulator, seed, look)


@examples(40)
@given(SEEDS)
def test_nothing_of_the_future_shows(seed: int) -> None:
    """Jobs that have not finished take longer, those that have not arrived are others."""
    trace = trace_of(seed)
    rng = default_rng(seed)
    until = int(rng.integers(0, 2500))
    first = simulator_of(trace)
    found = _rows_up_to(first, seed, until)
    records = first.state.jobs
    unknown = ~((records["status"] == FINISHED) & (records["finish"] <= until))
    later = trace.submit_s > until
    other = replace(
        trace,
        duration_s=np.where(unknown, trace.duration_s + 5000, trace.duration_s),
        submit_s=np.where(later, trace.submit_s + 77, trace.submit_s),
        num_gpus=np.where(later, rng.choice([1, 2, 4], len(trace)), trace.num_gpus).astype(
            np.int32
        ),
    )
    again = _rows_up_to(simulator_of(other), seed, until)
    assert len(found) == len(again)
    for one, another in zip(found, again, strict=True):
        assert_array_equal(one, another)


def _rows_up_to(simulator: ClusterSimulator, seed: int, until: int) -> list[NDArray[np.float32]]:
    """The rows of all arrived jobs at every 100 s up to `until`, after which it stops."""
    features, found = DurationFeatures(simulator, 2), []
    for instant in range(0, until + 1, 50):
        while simulator.now < instant:
            if not simulator.advance(float(instant)):
                break
            simulator.settle()
            start_what_fits(simulator, lambda job: [(job + seed) % 3])
        if instant % 100 == 0:
            found.append(features.rows(simulator.state, arrived(simulator)))
    return found


@examples(25)
@given(SEEDS)
def test_rows_do_not_depend_on_when_one_asked_before(seed: int) -> None:
    simulator = simulator_of(trace_of(seed))
    always, once = DurationFeatures(simulator, 1), DurationFeatures(simulator, 1)
    play(simulator, seed, lambda now: always.rows(now.state, arrived(now)))
    jobs = arrived(simulator)
    assert_array_equal(always.rows(simulator.state, jobs), once.rows(simulator.state, jobs))


def test_a_running_job_has_done_what_its_rate_makes_of_its_time() -> None:
    """On type B, half as fast, from 30 s after a restart on."""
    simulator = simulator_of(Trace.of("one", [0], [1000], [2]))
    features = DurationFeatures(simulator, 1)
    simulator.advance()
    simulator.start(0, [(1, 2)])
    simulator.advance(60.0)
    simulator.preempt(0)
    simulator.start(0, [(1, 2)])
    for now, done in ((80.0, 30.0), (90.0, 30.0), (150.0, 60.0)):
        simulator.advance(now)
        assert simulator.state.jobs[0]["status"] == RUNNING
        row = features.rows(simulator.state, np.array([0]))[0]
        assert row[1:4] == pytest.approx(
            np.log1p(np.array([now, done, now]) / 60.0) / 4.0, abs=1e-6
        )
