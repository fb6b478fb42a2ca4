"""Play the flows of a file over a network: when does each one end?

python -m experiments.evaluate flows=flows.csv.gz json=true
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from envs.network.flow_file import read_flow_file
from experiments.run.one_run import Result, Run

SHOWN = (
    "flows", "shards", "mean_slow_down", "p50_slow_down", "p99_slow_down",
    "largest_relative_difference",
)  # fmt: skip


@dataclass(kw_only=True)
class FlowsConfig:
    """`conf/flows.yaml`."""

    flows: str  # the file of flows: CSV, plain or .gz
    seed: int
    json: bool


def flows(config: FlowsConfig, run: Run) -> Result:
    """Simulate every shard of the file; where it gives completion times, compare with them.

    The slow-down of a flow is its completion time over the time it takes alone.
    """
    path = Path(config.flows)
    start = time.perf_counter()
    file = read_flow_file(path)
    read = time.perf_counter()
    found = file.completion_ns()
    simulated = time.perf_counter()
    slow_down = found / file.ideal_ns
    difference = None
    if file.fct_ns is not None and not np.all(np.isnan(file.fct_ns)):
        difference = float(np.nanmax(np.abs(found - file.fct_ns) / file.fct_ns))
    return Result(
        {
            "flows": file.num_flows,
            "shards": len(file.shards),
            "mean_slow_down": float(slow_down.mean()),
            "p50_slow_down": float(np.quantile(slow_down, 0.5)),
            "p99_slow_down": float(np.quantile(slow_down, 0.99)),
            "largest_relative_difference": difference,
            "read_seconds": read - start,
            "simulation_seconds": simulated - read,
            "fct_ns": found,
        },
        run.provenance.with_files(path),
        SHOWN,
    )
