"""A policy by an order of priority that moves jobs to faster GPUs."""

from __future__ import annotations

import numpy as np

from agents.cluster.migrating.plan import (
    NOWHERE,
    STOP,
    check_whole_gpus,
    plan,
    slots_at,
    startable,
)
from agents.cluster.migrating.priorities import Priority
from agents.cluster.policy import Knowledge, Scheduler
from envs.cluster.environment.play_kernel import start_on
from envs.cluster.environment.views import view_of
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import PENDING, RUNNING
from envs.errors import InputError


class Migrating(Scheduler):
    """Jobs in an order of priority get the fastest GPUs there are, and move to faster ones.

    At every event all jobs are planned anew (`plan.plan`): in the order of priority each gets the
    place where its speed is highest. A running job stays unless its GPUs go to a job before it, or
    it would run more than `gain` times as fast elsewhere.

    Args:
        priority: the order.
        gain: ratio of speeds above which a running job moves, at least 1.
        least_run_s: seconds for which a job runs before it moves for speed alone.
        wake_s: seconds after which it plans again even if nothing happens, while jobs
            wait and others run.

    Raises:
        InputError: a value is out of range.
    """

    name = "migrating"

    def __init__(self, priority: Priority, gain: float, least_run_s: float, wake_s: float) -> None:
        if not 1.0 <= gain < np.inf:
            raise InputError(f"{gain} is not from 1 on", field="gain")
        for field, value in (("least_run_s", least_run_s), ("wake_s", wake_s)):
            if not value > 0.0:
                raise InputError(f"{value} is not above 0", field=field)
        self.priority, self.gain = priority, gain
        self.least_run_s, self.wake_s = least_run_s, wake_s
        self.knows: Knowledge = priority.knows

    def reset(self, simulator: ClusterSimulator) -> None:
        """All servers are its own.

        Raises:
            InputError: a job asks for more than whole GPUs.
        """
        check_whole_gpus(simulator)
        self.priority.reset(simulator)
        cluster = simulator.cluster
        nodes = np.arange(cluster.num_nodes)
        largest = int(cluster.gpus.max())
        self._view = view_of(cluster, simulator.tables, nodes, 0, largest)

    def decide(self, simulator: ClusterSimulator) -> None:
        """Stop, then start."""
        simulator.settle()
        state, view = simulator.state, self._view
        status = state.jobs["status"]
        jobs = np.flatnonzero((status == PENDING) | (status == RUNNING))
        if len(jobs) == 0:
            return
        order = jobs[np.lexsort((jobs, self.priority(state, jobs)))]
        fate, target = np.zeros(len(order), np.int64), np.zeros((len(order), 2), np.int64)
        plan(state, simulator.tables, view, order, self.gain, self.least_run_s, 0.0, fate, target)
        for job in order[fate == STOP]:
            simulator.preempt(int(job))
        for job, (kind, index) in zip(order[fate >= STOP], target[fate >= STOP], strict=True):
            if kind != NOWHERE and startable(simulator.state, view, job, kind, index):
                first, last = slots_at(view, kind, index)
                start_on(
                    simulator.state,
                    simulator.tables,
                    simulator.overheads,
                    view,
                    int(job),
                    first,
                    last,
                )

    def wake(self, simulator: ClusterSimulator) -> float:
        """While jobs wait and others run, from time to time."""
        clock = simulator.state.clock[0]
        return simulator.now + self.wake_s if clock["pending"] and clock["running"] else np.inf
