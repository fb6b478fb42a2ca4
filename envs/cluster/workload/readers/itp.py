"""Reader of the ITP traces: jobs of Microsoft's internal clusters, March to May 2021.

github.com/microsoft/elasticflow-traces, the raw traces of Gu et al., *ElasticFlow: An Elastic
Serverless Training Platform for Distributed Deep Learning*, ASPLOS 2023.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from envs.cluster.workload.readers.read_trace import JobColumns, ReadTrace, by_text, canonical_trace
from envs.cluster.workload.readers.row_checks import MOST_GPUS, RowChecks
from envs.cluster.workload.readers.table import read_table

COLUMNS = ("job_id", "submission_time", "duration", "num_gpu")


@dataclass(frozen=True)
class ItpReader:
    """CSV with the columns `job_id, submission_time, duration, num_gpu`; times are seconds."""

    def read(self, path: str | Path, strict: bool = True) -> ReadTrace:
        """The trace in `path`.

        Raises:
            InputError: the file is unusable, or, where `strict`, a row is faulty.
        """
        table = read_table(path, COLUMNS)
        checks = RowChecks(table)
        columns = JobColumns(
            job_id=table.columns["job_id"],
            submit_s=checks.whole("submission_time"),
            duration_s=checks.whole("duration", 1),
            num_gpus=checks.whole("num_gpu", 1, MOST_GPUS),
        )
        return canonical_trace(columns, checks, id_field="job_id", id_order=by_text, strict=strict)
