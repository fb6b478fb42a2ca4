"""Pollux' measured step times: what it costs a job to be spread over nodes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from envs.cluster.interference.assignment import IntArray, assign
from envs.cluster.interference.cases import Cases
from envs.cluster.interference.measured import Capped, cap, require_one_type
from envs.cluster.interference.pollux_table import PolluxModel, read_pollux
from envs.cluster.interference.quantities import read_number, read_seed
from envs.cluster.interference.rates import (
    CONTENTION,
    ONE_NODE,
    SPANNING,
    RateTables,
    without_neighbours,
)
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace
from envs.errors import InputError

MOST_NODES = 16  # the measurements go no further


class PolluxLocality:
    """Step times measured by Qiao et al., Pollux, OSDI 2021, on nodes with four T4.

    A job of r GPUs on n nodes runs at step(r, fewest nodes it can have) / step(r, n), with step
    times at a fixed number of samples per GPU (`SpreadTimes`: as measured, interpolated between
    measurements, the nearest measurement beyond them). No pair of jobs was measured.
    Neighbours on several nodes contend as in `contention.AllReduceContention`, with the measured
    share of synchronisation in a step.

    Args:
        path: the folder with one folder per model.
        local_batch: samples per GPU and step, by model.
        eta: time per byte that each further all-reduce adds to what equal sharing would cost,
            relative to that of an all-reduce alone; None: jobs do not contend.
        seed: of the models of jobs without one.

    Attributes:
        capped: by table ("nodes") what was cut to 1.

    Raises:
        InputError: a file or a value is wrong.
    """

    name = "pollux"

    def __init__(
        self, path: str, local_batch: Mapping[str, int], eta: float | None, seed: int
    ) -> None:
        self.path = Path(path)
        measured = read_pollux(self.path)
        for name in local_batch:
            if name not in measured:
                raise InputError(f"no model {name!r}", file=self.path, field="local_batch")
        self.models: list[PolluxModel] = [measured[name] for name in local_batch]
        self.local_batch = {
            name: read_number(value, key=f"local_batch.{name}")
            for name, value in local_batch.items()
        }
        self.eta = None if eta is None else read_number(eta, key="eta")
        self.seed = read_seed(seed, key="seed")
        self.capped: dict[str, Capped] = {}

    def tables(self, trace: Trace, cluster: Cluster) -> RateTables:
        """See `RateModel`."""
        require_one_type(cluster, str(self.path))
        names = list(self.local_batch)
        spread = [model.spread(self.local_batch[model.name]) for model in self.models]
        cases = Cases.of(trace, assign(trace, names, self._suits, self.seed))
        fewest = cases.fewest_nodes(cluster)
        shape = (len(cases.gpus), 1, 3, MOST_NODES)
        by_nodes, communication = np.ones((shape[0], MOST_NODES)), np.zeros(shape)
        for case, (number, gpus) in enumerate(zip(cases.profile, cases.gpus, strict=True)):
            base = min(int(fewest[case]), MOST_NODES)
            most = min(int(gpus), MOST_NODES)  # a job has a GPU on each of its nodes
            times = [spread[number].seconds(n, int(gpus)) for n in range(base, most + 1)]
            for nodes, (step, sync) in enumerate(times, start=base):
                by_nodes[case, nodes - 1] = times[0][0] / step
                communication[case, 0, ONE_NODE + 1 :, nodes - 1] = sync / step
        by_nodes, self.capped["nodes"] = cap(by_nodes)
        tables = without_neighbours(
            cases.of_job, np.ones((len(cases.gpus), 1)), by_nodes[:, None, None, :]
        )
        if self.eta is None:
            return tables
        return tables._replace(
            kind=CONTENTION, scope=SPANNING, communication=communication, eta=self.eta
        )

    def _suits(self, gangs: IntArray) -> NDArray[np.bool_]:
        """All models were measured from one GPU to many."""
        return np.ones((len(gangs), len(self.models)), np.bool_)
