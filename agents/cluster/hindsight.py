"""How well a rule could do on a window if it were told the best order of its jobs."""

from __future__ import annotations

import numpy as np

from agents.cluster.compiled.joint_choice import SHORTEST
from agents.cluster.joint_choice import JointChoice
from agents.cluster.policy import Scheduler
from agents.solver import Knowledge
from envs.arrays import FloatArray
from envs.bounds import Count, bounded
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.errors import InputError

CHANGED = 0.1  # of the jobs whose keys change in a step, at most
STEPS = (0.1, 0.5, 2.0)  # standard deviations of the changes, in natural logarithms


@bounded
class Hindsight(Scheduler):
    """Knows what will come: it replays all of it under its base in many orders, and takes the best.

    A local search over a key for every job, by which the base orders them. It begins with the
    shortest job, that of the least GPU time, or the first to come, changes a few keys at a time,
    and keeps what is no worse. No policy, but a mark of what a better order could bring.

    Guarantees:
        On the base's places, its mean completion time is at most that of the three orders.

    Source:
        Own work.

    Args:
        base: the rule.
        replays: of the search.
        seed: of its changes.

    Raises:
        InputError: the base has a posterior of durations.
    """

    name = "hindsight"
    knows: Knowledge = "durations"

    def __init__(self, base: JointChoice, replays: Count = 300, seed: int = 0) -> None:
        if base.posterior is not None:
            raise InputError("is not asked: durations are known", field="base.posterior")
        base.rule = base.rule._replace(order=SHORTEST)
        self.base, self.replays, self.seed = base, replays, seed

    def reset(self, simulator: ClusterSimulator) -> None:
        self.base.reset(simulator)
        self.base.order_by(self._best_key(simulator))

    def decide(self, simulator: ClusterSimulator) -> None:
        self.base.decide(simulator)

    def run(self, simulator: ClusterSimulator) -> bool:
        self.reset(simulator)
        self.base.play_on(simulator, hold=True)
        return True

    def _best_key(self, simulator: ClusterSimulator) -> FloatArray:
        rng, trace = np.random.default_rng(self.seed), simulator.trace

        def cost(key: FloatArray) -> float:
            twin = simulator.copy()
            self.base.order_by(key)
            self.base.play_on(twin, hold=True)
            return float(twin.state.jobs["finish"].sum())

        work: FloatArray = np.maximum(trace.duration_s.astype(np.float64), 1.0)
        gpus, submit = np.maximum(trace.num_gpus, 1), 1.0 + trace.submit_s.astype(np.float64)
        starts: list[FloatArray] = [work, work * gpus, submit]
        least, best = min(((cost(key), key) for key in starts), key=lambda one: one[0])
        for _ in range(self.replays):
            count = int(rng.integers(1, max(int(CHANGED * len(best)), 1) + 1))
            jobs = rng.choice(len(best), count, replace=False)
            key: FloatArray = best.copy()
            key[jobs] *= np.exp(rng.choice(STEPS) * rng.normal(size=count))
            found = cost(key)
            if found <= least:
                least, best = found, key
        return best
