"""Packing rules for jobs with fractions of GPUs: what part of a cluster's GPUs each one fills.

python -m experiments.packing pods=openb_pod_list_default.csv nodes=openb_node_list_gpu_node.csv

Pods are drawn at random with replacement until they ask for `load` times the cluster's GPUs; they
arrive one after the other, stay if they fit, and never leave (Weng et al., USENIX ATC 2023).
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from annotated_types import MinLen

from agents.cluster.rules.fractional import FractionalRule
from envs.bounds import Count, Positive
from envs.cluster.workload.readers.openb import OpenbReader, read_openb_nodes
from envs.errors import InputError
from experiments.cluster.packing_runs import COLUMNS, PackingRuns
from experiments.config.targets import SEEDS, build_as
from experiments.pictures.studies import draw_packing
from experiments.run.app import main_of
from experiments.run.artifacts import write_figure
from experiments.run.one_run import Result, Run
from experiments.run.provenance import file_hash
from experiments.study.tables import Table, write_tables


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
    if config.seed + config.runs > SEEDS:
        raise InputError(f"config key 'runs': seeds above {SEEDS - 1} are needed")
    rules = {
        name: build_as(FractionalRule, node, f"rules.{name}", "packing rule")
        for name, node in config.rules.items()
    }
    runs = PackingRuns(
        OpenbReader().read_requests(config.pods),
        read_openb_nodes(config.nodes),
        config.load,
        range(config.seed, config.seed + config.runs),
    )
    found = [runs.fill(name, rule) for name, rule in rules.items()]
    files = (config.pods, config.nodes)
    provenance = run.provenance.with_inputs(**{Path(path).name: file_hash(path) for path in files})
    table = Table("Rules", COLUMNS, [row.cells() for row in found])
    write_tables(run, runs.title, [table], provenance)
    picture = run.folder / "packing.png"
    curves = {row.rule: row.curves for row in found}
    write_figure(picture, draw_packing(runs.demand, curves, runs.title), provenance)
    values = {
        **runs.document(),
        "load": config.load,
        "rules": [row.document() for row in found],
        "picture": str(picture),
        "seconds": time.perf_counter() - start,
    }
    return Result(values, provenance, shown=("pods", "mean_arrivals", "picture", "seconds"))


main = main_of("packing")
