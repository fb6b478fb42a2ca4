"""Packing rules for jobs with fractions of GPUs: what part of a cluster's GPUs each one fills.

python -m experiments.packing pods=openb_pod_list_default.csv nodes=openb_node_list_gpu_node.csv

Pods are drawn at random with replacement until they ask for `load` times the cluster's GPUs; they
arrive one after the other, stay if they fit, and never leave (Weng et al., USENIX ATC 2023).
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any

import numpy as np
from annotated_types import MinLen
from matplotlib.figure import Figure

from agents.cluster.rules.fractional import FractionalRule
from envs.arrays import FloatArray
from envs.bounds import Count, Positive
from envs.cluster.workload.readers.openb import OpenbReader, read_openb_nodes
from envs.cluster.workload.trace import WHOLE_GPU
from envs.errors import InputError
from envs.memory import require_memory
from experiments.config.targets import SEEDS, build_as
from experiments.papers.fractional_packing.packing import Packed, draw_arrivals, pack
from experiments.pictures.style import LIMIT, Panel, draw_curves
from experiments.reporting.tables import Table, write_tables
from experiments.run.one_run import Result, Run

RUN_BYTES = 1e4  # of one: a generator, and the arrivals it draws
PICTURE_FILE = "packing.png"
CURVE_STEP = 1.0  # percent of demand between points of the curves
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
    arrivals = [
        draw_arrivals(pods, cluster, load, np.random.default_rng([seed, 0])) for seed in seeds
    ]
    demand = np.arange(0.0, 100 * load + CURVE_STEP / 2, CURVE_STEP)
    rows, curves = [], {}
    for name, rule in rules.items():
        began = time.perf_counter()
        packed = [
            pack(rule, cluster, pods, jobs, np.random.default_rng([seed, 1]))
            for seed, jobs in zip(seeds, arrivals, strict=True)
        ]
        curves[name], record = filled(packed, demand, 100 / (cluster.num_gpus * WHOLE_GPU))
        rows.append({"rule": name, **record, "seconds": time.perf_counter() - began})
    provenance = run.provenance.with_files(config.pods, config.nodes)
    title = (
        f"{pods.name} on {cluster.name}: {cluster.num_nodes:,} nodes, "
        f"{cluster.num_gpus:,} GPUs, demand {100 * load:g} %"
    )
    columns = COLUMNS if config.runs > 1 else {**COLUMNS, "sd": ""}
    figures = {PICTURE_FILE: draw_packing(demand, curves, title)}
    write_tables(run, title, [Table.of("Rules", columns, rows)], provenance, figures=figures)
    return Result(
        {
            "nodes": cluster.num_nodes,
            "gpus": cluster.num_gpus,
            "pods": len(pods),
            "seeds": list(seeds),
            "mean_arrivals": float(np.mean([len(jobs) for jobs in arrivals])),
            "demand_percent": demand,
            "load": load,
            "rules": rows,
            "picture": str(run.folder / PICTURE_FILE),
            "seconds": time.perf_counter() - start,
        },
        provenance,
        shown=("pods", "mean_arrivals", "picture", "seconds"),
    )


def filled(
    runs: Sequence[Packed], demand: FloatArray, percent: float
) -> tuple[FloatArray, dict[str, object]]:
    """(R, P) percent of the GPUs allocated by demand, and the figures of one rule over R runs.

    Args:
        runs: of the rule.
        demand: (P,) percent of the cluster's GPUs at which the curves are read off.
        percent: of the cluster that a thousandth of a GPU is.
    """
    curves = []
    for packed in runs:
        demanded = packed.arrived_milli * percent
        arrived = np.searchsorted(demanded, demand + 1e-9, side="right")
        curves.append(np.concatenate([[0.0], packed.allocated_milli * percent])[arrived])
    final = np.array([packed.allocated_milli[-1] * percent for packed in runs])
    record = {
        "mean_allocation_percent": float(final.mean()),
        "standard_deviation": float(np.std(final, ddof=1)) if len(final) > 1 else float("nan"),
        "least_allocation_percent": float(final.min()),
        "most_allocation_percent": float(final.max()),
        "allocation_percent": final,
        "mean_failed_percent": float(np.mean([100 * one.failed / len(one.jobs) for one in runs])),
        "curve_percent": np.mean(curves, axis=0),
    }
    return np.array(curves), record


NEAR_FULL = 80.0  # percent of the GPUs from which the second panel shows the curves


def draw_packing(demand: FloatArray, rules: Mapping[str, FloatArray], title: str) -> Figure:
    """The whole curves on the left, where the rules part on the right.

    Args:
        demand: (P,) percent of the cluster's GPUs asked for so far.
        rules: by rule, (R, P) percent allocated in R runs; drawn are mean, least and most.
        title: of the figure.
    """
    series = {
        f"{rule}  {runs[:, -1].mean():.1f} %": (
            demand, runs.mean(axis=0), runs.min(axis=0), runs.max(axis=0)
        )
        for rule, runs in rules.items()
    }  # fmt: skip
    near = NEAR_FULL if demand[-1] > NEAR_FULL else 0.0
    panels = [
        Panel(
            series,
            {
                "xlim": (low, demand[-1]), "ylim": (low, 100.5),
                "xlabel": "GPUs asked for so far (% of the cluster)",
                "ylabel": "GPUs allocated (% of the cluster)",
            },
        )
        for low in (0, near)
    ]  # fmt: skip
    figure = draw_curves(title, panels, 11, 5.0, 2)
    for axes in figure.axes:
        axes.plot(demand, np.minimum(demand, 100.0), **LIMIT)
    return figure
