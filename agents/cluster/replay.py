"""From a trace to the schedule that a scheduler makes of it."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from agents.cluster.hidden_durations import simulator_for, trace_for
from agents.cluster.policy import Scheduler
from envs.cluster.interference.rates import NoInterference, RateModel
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import FREE_OF_CHARGE, ClusterSimulator
from envs.cluster.simulation.cluster_state import Overheads, Schedule
from envs.cluster.workload.trace import Trace


class StuckError(RuntimeError):
    """The scheduler leaves jobs waiting for ever."""

    def __init__(self, scheduler: str, simulator: ClusterSimulator) -> None:
        waiting = len(simulator.pending())
        super().__init__(f"{scheduler} leaves {waiting} jobs waiting for ever")


def simulate(scheduler: Scheduler, simulator: ClusterSimulator) -> Schedule:
    """Let `scheduler` decide at every event from the present state of `simulator` to the end.

    Raises:
        InputError: it reads a duration that it says it does not know.
        StuckError: jobs wait, nothing runs, nothing is to come and it wants no other time.
    """
    seen = simulator_for(scheduler, simulator)
    scheduler.reset(seen)
    while not simulator.done:
        if not simulator.advance(scheduler.wake(seen)):
            raise StuckError(scheduler.name, simulator)
        scheduler.decide(seen)
    return simulator.schedule()


def replay(
    scheduler: Scheduler,
    cluster: Cluster,
    trace: Trace,
    *,
    rates: RateModel | None = None,
    overheads: Overheads = FREE_OF_CHARGE,
    incidents: NDArray[np.void] | None = None,
    keep_runs: bool = False,
) -> Schedule:
    """What `scheduler` makes of `trace` on `cluster`, by the fastest way it knows.

    All ways there give the same schedule, but for ties of SRTF and SRSF with jobs that stall or
    lose progress.

    Args:
        scheduler: decides.
        cluster: the nodes.
        trace: the jobs.
        rates: how fast jobs run where they run; None: at rate 1.
        overheads: what stopping costs.
        incidents: nodes that fail and come back.
        keep_runs: whether the schedule has a log of all runs.

    Raises:
        InputError: a job can never run, or the scheduler reads a duration that it says it does not
            know.
        StuckError: the scheduler leaves jobs waiting for ever.
    """
    undisturbed = rates is None or isinstance(rates, NoInterference)
    if undisturbed and overheads == FREE_OF_CHARGE and incidents is None and not keep_runs:
        known = trace if _is_ours(scheduler.replay) else trace_for(scheduler, trace)
        found = scheduler.replay(cluster, known)
        if found is not None:
            return found
    simulator = ClusterSimulator(
        cluster, trace, rates=rates, overheads=overheads, incidents=incidents, keep_runs=keep_runs
    )
    seen = simulator if _is_ours(scheduler.run) else simulator_for(scheduler, simulator)
    if not scheduler.run(seen):
        return simulate(scheduler, simulator)
    if not simulator.done:
        raise StuckError(scheduler.name, simulator)
    return simulator.schedule()


def _is_ours(method: Callable[..., object]) -> bool:
    """Whether compiled code of this package is called, which needs durations to simulate."""
    return method.__module__.startswith(f"{__package__}.")
