"""Gavel's measured throughputs: job types alone and in pairs on one GPU, by GPU type.

The file is `simulation_throughputs.json` of Narayanan et al., Heterogeneity-aware cluster
scheduling policies for deep learning workloads, OSDI 2020.
"""

from __future__ import annotations

import ast
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Annotated, Any

import numpy as np
from annotated_types import Gt, Le, Len

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.bounds import NonNegative, bounded
from envs.cluster.interference.cases import Cases, nearest_row
from envs.cluster.interference.rates import (
    ON_GPU,
    ONE_NODE,
    PAIRS_PRODUCT,
    RateTables,
    without_neighbours,
)
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace
from envs.errors import InputError, require_one_of
from envs.files import read_json
from envs.forms import Form, read_form

JobType = tuple[str, int]  # model, GPUs ("scale factor")
UNCONSOLIDATED = "_unconsolidated"


@dataclass(frozen=True)
class GavelTable:
    """Steps per second on one GPU type; 0 where a job or a pair ran out of memory.

    Attributes:
        alone: of a job type by itself.
        pairs: of both jobs of a pair that runs on the same GPUs, for every ordered pair.
    """

    alone: Mapping[JobType, float]
    pairs: Mapping[tuple[JobType, JobType], tuple[float, float]]

    def ratios(self, models: Sequence[str]) -> FloatArray:
        """(M, M) throughput of the first on one GPU beside the second, relative to alone.

        NaN where a pair was not measured or does not fit.
        """
        found = np.full((len(models), len(models)), np.nan)
        for at in np.ndindex(found.shape):
            own, other = ((models[number], 1) for number in at)
            both = self.pairs.get((own, other), (0.0, 0.0))
            if min(both) > 0.0:
                found[at] = both[0] / self.alone[own]
        return found


def read_gavel(path: Path) -> dict[str, GavelTable]:
    """The tables of a file, by the file's names of GPU types.

    Raises:
        InputError: naming file, job types and value, where the file has another form, a throughput
            is negative or no number, a pair names a job type that was not measured alone, or its
            two directions differ.
    """
    tables = read_form(_File, read_json(path), path, inside="").model_extra
    if not tables:
        raise InputError("has no GPU type", file=path)
    return {name: _table(path, name, rows) for name, rows in tables.items()}


class _Row(Form, extra="allow"):
    """A job type beside others, by their names; `null` is alone."""

    __pydantic_extra__: dict[str, Annotated[list[NonNegative], Len(2, 2)]]
    null: NonNegative


class _File(Form, extra="allow"):
    """Rows by GPU type, then job type."""

    __pydantic_extra__: dict[str, dict[str, _Row]]


def _table(path: Path, name: str, rows: Mapping[str, _Row]) -> GavelTable:
    types = {text: _job_type(path, name, text) for text in rows}
    measured = {text: row.model_extra or {} for text, row in rows.items()}
    pairs: dict[tuple[JobType, JobType], tuple[float, float]] = {}
    for text, other in ((text, other) for text, row in measured.items() for other in row):
        where: dict[str, Any] = {"file": path, "record": f"{name} {text}", "field": other}
        if other not in rows:
            raise InputError("was not measured alone", **where)
        a, b = measured[text][other]
        if measured[other].get(text) != [b, a]:
            raise InputError("differs from the same pair in the other order", **where)
        pairs[types[text], types[other]] = a, b
    return GavelTable({types[text]: row.null for text, row in rows.items()}, pairs)


def _job_type(path: Path, name: str, text: str) -> JobType:
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = None
    match value:
        case (str(model), int(gpus)) if gpus > 0:
            return model, gpus
    raise InputError(f"{text!r} is no ('model', GPUs)", file=path, record=name)


