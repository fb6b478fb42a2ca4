"""What the job logs of two public data centres have in common: the columns, but for the queue."""

from __future__ import annotations

from pathlib import Path

from envs.cluster.workload.readers.read_trace import JobColumns, ReadTrace, canonical_trace
from envs.cluster.workload.readers.row_checks import MOST_GPUS, RowChecks
from envs.cluster.workload.readers.table import read_table

COLUMNS = ("job_id", "user", "gpu_num", "submit_time", "duration")
CORES = "cpu_num"  # may be missing


def read_job_log(path: str | Path, clock: str, queue: str | None, *, strict: bool) -> ReadTrace:
    """The trace in a job log.

    Args:
        path: CSV.
        clock: format of the times.
        queue: column of the virtual cluster; None: there is none.
        strict: whether the first faulty row raises.

    Raises:
        InputError: the file is unusable, or, where `strict`, a row is faulty.
    """
    needed = COLUMNS if queue is None else (*COLUMNS, queue)
    table = read_table(path, needed, (CORES,))
    checks = RowChecks(table)
    num_gpus = checks.whole("gpu_num", 0, MOST_GPUS)
    checks.exclude(num_gpus == 0, "gpu_num", "is zero: a job without GPU")
    duration_s = checks.whole("duration")
    checks.exclude(duration_s == 0, "duration", "is zero: the job never ran")
    columns = JobColumns(
        job_id=table.columns["job_id"],
        submit_s=checks.clock("submit_time", clock),
        duration_s=duration_s,
        num_gpus=num_gpus,
        cpu_milli=None if table.get(CORES) is None else 1000 * checks.whole(CORES),
        user=table.columns["user"],
        queue=None if queue is None else table.columns[queue],
    )
    return canonical_trace(columns, checks, id_field="job_id", strict=strict)
