"""DeepShare's measurements: throughput alone, and ratios under network contention.

The files are `isolated_thp.csv` and `shared_thp_ratio.csv` of Ryu and Eo, Network contention-aware
cluster scheduling with reinforcement learning, 2023 (arXiv:2310.20209).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from envs.arrays import FloatArray
from envs.bounds import Share, bounded
from envs.cluster.interference.cases import Cases, require_one_type
from envs.cluster.interference.rates import PAIRS_LEAST, SPANNING, RateTables, without_neighbours
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace
from envs.errors import InputError
from envs.text_table import RowChecks, read_table

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
    jobs, _, alone = _measured(folder / ISOLATED)
    placed, beside, ratio = _measured(folder / SHARED)
    if placed != list(map(_placed, beside)):
        raise InputError("has other jobs in its rows than in its columns", file=folder / SHARED)
    for job in placed:
        if job not in jobs:
            record = ",".join(map(str, job))
            raise InputError("is missing", file=folder / ISOLATED, record=record)
    throughput = alone[[jobs.index(job) for job in placed], 0]
    return DeepShareTable(tuple(placed), throughput, ratio)


def _measured(path: Path) -> tuple[list[Placed], list[str], FloatArray]:
    """The placed job of every row, the other columns, and (R, C) values above 0."""
    checks = RowChecks(read_table(path))
    first, *others = checks.table.columns
    jobs = checks.table.columns[first]
    placed = [_placed(job) for job in jobs]
    checks.reject(np.array([job is None for job in placed]), first, "is no 'model,GPUs,nodes'")
    checks.unique(first, jobs)
    values = np.zeros((len(jobs), len(others)))
    for column, name in enumerate(others):
        values[:, column] = checks.numbers(name)
        checks.reject(values[:, column] == 0.0, name, "is not above 0")
    checks.finish(strict=True)
    if not others:
        raise InputError("has no measurement", file=path)
    return [job for job in placed if job is not None], others, values


def _placed(text: str) -> Placed | None:
    found = re.fullmatch(r"([^,]+),([0-9]+),([0-9]+)", text)
    if found is None or not 1 <= int(found[3]) <= int(found[2]):
        return None
    return found[1], int(found[2]), int(found[3])


@bounded
class DeepShareContention:
    """Rates as measured by Ryu and Eo, 2023 (arXiv:2310.20209), with the authors' rule.

    A job on several nodes runs at max(floor, least ratio over the other jobs on several nodes that
    are on one of its nodes); jobs on one node do not use the network and are left alone. Alone, a
    job on n nodes runs at its throughput there over that on the fewest nodes it can have; no
    measurement is of a single node, so the step from one node to two costs nothing here.

    For gang sizes and numbers of nodes that were not measured (2, 4, 8 GPUs on 2, 4, 8 nodes were)
    the next smaller ones stand in, or the smallest. Ratios above 1 count as 1.

    Args:
        path: the folder with the two files.
        floor: least rate that neighbours leave; the authors' is 0.35.
        seed: of the models of jobs without one.

    Raises:
        InputError: a file or a value is wrong.
    """

    name = "deepshare"

    def __init__(self, path: str, floor: Share = 0.35, seed: int = 0) -> None:
        self.path = Path(path)
        self.table = read_deepshare(self.path)
        self.floor, self.seed = floor, seed
        self.models = tuple(dict.fromkeys(model for model, _, _ in self.table.placed))
        self.pair = np.minimum(self.table.ratio, 1.0)

    def tables(self, trace: Trace, cluster: Cluster) -> RateTables:
        require_one_type(cluster, str(self.path))
        cases = Cases.of(trace, self.models, self.seed)
        placed, nodes = self.table.placed, max(nodes for *_, nodes in self.table.placed)
        rows = [cases.rows(placed, n + 1) for n in range(nodes)]
        row = np.stack(rows, axis=1)  # (P, K)
        base = np.minimum(cases.fewest_nodes(cluster), nodes)[:, None] - 1
        throughput = self.table.throughput[row]
        relative = throughput / np.take_along_axis(throughput, base, axis=1)
        locality = np.where(np.arange(nodes) >= base, np.minimum(relative, 1.0), 1.0)
        locality[cases.gpus == 0] = 1.0
        tables = without_neighbours(cases.of_job, np.ones((len(row), 1)), locality[:, None, None])
        return tables._replace(
            kind=PAIRS_LEAST,
            scope=SPANNING,
            row=row.astype(np.int32),
            pair=self.pair.copy(),
            feasible=np.ones(self.pair.shape, np.bool_),
            floor=self.floor,
        )
