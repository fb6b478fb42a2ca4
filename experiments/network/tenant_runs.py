"""What `experiments.coflows tenants=…` does: jobs that share racks, under every scheduler."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Ge, MinLen

from agents.coflows.orders import BASELINES, CLAIRVOYANT, WEIGHTINGS, CoInNetFlow, fair
from envs.arrays import FloatArray
from envs.bounds import Count, NonNegative, Positive, Share
from envs.coflows.tenants import Racks, Sending, Tenant, play_tenants
from envs.errors import InputError
from envs.synchronisation.layerwise import LayeredModel, read_layered_models
from experiments.run.one_run import Result, Run
from experiments.run.provenance import file_hash
from experiments.study.tables import Table, write_tables

REFERENCES = ("fifo", "fair")
COLUMNS = ("scheduler", "median", "range", "mean", "p95", "above fifo's", "above fair's", "s")
SHOWN = ("tenants", "least_median_inflation", "fall_from_fifo_percent", "fall_from_fair_percent")


@dataclass(kw_only=True)
class TenantsConfig:
    """`conf/tenants.yaml`."""

    tenants: Count  # jobs, of models drawn from the file
    layers: str  # CSV of measured layers: $MESHWRIGHT_DATA/network/switchml/layers.csv
    gpu: str = "a100_match_v100_bs"  # of the file: what the layers were measured on
    racks: Count = 25
    slots: Count = 24  # workers of a rack
    nic_gbps: Positive = 10.0  # of a worker, each way
    port_gbps: Positive = 10.0  # of a rack to the core, each way: sums go there, once for each job
    workers: Annotated[Sequence[int], MinLen(1)] = (2, 4, 8, 16)  # of a job, drawn from these
    iterations: Annotated[Sequence[int], MinLen(2)] = (10, 30)  # of a job, drawn between these
    # mean time between arrivals, drawn; 0: all jobs wait for slots at once
    arrival_s: NonNegative = 0.0
    chunk_bytes: Positive = 4000000.0  # after which another tensor of the job may go first
    # how many times smaller tensors of low priority are sent; 1: as they are
    compression: Annotated[float, Ge(1.0)] = 1.0
    compressed: Share = 0.5  # share of the sending jobs, the last by priority, whose tensors are
    # after front: weightings
    schedulers: Annotated[Sequence[str], MinLen(1)] = (
        "fifo",
        "fair",
        "smallest",
        "front",
        "none",
        "layer",
        "remaining",
        "idle",
        "clairvoyant",
    )
    runs: Count = 5  # with seeds seed, seed + 1, ...
    seed: int
    json: bool


def tenants(config: TenantsConfig, run: Run) -> Result:
    """Every scheduler on the same jobs; run r draws them and their places with `seed` + r."""
    low, high = config.iterations[0], config.iterations[-1]
    if min(config.workers) < 1 or max(config.workers) > config.racks * config.slots:
        raise InputError("config key 'workers': a job has 1 to racks x slots of them")
    if not 1 <= low <= high:
        raise InputError("config key 'iterations': the first is the least, the second the most")
    path = Path(config.layers)
    models = read_layered_models(path, config.gpu)
    nic, port = config.nic_gbps * 1e9 / 8.0, config.port_gbps * 1e9 / 8.0
    cluster = Racks(config.racks, config.slots, nic, port)
    schedulers = _schedulers(config)
    alone = _Alone(nic, config.chunk_bytes)
    found: dict[str, list[FloatArray]] = {name: [] for name in schedulers}
    seconds = dict.fromkeys(schedulers, 0.0)
    for seed in range(config.seed, config.seed + config.runs):
        jobs = _drawn(config, models, np.random.default_rng(seed))
        dedicated = np.array([alone.seconds(job) for job in jobs])
        for name, sending in schedulers.items():
            start = time.perf_counter()
            begin, end = play_tenants(jobs, cluster, sending, np.random.default_rng(seed))
            seconds[name] += time.perf_counter() - start
            found[name].append((end - begin) / dedicated)
    rows = {name: _row(own, found["fifo"], found["fair"]) for name, own in found.items()}
    best = min(rows.keys() - {CLAIRVOYANT}, key=lambda name: (rows[name]["median"], name))
    title = f"{config.tenants} jobs on {config.racks} racks, {config.runs} runs"
    write_tables(run, title, [_table(rows, seconds)], run.provenance)
    values: dict[str, object] = {
        "tenants": config.tenants,
        "schedulers": [{"scheduler": name, **row} for name, row in rows.items()],
        "least": best,
        "least_median_inflation": rows[best]["median"],
        "fall_from_fifo_percent": rows[best]["fall_from_fifo_percent"],
        "fall_from_fair_percent": rows[best]["fall_from_fair_percent"],
        "seconds": sum(seconds.values()),
    }
    return Result(values, run.provenance.with_inputs(**{path.name: file_hash(path)}), SHOWN)


def _schedulers(config: TenantsConfig) -> dict[str, Sending]:
    """The baselines send gradients as they come, whole; `front` has front tensors alone."""
    chunk = config.chunk_bytes
    found = {name: Sending(ranks, False, chunk) for name, ranks in BASELINES.items()}
    found["front"] = Sending(fair, True, chunk)
    small = (config.compression, config.compressed)
    for weighting in WEIGHTINGS:
        found[weighting] = Sending(CoInNetFlow(weighting), True, chunk, *small)
    unknown = [name for name in config.schedulers if name not in found]
    if unknown or not set(REFERENCES) <= set(config.schedulers):
        told = f"names of {', '.join(found)}, with {' and '.join(REFERENCES)} among them"
        raise InputError(f"config key 'schedulers': these are {told}")
    return {name: found[name] for name in config.schedulers}


def _drawn(
    config: TenantsConfig, models: Mapping[str, LayeredModel], rng: np.random.Generator
) -> list[Tenant]:
    names, n = sorted(models), config.tenants
    arrival = np.cumsum(rng.exponential(config.arrival_s, n)) if config.arrival_s else np.zeros(n)
    columns = (
        rng.choice(names, n),
        rng.choice(config.workers, n),
        rng.integers(config.iterations[0], config.iterations[-1] + 1, n),
    )
    return [
        Tenant(models[name], int(workers), int(iterations), float(start))
        for name, workers, iterations, start in zip(*columns, arrival, strict=True)
    ]


class _Alone:
    """A job by itself, held back by its NICs only, in the better of both orders."""

    def __init__(self, nic: float, chunk: float) -> None:
        self._cluster = Racks(1, 1, nic, nic)
        self._orders = [Sending(fair, front, chunk) for front in (False, True)]
        self._known: dict[tuple[str, int], float] = {}

    def seconds(self, job: Tenant) -> float:
        key = (job.model.name, job.iterations)
        if key not in self._known:
            own = [Tenant(job.model, 1, job.iterations, 0.0)]
            self._known[key] = min(
                float(play_tenants(own, self._cluster, order, np.random.default_rng(0))[1][0])
                for order in self._orders
            )
        return self._known[key]


def _row(
    own: list[FloatArray], fifo: list[FloatArray], fair_: list[FloatArray]
) -> dict[str, float]:
    """Over the runs; an inflation falls by what it comes nearer to 1, in per cent."""
    medians = np.array([np.median(x) for x in own])
    row = {
        "median": float(medians.mean()),
        "low": float(medians.min()),
        "high": float(medians.max()),
        "mean": float(np.mean([x.mean() for x in own])),
        "p95": float(np.mean([np.quantile(x, 0.95) for x in own])),
    }
    for name, other in (("fifo", fifo), ("fair", fair_)):
        above = float(np.mean([np.median(x) for x in other])) - 1.0
        fall = 1.0 - (row["median"] - 1.0) / above if above > 0.0 else 0.0
        row[f"fall_from_{name}_percent"] = 100.0 * fall
    return row


def _table(rows: Mapping[str, Mapping[str, float]], seconds: Mapping[str, float]) -> Table:
    cells = [
        (
            name, f"{row['median']:.3f}", f"{row['low']:.3f}-{row['high']:.3f}",
            f"{row['mean']:.3f}", f"{row['p95']:.2f}", f"{-row['fall_from_fifo_percent']:+.0f} %",
            f"{-row['fall_from_fair_percent']:+.0f} %", f"{seconds[name]:.1f}",
        )
        for name, row in rows.items()
    ]  # fmt: skip
    note = "Time of a job over that alone; above: of the median, what exceeds 1."
    return Table("Inflation of tenants", COLUMNS, cells, note)
