"""SwitchML's and OmniReduce's own experiments: dedicated jobs, speed-ups, sparse sums.

python -m experiments.aggregation json=true
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from annotated_types import Ge, MinLen

from envs.bounds import Count, NonNegative, Positive
from envs.synchronisation.layerwise import read_layered_models
from experiments.network.aggregation_tables import (
    dedicated,
    largest,
    sparse_sums,
    speed_ups,
    tables_of,
)
from experiments.run.app import run_app
from experiments.run.one_run import Result, Run
from experiments.run.provenance import file_hash
from experiments.run.tables import write_tables

SHOWN = ("largest_difference", "over_ring", "over_server", "largest_difference_ms")


@dataclass
class AggregationConfig:
    """`conf/aggregation.yaml`."""

    layers: str
    gpu: str
    gbps: Annotated[list[Positive], MinLen(1)]
    iterations: Annotated[list[Count], MinLen(1)]
    workers: Count
    many_workers: Annotated[int, Ge(2)]
    jitter: NonNegative
    runs: Count
    published: dict[str, list[float]]
    sparse: Annotated[list[list[float]], MinLen(1)]
    seed: int
    json: bool


def aggregation(config: AggregationConfig, run: Run) -> Result:
    """All tables; differences from what is published where the conditions are those."""
    path = Path(config.layers)
    models = read_layered_models(path, config.gpu)
    seeds = range(config.seed, config.seed + config.runs)
    rows = {
        "dedicated": dedicated(models, config, seeds),
        "speed_ups": speed_ups(models, config, seeds),
        "sparse": sparse_sums(config.sparse, config.seed),
    }
    provenance = run.provenance.with_inputs(**{path.name: file_hash(path)})
    write_tables(run, "Sums inside the network", tables_of(rows), provenance)
    values = {
        **rows,
        "largest_difference": largest(rows["dedicated"], "difference"),
        "over_ring": largest(rows["speed_ups"], "over_ring"),
        "over_server": largest(rows["speed_ups"], "over_server"),
        "largest_difference_ms": largest(rows["sparse"], "difference_ms"),
    }
    return Result(values, provenance, SHOWN)


def main(arguments: list[str] | None = None) -> int:
    return run_app("aggregation", AggregationConfig, aggregation, arguments)


if __name__ == "__main__":
    sys.exit(main())
