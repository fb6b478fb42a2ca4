"""Reader of the Helios traces: four clusters of SenseTime, April to September 2020.

github.com/S-Lab-System-Group/HeliosData, the `cluster_log.csv` of each cluster; Hu et al.,
*Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters*, SC
2021. Written from the published description of the columns and tested on rows made by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from envs.cluster.workload.readers.job_log import read_job_log
from envs.cluster.workload.readers.read_trace import ReadTrace

CLOCK = "%Y-%m-%d %H:%M:%S"


@dataclass(frozen=True)
class HeliosReader:
    """CSV with at least `job_id, user, vc, gpu_num, submit_time, duration`; durations in seconds.

    The virtual cluster is the queue. The column `queue` (seconds spent waiting) and the times of
    start and end are another scheduler's doing and are not read. Jobs without GPU, and those that
    never ran, are excluded.
    """

    def read(self, path: str | Path, strict: bool = True) -> ReadTrace:
        """The trace in `path`.

        Raises:
            InputError: the file is unusable, or, where `strict`, a row is faulty.
        """
        return read_job_log(path, CLOCK, "vc", strict=strict)
