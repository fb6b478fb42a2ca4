"""Reader of the Alibaba PAI trace in the form of its simulator: one row per job, 2020.

github.com/alibaba/clusterdata, `cluster-trace-gpu-v2020/simulator`; Weng et al., *MLaaS in the
Wild: Workload Analysis and Scheduling in Large-Scale Heterogeneous GPU Clusters*, NSDI 2022.
Written from the published description of the columns and tested on rows made by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from envs.cluster.workload.readers.read_trace import JobColumns, ReadTrace, canonical_trace
from envs.cluster.workload.readers.row_checks import MOST_GPUS, RowChecks
from envs.cluster.workload.readers.table import read_table
from envs.cluster.workload.trace import WHOLE_GPU
from envs.errors import InputError

COLUMNS = (
    "job_id", "num_inst", "submit_time", "num_cpu", "num_gpu", "gpu_type", "duration", "user",
)  # fmt: skip
SERVER_GPUS = 8  # of the trace's largest servers; an instance runs on one


@dataclass(frozen=True)
class PaiReader:
    """CSV with the columns `job_id, num_inst, submit_time, num_cpu, num_gpu, gpu_type, duration,
    user`; times are seconds, `num_cpu` and `num_gpu` stand for one of `num_inst` instances.

    `milli` is the value of one unit of `num_cpu` and `num_gpu` in thousandths: 10 where they are
    percent, as in the tables of the trace, 1000 where they are cores and GPUs, as in the sample of
    100,000 jobs that comes with the simulator. A file that cannot be in the unit given is refused
    as a whole: it asks for less than a percent of a GPU, or for more GPUs than a server has.

    A job of one instance may ask for a fraction of one GPU. Excluded are jobs without GPU, those
    that never ran, and those of which several instances share GPUs in fractions, or one takes a
    fraction beyond the first GPU: no gang of whole GPUs says that.
    """

    milli: int

    def read(self, path: str | Path, strict: bool = True) -> ReadTrace:
        """The trace in `path`.

        Raises:
            InputError: the file is unusable or in another unit, or, where `strict`, a row is
                faulty.
        """
        table = read_table(path, COLUMNS)
        checks = RowChecks(table)
        instances = checks.whole("num_inst", 1, MOST_GPUS)
        asked = checks.numbers("num_gpu")
        checks.exclude(asked == 0, "num_gpu", "is zero: a job without GPU")
        self._check_unit(checks, asked)
        share = np.rint(asked * self.milli).astype(np.int64)  # thousandths of a GPU, per instance
        wrong = np.abs(asked * self.milli - share) > 1e-6
        checks.reject(wrong, "num_gpu", "is no whole number of thousandths of a GPU")
        fraction = share % WHOLE_GPU != 0
        several = fraction & ((instances > 1) | (share > WHOLE_GPU))
        checks.exclude(several, "num_gpu", "is a fraction of several GPUs")
        num_gpus = instances * np.maximum(share // WHOLE_GPU, 1)
        checks.reject(num_gpus > MOST_GPUS, "num_inst", "is too large")
        duration_s = checks.whole("duration")
        checks.exclude(duration_s == 0, "duration", "is zero: the job never ran")
        cores = np.rint(checks.numbers("num_cpu") * self.milli).astype(np.int64)
        columns = JobColumns(
            job_id=table.columns["job_id"],
            submit_s=checks.whole("submit_time"),
            duration_s=duration_s,
            num_gpus=num_gpus,
            gpu_milli=np.where(fraction, share, WHOLE_GPU),
            cpu_milli=instances * cores,
            user=table.columns["user"],
            gpu_type=table.columns["gpu_type"],
        )
        return canonical_trace(columns, checks, id_field="job_id", strict=strict)

    def _check_unit(self, checks: RowChecks, asked: NDArray[np.float64]) -> None:
        percent = self.milli < WHOLE_GPU
        wrong = checks.kept & ((asked < 1) if percent else (asked > SERVER_GPUS))
        if wrong.any():
            row = int(np.argmax(wrong))
            seems = "less than a percent: the file seems to give GPUs, format pai_sample"
            if not percent:
                seems = f"more than {SERVER_GPUS} GPUs: the file seems to give percents, format pai"
            raise InputError(
                f"{checks.table.columns['num_gpu'][row]!r} is {seems}",
                file=checks.table.path,
                record=checks.table.place(row),
                field="num_gpu",
            )
