"""Pollux' measurements: step and synchronisation times by placement and local batch.

The folder has `<model>/placements.csv` and `<model>/scalability.csv` of Qiao et al., Pollux:
Co-adaptive cluster scheduling for goodput-optimized deep learning, OSDI 2021: nodes with four T4.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import numpy as np

from envs.arrays import BoolArray, IntArray
from envs.cluster.interference.cases import (
    Capped,
    Cases,
    assign,
    cap,
    csv_rows,
    read_number,
    read_seed,
    require_one_type,
)
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

Times = tuple[float, float]  # seconds of a step, and those of it spent in synchronisation
Curve = Mapping[int, Times]  # by samples per GPU
PLACEMENTS, SCALABILITY = "placements.csv", "scalability.csv"
_TIMES = ("local_bsz", "step_time", "sync_time")


@dataclass(frozen=True)
class PolluxModel:
    """One model's measurements.

    Attributes:
        name: of its folder.
        placements: by replicas on each node of a ring, in its smallest rotation.
        scalability: by nodes and replicas.
    """

    name: str
    placements: Mapping[tuple[int, ...], Curve]
    scalability: Mapping[tuple[int, int], Curve]

    def placed(self, placement: Sequence[int], local_batch: float) -> Times:
        """Times of a placement that was measured; linear between measured local batches.

        Raises:
            InputError: the placement was not measured, or not with such a local batch.
        """
        ring = smallest_rotation(placement)
        if ring not in self.placements:
            raise InputError(f"placement {ring} was not measured", file=self.name)
        curve = self.placements[ring]
        if not min(curve) <= local_batch <= max(curve):
            raise InputError(
                f"{local_batch} samples per GPU are not within {min(curve)} to {max(curve)}",
                file=self.name,
                record=ring,
            )
        return _interpolate(local_batch, curve)

    def spread(self, local_batch: float) -> SpreadTimes:
        """Times at a local batch by nodes and replicas, whatever their distribution.

        Raises:
            InputError: nothing was measured with such a local batch.
        """
        found: defaultdict[tuple[int, int], list[Times]] = defaultdict(list)
        for ring, curve in self.placements.items():
            if min(curve) <= local_batch <= max(curve):
                found[len(ring), sum(ring)].append(_interpolate(local_batch, curve))
        for key, curve in self.scalability.items():
            if min(curve) <= local_batch <= max(curve):
                found[key].append(_interpolate(local_batch, curve))
        if not found:
            raise InputError(f"no time at {local_batch} samples per GPU", file=self.name)
        points: defaultdict[int, dict[int, Times]] = defaultdict(dict)
        for (nodes, replicas), times in found.items():
            step, sync = np.mean(times, axis=0)
            points[nodes][replicas] = float(step), float(sync)
        return SpreadTimes(dict(points))


@dataclass(frozen=True)
class SpreadTimes:
    """Mean times over the measured placements, by nodes, then replicas."""

    points: Mapping[int, Mapping[int, Times]]

    def seconds(self, nodes: int, replicas: int) -> Times:
        """Times of `replicas` replicas on `nodes` nodes.

        As measured; else linear in the replicas between the nearest measured ones on as many nodes,
        then linear in the nodes; beyond what was measured, the nearest measured number stands in.
        """
        counts = sorted(self.points)
        rows = [_interpolate(replicas, self.points[count]) for count in counts]
        step, sync = (np.interp(nodes, counts, [row[i] for row in rows]) for i in range(2))
        return float(step), float(sync)


def _interpolate(x: float, points: Mapping[int, Times]) -> Times:
    at = sorted(points)
    step, sync = (np.interp(x, at, [points[key][i] for key in at]) for i in range(2))
    return float(step), float(sync)


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
    placements: defaultdict[tuple[int, ...], dict[int, Times]] = defaultdict(dict)
    path = folder / PLACEMENTS
    for number, row in _rows(path, ("placement", *_TIMES)):
        digits = row["placement"]
        if not digits.isdigit() or "0" in digits:
            raise InputError(
                f"{digits!r} is no placement", file=path, record=number, field="placement"
            )
        _add(placements[smallest_rotation([int(d) for d in digits])], path, number, row)
    scalability: defaultdict[tuple[int, int], dict[int, Times]] = defaultdict(dict)
    path = folder / SCALABILITY
    for number, row in _rows(path, ("num_nodes", "num_replicas", *_TIMES)):
        nodes, replicas = (_count(path, number, row, f) for f in ("num_nodes", "num_replicas"))
        if replicas < nodes:
            raise InputError("fewer replicas than nodes", file=path, record=number)
        _add(scalability[nodes, replicas], path, number, row)
    return PolluxModel(folder.name, dict(placements), dict(scalability))


def _rows(path: Path, fields: Sequence[str]) -> Iterator[tuple[int, dict[str, str]]]:
    rows = csv_rows(path)
    if not rows or rows[0] != list(fields):
        raise InputError(f"the columns are not {', '.join(fields)}", file=path, record=1)
    for number, row in enumerate(rows[1:], start=2):
        if len(row) != len(fields):
            raise InputError(f"{len(row)} columns, not {len(fields)}", file=path, record=number)
        yield number, dict(zip(fields, row, strict=True))


def _add(curve: dict[int, Times], path: Path, number: int, row: dict[str, str]) -> None:
    batch = _count(path, number, row, "local_bsz")
    if batch in curve:
        raise InputError("stands twice", file=path, record=number, field="local_bsz")
    step, sync = (_seconds(path, number, row, field) for field in _TIMES[1:])
    if not 0.0 <= sync < step:
        raise InputError(f"{sync} is not below the step", file=path, record=number, field=_TIMES[2])
    curve[batch] = step, sync


def _count(path: Path, number: int, row: dict[str, str], field: str) -> int:
    if not row[field].isdigit() or int(row[field]) < 1:
        raise InputError(f"{row[field]!r} is no count", file=path, record=number, field=field)
    return int(row[field])


def _seconds(path: Path, number: int, row: dict[str, str], field: str) -> float:
    try:
        value = float(row[field])
    except ValueError:
        value = -1.0
    if not 0.0 <= value < float("inf"):
        raise InputError(f"{row[field]!r} is no time", file=path, record=number, field=field)
    return value


MOST_NODES = 16  # the measurements go no further


# Samples per GPU and step, for the models that jobs may have.
LOCAL_BATCH: Mapping[str, int] = MappingProxyType(
    {"bert": 8, "cifar10": 129, "deepspeech2": 14, "imagenet": 81, "ncf": 363, "yolov3": 8}
)


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
        self,
        path: str,
        local_batch: Mapping[str, int] = LOCAL_BATCH,
        eta: float | None = None,
        seed: int = 0,
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

    def _suits(self, gangs: IntArray) -> BoolArray:
        """All models were measured from one GPU to many."""
        return np.ones((len(gangs), len(self.models)), np.bool_)
