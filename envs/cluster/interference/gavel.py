"""Gavel's measured throughputs: GPU types, consolidation, and pairs that share a GPU."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from envs.cluster.interference.assignment import IntArray, assign
from envs.cluster.interference.cases import Cases
from envs.cluster.interference.gavel_table import UNCONSOLIDATED, GavelTable, JobType, read_gavel
from envs.cluster.interference.measured import Capped, cap, nearest_below
from envs.cluster.interference.quantities import read_seed, read_share
from envs.cluster.interference.rates import (
    ON_GPU,
    ONE_NODE,
    PAIRS_PRODUCT,
    FloatArray,
    RateTables,
    without_neighbours,
)
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import Trace
from envs.errors import InputError


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
    job that does not fit into a GPU type alone must not be allowed there.

    Args:
        path: the JSON file, plain or gzipped.
        gpu_types: the file's name of every GPU type of the cluster.
        reference: the file's GPU type on which a trace's durations hold.
        turns: rate of each of two jobs that take turns, in (0, 1/2].
        seed: of the job types of jobs without a model.

    Attributes:
        capped: by table ("pairs", or the GPU type for locality) what was cut to 1.

    Raises:
        InputError: the file or one of the values is wrong.
    """

    name = "gavel"

    def __init__(
        self, path: str, gpu_types: Mapping[str, str], reference: str, turns: float, seed: int
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
        self.turns = read_share(turns, key="turns")
        if not 0.0 < self.turns <= 0.5:
            raise InputError(f"{turns} is not in (0, 0.5]", field="turns")
        self.seed = read_seed(seed, key="seed")
        self.models = tuple(dict.fromkeys(model for model, _ in self.reference.alone))
        self.sizes = {
            model: sorted(gpus for name, gpus in self.reference.alone if name == model)
            for model in self.models
        }
        self.capped: dict[str, Capped] = {}
        self.pair, self.feasible = self._pairs()

    def tables(self, trace: Trace, cluster: Cluster) -> RateTables:
        """See `RateModel`."""

        def suits(gangs: IntArray) -> NDArray[np.bool_]:
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
        spread, self.capped[gpu_type] = cap(spread)
        return speed, spread

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

    def _pairs(self) -> tuple[FloatArray, NDArray[np.bool_]]:
        """(M, M) ratios of single-GPU jobs on the reference type, and whether they fit."""
        count = len(self.models)
        ratio, feasible = np.full((count, count), self.turns), np.zeros((count, count), np.bool_)
        for i, a in enumerate(self.models):
            for j, b in enumerate(self.models):
                measured = _single(self.reference, a, b)
                if measured > 0.0:
                    ratio[i, j], feasible[i, j] = measured, True
        ratio, self.capped["pairs"] = cap(ratio)
        return ratio, feasible

    def _suits(self, gangs: IntArray, cluster: Cluster) -> NDArray[np.bool_]:
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


def _single(table: GavelTable, a: str, b: str) -> float:
    pair = (a, 1), (b, 1)
    return table.ratio(*pair) if pair in table.pairs else 0.0