@bounded
class GavelPairs:
    """Rates as measured by Narayanan et al., Heterogeneity-aware cluster scheduling, OSDI 2020.

    * Speed: throughput alone on the GPU type over that on the reference type.
    * Locality: a job on several nodes runs at the unconsolidated over the consolidated throughput.
    * Neighbours: jobs on the same partial GPU; the product over them of the ratio measured on the
      reference type for the pair. Pairs alone were measured, so the product is exact for two jobs
      on a GPU and an assumption beyond.

    For a gang size that was not measured (1, 2, 4, 8 were) the next smaller one stands in, in both
    terms of a ratio. Jobs without a model draw job types that run on all GPU types of the cluster.
    Two jobs that do not fit into memory together take turns: each then runs at
    `turns`. `RateTables.feasible` says which these are, so that placement rules can avoid them. A
    job that does not fit into a GPU type alone must not be allowed there. Ratios above 1 count as
    1.

    Args:
        path: the JSON file, plain or gzipped.
        gpu_types: the file's name of every GPU type of the cluster.
        reference: the file's GPU type on which a trace's durations hold.
        turns: rate of each of two jobs that take turns, in (0, 1/2].
        seed: of the job types of jobs without a model.

    Raises:
        InputError: the file or one of the values is wrong.
    """

    name = "gavel"

    def __init__(
        self,
        path: str,
        gpu_types: Mapping[str, str] = MappingProxyType(
            {"V100": "v100", "P100": "p100", "K80": "k80"}
        ),
        reference: str = "v100",
        turns: Annotated[float, Gt(0.0), Le(0.5)] = 0.5,
        seed: int = 0,
    ) -> None:
        self.path = Path(path)
        self.all = read_gavel(self.path)
        self.gpu_types = dict(gpu_types)
        for name in (*self.gpu_types.values(), reference):
            if name not in self.all or name + UNCONSOLIDATED not in self.all:
                raise InputError(
                    f"no table of GPU type {name!r}", file=self.path, field="gpu_types"
                )
        self.reference = self.all[reference]
        self.turns, self.seed = turns, seed
        self.jobs = list(self.reference.alone)
        self.models = tuple(dict.fromkeys(model for model, _ in self.jobs))
        measured = self.reference.ratios(self.models)
        self.feasible = np.isfinite(measured)
        self.pair = np.minimum(np.where(self.feasible, measured, self.turns), 1.0)

    def tables(self, trace: Trace, cluster: Cluster) -> RateTables:
        for gpu_type in cluster.gpu_types:
            require_one_of(gpu_type, self.gpu_types, field="gpu_types")
        names = [self.gpu_types[gpu_type] for gpu_type in cluster.gpu_types]
        base = np.array(list(self.reference.alone.values()))
        near, far = (  # (T, R) throughput of all job types alone; NaN where one was not measured
            np.array([[self.all[n + s].alone.get(job, np.nan) for job in self.jobs] for n in names])
            for s in ("", UNCONSOLIDATED)
        )
        size = np.array([gpus for _, gpus in self.jobs])
        runs = (base > 0.0) & ((near > 0.0) & ((size == 1) | (far > 0.0))).all(axis=0)

        def suits(gangs: IntArray) -> BoolArray:
            """(G, M) the gang size, or the largest of all, was measured on all types in `names`.

            It must have fitted into memory there, and on the reference type.
            """
            rows = [
                [nearest_row(self.jobs, model, gang) for model in self.models] for gang in gangs
            ]
            largest = [max(gpus for name, gpus in self.jobs if name == m) for m in self.models]
            reaches = np.array(largest) >= np.minimum(gangs, size.max())[:, None]
            suited: BoolArray = reaches & runs[np.array(rows)]
            return suited

        cases = Cases.of(trace, self.models, self.seed, suits)
        row, real = cases.rows(self.jobs), cases.gpus > 0
        for job in row[real & (base[row] == 0.0)]:
            raise InputError(f"{self.jobs[job]} does not run on the reference type", file=self.path)
        speed, spread = np.ones((2, len(names), len(row)))
        np.divide(np.nan_to_num(near[:, row]), base[row], out=speed, where=real)
        apart = (size[row] > 1) & real & (speed > 0.0)
        np.divide(far[:, row], near[:, row], out=spread, where=apart)
        for kind, case in np.argwhere(np.isnan(spread)):
            record = names[kind] + UNCONSOLIDATED
            raise InputError(
                f"{self.jobs[row[case]]} was not measured", file=self.path, record=record
            )
        masks = cluster.type_masks(trace.gpu_type.names)[trace.gpu_type.codes]
        permitted = masks >> np.arange(len(names))[:, None] & 1 == 1  # (T, J)
        for kind, job in np.argwhere(permitted & (speed[:, cases.of_job] <= 0.0)):
            raise InputError(
                f"the job's model does not run on GPU type {cluster.gpu_types[kind]!r}",
                file=trace.name,
                record=str(trace.job_id[job]),
                field="gpu_type",
            )
        # A job that never fits one node has no consolidated throughput to be measured against.
        spread[:, cases.gpus > cluster.gpus.max()] = 1.0
        locality = np.ones((len(row), len(names), 3, 1))
        locality[:, :, ONE_NODE + 1 :, 0] = np.minimum(spread, 1.0).T[..., None]
        return without_neighbours(cases.of_job, speed.T, locality)._replace(
            kind=PAIRS_PRODUCT,
            scope=ON_GPU,
            row=cases.profile.astype(np.int32)[:, None],
            pair=self.pair.copy(),
            feasible=self.feasible.copy(),
        )
