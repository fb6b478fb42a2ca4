"""All policies tested together, with small settings."""

from __future__ import annotations

from collections.abc import Callable

from agents.cluster.elastic import ApatheticFutureShare, Optimus
from agents.cluster.fairness import FinishTimeFairness, LeastAttainedService, MaxMinFairness
from agents.cluster.gandiva import Gandiva
from agents.cluster.gittins import Gittins
from agents.cluster.joint_choice import JointChoice
from agents.cluster.policy import Scheduler
from agents.cluster.prediction import QuasiShortestServiceFirst, RemainingTime, RollingDuration
from agents.cluster.rounds import RoundBasedPolicy, ShareRule
from agents.cluster.themis import Themis
from envs.cluster.environment.routing import MixedRacks, QueueRouting
from tests.agents.cluster.small_clusters import LowestNodes


def in_rounds(rule: ShareRule, round_s: float = 360.0) -> RoundBasedPolicy:
    return RoundBasedPolicy(rule, LowestNodes(), round_s, seed=0)


def durations() -> RollingDuration:
    return RollingDuration(prior_s=600.0, recency=0.3, training=None)


def joint_choice() -> JointChoice:
    rule = ("smallest", 8, True, False, True, 0.5, 0.5, 0.5, "gain", 0.0)
    return JointChoice(
        *rule, 600.0, 0.3, None, None, None, 1, MixedRacks(), QueueRouting(), "routed", None, 0
    )


POLICIES: dict[str, Callable[[], Scheduler]] = {
    "max_min": lambda: in_rounds(MaxMinFairness({})),
    "las_gavel": lambda: in_rounds(LeastAttainedService()),
    "finish_time_fairness": lambda: in_rounds(FinishTimeFairness()),
    "afs": lambda: in_rounds(ApatheticFutureShare()),
    "optimus": lambda: in_rounds(Optimus(RemainingTime(durations()))),
    "qssf": lambda: QuasiShortestServiceFirst(LowestNodes(), durations(), True, 0),
    "qssf_backfill": lambda: QuasiShortestServiceFirst(LowestNodes(), durations(), False, 0),
    "gittins": lambda: Gittins(LowestNodes(), [500.0, 2000.0], [500.0, 2000.0, None], None, 0),
    "themis": lambda: Themis(LowestNodes(), fairness=0.8, lease_s=1200.0, seed=0),
    "gandiva": lambda: Gandiva(quantum_s=60.0, defragment_free=0.75),
    "joint_choice": joint_choice,
}
