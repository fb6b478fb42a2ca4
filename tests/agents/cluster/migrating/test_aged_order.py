"""Orders mixed with first come, first served: what wrong keys can cost, and the two ends."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from agents.cluster.joint_choice import JointChoice
from agents.cluster.migrating.priorities import Aged, RemainingService, Stateless
from agents.cluster.prediction import RollingDuration
from agents.cluster.replay import replay
from agents.cluster.rollout import Hindsight
from agents.cluster.work_left import ExpectedService, WorkLeft
from agents.solver import Knowledge
from envs.arrays import FloatArray, IntArray
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import ClusterState
from envs.cluster.workload.trace import Trace
from tests.refusal import refusal
from tests.strength import SEEDS, examples

ONE = Cluster.uniform(1, 1)


class Guesses(Stateless):
    """Keys of jobs that are anything, another thing every time, up to ln of a limit of each."""

    name = "guesses"
    knows: Knowledge = "nothing"

    def __init__(self, most: FloatArray, seed: int) -> None:
        self.most, self.rng = most, np.random.default_rng(seed)

    def __call__(self, state: ClusterState, jobs: IntArray) -> FloatArray:
        key: FloatArray = np.log(self.most[jobs] * self.rng.choice([0.01, 0.5, 1.0], len(jobs)))
        return key


def one_machine(seed: int) -> Trace:
    rng = np.random.default_rng(seed)
    jobs = int(rng.integers(2, 14))
    submit = np.sort(rng.integers(0, int(rng.choice([5, 60, 600])), jobs))
    return Trace.of("one", submit, rng.integers(1, 100, jobs), [1] * jobs)


def first_come(submit: FloatArray, seconds: FloatArray, job: int) -> float:
    """When `job` starts where all are served as they were submitted, of equals itself the last."""
    free = 0.0
    for other in np.lexsort((np.arange(len(submit)) == job, submit)):
        begin = max(free, submit[other])
        if other == job:
            return float(begin)
        free = begin + seconds[other]
    raise AssertionError


@given(SEEDS, st.sampled_from([0.1, 1.0, 7.0]))
@examples(300, 40)
def test_no_job_waits_for_longer_than_its_own_key_allows(seed: int, share: float) -> None:
    trace = one_machine(seed)
    most = np.exp(np.random.default_rng(seed).uniform(0.0, 6.0, len(trace)))
    order = Aged(Guesses(most, seed), share)
    start = replay(JointChoice(first=1, priority=order), ONE, trace).start
    submit = trace.submit_s.astype(float)
    for job in range(len(trace)):
        limit = submit[job] + most[job] / share
        ahead = (start < start[job]) & (start >= submit[job])
        assert (submit[ahead] <= limit).all()
        moved = submit.copy()
        moved[job] = limit
        assert start[job] <= first_come(moved, trace.duration_s.astype(float), job) + 1e-9


def test_its_ends_are_the_other_order_and_the_order_of_submission() -> None:
    found = one_machine(3)  # submitted at once they would go by their keys
    trace, cluster = replace(found, submit_s=np.arange(len(found)) * 7), Cluster.uniform(1, 1)
    most = np.exp(np.random.default_rng(3).uniform(0.0, 6.0, len(trace)))

    class Given(Guesses):
        def __call__(self, state: ClusterState, jobs: IntArray) -> FloatArray:
            return np.asarray(np.log(self.most[jobs]))

    def start(policy: JointChoice) -> FloatArray:
        return np.asarray(replay(policy, cluster, trace).start)

    alone = start(JointChoice(first=1, priority=Given(most, 0)))
    early = start(JointChoice(first=1, priority=Aged(Given(most, 0), 1e-9)))
    late = start(JointChoice(first=1, priority=Aged(Given(most, 0), 1e9)))
    assert_array_equal(early, alone)
    assert_array_equal(late, start(JointChoice(first=1, order="queue")))
    assert (late != alone).any()


def test_the_joint_choice_goes_by_the_keys_of_its_priority() -> None:
    rng = np.random.default_rng(0)
    trace = Trace.of(
        "jobs", np.sort(rng.integers(0, 900, 30)), rng.integers(1, 900, 30), rng.integers(1, 5, 30)
    )
    cluster = Cluster.uniform(2, 4)
    simulator, twin = ClusterSimulator(cluster, trace), JointChoice()
    twin.reset(simulator)
    twin.order_by(trace.duration_s.astype(float))
    twin.play_on(simulator, hold=True)
    policy = JointChoice(priority=RemainingService())
    assert policy.knows == "durations"
    assert_array_equal(replay(policy, cluster, trace).start, simulator.schedule().start)
    with refusal("durations are known"):
        Hindsight(policy, 1, 0)


def test_expected_service_is_between_the_posterior_and_the_average() -> None:
    trace = Trace.of("jobs", [0, 0, 500, 500], [300, 400, 900, 900], [1, 2, 1, 2])
    simulator = ClusterSimulator(Cluster.uniform(1, 4), trace)
    order, left = ExpectedService(durations=RollingDuration(prior_s=70.0)), WorkLeft()
    order.reset(simulator)
    left.reset(simulator)
    simulator.advance()
    jobs = np.array([0, 1])
    found = order(simulator.state, jobs)
    mean = left.mean(simulator.state, jobs)
    assert_allclose(found, np.log([1.0, 2.0]) + np.log(70.0 * mean) / 2.0)
    for job in jobs:
        simulator.start(int(job), [(0, int(trace.num_gpus[job]))])
    while simulator.now < 500:
        simulator.advance()
    jobs = np.array([2, 3])
    mean = left.mean(simulator.state, jobs)
    expected = np.log([1.0, 2.0]) + np.log(np.array([300.0, 400.0]) * mean) / 2.0
    assert_allclose(order(simulator.state, jobs), expected)
