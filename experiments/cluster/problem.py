"""From a config to a trace on a cluster, and a policy that replays it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from agents.cluster.policy import PlacementRule
from agents.cluster.policy import Scheduler as Policy
from agents.cluster.replay import StuckError, replay
from agents.cluster.rounds import RoundBasedPolicy
from agents.solver import Knowledge
from envs.cluster.interference.rates import RateModel
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster_state import Overheads, Schedule, permitted_types
from envs.cluster.simulation.incidents import Failures
from envs.cluster.workload.trace import Trace
from envs.compilation import clock
from envs.errors import InputError
from experiments.config.targets import build, build_as, no_such_thing

Node = Mapping[str, Any]
WARM_UP = 64  # jobs of the trace replayed first, so that compiling is not in the time


@runtime_checkable
class Player(Protocol):
    """A scheduler that plays episodes of `envs.cluster` from the first event to the last."""

    name: str
    knows: Knowledge

    def play(
        self,
        cluster: Cluster,
        trace: Trace,
        *,
        rates: RateModel,
        overheads: Overheads,
        incidents: NDArray[np.void] | None,
        keep_runs: bool,
    ) -> Schedule:
        """What it makes of the trace."""


Scheduler = Policy | Player


@dataclass(frozen=True, eq=False)
class ClusterProblem:
    """All that a policy is up against."""

    cluster: Cluster
    trace: Trace
    rates: RateModel
    overheads: Overheads
    incidents: NDArray[np.void] | None

    @classmethod
    def of(
        cls, trace: Trace, cluster: Node, interference: Node, overheads: Node, failures: Node | None
    ) -> ClusterProblem:
        """About a trace; the other arguments are config nodes.

        Raises:
            InputError: a node describes something else, or what cannot be.
        """
        nodes = cluster_of(cluster)
        rates = build_as(RateModel, interference, "interference", "interference model")
        incidents = None
        if failures is not None:
            model = build_as(Failures, failures, "failures", "model of failing nodes")
            incidents = model.incidents(nodes)
        held = build_as(Overheads, overheads, "overheads", "overheads of jobs")
        return cls(nodes, trace, rates, held, incidents)

    @property
    def title(self) -> str:
        """The trace, the cluster and the offered load in words."""
        load = ""
        if self.trace.span_s:
            load = f", offered load {self.trace.offered_load(self.cluster.num_gpus):.2f}"
        return (
            f"{len(self.trace):,} jobs of trace {self.trace.name} on {self.cluster.name} GPUs{load}"
        )

    def check(self, *policies: Scheduler) -> None:
        """Refuse a job that can never run, before any policy runs.

        Raises:
            InputError: with the number of the job as the record.
        """
        permitted_types(self.cluster, self.trace)
        for policy in policies:
            if isinstance(policy, RoundBasedPolicy):
                policy.check(self.cluster, self.trace)

    def replay(self, policy: Scheduler, *, keep_runs: bool = False) -> Schedule:
        """What `policy` makes of it.

        Raises:
            InputError: a job can never run, or the policy leaves jobs waiting for ever.
        """
        settings: dict[str, Any] = {
            "rates": self.rates,
            "overheads": self.overheads,
            "incidents": self.incidents,
            "keep_runs": keep_runs,
        }
        try:
            if isinstance(policy, Player):
                return policy.play(self.cluster, self.trace, **settings)
            return replay(policy, self.cluster, self.trace, **settings)
        except StuckError as error:
            raise InputError(f"agent {error}", file=self.trace.name) from error

    def timed(self, policy: Scheduler, *, keep_runs: bool = False) -> tuple[Schedule, float]:
        """The same, and the seconds it took once everything was compiled."""
        first = replace(self, trace=self.trace.take(slice(WARM_UP)))
        first.replay(policy, keep_runs=keep_runs)
        start = clock()
        schedule = self.replay(policy, keep_runs=keep_runs)
        return schedule, clock() - start


def cluster_of(node: Node) -> Cluster:
    """The cluster that a config node describes.

    Raises:
        InputError: it describes something else, or what cannot be.
    """
    return build_as(Cluster, node, "cluster", "cluster")


def built_policy(node: Node, key: str) -> Scheduler:
    """The policy that a config node describes.

    Raises:
        InputError: it describes something else.
    """
    policy = build(node, key)
    if isinstance(policy, Player):
        return policy
    if not isinstance(policy, Policy):
        raise no_such_thing(key, node, "policy of a cluster: fifo is one")
    placement = getattr(policy, "placement", None)
    if placement is not None and not isinstance(placement, PlacementRule):
        raise no_such_thing(f"{key}.placement", node.get("placement"), "placement rule")
    return policy
