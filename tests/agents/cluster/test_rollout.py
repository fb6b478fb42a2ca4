"""Looking ahead: never worse where the future is known, blind to durations where it is not."""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import permutations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from agents.cluster.joint_choice import JointChoice
from agents.cluster.partitioned import Partitioned
from agents.cluster.policy import Scheduler
from agents.cluster.queue import FIFO, SJF
from agents.cluster.replay import replay, simulate
from agents.cluster.rollout import Continuing, Hindsight, Rollout
from agents.cluster.rules.gangs import BestFit
from agents.cluster.work_left import LEAST_S, MOST_S, WorkLeft
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.workload.trace import Trace
from models.durations.bins import middles, upper_edges_s
from tests.agents.cluster.further_policies import joint_choice, several
from tests.agents.cluster.random_clusters import clusters, traces
from tests.refusal import refusal
from tests.strength import examples

POSTERIOR = "unknown_durations"
ONE = Cluster.uniform(1, 4)


def rollout(base: Scheduler, posterior: WorkLeft | None = None) -> Rollout:
    return Rollout(base, posterior, first=4, futures=6, sure=0.5, horizon_s=1e9, seed=0)


def bases() -> list[Scheduler]:
    return [joint_choice(), FIFO(BestFit(), 0), SJF(BestFit(), 0)]


def crowd(seed: int, jobs: int = 16, within_s: int = 4000, least: float = 3.0) -> Trace:
    rng = np.random.default_rng(seed)
    seconds = np.exp(rng.uniform(least, 9.0, jobs)).astype(np.int64) + 1
    submit = np.sort(rng.integers(0, within_s, jobs))
    return Trace.of("crowd", submit, seconds, rng.choice([1, 1, 2, 4], jobs))


@given(data=st.data())
@examples(100, 8)
def test_whoever_knows_the_future_is_never_worse_than_its_base(data: st.DataObject) -> None:
    cluster = data.draw(clusters())
    trace = data.draw(traces(cluster, most=10))
    for base in bases():
        usual = simulate(base, ClusterSimulator(cluster, trace)).jct.sum()
        found = simulate(rollout(base), ClusterSimulator(cluster, trace)).jct
        assert len(found) == len(trace)
        assert found.sum() <= usual * (1.0 + 1e-9)


@pytest.mark.parametrize("number", range(len(bases())))
def test_it_pays_to_know_the_future(number: int) -> None:
    cluster, gains = Cluster.uniform(3, 4), []
    for seed in range(2):
        base = bases()[number]
        usual = replay(base, cluster, crowd(seed)).jct.mean()
        gains.append(replay(rollout(base), cluster, crowd(seed)).jct.mean() / usual)
    assert np.mean(gains) < 0.97


@pytest.mark.parametrize(
    "partitioned", [several(), several(3, arrival="least_load", forward_s=300.0)]
)
def test_compiled_futures_are_those_of_event_after_event(
    monkeypatch: pytest.MonkeyPatch, partitioned: Partitioned
) -> None:
    cluster, trace = Cluster.uniform(3, 4, nodes_per_rack=1), crowd(1)
    base = joint_choice(partitioned=partitioned)
    compiled = simulate(rollout(base), ClusterSimulator(cluster, trace))

    def slowly(self: JointChoice, simulator: ClusterSimulator, *, hold: bool) -> None:
        now, finished = self._now, self._finished
        self._now = now._replace(memory=copy.deepcopy(now.memory), owners=copy.deepcopy(now.owners))
        self._finished = copy.deepcopy(finished)
        if not hold:
            self.decide(simulator)
        while not simulator.done and simulator.advance():
            self.decide(simulator)
        self._now, self._finished = now, finished

    monkeypatch.setattr(JointChoice, "play_on", slowly)
    slow = simulate(rollout(base), ClusterSimulator(cluster, trace))
    assert_allclose(slow.finish, compiled.finish)


