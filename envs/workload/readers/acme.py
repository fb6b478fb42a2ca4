"""Reader of the Acme traces: two clusters of the Shanghai AI Laboratory, March to August 2023.

github.com/InternLM/AcmeTrace, `trace_seren.csv` and `trace_kalos.csv`; Hu et al.,
*Characterization of Large Language Model Development in the Datacenter*, NSDI 2024. Written from
the published description of the columns and tested on rows made by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from envs.workload.readers.read_trace import JobColumns, ReadTrace, canonical_trace
from envs.workload.readers.row_checks import MOST_GPUS, RowChecks
from envs.workload.readers.table import read_table

COLUMNS = ("job_id", "user", "gpu_num", "submit_time", "duration")
CORES = "cpu_num"  # may be missing
CLOCK = "%Y-%m-%d %H:%M:%S%z"


@dataclass(frozen=True)
class AcmeReader:
    """CSV with at least `job_id, user, gpu_num, submit_time, duration`; durations in seconds.

    Times carry their offset from UTC (`2023-03-01 00:18:22+08:00`). The column `queue` (seconds
    spent waiting) and the times of start and end are another scheduler's doing and are not read;
    the traces name no virtual cluster. Jobs without GPU, and those that never ran, are excluded.
    """

    def read(self, path: str | Path, strict: bool = True) -> ReadTrace:
        """The trace in `path`.

        Raises:
            InputError: the file is unusable, or, where `strict`, a row is faulty.
        """
        table = read_table(path, COLUMNS, (CORES,))
        checks = RowChecks(table)
        num_gpus = checks.whole("gpu_num", 0, MOST_GPUS)
        checks.exclude(num_gpus == 0, "gpu_num", "is zero: a job without GPU")
        duration_s = checks.whole("duration")
        checks.exclude(duration_s == 0, "duration", "is zero: the job never ran")
        columns = JobColumns(
            job_id=table.columns["job_id"],
            submit_s=checks.clock("submit_time", CLOCK),
            duration_s=duration_s,
            num_gpus=num_gpus,
            cpu_milli=None if table.get(CORES) is None else 1000 * checks.whole(CORES),
            user=table.columns["user"],
        )
        return canonical_trace(columns, checks, id_field="job_id", strict=strict)
