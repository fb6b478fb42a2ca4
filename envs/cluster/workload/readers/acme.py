"""Reader of the Acme traces: two clusters of the Shanghai AI Laboratory, March to August 2023.

github.com/InternLM/AcmeTrace, `trace_seren.csv` and `trace_kalos.csv`; Hu et al.,
*Characterization of Large Language Model Development in the Datacenter*, NSDI 2024. Written from
the published description of the columns and tested on rows made by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from envs.cluster.workload.readers.job_log import read_job_log
from envs.cluster.workload.readers.read_trace import ReadTrace

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
        return read_job_log(path, CLOCK, None, strict=strict)
