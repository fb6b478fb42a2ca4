"""GPUs handed out one by one: AFS-L against the paper's comparison, Optimus against all others."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.cluster.elastic import ApatheticFutureShare, apathetic_gpus, gainful_gpus
from agents.cluster.replay import simulate
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.workload.trace import Trace
from tests.agents.cluster.further_policies import in_rounds
from tests.strength import examples


def by_the_book(service: list[float], gangs: list[int], gpus: int) -> list[int]:
    """The paper's comparison with throughputs p(w) = w / gang, written out."""
    w = [0] * len(gangs)

    def speed(job: int, count: int) -> float:
        return count / gangs[job]

    def time(job: int) -> float:
        return np.inf if w[job] == 0 else service[job] / gangs[job] / speed(job, w[job])

    while sum(w) < gpus and any(a < b for a, b in zip(w, gangs, strict=True)):
        best = None
        for job in range(len(gangs)):
            if w[job] == gangs[job]:
                continue
            if best is None:
                best = job
            elif w[job] == 0 and w[best] == 0:
                best = job if service[job] < service[best] else best
            else:
                a, b = (job, best) if time(job) < time(best) else (best, job)
                gain_b = (speed(b, w[b] + 1) - speed(b, w[b])) / speed(b, w[b] + 1)
                gain_a = (speed(a, w[a] + 1) - speed(a, w[a])) / speed(a, w[a])
                best = b if gain_b - gain_a > 1e-12 else a
        assert best is not None
        w[best] += 1
    return w


@examples(200)
@given(
    jobs=st.lists(
        st.tuples(st.integers(1, 10**6), st.sampled_from([1, 2, 4, 8])), min_size=1, max_size=9
    ),
    gpus=st.integers(1, 20),
)
def test_the_papers_comparison(jobs: list[tuple[int, int]], gpus: int) -> None:
    service, gangs = [float(s) for s, _ in jobs], [g for _, g in jobs]
    given_out = apathetic_gpus(np.array(service), np.array(gangs), gpus)
    assert given_out.tolist() == by_the_book(service, gangs, gpus)
    assert given_out.sum() == min(gpus, sum(gangs))


def test_the_shorter_job_stays_ahead() -> None:
    """Two gangs of 8: the long one gets a GPU whenever it is two behind."""
    assert apathetic_gpus(np.array([10.0, 99.0]), np.array([8, 8]), 2).tolist() == [2, 0]
    assert apathetic_gpus(np.array([10.0, 99.0]), np.array([8, 8]), 3).tolist() == [2, 1]
    assert apathetic_gpus(np.array([10.0, 99.0]), np.array([8, 8]), 8).tolist() == [5, 3]


def test_short_jobs_first_where_gpus_are_few() -> None:
    trace = Trace.of("three", [0, 0, 0], [7200, 360, 720], [1, 1, 1])
    simulator = ClusterSimulator(Cluster.uniform(1, 1), trace)
    schedule = simulate(in_rounds(ApatheticFutureShare()), simulator)
    assert schedule.finish.tolist() == [8280.0, 360.0, 1080.0]


@examples(100)
@given(
    jobs=st.lists(
        st.tuples(st.integers(1, 10**6), st.sampled_from([1, 2, 4])), min_size=1, max_size=4
    ),
    more=st.integers(0, 8),
)
def test_the_sum_of_remaining_times_is_least(jobs: list[tuple[int, int]], more: int) -> None:
    service = np.array([float(s) for s, _ in jobs])
    gangs = np.array([g for _, g in jobs])
    gpus = len(jobs) + more
    given_out = gainful_gpus(service, gangs, gpus)
    assert given_out.sum() == min(gpus, gangs.sum())
    assert (given_out <= gangs).all()
    choices = product(*(range(1, g + 1) for g in gangs))
    best = min(float((service / np.array(w)).sum()) for w in choices if sum(w) <= gpus)
    assert float((service / given_out).sum()) == pytest.approx(best)


def test_few_gpus_go_to_those_that_came_first() -> None:
    assert gainful_gpus(np.array([9.0, 1.0, 5.0]), np.array([4, 4, 4]), 2).tolist() == [1, 1, 0]


def test_gain_by_hand() -> None:
    """100 and 30 GPU-seconds: 50, then 100 / 6 against 15, then 100 / 12 against 15."""
    assert gainful_gpus(np.array([100.0, 30.0]), np.array([8, 8]), 4).tolist() == [3, 1]
    assert gainful_gpus(np.array([100.0, 30.0]), np.array([8, 8]), 5).tolist() == [3, 2]
