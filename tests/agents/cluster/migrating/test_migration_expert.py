"""An expert's action is always allowed; following it alone is nearly the policy it comes from."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from migrating_cases import OVERHEADS, JobSpeeds, OneSpeed

from agents.cluster.migrating.expert import MigrationExpert
from agents.cluster.migrating.policy import Migrating
from agents.cluster.migrating.priorities import AttainedServiceClasses, Priority, RemainingService
from agents.cluster.replay import replay
from envs.cluster.environment.actions import ClusterActions
from envs.cluster.environment.env import ClusterEnv
from envs.cluster.environment.episode import SchedulingEpisode
from envs.cluster.environment.generator import FixedCluster
from envs.cluster.environment.instance import ClusterBounds, ClusterInstance
from envs.cluster.environment.observation import ADVISED, ClusterObservation
from envs.cluster.interference.rates import RateModel
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace
from tests.strength import SEEDS, examples

ACTIONS = ClusterActions(preempt_after_s=60.0, longest_wait_s=600.0)
CLASSES = partial(AttainedServiceClasses, 600.0)


TWO_TYPES = Cluster.uniform(2, 2, gpu_types=("fast", "slow"))
TWO_JOBS = Trace.of("two", [0, 0], [1000, 2000], [2, 2])
SHORTEST = MigrationExpert(RemainingService, 1.33, 600.0)
CLASSES_FIRST = MigrationExpert(CLASSES, 1.2, 120.0)


def mixed_trace(seed: int, jobs: int, largest: int, within_s: int) -> Trace:
    rng = np.random.default_rng(seed)
    return Trace.of(
        "mixed", np.sort(rng.integers(0, within_s, jobs)),
        np.exp(rng.normal(7.0, 1.5, jobs)).astype(np.int64) + 10,
        np.minimum(rng.choice([1, 1, 2, 4, 8, 12], jobs), largest),
    )  # fmt: skip


def episode_of(
    cluster: Cluster,
    trace: Trace,
    rates: RateModel,
    expert: MigrationExpert,
    *,
    schedulers: int = 1,
    home: int | None = None,
    forwards: int = 0,
    actions: ClusterActions = ACTIONS,
) -> SchedulingEpisode:
    """Racks dealt out in turn; jobs come to one scheduler, or to each in turn."""
    bounds = ClusterBounds.of(cluster)
    observation = ClusterObservation(
        bounds, schedulers - 1, window=64, running=64, known_durations=False, expert=expert
    )
    turn = np.arange(len(trace)) % schedulers
    return SchedulingEpisode(
        ClusterInstance(cluster, trace),
        (cluster.rack % schedulers).astype(np.int32),
        (turn if home is None else np.full(len(trace), home)).astype(np.int32),
        bounds,
        observation,
        actions,
        rates=rates,
        overheads=OVERHEADS,
        forwards=forwards,
    )


def follow(episode: SchedulingEpisode, most_decisions: int = 10**9) -> list[tuple[int, int]]:
    """Everybody does what the expert would; all (scheduler, action)."""
    done: list[tuple[int, int]] = []
    table = episode.action_table
    wait, first_forward = table.size - 1, table.window * table.groups
    while not episode.ended and len(done) < most_decisions:
        for scheduler in range(episode.schedulers):
            action = -1
            while action != wait:
                seen, mask = episode.observe(scheduler)
                action = int(seen[ADVISED][0])
                assert mask[action] == 1
                done.append((scheduler, action))
                if first_forward <= action < first_forward + table.window * table.peers:
                    row = (action - first_forward) // table.peers
                    job = episode.book.window[scheduler][row]
                    assert episode.simulator.state.jobs[job]["executed"] == 0.0
                if action != wait:
                    episode.act(scheduler, action)
        if not episode.wait():
            assert episode.ended
    return done


@examples(25)
@given(SEEDS, st.integers(1, 3), st.integers(0, 2))
def test_its_actions_are_allowed_and_every_job_finishes(
    seed: int, schedulers: int, forwards: int
) -> None:
    """Some jobs are too large for the smallest scheduler."""
    cluster = Cluster.uniform(5, 4, nodes_per_rack=1, gpu_types=("A", "B"))
    trace = mixed_trace(seed, 30, {1: 20, 2: 12, 3: 8}[schedulers], 3000)
    episode = episode_of(
        cluster, trace, JobSpeeds(seed % 5), CLASSES_FIRST,
        schedulers=schedulers, forwards=forwards,
    )  # fmt: skip
    follow(episode)
    assert episode.simulator.schedule().finished.all()


@pytest.mark.slow
@pytest.mark.parametrize("order", [CLASSES, RemainingService])
def test_one_who_follows_gets_nearly_the_schedule_of_the_policy(
    order: Callable[[], Priority],
) -> None:
    """Not the same: the policy stops jobs in the first minute, and lets time pass differently.

    Over six traces and both orders the ratio is from 0.97 to 1.03.
    """
    cluster = Cluster.uniform(6, 8, nodes_per_rack=2, gpu_types=("A", "B", "C"))
    trace = mixed_trace(3, 200, 16, 30_000)
    rates = OneSpeed(1.0, 0.5, 0.25)
    episode = episode_of(cluster, trace, rates, MigrationExpert(order, 1.33, 600.0))
    follow(episode)
    followed = episode.simulator.schedule().jct.mean()
    policy = Migrating(order(), 1.33, 600.0, 600.0)
    own = replay(policy, cluster, trace, rates=rates, overheads=OVERHEADS).jct.mean()
    assert followed == pytest.approx(own, rel=0.04)


def test_a_job_that_waits_goes_to_the_fast_gpus_and_one_that_runs_moves_there() -> None:
    episode = episode_of(TWO_TYPES, TWO_JOBS, OneSpeed(1.0, 0.5), SHORTEST)
    table = episode.action_table
    actions = [action for _, action in follow(episode)]
    waiting = table.size - 1
    deeds = [action for action in actions if action != waiting]
    stop = table.window * (table.groups + table.peers)
    assert deeds[0] == 0  # job 0, in row 0, on server 0
    assert deeds[1:] == [1, stop, 0]  # job 1 on server 1; then it stops; then on server 0
    assert episode.simulator.schedule().finish.tolist() == [1000.0, 2530.0]


def test_the_last_in_the_order_stops_first(monkeypatch: pytest.MonkeyPatch) -> None:
    cluster = Cluster.uniform(1, 2)
    trace = Trace.of("three", [0, 0, 100], [5000, 9000, 500], [1, 1, 2])
    episode = episode_of(cluster, trace, OneSpeed(1.0), SHORTEST)
    table = episode.action_table
    stop = table.window * (table.groups + table.peers)
    act, stopped = episode.act, []

    def watched(scheduler: int, action: int) -> int:
        if action >= stop:
            stopped.append(int(episode.book.shown[scheduler][action - stop]))
        return act(scheduler, action)

    monkeypatch.setattr(episode, "act", watched)
    follow(episode)
    assert stopped == [1, 0]


@examples(15)
@given(SEEDS)
def test_where_jobs_cannot_stop_nobody_waits_for_them_beside_idle_gpus(seed: int) -> None:
    """Jobs of one GPU: whoever waits does so because all GPUs are held."""
    cluster = Cluster.uniform(4, 2, nodes_per_rack=1, gpu_types=("A", "B"))
    trace = mixed_trace(seed, 30, 1, 3000)
    never = ClusterActions(preempt_after_s=None, longest_wait_s=600.0)
    episode = episode_of(cluster, trace, OneSpeed(1.0, 0.3), CLASSES_FIRST, actions=never)
    wait = episode.action_table.size - 1
    while not episode.ended:
        action = int(episode.observe(0)[0][ADVISED][0])
        if action != wait:
            episode.act(0, action)
            continue
        if len(episode.simulator.pending()):
            assert len(episode.simulator.running()) == cluster.num_gpus
        episode.wait()
    schedule = episode.simulator.schedule()
    assert schedule.finished.all()
    assert schedule.preemptions.sum() == 0


def test_forwarding_balances_two_schedulers() -> None:
    """All jobs come to scheduler 0: some that have never run are sent on, and both are at work."""
    cluster = Cluster.uniform(4, 4, nodes_per_rack=1)
    trace = mixed_trace(7, 60, 8, 600)
    mean = []
    for forwards in (0, 1):
        episode = episode_of(
            cluster, trace, OneSpeed(1.0), CLASSES_FIRST, schedulers=2, home=0, forwards=forwards
        )
        follow(episode)
        schedule = episode.simulator.schedule()
        assert schedule.finished.all()
        mean.append(float(schedule.jct.mean()))
        service = np.zeros(2)
        np.add.at(service, episode.book.home, schedule.work * schedule.gpus)
        if forwards:
            assert 0.3 < service[1] / service.sum() < 0.7
            assert (episode.book.forwards <= 1).all()
        else:
            assert service[1] == 0.0
    assert mean[1] < 0.8 * mean[0]


def test_environments_show_the_action() -> None:
    fixed = FixedCluster(TWO_TYPES, TWO_JOBS)
    observation = partial(ClusterObservation, window=4, running=4, shares=4, expert=SHORTEST)
    env = ClusterEnv(fixed, observation=observation, actions=ACTIONS, rates=OneSpeed(1.0, 0.5))
    seen, _ = env.reset(seed=0)
    over, total = False, 0.0
    while not over:
        assert env.observation_space.contains(seen)
        action = int(seen[ADVISED][0])
        seen, reward, terminated, truncated, _ = env.step(action)
        total += reward
        over = terminated or truncated
    assert total == pytest.approx(-(1000.0 + 2500.0))
