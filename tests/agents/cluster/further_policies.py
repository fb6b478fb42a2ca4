"""All policies tested together, with small settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from agents.cluster.elastic import ApatheticFutureShare, Optimus
from agents.cluster.gandiva import Gandiva
from agents.cluster.joint_choice import JointChoice
from agents.cluster.partitioned import Partitioned
from agents.cluster.policy import Scheduler
from agents.cluster.prediction import (
    Gittins,
    QuasiShortestServiceFirst,
    RemainingTime,
    RollingDuration,
)
from agents.cluster.replay import simulate
from agents.cluster.rounds import RoundBasedPolicy
from agents.cluster.shares import (
    Demand,
    FinishTimeFairness,
    LeastAttainedService,
    MaxMinFairness,
    ShareRule,
)
from agents.cluster.themis import Themis
from agents.solver import Knowledge
from envs.arrays import FloatArray
from envs.cluster.environment.routing import RandomRouting
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import Schedule
from envs.cluster.workload.trace import Trace
from tests.agents.cluster.small_clusters import LowestNodes, with_columns

Jobs = Sequence[tuple[float, float, int]]  # (submission, seconds, GPUs) of each


def trace_of(jobs: Jobs, **columns: Any) -> Trace:
    trace = Trace.of("given", *(list(column) for column in zip(*jobs, strict=True)))
    return with_columns(trace, **columns)


def on_nodes(policy: Scheduler, jobs: Jobs, nodes: int, gpus: int, **options: Any) -> Schedule:
    """What a policy makes of jobs on equal nodes of so many GPUs."""
    cluster = Cluster.uniform(nodes, gpus)
    return simulate(policy, ClusterSimulator(cluster, trace_of(jobs), **options))


def in_rounds(rule: ShareRule, round_s: float = 360.0) -> RoundBasedPolicy:
    return RoundBasedPolicy(rule, LowestNodes(), round_s)


class GivenShares(ShareRule):
    """Shares by job number."""

    name = "given"
    knows: Knowledge = "nothing"

    def __init__(self, shares: Any) -> None:
        self.given, self.computed = np.array(shares), 0

    def shares(self, demand: Demand) -> FloatArray:
        self.computed += 1
        shares: FloatArray = self.given[demand.jobs]
        return shares


def durations() -> RollingDuration:
    return RollingDuration(prior_s=600.0)


def several(schedulers: int = 1, **settings: Any) -> Partitioned:
    usual = {"routing": RandomRouting(), "arrival": "routed", "forward_s": None}
    return Partitioned(schedulers, **{**usual, **settings})


def joint_choice(partitioned: Partitioned = several(), **settings: Any) -> JointChoice:
    usual = {"fast": 0.5, "hurry": 0.0, "prior_s": 60.0, "recency": 0.25}
    return JointChoice(**{**usual, "partitioned": partitioned, **settings})


POLICIES: dict[str, Callable[[], Scheduler]] = {
    "max_min": lambda: in_rounds(MaxMinFairness()),
    "las_gavel": lambda: in_rounds(LeastAttainedService()),
    "finish_time_fairness": lambda: in_rounds(FinishTimeFairness()),
    "afs": lambda: in_rounds(ApatheticFutureShare()),
    "optimus": lambda: in_rounds(Optimus(RemainingTime(durations()))),
    "qssf": lambda: QuasiShortestServiceFirst(LowestNodes(), durations()),
    "qssf_backfill": lambda: QuasiShortestServiceFirst(LowestNodes(), durations(), blocking=False),
    "gittins": lambda: Gittins(LowestNodes(), [500.0, 2000.0], [500.0, 2000.0, None]),
    "themis": lambda: Themis(LowestNodes()),
    "gandiva": Gandiva,
    "joint_choice": joint_choice,
}
