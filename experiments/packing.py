"""Packing rules for jobs with fractions of GPUs: what part of a cluster's GPUs each one fills.

python -m experiments.packing pods=openb_pod_list_default.csv nodes=openb_node_list_gpu_node.csv

Pods are drawn at random with replacement until they ask for `load` times the cluster's GPUs; they
arrive one after the other, stay if they fit, and never leave (Weng et al., USENIX ATC 2023).
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from agents.cluster.rules.fractional import FractionalRule
from agents.cluster.rules.packing import draw_arrivals, pack
from envs.cluster.nodes import Cluster
from envs.cluster.workload.readers.openb import OpenbReader, read_openb_nodes
from envs.cluster.workload.requests import ResourceRequests
from envs.cluster.workload.trace import WHOLE_GPU
from envs.errors import InputError
from experiments.pictures.cluster import draw_packing
from experiments.run.app import Result, Run, run_app
from experiments.run.artifacts import to_json, write_figure, write_text
from experiments.run.provenance import file_hash, stamp
from experiments.run.tables import console_table, markdown_table
from experiments.run.targets import SEEDS, build, no_such_thing

COLUMNS = ("rule", "allocated", "sd", "least", "most", "failed", "time")
PICTURE_FILE, TABLE_FILE = "packing.png", "table.md"
CURVE_STEP = 1.0  # percent of demand between points of the curves

FloatArray = NDArray[np.float64]


@dataclass
class PackingConfig:
    """`conf/packing.yaml`; `rules` are objects by `_target_`."""

    pods: str
    nodes: str
    load: float
    runs: int
    rules: dict[str, Any]
    seed: int
    json: bool

    def __post_init__(self) -> None:
        if self.runs < 1:
            raise InputError(f"config key 'runs': {self.runs} is below 1")
        if not 0 < self.load < float("inf"):
            raise InputError(f"config key 'load': {self.load} is not positive and finite")
        if self.seed + self.runs > SEEDS:
            raise InputError(f"config key 'runs': seeds above {SEEDS - 1} are needed")
        if not self.rules:
            raise InputError("config key 'rules': no rule")
        for name, node in self.rules.items():
            if not isinstance(node, dict) or "_target_" not in node:
                raise no_such_thing(f"rules.{name}", node, "packing rule by _target_")


@dataclass(frozen=True, eq=False)
class Filled:
    """One rule over R runs."""

    rule: str
    curves: FloatArray  # (R, P) percent of the GPUs allocated, by demand
    final: FloatArray  # (R,) percent at the end
    failed: FloatArray  # (R,) percent of the pods that did not fit
    seconds: float  # of all runs

    @property
    def deviation(self) -> float:
        """Standard deviation of `final` between runs; nan for a single one."""
        return float(np.std(self.final, ddof=1)) if len(self.final) > 1 else float("nan")

    def cells(self) -> tuple[str, ...]:
        """The row of the table."""
        spread = f"{self.deviation:.2f}" if len(self.final) > 1 else ""
        return (
            self.rule,
            f"{self.final.mean():.2f} %",
            spread,
            f"{self.final.min():.2f} %",
            f"{self.final.max():.2f} %",
            f"{self.failed.mean():.1f} %",
            f"{self.seconds:.1f} s",
        )

    def document(self) -> dict[str, object]:
        """The row as numbers."""
        return {
            "rule": self.rule,
            "mean_allocation_percent": float(self.final.mean()),
            "standard_deviation": self.deviation,
            "least_allocation_percent": float(self.final.min()),
            "most_allocation_percent": float(self.final.max()),
            "allocation_percent": self.final,
            "mean_failed_percent": float(self.failed.mean()),
            "curve_percent": self.curves.mean(axis=0),
            "seconds": self.seconds,
        }


def packing(config: PackingConfig, run: Run) -> Result:
    """Every rule on the same arrivals; run r draws them with the seed `seed` + r."""
    start = time.perf_counter()
    cluster = read_openb_nodes(config.nodes)
    workload = OpenbReader().read_requests(config.pods)
    rules = {name: packing_rule(name, node) for name, node in config.rules.items()}
    seeds = range(config.seed, config.seed + config.runs)
    arrivals = [
        draw_arrivals(workload, cluster, config.load, np.random.default_rng([seed, 0]))
        for seed in seeds
    ]
    demand = np.arange(0.0, 100 * config.load + CURVE_STEP / 2, CURVE_STEP)
    found = []
    for name, rule in rules.items():
        run.console.print(f"{name}: {config.runs} runs", highlight=False)
        found.append(fill(name, rule, cluster, workload, arrivals, list(seeds), demand))
    provenance = run.provenance.with_inputs(
        **{Path(path).name: file_hash(path) for path in (config.pods, config.nodes)}
    )
    title = (
        f"{workload.name} on {cluster.name}: {cluster.num_nodes:,} nodes, "
        f"{cluster.num_gpus:,} GPUs, demand {100 * config.load:g} %"
    )
    cells = [row.cells() for row in found]
    table = console_table(title, COLUMNS)
    for row in cells:
        table.add_row(*row)
    run.console.print(table)
    header = f"<!-- {to_json(stamp({}, provenance, kind='table'))}-->\n\n"
    write_text(run.folder / TABLE_FILE, f"{header}# {title}\n\n{markdown_table(COLUMNS, cells)}")
    curves = {row.rule: row.curves for row in found}
    write_figure(run.folder / PICTURE_FILE, draw_packing(demand, curves, title), provenance)
    values: dict[str, object] = {
        "nodes": cluster.num_nodes,
        "gpus": cluster.num_gpus,
        "pods": len(workload),
        "load": config.load,
        "seeds": list(seeds),
        "mean_arrivals": float(np.mean([len(jobs) for jobs in arrivals])),
        "demand_percent": demand,
        "rules": [row.document() for row in found],
        "picture": str(run.folder / PICTURE_FILE),
        "seconds": time.perf_counter() - start,
    }
    return Result(values, provenance, shown=("pods", "mean_arrivals", "picture", "seconds"))


def packing_rule(name: str, node: Mapping[str, Any]) -> FractionalRule:
    """The rule that `rules.<name>` describes.

    Raises:
        InputError: it describes something else.
    """
    rule = build(node, f"rules.{name}")
    if not isinstance(rule, FractionalRule):
        raise no_such_thing(f"rules.{name}", node, "packing rule")
    return rule


def fill(
    name: str,
    rule: FractionalRule,
    cluster: Cluster,
    workload: ResourceRequests,
    arrivals: list[NDArray[np.int64]],
    seeds: list[int],
    demand: FloatArray,
) -> Filled:
    """Pack every list of arrivals; the curves are read off at `demand`, percent of the GPUs."""
    start = time.perf_counter()
    percent = 100 / (cluster.num_gpus * WHOLE_GPU)
    curves, final, failed = [], [], []
    for seed, jobs in zip(seeds, arrivals, strict=True):
        packed = pack(rule, cluster, workload, jobs, np.random.default_rng([seed, 1]))
        arrived = np.searchsorted(packed.arrived_milli * percent, demand + 1e-9, side="right")
        allocated = np.concatenate([[0.0], packed.allocated_milli * percent])
        curves.append(allocated[arrived])
        final.append(allocated[-1])
        failed.append(100 * packed.failed / len(jobs))
    return Filled(
        rule=name,
        curves=np.array(curves),
        final=np.array(final),
        failed=np.array(failed),
        seconds=time.perf_counter() - start,
    )


if __name__ == "__main__":
    sys.exit(run_app("packing", PackingConfig, packing))
