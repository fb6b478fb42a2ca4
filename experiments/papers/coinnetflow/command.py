"""Coflows under an order of priorities beside a proved bound; or jobs that share in-network sums.

meshwright coflows input=FB2010-1Hr-150-0.txt.gz agent=bssi rates=madd json=true
meshwright coflows tenants=300 layers=layers.csv

With `tenants=<jobs>` training jobs on racks run under every scheduler.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Literal

import numpy as np
from annotated_types import Ge, MinLen

from envs.arrays import FloatArray
from envs.bounds import Count, NonNegative, Positive, Share
from envs.errors import InputError, require_one_of
from envs.synchronisation.layerwise import LayeredModel, read_layered_models
from experiments.papers.coinnetflow.orders import (
    BASELINES,
    CLAIRVOYANT,
    FAIR,
    ORDERS,
    WEIGHTINGS,
    CoInNetFlow,
    fair,
    lower_bound,
)
from experiments.papers.coinnetflow.simulation import (
    CoflowProblem,
    CoflowTimes,
    Rates,
    simulate,
    simulate_fair,
)
from experiments.papers.coinnetflow.tenants import Racks, Sending, Tenant, play_tenants
from experiments.papers.coinnetflow.trace import (
    CoflowTrace,
    quantised,
    read_coflows,
    simulate_coflowsim,
)
from experiments.reporting.tables import Columns, Table, write_tables
from experiments.run.one_run import Result, Run

SHOWN = ("coflows", "ports", "semantics", "mean_cct_ms", "sum_cct_ms", "lower_bound_ms", "gap")


@dataclass(kw_only=True)
class CoflowsConfig:
    """`conf/coflows.yaml`."""

    input: str  # the trace: in the coflow-benchmark or the UPWS form, plain or .gz
    # fifo, sebf, scf, ncf, lcf, bssi: an order; fair: max-min fair flows, without one
    agent: str = "bssi"
    # madd: a coflow's flows end together; greedy: flow after flow gets all it can
    rates: Rates = "madd"
    # online: coflows arrive; offline: all are there; coflowsim: as that program; null: by
    # form
    semantics: Literal["offline", "online", "coflowsim"] | None = None
    coflows: Count | None = None  # of the file, the first so many; null: all
    seed: int
    json: bool

    def __post_init__(self) -> None:
        require_one_of(self.agent, (*ORDERS, FAIR), file="config key 'agent'")


def coflows(config: CoflowsConfig, run: Run) -> Result:
    """Replay the coflows of a file under one order; the bound holds for every schedule."""
    path = Path(config.input)
    trace = read_coflows(path)
    if config.coflows is not None:
        trace = trace.first(config.coflows)
    semantics = config.semantics or ("offline" if trace.shuffles is None else "online")
    _replayed(config, trace.first(1), semantics)  # whose kernels are compiled, or read, here
    start = time.perf_counter()
    problem, times = _replayed(config, trace, semantics)
    simulated = time.perf_counter()
    total, bound = float(times.completion.sum()), lower_bound(problem)
    values: dict[str, object] = {
        "coflows": problem.num_coflows,
        "ports": problem.ports,
        "flows": len(problem.size),
        "agent": config.agent,
        "rates": config.rates,
        "semantics": semantics,
        "cct_ms": times.completion,
        "sum_cct_ms": total,
        "mean_cct_ms": total / problem.num_coflows,
        "lower_bound_ms": min(bound, total),  # they are equal where the schedule is optimal
        "gap": total / bound - 1.0 if bound > 0.0 else 0.0,
        "events": times.events,
        "simulation_seconds": simulated - start,
    }
    return Result(values, run.provenance.with_files(path), SHOWN)


def _replayed(
    config: CoflowsConfig, trace: CoflowTrace, semantics: str
) -> tuple[CoflowProblem, CoflowTimes]:
    if semantics == "coflowsim":
        if config.rates != "madd":
            raise InputError("config key 'rates': CoflowSim has madd only")
        try:
            found = quantised(trace)
            return found.problem, simulate_coflowsim(found, trace.arrival, config.agent)
        except InputError as error:
            raise InputError(f"config key '{error.field}': {error.message}") from error
    problem = trace.problem.offline() if semantics == "offline" else trace.problem
    if config.agent == FAIR:
        return problem, simulate_fair(problem)
    return problem, simulate(problem, ORDERS[config.agent], config.rates)


REFERENCES = ("fifo", "fair")
COLUMNS: Columns = {
    "scheduler": "{scheduler}",
    "median": "{median:.3f}",
    "range": "{low:.3f}-{high:.3f}",
    "mean": "{mean:.3f}",
    "p95": "{p95:.2f}",
    "above fifo's": lambda row: f"{-row['fall_from_fifo_percent']:+.0f} %",
    "above fair's": lambda row: f"{-row['fall_from_fair_percent']:+.0f} %",
    "s": "{seconds:.1f}",
}
NOTE = "Time of a job over that alone; above: of the median, what exceeds 1."
TENANTS_SHOWN = (
    "tenants", "least_median_inflation", "fall_from_fifo_percent", "fall_from_fair_percent",
)  # fmt: skip


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
    models = read_layered_models(Path(config.layers), config.gpu)
    nic, port = config.nic_gbps * 1e9 / 8.0, config.port_gbps * 1e9 / 8.0
    cluster = Racks(config.racks, config.slots, nic, port)
    schedulers = _schedulers(config)
    rack = Racks(1, 1, nic, nic)
    orders = [Sending(fair, front, config.chunk_bytes) for front in (False, True)]

    @cache
    def alone(name: str, iterations: int) -> float:
        """Seconds of a job by itself, held back by its NICs only, in the better of both orders."""
        job = [Tenant(models[name], 1, iterations, 0.0)]
        return min(
            float(play_tenants(job, rack, order, np.random.default_rng(0))[1][0])
            for order in orders
        )

    found: dict[str, list[FloatArray]] = {name: [] for name in schedulers}
    seconds = dict.fromkeys(schedulers, 0.0)
    for seed in range(config.seed, config.seed + config.runs):
        jobs = _drawn(config, models, np.random.default_rng(seed))
        dedicated = np.array([alone(job.model.name, job.iterations) for job in jobs])
        for name, sending in schedulers.items():
            start = time.perf_counter()
            begin, end = play_tenants(jobs, cluster, sending, np.random.default_rng(seed))
            seconds[name] += time.perf_counter() - start
            found[name].append((end - begin) / dedicated)
    rows = {name: _row(own, found) for name, own in found.items()}
    best = min(rows.keys() - {CLAIRVOYANT}, key=lambda name: (rows[name]["median"], name))
    title = f"{config.tenants} jobs on {config.racks} racks, {config.runs} runs"
    shown = [{**row, "scheduler": name, "seconds": seconds[name]} for name, row in rows.items()]
    table = Table.of("Inflation of tenants", COLUMNS, shown, NOTE)
    write_tables(run, title, [table], run.provenance)
    values: dict[str, object] = {
        "tenants": config.tenants,
        "schedulers": [{"scheduler": name, **row} for name, row in rows.items()],
        "least": best,
        "least_median_inflation": rows[best]["median"],
        "fall_from_fifo_percent": rows[best]["fall_from_fifo_percent"],
        "fall_from_fair_percent": rows[best]["fall_from_fair_percent"],
        "seconds": sum(seconds.values()),
    }
    return Result(values, run.provenance.with_files(config.layers), TENANTS_SHOWN)


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


def _row(own: list[FloatArray], found: Mapping[str, list[FloatArray]]) -> dict[str, float]:
    """Over the runs; an inflation falls by what it comes nearer to 1, in per cent."""
    medians = np.array([np.median(x) for x in own])
    row = {
        "median": float(medians.mean()),
        "low": float(medians.min()),
        "high": float(medians.max()),
        "mean": float(np.mean([x.mean() for x in own])),
        "p95": float(np.mean([np.quantile(x, 0.95) for x in own])),
    }
    for name in REFERENCES:
        above = float(np.mean([np.median(x) for x in found[name]])) - 1.0
        fall = 1.0 - (row["median"] - 1.0) / above if above > 0.0 else 0.0
        row[f"fall_from_{name}_percent"] = 100.0 * fall
    return row
