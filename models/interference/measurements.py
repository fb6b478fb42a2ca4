"""Measured slow-downs of pairs of jobs, and what may be known of a new one: its fingerprint.

A fingerprint is what is measured of a job beside fixed jobs, the probes.
"""

from __future__ import annotations

import re
import warnings
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import ArrayLike

from envs.arrays import BoolArray, FloatArray
from envs.cluster.interference.deepshare import read_deepshare
from envs.cluster.interference.gavel import UNCONSOLIDATED, read_gavel
from envs.cluster.interference.rates import ON_GPU, SPANNING
from envs.errors import InputError

_BATCH = re.compile(r"(?P<model>.+) \(batch size (?P<batch>\d+)\)")


@dataclass(frozen=True)
class MeasuredJob:
    """A job that was measured: what a trace calls it, its model, its GPUs and nodes.

    `model` is the architecture, at whatever batch size or placement: the unit that is held out.
    """

    label: str
    model: str
    gpus: int
    nodes: int


@dataclass(frozen=True, eq=False)
class Measurements:
    """Normalised throughputs of P jobs in pairs, in T tables of different conditions.

    Attributes:
        name: of the source.
        scope: who is a neighbour: `rates.ON_GPU` or `SPANNING`.
        tables: names of the T tables.
        jobs: P jobs, the same in every table.
        features: what the F features are.
        profiles: (T, P, F) what is known of a job alone.
        rate: (T, P, P) of the row's job beside the column's, alone = 1, at most 1; NaN: not
            measured, or the two do not fit into memory.
    """

    name: str
    scope: int
    tables: tuple[str, ...]
    jobs: tuple[MeasuredJob, ...]
    features: tuple[str, ...]
    profiles: FloatArray
    rate: FloatArray

    def __post_init__(self) -> None:
        for table, measured in zip(self.tables, self.measured, strict=True):
            if not measured.any():
                raise InputError("has no pair", file=self.name, record=table)

    @property
    def measured(self) -> BoolArray:
        """(T, P, P) which rates are known."""
        return np.isfinite(self.rate)

    @property
    def models(self) -> tuple[str, ...]:
        """The distinct models, in the order of the jobs."""
        return tuple(dict.fromkeys(job.model for job in self.jobs))

    def jobs_of(self, model: str) -> BoolArray:
        """(P,) the jobs of a model."""
        return np.array([job.model == model for job in self.jobs])

    def only(self, jobs: BoolArray) -> Measurements:
        """What was measured of these jobs, (P,), alone and among themselves."""
        at = np.flatnonzero(jobs)
        return replace(
            self,
            jobs=tuple(self.jobs[job] for job in at),
            profiles=self.profiles[:, at],
            rate=self.rate[:, at][:, :, at],
        )


def gavel_measurements(path: Path) -> Measurements:
    """Gavel's pairs of single-GPU jobs on one GPU, a table for every GPU type.

    Features: throughput alone, batch size and samples per second, their throughput on the other
    GPU types relative to the first, and which GPU type it is. A model without a batch size in its
    name gets the median of the others.

    Raises:
        InputError: see `read_gavel`; a job type is not measured alone on every GPU type.
    """
    tables = {n: t for n, t in read_gavel(path).items() if not n.endswith(UNCONSOLIDATED)}
    names = tuple(tables)
    labels = tuple(model for model, gpus in tables[names[0]].alone if gpus == 1)
    batches = [_BATCH.fullmatch(label) for label in labels]
    sizes = [float(match["batch"]) for match in batches if match]
    if not sizes:
        raise InputError("no job type names its batch size", file=path)
    alone = np.array([[t.alone.get((label, 1), 0.0) for label in labels] for t in tables.values()])
    for table, job in np.argwhere(alone <= 0.0):
        raise InputError(
            "was not measured alone", file=path, record=names[table], field=labels[job]
        )
    speed = np.log(alone)  # (T, P)
    batch = np.log([float(m["batch"]) if m else float(np.median(sizes)) for m in batches])
    jobs = (
        MeasuredJob(label, match["model"] if match else label, 1, 1)
        for label, match in zip(labels, batches, strict=True)
    )
    others = zip(names[1:], speed[1:] - speed[0], strict=True)
    profiles = {
        "log steps/s alone": speed,
        "log batch size": batch,
        "log samples/s alone": speed + batch,
        **{f"log speed on {name} over {names[0]}": ratio for name, ratio in others},
        **{
            f"on {name}": here[:, None]
            for name, here in zip(names, np.eye(len(names)), strict=True)
        },
    }
    columns = [np.broadcast_to(column, speed.shape) for column in profiles.values()]
    rate = np.array([table.ratios(labels) for table in tables.values()])
    return Measurements(
        "gavel", ON_GPU, names, tuple(jobs), tuple(profiles), np.stack(columns, axis=-1),
        np.minimum(rate, 1.0),
    )  # fmt: skip


