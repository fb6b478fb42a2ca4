"""The fastest way to the schedule that a policy makes of a trace."""

from __future__ import annotations

from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from agents.cluster.policy import ClusterPolicy
from agents.cluster.simulate import StuckError, simulate
from envs.cluster.interference.rates import NoInterference, RateModel
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import FREE_OF_CHARGE, ClusterSimulator
from envs.cluster.simulation.cluster_state import Overheads
from envs.cluster.simulation.schedule import Schedule
from envs.cluster.workload.trace import Trace


@runtime_checkable
class FusedPolicy(Protocol):
    """A policy with a loop of its own for clusters where nothing but the queue decides."""

    def replay(self, cluster: Cluster, trace: Trace) -> Schedule | None:
        """The schedule at rate 1, without overheads and failures; None: not with this placement."""


@runtime_checkable
class CompiledPolicy(Protocol):
    """A policy whose decisions are compiled together with the simulator."""

    def run(self, simulator: ClusterSimulator) -> bool:
        """Go to the end; False: not with this placement, and nothing has happened."""


def replay(
    policy: ClusterPolicy,
    cluster: Cluster,
    trace: Trace,
    *,
    rates: RateModel | None = None,
    overheads: Overheads = FREE_OF_CHARGE,
    incidents: NDArray[np.void] | None = None,
    keep_runs: bool = False,
) -> Schedule:
    """What `policy` makes of `trace` on `cluster`.

    All ways there give the same schedule, but for ties of SRTF and SRSF with jobs that stall or
    lose progress.

    Args:
        policy: decides.
        cluster: the nodes.
        trace: the jobs.
        rates: how fast jobs run where they run; None: at rate 1.
        overheads: what stopping costs.
        incidents: nodes that fail and come back.
        keep_runs: whether the schedule has a log of all runs.

    Raises:
        InputError: a job can never run.
        StuckError: the policy leaves jobs waiting for ever.
    """
    undisturbed = rates is None or isinstance(rates, NoInterference)
    plain = undisturbed and overheads == FREE_OF_CHARGE and incidents is None and not keep_runs
    if plain and isinstance(policy, FusedPolicy):
        found = policy.replay(cluster, trace)
        if found is not None:
            return found
    settings: dict[str, Any] = {"overheads": overheads, "incidents": incidents}
    simulator = ClusterSimulator(cluster, trace, rates=rates, keep_runs=keep_runs, **settings)
    if isinstance(policy, CompiledPolicy) and policy.run(simulator):
        if not simulator.done:
            raise StuckError(policy.name, simulator)
        return simulator.schedule()
    return simulate(policy, simulator)
