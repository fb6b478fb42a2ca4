"""Coflows under an order of priorities beside a proved bound; or jobs that share in-network sums.

meshwright coflows input=FB2010-1Hr-150-0.txt.gz agent=bssi rates=madd json=true
meshwright coflows tenants=300 layers=layers.csv

With `tenants=<jobs>` training jobs on racks run under every scheduler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np
from annotated_types import Ge, MinLen

from envs.bounds import Count, NonNegative, Positive, Share
from envs.compilation import clock
from envs.errors import InputError, require_one_of
from envs.synchronisation.layerwise import LayeredModel, read_layered_models
from experiments.papers.coinnetflow.orders import (
    BASELINES,
    CLAIRVOYANT,
    FAIR,
    ORDERS,
    WEIGHTINGS,
    coinnetflow,
    fair,
    lower_bound,
)
from experiments.papers.coinnetflow.simulation import RATES, simulate, simulate_fair
from experiments.papers.coinnetflow.tenants import Racks, Sending, Tenant, play_tenants
from experiments.papers.coinnetflow.trace import COFLOWSIM, read_coflows, simulate_coflowsim
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
    rates: Literal["madd", "greedy"] = "madd"
    # online: coflows arrive; offline: all are there; coflowsim: as that program; null: by form
    semantics: Literal["offline", "online", "coflowsim"] | None = None
    coflows: Count | None = None  # of the file, the first so many; null: all
    seed: int
    json: bool

    def __post_init__(self) -> None:
        as_that = self.semantics == "coflowsim"
        require_one_of(
            self.agent, COFLOWSIM if as_that else [*ORDERS, FAIR], file="config key 'agent'"
        )
        if as_that and self.rates != "madd":
            raise InputError("config key 'rates': CoflowSim has madd only")


def coflows(config: CoflowsConfig, run: Run) -> Result:
    """Replay the coflows of a file under one order; the bound holds for every schedule."""
    path = Path(config.input)
    trace = read_coflows(path)
    if config.coflows is not None:
        trace = trace.first(config.coflows)
    semantics = config.semantics or ("online" if trace.benchmark else "offline")
    if semantics == "coflowsim" and not trace.benchmark:
        fault = "CoflowSim reads coflows with mappers and reducers, this file has flows"
        raise InputError(f"config key 'semantics': {fault}")
    problem = trace.problem.offline() if semantics == "offline" else trace.problem
    start = clock()
    if semantics == "coflowsim":
        problem, times = simulate_coflowsim(trace, config.agent)
    elif config.agent == FAIR:
        times = simulate_fair(problem)
    else:
        times = simulate(problem, ORDERS[config.agent], RATES[config.rates])
    seconds = clock() - start
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
        "simulation_seconds": seconds,
    }
    return Result(values, run.provenance.with_files(path), SHOWN)


REFERENCES, FRONT = ("fifo", FAIR), "front"
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
        "fifo", "fair", "smallest", "front", "none", "layer", "remaining", "idle", "clairvoyant",
    )  # fmt: skip
    runs: Count = 5  # with seeds seed, seed + 1, ...
    seed: int
    json: bool

    def __post_init__(self) -> None:
        if min(self.workers) < 1 or max(self.workers) > self.racks * self.slots:
            raise InputError("config key 'workers': a job has 1 to racks x slots of them")
        if not 1 <= self.iterations[0] <= self.iterations[-1]:
            raise InputError("config key 'iterations': the first is the least, the second the most")
        known = [*BASELINES, FRONT, *WEIGHTINGS]
        if not set(REFERENCES) <= set(self.schedulers) <= set(known):
            names = f"names of {', '.join(known)}, with {' and '.join(REFERENCES)} among them"
            raise InputError(f"config key 'schedulers': these are {names}")


def tenants(config: TenantsConfig, run: Run) -> Result:
    """Every scheduler on the same jobs; run r draws them and their places with `seed` + r."""
    models = read_layered_models(Path(config.layers), config.gpu)
    nic, port = config.nic_gbps * 1e9 / 8.0, config.port_gbps * 1e9 / 8.0
    cluster, rack = Racks(config.racks, config.slots, nic, port), Racks(1, 1, nic, nic)
    n, chunk = config.tenants, config.chunk_bytes
    small = (config.compression, config.compressed)
    known = {
        **{name: Sending(ranks, False, chunk) for name, ranks in BASELINES.items()},
        FRONT: Sending(fair, True, chunk),
        **{name: Sending(coinnetflow(x), True, chunk, *small) for name, x in WEIGHTINGS.items()},
    }

    @cache
    def alone(model: LayeredModel, iterations: int) -> float:
        """Seconds of a job by itself, held back by its NICs only, in the better of both orders."""
        job, rng = [Tenant(model, 1, iterations, 0.0)], np.random.default_rng(0)
        played = (play_tenants(job, rack, known[name], rng) for name in (FAIR, FRONT))
        return min(float(end[0]) for _, end in played)

    inflation = {name: np.zeros((config.runs, n)) for name in config.schedulers}
    seconds = dict.fromkeys(inflation, 0.0)
    for r, seed in enumerate(range(config.seed, config.seed + config.runs)):
        rng = np.random.default_rng(seed)
        columns = (
            np.cumsum(rng.exponential(config.arrival_s, n)) if config.arrival_s else np.zeros(n),
            rng.choice(sorted(models), n),
            rng.choice(config.workers, n),
            rng.integers(config.iterations[0], config.iterations[-1] + 1, n),
        )
        jobs = [
            Tenant(models[name], workers, iterations, start)
            for start, name, workers, iterations in zip(*(x.tolist() for x in columns), strict=True)
        ]
        dedicated = np.array([alone(job.model, job.iterations) for job in jobs])
        for name, inflated in inflation.items():
            start = clock()
            begin, end = play_tenants(jobs, cluster, known[name], np.random.default_rng(seed))
            seconds[name] += clock() - start
            inflated[r] = (end - begin) / dedicated
    medians = {name: np.median(inflated, axis=1) for name, inflated in inflation.items()}
    rows = list[dict[str, Any]]()
    for name, inflated in inflation.items():
        median = medians[name].mean()
        row: dict[str, Any] = {
            "scheduler": name, "median": median, "low": medians[name].min(),
            "high": medians[name].max(), "mean": inflated.mean(axis=1).mean(),
            "p95": np.quantile(inflated, 0.95, axis=1).mean(), "seconds": seconds[name],
        }  # fmt: skip
        for other in REFERENCES:  # an inflation falls by what it comes nearer to 1
            above = medians[other].mean() - 1.0
            fall = 1.0 - (median - 1.0) / above if above > 0.0 else 0.0
            row[f"fall_from_{other}_percent"] = 100.0 * fall
        rows.append(row)
    best = min(
        (row for row in rows if row["scheduler"] != CLAIRVOYANT),
        key=lambda row: (row["median"], row["scheduler"]),
    )
    title = f"{n} jobs on {config.racks} racks, {config.runs} runs"
    write_tables(
        run, title, [Table.of("Inflation of tenants", COLUMNS, rows, NOTE)], run.provenance
    )
    values: dict[str, object] = {
        "tenants": n,
        "schedulers": rows,
        "least": best["scheduler"],
        "least_median_inflation": best["median"],
        **{key: best[key] for key in TENANTS_SHOWN[2:]},
        "seconds": sum(seconds.values()),
    }
    return Result(values, run.provenance.with_files(config.layers), TENANTS_SHOWN)
