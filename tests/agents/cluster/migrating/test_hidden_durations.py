"""How long unfinished jobs still take changes nothing before they finish, bit for bit."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from migrating_cases import OneSpeed, weights_of
from numpy.typing import NDArray

from agents.cluster.migrating.expert import MigrationExpert
from agents.cluster.migrating.learned_priority import LearnedPriority
from agents.cluster.migrating.policy import Migrating
from agents.cluster.migrating.priorities import AttainedServiceClasses, Priority
from agents.cluster.replay import simulate
from envs.cluster.environment.actions import ClusterActions
from envs.cluster.environment.episode import SchedulingEpisode
from envs.cluster.environment.instance import ClusterBounds, ClusterInstance
from envs.cluster.environment.observation import ADVISED, ClusterObservation
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import INCIDENT, Overheads
from envs.cluster.workload.trace import Trace
from tests.strength import SEEDS, examples

CLUSTER = Cluster.uniform(4, 4, nodes_per_rack=2, gpu_types=("A", "B", "C"))
RATES = OneSpeed(0.9, 1 / 3, 0.7)  # most sums of progress are rounded
OVERHEADS = Overheads(restart_s=30.0, checkpoint_s=100.0)
FAILURES = np.array([(700.0, 1, 0), (1100.0, 1, 1)], INCIDENT)
Floats = NDArray[np.float64]


def trace_of(seed: int) -> Trace:
    """Siblings that come together, start together and therefore have done the very same work."""
    rng = np.random.default_rng(seed)
    groups = int(rng.integers(3, 9))
    submit = np.repeat(np.sort(rng.integers(0, 1500, groups)), 4)
    gpus = np.repeat(rng.choice([1, 1, 2, 8], groups), 4)
    return Trace.of("siblings", submit, rng.integers(60, 4000, 4 * groups), gpus)


def longer(trace: Trace, finish: NDArray[np.float64], until: float, seed: int) -> Trace:
    """Jobs that have not finished by `until` take longer, each by a number of its own."""
    rng = np.random.default_rng([seed, 1])
    more = np.where(finish > until, rng.integers(1, 9000, len(trace)), 0)
    return Trace.of("longer", trace.submit_s, trace.duration_s + more, trace.num_gpus)


def message(rows: NDArray[np.float32]) -> NDArray[np.float32]:
    """Of every job the same: who has done more work than a sibling decides."""
    return np.tile(np.array([[-8.0, 5.0, 1.0]], np.float32), (len(rows), 1))


def learned() -> LearnedPriority:
    weights = weights_of(ahead_running=-1.0, ahead_waiting=-2.0, behind=1.0, attained=-0.3)
    return LearnedPriority(message, 2, weights)


ORDERS: dict[str, Callable[[], Priority]] = {
    "learned": learned, "classes": partial(AttainedServiceClasses, 600.0),
}  # fmt: skip


def played(trace: Trace, order: Callable[[], Priority]) -> tuple[list[float], list[bytes], Floats]:
    """What one who follows an expert sees; when; when the jobs finish."""
    bounds = ClusterBounds.of(CLUSTER)
    episode = SchedulingEpisode(
        ClusterInstance(CLUSTER, trace, FAILURES),
        np.zeros(CLUSTER.num_nodes, np.int32),
        np.zeros(len(trace), np.int32),
        bounds,
        ClusterObservation(
            bounds, window=40, running=40, known_durations=False, history=2,
            expert=MigrationExpert(order, 1.2, 100.0),
        ),
        ClusterActions(preempt_after_s=60.0, longest_wait_s=150.0),
        rates=RATES,
        overheads=OVERHEADS,
    )  # fmt: skip
    times: list[float] = []
    seen: list[bytes] = []
    while not episode.ended:
        graph, mask = episode.observe(0)
        times.append(episode.simulator.now)
        seen.append(b"".join(array.tobytes() for array in (*graph.values(), mask)))
        action = int(graph[ADVISED][0])
        if action == episode.action_table.size - 1:
            episode.wait()
        else:
            episode.act(0, action)
    return times, seen, episode.simulator.schedule().finish


@pytest.mark.slow
@pytest.mark.parametrize("order", ORDERS)
@examples(20)
@given(seed=SEEDS, until=st.integers(200, 5000))
def test_what_is_seen_and_advised(order: str, seed: int, until: int) -> None:
    trace = trace_of(seed)
    times, seen, finish = played(trace, ORDERS[order])
    later, again, _ = played(longer(trace, finish, until, seed), ORDERS[order])
    early = int(np.searchsorted(times, until))
    assert times[:early] == later[:early]
    assert seen[:early] == again[:early]


@pytest.mark.parametrize("order", ORDERS)
@examples(20)
@given(seed=SEEDS, until=st.integers(200, 5000))
def test_what_a_migrating_policy_does(order: str, seed: int, until: int) -> None:
    def run(trace: Trace) -> ClusterSimulator:
        simulator = ClusterSimulator(
            CLUSTER, trace, rates=RATES, overheads=OVERHEADS, incidents=FAILURES, keep_runs=True
        )
        simulate(Migrating(ORDERS[order](), 1.2, 100.0, 150.0), simulator)
        return simulator

    trace = trace_of(seed)
    first = run(trace)
    other = run(longer(trace, first.schedule().finish, until, seed))
    assert _before(first, until) == _before(other, until)


def _before(simulator: ClusterSimulator, until: float) -> list[tuple[float, float, int, int]]:
    """Who ran where and when before `until`."""
    log = simulator.schedule().runs
    assert log is not None
    early = log[log["start"] < until]
    ends = np.minimum(early["end"], until)
    return sorted(zip(early["start"], ends, early["job"], early["node"], strict=True))
