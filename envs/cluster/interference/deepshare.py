"""DeepShare's measurements: throughput alone, and ratios under network contention.

The files are `isolated_thp.csv` and `shared_thp_ratio.csv` of Ryu and Eo, Network contention-aware
cluster scheduling with reinforcement learning, 2023 (arXiv:2310.20209).
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.cluster.interference.cases import (
    Capped,
    Cases,
    assign,
    cap,
    csv_rows,
    nearest_below,
    read_seed,
    read_share,
    require_one_type,
)
from envs.cluster.interference.rates import PAIRS_LEAST, SPANNING, RateTables, without_neighbours
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace
from envs.errors import InputError

Placed = tuple[str, int, int]  # model, GPUs, nodes
ISOLATED, SHARED = "isolated_thp.csv", "shared_thp_ratio.csv"


@dataclass(frozen=True)
class DeepShareTable:
    """Q placed jobs; ratios are relative to the same job alone.

    Attributes:
        placed: model, GPUs and nodes of every row.
        throughput: (Q,) samples per second alone.
        ratio: (Q, Q) throughput of the row's job beside the column's, relative to alone.
    """

    placed: tuple[Placed, ...]
    throughput: FloatArray
    ratio: FloatArray


def read_deepshare(folder: Path) -> DeepShareTable:
    """The two files in `folder`.

    Raises:
        InputError: naming file, row and column, where a placed job is malformed, stands twice or is
            missing in one of the files, or a value is not above 0.
    """
    rows = _rows(folder / ISOLATED)
    throughput = {}
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != 2:
            raise InputError(f"{len(row)} columns, not 2", file=folder / ISOLATED, record=number)
        placed = _placed(folder / ISOLATED, number, row[0])
        if placed in throughput:
            raise InputError(f"{row[0]} stands twice", file=folder / ISOLATED, record=number)
        throughput[placed] = _positive(folder / ISOLATED, number, rows[0][-1], row[1])
    path = folder / SHARED
    rows = _rows(path)
    columns = [_placed(path, 1, text) for text in rows[0][1:]]
    ratio = np.zeros((len(columns), len(columns)))
    if len(rows) != len(columns) + 1:
        raise InputError(f"{len(rows) - 1} rows for {len(columns)} columns", file=path)
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(columns) + 1:
            raise InputError(f"{len(row)} columns", file=path, record=number)
        if _placed(path, number, row[0]) != columns[number - 2]:
            raise InputError(f"{row[0]} is not the column's job", file=path, record=number)
        ratio[number - 2] = [
            _positive(path, number, rows[0][column], row[column]) for column in range(1, len(row))
        ]
    missing = [placed for placed in columns if placed not in throughput]
    if missing or len(set(columns)) != len(columns):
        wrong = missing or columns
        raise InputError(f"{wrong[0]} is missing, or stands twice in {SHARED}", file=folder)
    return DeepShareTable(tuple(columns), np.array([throughput[p] for p in columns]), ratio)


def _rows(path: Path) -> list[list[str]]:
    rows = csv_rows(path)
    if len(rows) < 2:
        raise InputError("has no rows", file=path)
    return rows


def _placed(path: Path, row: int, text: str) -> Placed:
    parts = text.split(",")
    if len(parts) == 3 and parts[0] and parts[1].isdigit() and parts[2].isdigit():
        gpus, nodes = int(parts[1]), int(parts[2])
        if 1 <= nodes <= gpus:
            return parts[0], gpus, nodes
    raise InputError(f"{text!r} is no 'model,GPUs,nodes'", file=path, record=row)


def _positive(path: Path, row: int, field: str, text: str) -> float:
    try:
        value = float(text)
    except ValueError:
        value = 0.0
    if not 0.0 < value < float("inf"):
        raise InputError(f"{text!r} is not above 0", file=path, record=row, field=field)
    return value


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

    def __init__(self, path: str, floor: float = 0.35, seed: int = 0) -> None:
        self.path = Path(path)
        self.table = read_deepshare(self.path)
        self.floor = read_share(floor, key="floor")
        self.seed = read_seed(seed, key="seed")
        self.models = tuple(dict.fromkeys(model for model, _, _ in self.table.placed))
        self.row = {placed: row for row, placed in enumerate(self.table.placed)}
        self.capped: dict[str, Capped] = {}
        self.pair, self.capped["pairs"] = cap(self.table.ratio)

    def tables(self, trace: Trace, cluster: Cluster) -> RateTables:
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

    def _suits(self, gangs: IntArray) -> BoolArray:
        """All models were measured at all gang sizes."""
        return np.ones((len(gangs), len(self.models)), np.bool_)
