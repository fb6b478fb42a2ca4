"""Scheduling passes: jobs in an order of priority meet the GPUs that are free, or can be freed."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np

from agents.cluster.policy import PartialGpuShares, PlacementRule, Share
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import PENDING, RUNNING
from envs.cluster.workload.trace import WHOLE_GPU

Request = tuple[int, ...]


def request(simulator: ClusterSimulator, job: int) -> Request:
    """All that decides whether `job` fits: jobs with equal requests fit or do not fit alike."""
    record = np.asarray(simulator.state.jobs)[job]  # faster than a view without durations
    return tuple(int(record[name]) for name in ("gpus", "milli", "types", "cpu", "memory"))


def start(simulator: ClusterSimulator, job: int, shares: Sequence[Share]) -> None:
    """Start a pending job where a placement rule has sent it."""
    partial = shares.partial if isinstance(shares, PartialGpuShares) else None
    simulator.start(job, shares, partial)


def start_in_order(
    simulator: ClusterSimulator,
    order: Iterable[int],
    placement: PlacementRule,
    rng: np.random.Generator,
    *,
    blocking: bool,
) -> list[int]:
    """Start pending jobs where they fit; the jobs started.

    Args:
        simulator: at a decision point.
        order: pending jobs, the first in priority first.
        placement: where they go.
        rng: for rules that draw.
        blocking: whether a job that does not fit keeps those behind it waiting too.
    """
    started = []
    hopeless: set[Request] = set()
    for job in order:
        wanted = request(simulator, job)
        shares = None if wanted in hopeless else placement.place(simulator, job, rng)
        if shares is not None:
            start(simulator, job, shares)
            started.append(job)
        elif blocking:
            break
        else:
            hopeless.add(wanted)
    return started


def preempt_in_order(
    simulator: ClusterSimulator,
    order: Iterable[int],
    placement: PlacementRule,
    rng: np.random.Generator,
) -> list[int]:
    """Give the GPUs to the first jobs in the order, whoever holds them now; the jobs started.

    By numbers alone, jobs are chosen greedily until the GPUs of all nodes that are up are used. A
    chosen job that runs goes on where it is. A chosen job that waits is placed on free GPUs, and
    if that fails, running jobs that were not chosen are stopped for it, the last in the order
    first, until it fits; where it does not fit even then, none of them is stopped. What is free
    at the end goes to waiting jobs in the order.

    Args:
        simulator: at a decision point.
        order: pending and running jobs, the first in priority first.
        placement: where they go; it sees a copy of the simulator when it is asked what if.
        rng: for rules that draw.
    """
    ranked = list(order)
    jobs, nodes = np.asarray(simulator.state.jobs), simulator.state.nodes
    budget = WHOLE_GPU * int(nodes["gpus"][nodes["up"] == 1].sum())
    chosen: set[int] = set()
    for job in ranked:
        need = int(jobs[job]["gpus"]) * int(jobs[job]["milli"])
        if need <= budget:
            chosen.add(job)
            budget -= need
    victims = [job for job in ranked if jobs[job]["status"] == RUNNING and job not in chosen]
    started = []
    for job in ranked:
        if job not in chosen or jobs[job]["status"] != PENDING:
            continue
        shares = placement.place(simulator, job, rng)
        if shares is None and victims:
            twin = simulator.copy()
            stopped = 0
            while shares is None and stopped < len(victims):
                stopped += 1
                twin.preempt(victims[-stopped])
                shares = placement.place(twin, job, rng)
            if shares is not None:
                for victim in victims[-stopped:][::-1]:
                    simulator.preempt(victim)
                del victims[-stopped:]
        if shares is not None:
            start(simulator, job, shares)
            started.append(job)
    waiting = [job for job in ranked if jobs[job]["status"] == PENDING and job not in started]
    return started + start_in_order(simulator, waiting, placement, rng, blocking=False)