def test_what_is_still_to_come_changes_no_decision() -> None:
    cluster, trace = Cluster.uniform(3, 4), crowd(2, 24, within_s=200, least=6.0)
    short = replace(trace, duration_s=trace.duration_s // 2 + 1)
    starts = []
    for jobs in (trace, short):
        simulator = ClusterSimulator(cluster, jobs)
        scheduler = rollout(joint_choice(posterior=WorkLeft(POSTERIOR)), WorkLeft(POSTERIOR))
        scheduler.reset(simulator)
        assert short.duration_s.min() > trace.span_s  # nobody finishes before all have come
        for _ in range(len(np.unique(trace.submit_s))):
            simulator.advance()
            scheduler.decide(simulator)
        assert scheduler.asked > 0
        starts.append((simulator.state.jobs["start"].copy(), simulator.now))
    assert starts[0][1] == starts[1][1]
    assert_array_equal(starts[0][0], starts[1][0])


def test_in_an_imagined_future_jobs_last_as_long_as_was_drawn() -> None:
    simulator = ClusterSimulator(Cluster.uniform(2, 4), crowd(3, 12))
    base = FIFO(BestFit(), 0)
    base.reset(simulator)
    for _ in range(6):
        simulator.advance()
        base.decide(simulator)
    jobs = np.concatenate([simulator.pending(), simulator.running()])
    simulator.settle()
    remaining = np.linspace(10.0, 20.0, len(jobs))
    twin = simulator.imagined(jobs, remaining)
    assert_allclose(
        twin.state.jobs["work"][jobs], simulator.state.jobs["attained"][jobs] + remaining
    )
    running, ends = twin.running(), np.zeros(12)
    ends[jobs] = twin.now + remaining
    for job in sorted(running, key=lambda job: ends[job]):
        assert twin.advance()
        assert twin.now == pytest.approx(ends[job]) == twin.state.jobs["finish"][job]
    with pytest.raises(ValueError, match="not all that wait or run"):
        simulator.imagined(jobs[1:], remaining[1:])


def test_draws_are_those_of_the_posterior() -> None:
    simulator = ClusterSimulator(Cluster.uniform(2, 4), crowd(4, 12))
    left = WorkLeft(POSTERIOR)
    left.reset(simulator)
    while int(simulator.state.clock[0]["arrived"]) < 8:
        simulator.advance()
    jobs = simulator.pending()
    chance = left._chances(simulator.state, jobs)
    assert_allclose(left.mean(simulator.state, jobs), chance @ np.exp(middles()))
    drawn = left.draws(simulator.state, jobs, 500, np.random.default_rng(0))
    assert drawn.shape == (500, len(jobs))
    assert ((drawn >= LEAST_S) & (drawn <= MOST_S)).all()
    place = np.searchsorted(upper_edges_s(), drawn)
    for column, expected in zip(place.T, chance, strict=True):
        met = np.bincount(column, minlength=len(expected)) / 500
        assert_allclose(met, expected / expected.sum(), rtol=0.0, atol=2.0 / 500)


def test_what_it_can_be_about() -> None:
    assert isinstance(joint_choice(), Continuing)
    assert not isinstance(FIFO(BestFit(), 0), Continuing)
    assert rollout(joint_choice()).knows == "durations"
    assert rollout(joint_choice(), WorkLeft(POSTERIOR)).knows == "predictions"
    with refusal("neither a folder nor shipped"):
        WorkLeft("no_such_scheduler")


def jobs_at_once(seed: int, jobs: int) -> Trace:
    rng = np.random.default_rng(seed)
    submit, seconds = np.sort(rng.integers(0, jobs, jobs)), rng.integers(5, 200, jobs)
    return Trace.of("crowd", submit, seconds, rng.choice([1, 2, 3, 4], jobs))


@pytest.mark.parametrize("seed", range(3))
def test_hindsight_is_the_best_of_all_orders(seed: int) -> None:
    trace, base, totals = jobs_at_once(seed, 5), joint_choice(order="queue", joint=False), []
    simulator, policy = ClusterSimulator(ONE, trace), Hindsight(base, replays=300, seed=0)
    base.reset(simulator)
    for order in permutations(np.arange(5.0)):
        twin = simulator.copy()
        base.order_by(np.array(order))
        base.play_on(twin, hold=True)
        totals.append(twin.schedule().jct.sum())
    found = replay(policy, ONE, trace).jct
    assert found.sum() == min(totals) < max(totals)
    assert_array_equal(found, simulate(policy, ClusterSimulator(ONE, trace)).jct)


def test_more_replays_are_no_worse_and_a_seed_makes_one_schedule() -> None:
    trace, base = jobs_at_once(5, 40), joint_choice(order="queue", joint=False)
    usual = replay(base, ONE, trace).jct.sum()
    few, more, again = (
        replay(Hindsight(base, replays=count, seed=1), ONE, trace).jct.sum()
        for count in (1, 60, 60)
    )
    assert more == again < few <= usual


def test_hindsight_asks_no_posterior() -> None:
    with refusal("durations are known"):
        Hindsight(joint_choice(posterior=WorkLeft(POSTERIOR)), 1, 0)