def deepshare_measurements(folder: Path) -> Measurements:
    """DeepShare's pairs of jobs on several nodes.

    Features: GPUs, nodes and GPUs per node, throughput alone, and throughput per GPU relative to
    the model's smallest placement.

    Raises:
        InputError: see `read_deepshare`.
    """
    table = read_deepshare(folder)
    jobs = tuple(MeasuredJob(model, model, gpus, nodes) for model, gpus, nodes in table.placed)
    gpus, nodes = np.array([(job.gpus, job.nodes) for job in jobs], np.float64).T
    per_gpu = np.log(table.throughput / gpus)
    smallest: dict[str, float] = {}
    for number in np.lexsort((nodes, gpus)):
        smallest.setdefault(jobs[number].model, float(per_gpu[number]))
    profiles = {
        "log GPUs": np.log(gpus),
        "log nodes": np.log(nodes),
        "log GPUs per node": np.log(gpus / nodes),
        "log samples/s alone": np.log(table.throughput),
        "log efficiency alone": per_gpu - [smallest[job.model] for job in jobs],
    }
    columns = np.stack(list(profiles.values()), axis=1)[None]
    rate = np.minimum(table.ratio, 1.0)[None]
    return Measurements("deepshare", SPANNING, ("deepshare",), jobs, tuple(profiles), columns, rate)


RIDGE = 0.05  # of the reconstruction of the tables from the probes
MISSING = 0.5  # cost of a probe per share of the jobs that cannot be measured beside it
FARTHEST = 3.0  # standard deviations at which a feature is cut


def choose_probes(measurements: Measurements, seen: BoolArray, count: int) -> tuple[int, ...]:
    """`count` jobs from whose rows and columns the tables of the seen jobs are best predicted.

    Greedy forward selection by the mean absolute error of a ridge regression of all rates of a
    seen job, its own and those of its neighbours, on those measured with the probes (as columns
    are selected by Das and Kempe, Submodular meets spectral, ICML 2011). Jobs that are not seen
    have no part in it.

    Args:
        measurements: P jobs.
        seen: (P,) jobs whose measurements may be used.
        count: of probes; no more than there are seen jobs.

    Returns:
        Jobs, the most useful first.
    """
    jobs = np.flatnonzero(seen)
    tables = [rate[np.ix_(jobs, jobs)] for rate in measurements.rate]
    chosen: list[int] = []
    for _ in range(min(count, len(jobs))):
        cost = {
            job: sum(_reconstruction_error(rate, [*chosen, job]) for rate in tables)
            for job in range(len(jobs))
            if job not in chosen
        }
        chosen.append(min(cost, key=lambda job: cost[job]))
    return tuple(int(jobs[job]) for job in chosen)


def _filled(rate: FloatArray, mean: ArrayLike | None = None) -> FloatArray:
    """What is known, else the mean, by default of what is known."""
    return np.where(np.isnan(rate), np.nanmean(rate) if mean is None else mean, rate)


def _reconstruction_error(rate: FloatArray, probes: list[int]) -> float:
    filled = _filled(rate)
    full = np.concatenate([filled, filled.T], axis=1)
    seen = np.concatenate([rate[:, probes], rate[probes].T], axis=1)
    missing = float(np.isnan(seen).mean())
    seen = _filled(seen, np.nanmean(rate))
    inputs = np.concatenate([seen - seen.mean(axis=0), np.ones((len(seen), 1))], axis=1)
    weights = np.linalg.solve(inputs.T @ inputs + RIDGE * np.eye(inputs.shape[1]), inputs.T @ full)
    return float(np.abs(full - inputs @ weights).mean()) + MISSING * missing


@dataclass(frozen=True, eq=False)
class Fold:
    """What may be known when the jobs in `unseen` are new.

    Of an unseen job only its profile alone and its fingerprint are known: its measurements beside
    the probes.

    Attributes:
        unseen: (P,) new jobs.
        probes: seen jobs.
        known: (T, P, P) the measurements that may be used.
        asked: (T, P, P) the other measurements of unseen jobs: those to be predicted.
        inputs: (T, P, F + 2 k) profile and fingerprint, standardised over the seen jobs.
    """

    unseen: BoolArray
    probes: tuple[int, ...]
    known: BoolArray
    asked: BoolArray
    inputs: FloatArray


def fold_without(measurements: Measurements, unseen: BoolArray, probes: int) -> Fold:
    """The fold in which `unseen` jobs are known by probes chosen among the others."""
    return fold(measurements, unseen, choose_probes(measurements, ~unseen, probes))


def fold(measurements: Measurements, unseen: BoolArray, probes: Sequence[int]) -> Fold:
    """The fold in which `unseen` jobs are known by the `probes` alone.

    Fingerprints are (T, P, 2 k) rates of every job beside each probe, and of each probe beside it.
    What was not measured, or does not fit into memory, is the mean over the seen jobs.
    """
    rate, seen, at = measurements.rate, ~unseen, list(probes)
    probe = np.zeros(len(unseen), np.bool_)
    probe[at] = True
    known = seen[:, None] & seen | probe[:, None] | probe
    fingerprints = np.concatenate([rate[:, :, at], rate[:, at].transpose(0, 2, 1)], axis=-1)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # a probe that fits beside no job
        mean = np.nanmean(fingerprints[:, seen], axis=1, keepdims=True)
    mean = _filled(mean, np.nanmean(rate[:, seen][:, :, seen]))
    inputs = np.concatenate([measurements.profiles, _filled(fingerprints, mean)], -1)
    rows = inputs[:, seen].reshape(-1, inputs.shape[-1])
    spread = rows.std(axis=0)
    spread = np.where(spread > 1e-9, spread, 1.0)
    scaled = np.clip((inputs - rows.mean(axis=0)) / spread, -FARTHEST, FARTHEST)
    measured = measurements.measured
    return Fold(unseen, tuple(probes), measured & known, measured & ~known, scaled)
