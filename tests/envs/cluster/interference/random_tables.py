"""Rate tables full of random numbers."""

from __future__ import annotations

import numpy as np

from envs.cluster.interference.kernel import count
from envs.cluster.interference.rates import SHARED, RateTables, without_neighbours
from envs.cluster.interference.tabulated import tabulate
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace

CASES, ROWS, COLUMNS = 5, 4, 3


class RandomRates:
    """A model of any kind that promises what models promise, and nothing else."""

    name = "random"

    def __init__(self, seed: int, kind: int, scope: int, largest: int = 3) -> None:
        self.seed, self.kind, self.scope, self.largest = seed, kind, scope, largest

    def tables(self, trace: Trace, cluster: Cluster) -> RateTables:
        rng = np.random.default_rng(self.seed)
        types = len(cluster.gpu_types)
        shape = (CASES, types, 3, COLUMNS)
        profile = rng.integers(0, CASES, len(trace)).astype(np.int32)
        raw = rng.uniform(0.1, 1.0, (ROWS, count(ROWS, self.largest)))

        def predict(own: np.ndarray, _: np.ndarray) -> np.ndarray:
            return raw[:, 1:].reshape(-1)[: len(own)]

        speed = rng.uniform(0.3, 2.0, (CASES, types))
        return without_neighbours(profile, speed, rng.uniform(0.3, 1.0, shape))._replace(
            kind=self.kind,
            scope=self.scope,
            communication=rng.choice([0.0, 0.2, 0.7], shape[:1])[:, None, None, None]
            * np.ones(shape),
            row=rng.integers(0, ROWS, (CASES, COLUMNS)).astype(np.int32),
            pair=rng.uniform(0.1, 1.0, (ROWS, ROWS)),
            feasible=np.ones((ROWS, ROWS), np.bool_),
            floor=0.25,
            demand=rng.choice([0.0, 0.1, 0.5, 1.5], (CASES, 6 if self.kind == SHARED else 4)),
            beta=2.0,
            eta=0.5,
            sets=tabulate(predict, ROWS, self.largest),
            largest=self.largest,
        )
