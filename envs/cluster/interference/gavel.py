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
from envs.cluster.interference.cases import (
    Cases,
    assign,
    nearest_below,
)
from envs.cluster.interference.rates import (
    ON_GPU,
    ONE_NODE,
    PAIRS_PRODUCT,
    RateTables,
    without_neighbours,
)
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace
from envs.errors import InputError
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

    def ratio(self, job: JobType, neighbour: JobType) -> float:
        """Throughput of `job` beside `neighbour`, relative to alone; 0 where it does not fit.

        Raises:
            KeyError: the pair was not measured.
        """
        a, b = self.pairs[job, neighbour]
        return a / self.alone[job] if a > 0.0 and b > 0.0 else 0.0

    def ratios(self, models: Sequence[str]) -> FloatArray:
        """(M, M) of jobs on one GPU; NaN where a pair was not measured or does not fit."""
        found = np.full((len(models), len(models)), np.nan)
        for i, own in enumerate(models):
            for j, other in enumerate(models):
                pair = (own, 1), (other, 1)
                if pair in self.pairs and (ratio := self.ratio(*pair)) > 0.0:
                    found[i, j] = ratio
        return found


def read_gavel(path: Path) -> dict[str, GavelTable]:
    """The tables of a file, by the file's names of GPU types.

    Raises:
        InputError: naming file, job types and value, where the file has another form, a throughput
            is negative or no number, a pair names a job type that was not measured alone, or its
            two directions differ.
    """
    content = read_json(path)
    if not isinstance(content, dict) or not content:
        raise InputError("is no mapping of GPU types", file=path)
    return {str(name): _table(path, str(name), rows) for name, rows in content.items()}


class _Row(Form, extra="allow"):
    """A job type beside others, by their names; `null` is alone."""

    __pydantic_extra__: dict[str, Annotated[list[NonNegative], Len(2, 2)]]
    null: NonNegative


def _table(path: Path, name: str, rows: Any) -> GavelTable:
    if not isinstance(rows, dict):
        raise InputError("is no mapping of job types", file=path, record=name)
    types = {text: _job_type(path, name, text) for text in rows}
    alone: dict[JobType, float] = {}
    pairs: dict[tuple[JobType, JobType], tuple[float, float]] = {}
    for text, row in rows.items():
        measured = read_form(_Row, row, path, inside=f"{name}.{text}")
        alone[types[text]] = measured.null
        for other, (a, b) in (measured.model_extra or {}).items():
            if other not in types:
                raise InputError(
                    "was not measured alone", file=path, record=f"{name} {text}", field=other
                )
            pairs[types[text], types[other]] = a, b
    for (job, other_job), (a, b) in pairs.items():
        if pairs.get((other_job, job)) != (b, a):
            raise InputError(
                "differs from the same pair in the other order",
                file=path,
                record=f"{name} {job}",
                field=str(other_job),
            )
    return GavelTable(alone, pairs)


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
        self.models = tuple(dict.fromkeys(model for model, _ in self.reference.alone))
        self.sizes = {
            model: sorted(gpus for name, gpus in self.reference.alone if name == model)
            for model in self.models
        }
        measured = self.reference.ratios(self.models)
        self.feasible = np.isfinite(measured)
        self.pair = np.minimum(np.where(self.feasible, measured, self.turns), 1.0)

    def tables(self, trace: Trace, cluster: Cluster) -> RateTables:
        def suits(gangs: IntArray) -> BoolArray:
            return self._suits(gangs, cluster)

        cases = Cases.of(trace, assign(trace, self.models, suits, self.seed))
        speed = np.ones((len(cases.gpus), len(cluster.gpu_types)))
        locality = np.ones((*speed.shape, 3, 1))
        for kind, name in enumerate(cluster.gpu_types):
            speed[:, kind], spread = self._alone(cases, name)
            locality[:, kind, ONE_NODE + 1 :, 0] = spread[:, None]
        cases.require_speed(trace, cluster, speed)
        # A job that never fits one node has no consolidated throughput to be measured against.
        locality[cases.gpus > cluster.gpus.max()] = 1.0
        return without_neighbours(cases.of_job, speed, locality)._replace(
            kind=PAIRS_PRODUCT,
            scope=ON_GPU,
            row=cases.profile.astype(np.int32)[:, None],
            pair=self.pair.copy(),
            feasible=self.feasible.copy(),
        )

    def _alone(self, cases: Cases, gpu_type: str) -> tuple[FloatArray, FloatArray]:
        """(P,) speed and (P,) unconsolidated over consolidated throughput on a GPU type."""
        name = self._name(gpu_type)
        near, far = self.all[name], self.all[name + UNCONSOLIDATED]
        speed, spread = np.ones(len(cases.gpus)), np.ones(len(cases.gpus))
        for case, (number, gpus) in enumerate(zip(cases.profile, cases.gpus, strict=True)):
            if gpus == 0:
                continue
            job = self._job_type(int(number), int(gpus))
            if self.reference.alone[job] == 0.0:
                raise InputError(f"{job} does not run on the reference type", file=self.path)
            speed[case] = near.alone.get(job, 0.0) / self.reference.alone[job]
            if job[1] > 1 and speed[case] > 0.0:
                if job not in far.alone:
                    raise InputError(
                        f"{job} was not measured", file=self.path, record=name + UNCONSOLIDATED
                    )
                spread[case] = far.alone[job] / near.alone[job]
        return speed, np.minimum(spread, 1.0)

    def _name(self, gpu_type: str) -> str:
        if gpu_type not in self.gpu_types:
            raise InputError(
                f"GPU type {gpu_type!r} is not named (known: {', '.join(self.gpu_types)})",
                field="gpu_types",
            )
        return self.gpu_types[gpu_type]

    def _job_type(self, model: int, gpus: int) -> JobType:
        name = self.models[model]
        return name, nearest_below(self.sizes[name], gpus)

    def _suits(self, gangs: IntArray, cluster: Cluster) -> BoolArray:
        """(G, M) the gang size, or the largest of all, was measured on all of the cluster's types.

        It must have fitted into memory there, and on the reference type.
        """
        names = [self._name(gpu_type) for gpu_type in cluster.gpu_types]
        tables = [self.reference, *(self.all[n] for n in names)]
        far = [self.all[n + UNCONSOLIDATED] for n in names]
        most = max(sizes[-1] for sizes in self.sizes.values())
        suits = np.zeros((len(gangs), len(self.models)), np.bool_)
        for row, gang in enumerate(gangs):
            for model in range(len(self.models)):
                job = self._job_type(model, int(gang))
                reaches = self.sizes[job[0]][-1] >= min(gang, most)
                needed = tables if job[1] == 1 else tables + far
                suits[row, model] = reaches and all(t.alone.get(job, 0.0) > 0 for t in needed)
        return suits
