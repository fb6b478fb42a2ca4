"""Packing rules for jobs with fractions of GPUs: what part of a cluster's GPUs each one fills.

meshwright packing pods=openb_pod_list_default.csv nodes=openb_node_list_gpu_node.csv

Pods are drawn at random with replacement until they ask for `load` times the cluster's GPUs; they
arrive one after the other, stay if they fit, and never leave (Weng et al., USENIX ATC 2023,
section 6.1).
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import MinLen
from matplotlib.figure import Figure

from agents.cluster.rules.bins import Bins, requests_by_job, take
from agents.cluster.rules.fractional import FractionalRule, choose
from envs.arrays import BoolArray, FloatArray, IntArray
from envs.bounds import Count, Positive, bounded
from envs.cluster.nodes import Cluster, ResourceRequests
from envs.cluster.workload.readers.openb import OpenbReader, read_openb_nodes
from envs.cluster.workload.trace import WHOLE_GPU
from envs.errors import InputError
from envs.memory import require_memory
from experiments.config.targets import SEEDS, build_as
from experiments.pictures.style import LIMIT, Panel, draw_curves
from experiments.reporting.tables import Table, write_tables
from experiments.run.one_run import Result, Run

RUN_BYTES = 1e4  # of one: a generator, and the arrivals it draws
ARRIVAL_BYTES = 100  # of one, drawn and packed
PICTURE_FILE = "packing.png"
NEAR_FULL = 80.0  # percent of the GPUs from which the second panel shows the curves
COLUMNS = {
    "rule": "{rule}", "allocated": "{mean_allocation_percent:.2f} %",
    "sd": "{standard_deviation:.2f}", "least": "{least_allocation_percent:.2f} %",
    "most": "{most_allocation_percent:.2f} %", "failed": "{mean_failed_percent:.1f} %",
    "time": "{seconds:.1f} s",
}  # fmt: skip


@dataclass(kw_only=True)
class PackingConfig:
    """`conf/packing.yaml`; `rules` are objects by `_target_`."""

    pods: str  # openb file of pods: CSV, plain or .gz
    nodes: str  # openb file of nodes
    load: Positive = 1.3  # GPUs asked for in all, over the GPUs of the cluster
    runs: Count = 10  # with seeds seed, seed + 1, ...
    rules: Annotated[dict[str, Any], MinLen(1)]
    seed: int
    json: bool


def packing(config: PackingConfig, run: Run) -> Result:
    """Every rule on the same arrivals; run r draws them with the seed `seed` + r."""
    start = time.perf_counter()
    seeds, load = range(config.seed, config.seed + config.runs), config.load
    if seeds.stop > SEEDS:
        raise InputError(f"config key 'runs': seeds above {SEEDS - 1} are needed")
    rules = {
        name: build_as(FractionalRule, node, f"rules.{name}", "packing rule")
        for name, node in config.rules.items()
    }
    pods, cluster = OpenbReader().read_requests(config.pods), read_openb_nodes(config.nodes)
    require_memory(RUN_BYTES * config.runs, f"{config.runs:,} runs", field="runs")
    arrivals = {
        seed: draw_arrivals(pods, cluster, load, np.random.default_rng([seed, 0])) for seed in seeds
    }
    percent = 100 / (cluster.num_gpus * WHOLE_GPU)  # of the cluster, a thousandth of a GPU
    demand = np.arange(0.0, 100 * load + 0.5, 1.0)  # percent at which curves are read off
    rows, curves = list[dict[str, Any]](), dict[str, FloatArray]()
    for name, rule in rules.items():
        began, filled, final, failed = time.perf_counter(), [], [], []
        for seed, jobs in arrivals.items():
            fitted = pack(rule, cluster, pods, jobs, np.random.default_rng([seed, 1]))
            asked = pods.demand_milli[jobs]
            allocated = np.cumsum(np.where(fitted, asked, 0)) * percent
            arrived = np.searchsorted(np.cumsum(asked) * percent, demand + 1e-9, side="right")
            filled.append(np.concatenate([[0.0], allocated])[arrived])
            final.append(allocated[-1])
            failed.append(100 * np.sum(~fitted) / len(jobs))
        curves[name] = np.array(filled)
        rows.append({
            "rule": name,
            "mean_allocation_percent": np.mean(final),
            "standard_deviation": np.std(final, ddof=1) if len(seeds) > 1 else np.nan,
            "least_allocation_percent": min(final),
            "most_allocation_percent": max(final),
            "allocation_percent": final,
            "mean_failed_percent": np.mean(failed),
            "curve_percent": curves[name].mean(axis=0),
            "seconds": time.perf_counter() - began,
        })  # fmt: skip
    provenance = run.provenance.with_files(config.pods, config.nodes)
    title = (
        f"{pods.name} on {cluster.name}: {cluster.num_nodes:,} nodes, "
        f"{cluster.num_gpus:,} GPUs, demand {100 * load:g} %"
    )
    columns = COLUMNS if config.runs > 1 else {**COLUMNS, "sd": ""}
    figures = {PICTURE_FILE: _picture(demand, curves, title)}
    write_tables(run, title, [Table.of("Rules", columns, rows)], provenance, figures=figures)
    return Result(
        {
            "nodes": cluster.num_nodes,
            "gpus": cluster.num_gpus,
            "pods": len(pods),
            "seeds": list(seeds),
            "mean_arrivals": np.mean([*map(len, arrivals.values())]),
            "demand_percent": demand,
            "load": load,
            "rules": rows,
            "picture": str(run.folder / PICTURE_FILE),
            "seconds": time.perf_counter() - start,
        },
        provenance,
        shown=("pods", "mean_arrivals", "picture", "seconds"),
    )


@bounded
def draw_arrivals(
    workload: ResourceRequests, cluster: Cluster, load: Positive, rng: np.random.Generator
) -> IntArray:
    """Jobs drawn at random with replacement, until they ask for `load` times the cluster's GPUs.

    Raises:
        InputError: the cluster or the workload has no GPUs.
    """
    demand = workload.demand_milli
    if not cluster.num_gpus:
        raise InputError("nothing to pack on: no GPUs", file=cluster.name, field="gpus")
    if not demand.any():
        raise InputError("nothing to pack: no GPUs", file=workload.name, field="num_gpus")
    wanted = load * cluster.num_gpus * WHOLE_GPU
    require_memory(ARRIVAL_BYTES * wanted / demand.mean(), "so many arrivals", field="load")
    drawn = rng.integers(len(workload), size=int(wanted / demand.mean()) + 1)
    while demand[drawn].sum() < wanted:
        drawn = np.concatenate([drawn, rng.integers(len(workload), size=len(drawn))])
    enough = int(np.searchsorted(np.cumsum(demand[drawn]), wanted)) + 1
    return rng.permutation(drawn[:enough])


def pack(
    rule: FractionalRule,
    cluster: Cluster,
    workload: ResourceRequests,
    arrivals: IntArray,
    rng: np.random.Generator,
) -> BoolArray:
    """(K,) which of the arrivals, numbers of jobs, fit on the empty cluster where `rule` says."""
    bins, requests = Bins.empty(cluster), requests_by_job(workload, cluster)
    costs = rule.costs(cluster, bins, len(set(requests)), workload)
    fitted = np.zeros(len(arrivals), np.bool_)
    for place, job in enumerate(arrivals.tolist()):
        if spot := choose(rule, costs, bins, requests[job], rng):
            take(bins, *spot, requests[job])
            fitted[place] = True
    return fitted


def _picture(demand: FloatArray, rules: Mapping[str, FloatArray], title: str) -> Figure:
    """The whole curves on the left, where the rules part on the right.

    Of each rule (R, P) percent in R runs: their mean, least and most.
    """
    series = {
        f"{rule}  {runs[:, -1].mean():.1f} %": (
            demand, runs.mean(axis=0), runs.min(axis=0), runs.max(axis=0)
        )
        for rule, runs in rules.items()
    }  # fmt: skip
    near = NEAR_FULL if demand[-1] > NEAR_FULL else 0.0
    labels = {
        "xlabel": "GPUs asked for so far (% of the cluster)",
        "ylabel": "GPUs allocated (% of the cluster)",
    }
    panels = [
        Panel(series, {"xlim": (low, demand[-1]), "ylim": (low, 100.5), **labels})
        for low in (0, near)
    ]
    figure = draw_curves(title, panels, 11, 5.0, 2)
    for axes in figure.axes:
        axes.plot(demand, np.minimum(demand, 100.0), **LIMIT)
    return figure
