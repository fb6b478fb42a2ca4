"""Pollux' measurements: step and synchronisation times by placement and local batch.

The folder has `<model>/placements.csv` and `<model>/scalability.csv` of Qiao et al., Pollux:
Co-adaptive cluster scheduling for goodput-optimized deep learning, OSDI 2021: nodes with four T4.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np
import polars as pl

from envs.bounds import NonNegative, bounded
from envs.cluster.interference.cases import Cases, require_one_type
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
from envs.text_table import RowChecks, read_table

Times = tuple[float, ...]  # seconds of a step, and those of it spent in synchronisation
Key = tuple[int, ...]  # nodes, replicas and, where it is known, the replicas on each node of a ring
Curve = Mapping[int, Times]  # by samples per GPU
PLACEMENTS, SCALABILITY = "placements.csv", "scalability.csv"
_TIMES = ("local_bsz", "step_time", "sync_time")


@dataclass(frozen=True)
class PolluxModel:
    """One model's measurements.

    Attributes:
        name: of its folder.
        curves: by placement; rings are in their smallest rotation.
    """

    name: str
    curves: Mapping[Key, Curve]

    def spread(self, local_batch: float) -> SpreadTimes:
        """Times at a local batch by nodes and replicas, whatever their distribution.

        Raises:
            InputError: nothing was measured with such a local batch.
        """
        found: defaultdict[Key, list[Times]] = defaultdict(list)
        for (nodes, replicas, *_), curve in self.curves.items():
            if min(curve) <= local_batch <= max(curve):
                found[nodes, replicas].append(_interpolate(local_batch, curve))
        if not found:
            raise InputError(f"no time at {local_batch} samples per GPU", file=self.name)
        points: defaultdict[int, dict[int, Times]] = defaultdict(dict)
        for (nodes, replicas), times in found.items():
            points[nodes][replicas] = tuple(np.mean(times, axis=0).tolist())
        return SpreadTimes(points)


@dataclass(frozen=True)
class SpreadTimes:
    """Mean times over the measured placements, by nodes, then replicas."""

    points: Mapping[int, Mapping[int, Times]]

    def seconds(self, nodes: int, replicas: int) -> Times:
        """Times of `replicas` replicas on `nodes` nodes.

        As measured; else linear in the replicas between the nearest measured ones on as many nodes,
        then linear in the nodes; beyond what was measured, the nearest measured number stands in.
        """
        rows = {count: _interpolate(replicas, row) for count, row in self.points.items()}
        return _interpolate(nodes, rows)


def _interpolate(x: float, points: Mapping[int, Times]) -> Times:
    at = sorted(points)
    columns = zip(*(points[key] for key in at), strict=True)
    return tuple(float(np.interp(x, at, column)) for column in columns)


def smallest_rotation(placement: Sequence[int]) -> tuple[int, ...]:
    """The rotation of a ring of nodes that comes first, without nodes that have no replica."""
    ring = tuple(count for count in placement if count > 0)
    return min((ring[i:] + ring[:i] for i in range(len(ring))), default=())


def read_pollux(folder: Path) -> dict[str, PolluxModel]:
    """All models in `folder`, by name.

    Raises:
        InputError: naming file, row and column, where a table has no such form, a value is out of
            range, a row stands twice, or the folder has no model.
    """
    names = sorted(path.parent.name for path in folder.glob(f"*/{PLACEMENTS}"))
    if not names:
        raise InputError(f"has no model with {PLACEMENTS}", file=folder)
    return {name: _model(folder / name) for name in names}


def _model(folder: Path) -> PolluxModel:
    placed = RowChecks(read_table(folder / PLACEMENTS, ("placement", *_TIMES)))
    text = placed.table.columns["placement"]
    placed.reject(~text.str.contains("^[1-9]+$").to_numpy(), "placement", "is no placement")
    rings = [smallest_rotation(list(map(int, digits))) for digits in text.str.extract_all("[1-9]")]
    spread = RowChecks(read_table(folder / SCALABILITY, ("num_nodes", "num_replicas", *_TIMES)))
    nodes, replicas = spread.whole("num_nodes", 1), spread.whole("num_replicas", 1)
    spread.reject(replicas < nodes, "num_replicas", "is less than num_nodes")
    counts = list(zip(nodes.tolist(), replicas.tolist(), strict=True))
    known = _curves(placed, [(len(ring), sum(ring), *ring) for ring in rings])
    return PolluxModel(folder.name, known | _curves(spread, counts))


def _curves(checks: RowChecks, keys: Sequence[Key]) -> dict[Key, Curve]:
    """The times in a table, by the key of each row and its local batch."""
    batch, step, sync = checks.whole("local_bsz", 1), *map(checks.numbers, _TIMES[1:])
    checks.reject(sync >= step, "sync_time", "is not below the step")
    rows = list(zip(keys, batch.tolist(), step.tolist(), sync.tolist(), strict=True))
    checks.unique("local_bsz", pl.Series([f"{key} {size}" for key, size, *_ in rows]))
    checks.finish(strict=True)
    curves: defaultdict[Key, dict[int, Times]] = defaultdict(dict)
    for key, size, *times in rows:
        curves[key][size] = tuple(times)
    return dict(curves)


MOST_NODES = 16  # the measurements go no further


# Samples per GPU and step, for the models that jobs may have.
LOCAL_BATCH: Mapping[str, int] = MappingProxyType(
    {"bert": 8, "cifar10": 129, "deepspeech2": 14, "imagenet": 81, "ncf": 363, "yolov3": 8}
)


@bounded
class PolluxLocality:
    """Step times measured by Qiao et al., Pollux, OSDI 2021, on nodes with four T4.

    A job of r GPUs on n nodes runs at step(r, fewest nodes it can have) / step(r, n), with step
    times at a fixed number of samples per GPU (`SpreadTimes`: as measured, interpolated between
    measurements, the nearest measurement beyond them). No pair of jobs was measured.
    Neighbours on several nodes contend as in `analytic.AllReduceContention`, with the measured
    share of synchronisation in a step.

    Args:
        path: the folder with one folder per model.
        local_batch: samples per GPU and step, by model.
        eta: time per byte that each further all-reduce adds to what equal sharing would cost,
            relative to that of an all-reduce alone; None: jobs do not contend.
        seed: of the models of jobs without one.

    Raises:
        InputError: a file or a value is wrong.
    """

    name = "pollux"

    def __init__(
        self,
        path: str,
        local_batch: Mapping[str, NonNegative] = LOCAL_BATCH,
        eta: NonNegative | None = None,
        seed: int = 0,
    ) -> None:
        self.path = Path(path)
        measured = read_pollux(self.path)
        for name in local_batch:
            if name not in measured:
                raise InputError(f"no model {name!r}", file=self.path, field="local_batch")
        self.spread = {name: measured[name].spread(size) for name, size in local_batch.items()}
        self.eta, self.seed = eta, seed

    def tables(self, trace: Trace, cluster: Cluster) -> RateTables:
        require_one_type(cluster, str(self.path))
        spread, cases = list(self.spread.values()), Cases.of(trace, list(self.spread), self.seed)
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
        locality = np.minimum(by_nodes, 1.0)[:, None, None, :]
        tables = without_neighbours(cases.of_job, np.ones((len(cases.gpus), 1)), locality)
        if self.eta is None:
            return tables
        return tables._replace(
            kind=CONTENTION, scope=SPANNING, communication=communication, eta=self.eta
        )
