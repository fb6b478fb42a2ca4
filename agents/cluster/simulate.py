"""A policy decides at every event of a simulation, until all jobs are done."""

from __future__ import annotations

from agents.cluster.policy import ClusterPolicy
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.schedule import Schedule


class StuckError(RuntimeError):
    """The policy leaves jobs waiting for ever."""

    def __init__(self, policy: str, simulator: ClusterSimulator) -> None:
        waiting = len(simulator.pending())
        super().__init__(f"{policy} leaves {waiting} jobs waiting for ever")


def simulate(policy: ClusterPolicy, simulator: ClusterSimulator) -> Schedule:
    """Run `policy` from the present state of `simulator` to the end.

    Raises:
        StuckError: jobs wait, nothing runs, nothing is to come and the policy wants no other time.
    """
    policy.reset(simulator)
    while not simulator.done:
        if not simulator.advance(policy.wake(simulator)):
            raise StuckError(policy.name, simulator)
        policy.decide(simulator)
    return simulator.schedule()
