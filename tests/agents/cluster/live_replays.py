"""A replay beside which a decider is asked at every decision."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from agents.cluster.checkpoint import CheckpointScheduler
from agents.cluster.hidden_durations import simulator_for
from agents.cluster.live import ClusterDecider, PolicyDecider
from agents.cluster.migrating.policy import STOP, Migrating
from agents.cluster.policy import Scheduler
from agents.decision import Decision
from envs.cluster.environment.episode import SchedulingEpisode
from envs.cluster.environment.routing import ConsecutiveRacks, OneQueue
from envs.cluster.interference.rates import NoInterference, RateModel
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import NONE, Overheads
from envs.cluster.workload.trace import WHOLE_GPU, Trace
from tests.agents.cluster.state_documents import document_of


def scheduler_of(folder: str) -> CheckpointScheduler:
    return CheckpointScheduler(folder, partition=ConsecutiveRacks(), routing=OneQueue(), forwards=0)


def agrees_with_the_simulator(
    folder: str,
    cluster: Cluster,
    trace: Trace,
    *,
    rates: RateModel | None = None,
    restart_s: float = 60.0,
    incidents: Any = None,
) -> list[Decision]:
    """Assert that actions and probabilities are those of the scheduler in the simulator."""
    scheduler, decider = scheduler_of(folder), ClusterDecider(folder)
    rates, overheads = rates or NoInterference(), Overheads(restart_s, 0.0)

    def decided(simulator: ClusterSimulator) -> Decision:
        state = document_of(simulator, decider.knows_durations)
        return decider.decide_json(json.dumps(state).encode())

    decisions = []
    if scheduler.mover is not None:
        simulator = ClusterSimulator(
            cluster, trace, rates=rates, overheads=overheads, incidents=incidents
        )
        scheduler.mover.reset(simulator)
        while not simulator.done:
            assert simulator.advance(scheduler.mover.wake(simulator))
            decisions.append(decided(simulator))
            assert decisions[-1].actions == planned(scheduler.mover, simulator)
        return decisions
    episode = scheduler.episode(cluster, trace, rates, overheads, incidents)
    while not episode.ended:
        decisions.append(decided(episode.simulator))
        taken, waits = played(scheduler, episode, decisions[-1])
        assert decisions[-1].actions == taken
        assert decisions[-1].content["wait_probability"] == waits
        assert episode.wait()
    return decisions


def action(
    simulator: ClusterSimulator, starts: bool, job: int, on: Any, probability: float
) -> dict[str, Any]:
    """In a decision's words."""
    return {
        "action": "start" if starts else "stop",
        "job": str(simulator.trace.job_id[job]),
        "on": {str(node): gpus for node, gpus in on},
        "probability": probability,
    }


def planned(plan: Migrating, simulator: ClusterSimulator) -> list[dict[str, Any]]:
    """What a plan does at this instant."""
    held = {int(job): simulator.shares(int(job)) for job in simulator.running()}
    return [
        action(simulator, move != STOP, job, simulator.shares(job) or held[job], 1.0)
        for move, job in plan.moves(simulator)
    ]


def played(
    scheduler: CheckpointScheduler, episode: SchedulingEpisode, told: Decision
) -> tuple[list[dict[str, Any]], float]:
    """What the scheduler does at this instant, and how surely it waits.

    Which of two shared GPUs of a node with as much left is taken hangs on how jobs came to share
    them, which no state tells: such GPUs are named as in the decision that was `told`.
    """
    table, simulator, trace = episode.action_table, episode.simulator, episode.instance.trace
    state, taken = simulator.state, list[dict[str, Any]]()

    def shared_gpus() -> set[int]:
        """Those of running fractional jobs."""
        shares = state.jobs["share"][simulator.running()]
        return {*state.shares["partial"][shares[shares >= 0]].tolist()} - {NONE}

    labels = {partial: str(partial) for partial in shared_gpus()}
    while True:
        graph, mask = episode.observe(0)
        number, probability = scheduler.choose(graph, mask, episode)
        if number == table.size - 1:
            return taken, probability
        starts = number < table.window * table.groups
        if starts:
            job = int(episode.book.window[0][number // table.groups])
        else:
            job = int(episode.book.shown[0][number - table.window * table.groups])
        held = simulator.shares(job)
        before = state.partials[["node", "left"]].copy()
        episode.act(0, number)
        taken.append(action(simulator, starts, job, simulator.shares(job) or held, probability))
        if starts and trace.gpu_milli[job] < WHOLE_GPU:
            partial = int(state.shares[state.jobs[job]["share"]]["partial"])
            if partial in labels and len(taken) <= len(told.actions):
                other = told.actions[len(taken) - 1].get("shared_gpu")
                for gpu in [x for x, label in labels.items() if label == other]:
                    if before[gpu] == before[partial]:
                        labels[gpu], labels[partial] = labels[partial], labels[gpu]
            taken[-1]["shared_gpu"] = labels.get(partial)
            labels.setdefault(partial, f"new {trace.job_id[job]}")
        labels = {key: label for key, label in labels.items() if key in shared_gpus()}


def asked_beside_a_replay(
    policy: Callable[[], Scheduler], cluster: Cluster, trace: Trace, incidents: Any = None
) -> None:
    """Assert that a policy's live decisions are what it does at every event of a replay."""
    decider, own = PolicyDecider(policy()), policy()
    simulator = ClusterSimulator(cluster, trace, incidents=incidents)
    seen = simulator_for(own, simulator)
    own.reset(seen)
    while not simulator.done:
        assert simulator.advance(own.wake(seen))
        decision = decider.decide(document_of(simulator, decider.knows_durations))
        before = {int(job): simulator.shares(int(job)) for job in simulator.running()}
        own.decide(seen)
        after = {int(job): simulator.shares(int(job)) for job in simulator.running()}
        moved = {job for job in {*before, *after} if before.get(job) != after.get(job)}
        done = [action(simulator, False, job, before[job], 1.0) for job in before if job in moved]
        done += [action(simulator, True, job, after[job], 1.0) for job in after if job in moved]
        assert sorted(map(str, decision.actions)) == sorted(map(str, done))
