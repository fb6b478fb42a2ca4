"""DeepShare's measured network contention between jobs on several nodes."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from envs.cluster.interference.assignment import IntArray, assign
from envs.cluster.interference.cases import Cases
from envs.cluster.interference.deepshare_table import read_deepshare
from envs.cluster.interference.measured import Capped, cap, nearest_below, require_one_type
from envs.cluster.interference.quantities import read_seed, read_share
from envs.cluster.interference.rates import PAIRS_LEAST, SPANNING, RateTables, without_neighbours
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace


class DeepShareContention:
    """Rates as measured by Ryu and Eo, 2023 (arXiv:2310.20209), with the authors' rule.

    A job on several nodes runs at max(floor, least ratio over the other jobs on several nodes that
    are on one of its nodes); jobs on one node do not use the network and are left alone. Alone, a
    job on n nodes runs at its throughput there over that on the fewest nodes it can have; no
    measurement is of a single node, so the step from one node to two costs nothing here.

    For gang sizes and numbers of nodes that were not measured (2, 4, 8 GPUs on 2, 4, 8 nodes were)
    the next smaller ones stand in, or the smallest.

    Args:
        path: the folder with the two files.
        floor: least rate that neighbours leave; the authors' is 0.35.
        seed: of the models of jobs without one.

    Attributes:
        capped: by table ("pairs", "nodes") what was cut to 1.

    Raises:
        InputError: a file or a value is wrong.
    """

    name = "deepshare"

    def __init__(self, path: str, floor: float, seed: int) -> None:
        self.path = Path(path)
        self.table = read_deepshare(self.path)
        self.floor = read_share(floor, key="floor")
        self.seed = read_seed(seed, key="seed")
        self.models = tuple(dict.fromkeys(model for model, _, _ in self.table.placed))
        self.row = {placed: row for row, placed in enumerate(self.table.placed)}
        self.capped: dict[str, Capped] = {}
        self.pair, self.capped["pairs"] = cap(self.table.ratio)

    def tables(self, trace: Trace, cluster: Cluster) -> RateTables:
        """See `RateModel`."""
        require_one_type(cluster, str(self.path))
        cases = Cases.of(trace, assign(trace, self.models, self._suits, self.seed))
        fewest = cases.fewest_nodes(cluster)
        most = max(nodes for _, _, nodes in self.table.placed)
        row = np.zeros((len(cases.gpus), most), np.int32)
        by_nodes = np.ones((len(cases.gpus), most))
        for case, (number, gpus) in enumerate(zip(cases.profile, cases.gpus, strict=True)):
            found = [self._row(self.models[number], int(gpus), n + 1) for n in range(most)]
            row[case] = found
            if gpus > 0:
                base = min(int(fewest[case]), most) - 1
                throughput = self.table.throughput[found]
                by_nodes[case, base:] = throughput[base:] / throughput[base]
        by_nodes, self.capped["nodes"] = cap(by_nodes)
        tables = without_neighbours(
            cases.of_job, np.ones((len(cases.gpus), 1)), by_nodes[:, None, None, :]
        )
        return tables._replace(
            kind=PAIRS_LEAST,
            scope=SPANNING,
            row=row,
            pair=self.pair.copy(),
            feasible=np.ones(self.pair.shape, np.bool_),
            floor=self.floor,
        )

    def _row(self, model: str, gpus: int, nodes: int) -> int:
        """The measured placement that stands for `gpus` GPUs on `nodes` nodes."""
        sizes = sorted({g for m, g, _ in self.table.placed if m == model})
        size = nearest_below(sizes, gpus)
        counts = sorted(n for m, g, n in self.table.placed if (m, g) == (model, size))
        return self.row[model, size, nearest_below(counts, nodes)]

    def _suits(self, gangs: IntArray) -> NDArray[np.bool_]:
        """All models were measured at all gang sizes."""
        return np.ones((len(gangs), len(self.models)), np.bool_)
