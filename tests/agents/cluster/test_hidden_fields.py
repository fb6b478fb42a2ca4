"""A policy reads no duration that it says it does not know."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

from agents.cluster.policy import Scheduler
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
        lambda simulator: simulator.state.jobs["work"],
        lambda simulator: simulator.state.jobs[["gpus", "work"]],
    ],
    "remaining": [
        lambda simulator: simulator.state.jobs[[0, 1]]["remaining"],
        lambda simulator: simulator.copy().state.jobs[1:]["remaining"],
    ],
    "end": [lambda simulator: simulator.state.jobs[0]["end"]],
    "duration_s": [
        lambda simulator: simulator.trace.duration_s,
        lambda simulator: simulator.trace[0].duration_s,
        lambda simulator: [job.duration_s for job in simulator.trace],
        lambda simulator: simulator.trace.take(slice(2)),
    ],
    "gpu_seconds": [lambda simulator: simulator.copy().trace.gpu_seconds],
    "the future": [lambda simulator: simulator.copy().advance()],
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
    knowledge: tuple[Knowledge, ...] = "nothing", "predictions"
    for knows in knowledge:
        with refusal(f"policy 'curious' knows '{knows}' and may not read '{field}' of jobs"):
            replay(Curious(read, knows), CLUSTER, TRACE)
    assert replay(Curious(read, "durations"), CLUSTER, TRACE).finished.all()


def test_what_is_not_hidden_is_what_it_is() -> None:
    seen: list[tuple[Any, ...]] = []

    def read(simulator: ClusterSimulator) -> None:
        jobs, trace = simulator.state.jobs, simulator.trace
        record = jobs[1]
        row = (record["gpus"], jobs["gpus"].tolist(), jobs[[2, 1]]["gpus"].tolist())
        seen.append((*row, trace[2].num_gpus, trace.num_gpus.tolist(), type(jobs["gpus"])))

    replay(Curious(read, "nothing"), CLUSTER, TRACE)
    assert seen[0] == (2, [4, 2, 4], [4, 2], 4, [4, 2, 4], np.ndarray)


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
        return self.of(trace.duration_s)

    def of(self, seconds: Any) -> Schedule | None:
        return None


def test_a_replay_of_ones_own_reads_none() -> None:
    with refusal("may not read 'duration_s'"):
        replay(Whole(Count(), 0), CLUSTER, TRACE)


@pytest.mark.parametrize("policy", [*POLICIES])
def test_no_policy_of_ours_reads_what_it_does_not_know(policy: str) -> None:
    """And none decides otherwise because it is shown a view."""
    cluster, trace = random_case(7, types=2)
    found = replay(POLICIES[policy](), cluster, trace)

    def sighted() -> Scheduler:
        made = POLICIES[policy]()
        made.knows = "durations"
        return made

    again = replay(sighted(), cluster, trace)
    np.testing.assert_array_equal(found.finish, again.finish)
