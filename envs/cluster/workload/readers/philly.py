"""Reader of the Philly trace as a CSV of jobs: 8 virtual clusters of Microsoft, autumn 2017.

Jeon et al., *Analysis of Large-Scale Multi-Tenant GPU Clusters for DNN Training Workloads*, USENIX
ATC 2019, reduced to one row per job. `philly_json` reads the log it was made from.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
import polars as pl

from envs.cluster.workload.readers.read_trace import JobColumns, ReadTrace, canonical_trace
from envs.cluster.workload.readers.row_checks import MOST_GPUS, RowChecks
from envs.cluster.workload.readers.table import read_table

COLUMNS = ("timestamp", "duration", "num_gpus", "cluster")
CLOCK = "%Y-%m-%d %H:%M:%S"


@dataclass(frozen=True)
class PhillyReader:
    """CSV with the columns `timestamp, duration, num_gpus, cluster`; durations are seconds.

    The rows have no id: their numbers, from 0, are taken. The virtual cluster is the queue.
    """

    def read(self, path: str | Path, strict: bool = True) -> ReadTrace:
        """The trace in `path`.

        Raises:
            InputError: the file is unusable, or, where `strict`, a row is faulty.
        """
        table = read_table(path, COLUMNS)
        checks = RowChecks(table)
        checks.reject((table.columns["cluster"] == "").to_numpy(), "cluster", "is missing")
        columns = JobColumns(
            job_id=pl.Series(np.arange(len(table))).cast(pl.String),
            submit_s=checks.clock("timestamp", CLOCK),
            duration_s=checks.whole("duration", 1),
            num_gpus=checks.whole("num_gpus", 1, MOST_GPUS),
            queue=table.columns["cluster"],
        )
        return canonical_trace(columns, checks, id_field="row", strict=strict)
