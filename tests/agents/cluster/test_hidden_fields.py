"""A policy reads no duration that it says it does not know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

from agents.cluster.queue import FIFO, FIFOBackfill, NonPreemptive
from agents.cluster.replay import replay
from agents.cluster.rules.gangs import BestFit, Count
from agents.solver import Knowledge
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import Schedule
from envs.cluster.workload.trace import Trace
from tests.agents.cluster.further_policies import POLICIES
from tests.agents.cluster.small_clusters import LowestNodes, random_case
from tests.refusal import refusal

CLUSTER = Cluster.uniform(1, 4)
TRACE = Trace.of("three", [0, 1, 2], [50, 40, 3], [4, 2, 4])

READS: dict[str, list[Callable[[ClusterSimulator], Any]]] = {
    "work": [
        lambda seen: seen.state.jobs["work"],
        lambda seen: seen.state.jobs[["gpus", "work"]],
    ],
    "remaining": [
        lambda seen: seen.state.jobs[[0, 1]]["remaining"],
        lambda seen: seen.copy().state.jobs[1:]["remaining"],
    ],
    "end": [lambda seen: seen.state.jobs[0]["end"]],
    "duration_s": [
        lambda seen: seen.trace.duration_s,
        lambda seen: seen.trace[0].duration_s,
        lambda seen: [job.duration_s for job in seen.trace],
        lambda seen: seen.trace.take(slice(2)),
    ],
    "gpu_seconds": [lambda seen: seen.copy().trace.gpu_seconds],
    "the future": [lambda seen: seen.copy().advance()],
}


class Curious(FIFOBackfill):
    """FIFO with backfilling that also reads something."""

    name = "curious"

    def __init__(self, read: Callable[[ClusterSimulator], Any], knows: Knowledge) -> None:
        super().__init__(LowestNodes(), 0)
        self.read, self.knows = read, knows

    def replay(self, cluster: Cluster, trace: Trace) -> Schedule | None:
        return None

    def decide(self, simulator: ClusterSimulator) -> None:
        self.read(simulator)
        super().decide(simulator)


@pytest.mark.parametrize(("field", "read"), [(f, read) for f in READS for read in READS[f]])
def test_what_is_hidden_is_refused_by_name(field: str, read: Callable[..., Any]) -> None:
    for knows in ("nothing", "predictions"):
        with refusal(f"policy 'curious' knows '{knows}' and may not read '{field}' of jobs"):
            replay(Curious(read, knows), CLUSTER, TRACE)
    assert replay(Curious(read, "durations"), CLUSTER, TRACE).finished.all()


def test_what_is_not_hidden_is_what_it_is() -> None:
    found: list[Any] = []

    def read(seen: ClusterSimulator) -> None:
        jobs, gpus = seen.state.jobs, seen.trace.num_gpus
        columns = [column.tolist() for column in (jobs["gpus"], jobs[[2, 1]]["gpus"], gpus)]
        found.append([jobs[1]["gpus"], *columns, seen.trace[2].num_gpus, type(jobs["gpus"])])

    replay(Curious(read, "nothing"), CLUSTER, TRACE)
    assert found[0] == [2, [4, 2, 4], [4, 2], [4, 2, 4], 4, np.ndarray]


class Shortest(NonPreemptive):
    """An order by durations, in a policy that says that it knows none."""

    name = "shortest"
    knows: Knowledge = "nothing"
    blocking: ClassVar[bool] = False

    def priority(self, trace: Trace) -> Any:
        return trace.duration_s


@pytest.mark.parametrize("rule", [Count, BestFit, LowestNodes])  # three ways to a schedule
def test_an_order_of_our_compiled_passes_reads_none(rule: Callable[[], Any]) -> None:
    with refusal("policy 'shortest' knows 'nothing'"):
        replay(Shortest(rule(), 0), CLUSTER, TRACE)


class Whole(FIFO):
    """A whole replay of its own."""

    def replay(self, cluster: Cluster, trace: Trace) -> Schedule | None:
        assert trace.duration_s.any()
        return None


def test_a_replay_of_ones_own_reads_none() -> None:
    with refusal("may not read 'duration_s'"):
        replay(Whole(Count(), 0), CLUSTER, TRACE)


@pytest.mark.parametrize("policy", [*POLICIES])
def test_no_policy_of_ours_reads_what_it_does_not_know(policy: str) -> None:
    """And none decides otherwise because it is shown a view."""
    cluster, trace = random_case(7, types=2)
    found, sighted = replay(POLICIES[policy](), cluster, trace), POLICIES[policy]()
    sighted.knows = "durations"
    np.testing.assert_array_equal(found.finish, replay(sighted, cluster, trace).finish)
