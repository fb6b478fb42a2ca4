"""A replay beside which a decider is asked at every decision."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

from agents.cluster.checkpoint import CheckpointScheduler
from agents.cluster.live import ClusterDecider
from agents.cluster.migrating.policy import STOP, Migrating
from agents.decision import Decision
from envs.cluster.environment.episode import SchedulingEpisode
from envs.cluster.environment.routing import ConsecutiveRacks, OneQueue
from envs.cluster.interference.rates import NoInterference, RateModel
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import Overheads
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
    rates = rates or NoInterference()
    if scheduler.mover is not None:
        overheads = Overheads(restart_s, 0.0)
        simulator = ClusterSimulator(
            cluster, trace, rates=rates, overheads=overheads, incidents=incidents
        )
        return list(planned(scheduler.mover, decider, simulator))
    episode = scheduler.episode(cluster, trace, rates, Overheads(restart_s, 0.0), incidents)
    decisions = []
    while not episode.ended:
        state = document_of(episode.simulator, decider.knows_durations)
        decision = decider.decide_json(json.dumps(state).encode())
        taken, waits = played(scheduler, episode)
        assert decision.actions == taken
        assert decision.content["wait_probability"] == waits
        decisions.append(decision)
        assert episode.wait()
    return decisions


def planned(
    plan: Migrating, decider: ClusterDecider, simulator: ClusterSimulator
) -> Iterator[Decision]:
    """Assert that the actions are those of a plan in the simulator."""
    plan.reset(simulator)
    while not simulator.done:
        assert simulator.advance(plan.wake(simulator))
        state = document_of(simulator, decider.knows_durations)
        decision = decider.decide_json(json.dumps(state).encode())
        held = {int(job): simulator.shares(int(job)) for job in simulator.running()}
        taken = []
        for move, job in plan.moves(simulator):
            shares = held[job] if move == STOP else simulator.shares(job)
            taken.append(
                {
                    "action": "stop" if move == STOP else "start",
                    "job": str(simulator.trace.job_id[job]),
                    "on": {str(node): gpus for node, gpus in shares},
                    "probability": 1.0,
                }
            )
        assert decision.actions == taken
        yield decision


def played(
    scheduler: CheckpointScheduler, episode: SchedulingEpisode
) -> tuple[list[dict[str, Any]], float]:
    """What the scheduler does at this instant, in a decision's words, and how surely it waits."""
    table, simulator, trace = episode.action_table, episode.simulator, episode.instance.trace
    taken: list[dict[str, Any]] = []
    labels = {partial: str(partial) for partial in _partials(episode)}
    while True:
        graph, mask = episode.observe(0)
        action, probability = scheduler.choose(graph, mask, episode)
        if action == table.size - 1:
            return taken, probability
        starts = action < table.window * table.groups
        shown = episode.book.window[0] if starts else episode.book.shown[0]
        row = action // table.groups if starts else action - table.window * table.groups
        job = int(shown[row])
        held = [] if starts else simulator.shares(job)
        episode.act(0, action)
        held = simulator.shares(job) if starts else held
        done = {
            "action": "start" if starts else "stop",
            "job": str(trace.job_id[job]),
            "on": {str(node): gpus for node, gpus in held},
            "probability": probability,
        }
        if starts and trace.gpu_milli[job] < WHOLE_GPU:
            partial = int(simulator.state.shares[simulator.state.jobs[job]["share"]]["partial"])
            done["shared_gpu"] = labels.get(partial)
            labels.setdefault(partial, f"new {trace.job_id[job]}")
        labels = {k: v for k, v in labels.items() if k in _partials(episode)}
        taken.append(done)


def _partials(episode: SchedulingEpisode) -> set[int]:
    """GPUs that running fractional jobs share."""
    state, running = episode.simulator.state, episode.simulator.running()
    shares = state.jobs["share"][running]
    return {int(state.shares[share]["partial"]) for share in shares if share >= 0}
