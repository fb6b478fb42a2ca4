"""Job logs of public traces with one row per job.

* Acme, two clusters of the Shanghai AI Laboratory, March to August 2023:
  github.com/InternLM/AcmeTrace, `trace_seren.csv` and `trace_kalos.csv`; Hu et al.,
  *Characterization of Large Language Model Development in the Datacenter*, NSDI 2024.
* Helios, four clusters of SenseTime, April to September 2020:
  github.com/S-Lab-System-Group/HeliosData, the `cluster_log.csv` of each cluster; Hu et al.,
  *Characterization and Prediction of Deep Learning Workloads in Large-Scale GPU Datacenters*, SC
  2021.
* ITP, Microsoft's internal clusters, March to May 2021: github.com/microsoft/elasticflow-traces,
  the raw traces of Gu et al., *ElasticFlow: An Elastic Serverless Training Platform for
  Distributed Deep Learning*, ASPLOS 2023.
* Philly, eight virtual clusters of Microsoft, autumn 2017: Jeon et al., *Analysis of Large-Scale
  Multi-Tenant GPU Clusters for DNN Training Workloads*, USENIX ATC 2019, reduced to one row per
  job. `philly_json` reads the log it was made from.
* Alibaba PAI in the form of its simulator, 2020: github.com/alibaba/clusterdata,
  `cluster-trace-gpu-v2020/simulator`; Weng et al., *MLaaS in the Wild: Workload Analysis and
  Scheduling in Large-Scale Heterogeneous GPU Clusters*, NSDI 2022.

The readers of Acme, Helios and PAI are written from the published descriptions of the columns and
tested on rows made by hand.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from envs.arrays import FloatArray
from envs.cluster.workload.readers.read_trace import MOST_GPUS, Columns, LogReader
from envs.cluster.workload.trace import WHOLE_GPU
from envs.errors import InputError
from envs.text_table import RowChecks

CLOCK = "%Y-%m-%d %H:%M:%S"
NO_GPU, NEVER_RAN = "is zero: a job without GPU", "is zero: the job never ran"


class AcmeReader(LogReader):
    """CSV with at least `job_id, user, gpu_num, submit_time, duration`; durations in seconds.

    Times carry their offset from UTC (`2023-03-01 00:18:22+08:00`). The column `queue` (seconds
    spent waiting) and the times of start and end are another scheduler's doing and are not read;
    the traces name no virtual cluster. Jobs without GPU, and those that never ran, are excluded.
    """

    CLOCK: ClassVar[str] = f"{CLOCK}%z"
    QUEUE: ClassVar[str | None] = None  # column of the virtual cluster

    def columns(self, checks: RowChecks) -> Columns:
        text = checks.table.columns
        num_gpus = checks.whole("gpu_num", 0, MOST_GPUS)
        checks.exclude(num_gpus == 0, "gpu_num", NO_GPU)
        duration_s = checks.whole("duration")
        checks.exclude(duration_s == 0, "duration", NEVER_RAN)
        return {
            "job_id": text["job_id"],
            "submit_s": checks.clock("submit_time", self.CLOCK),
            "duration_s": duration_s,
            "num_gpus": num_gpus,
            "cpu_milli": 1000 * checks.whole("cpu_num") if "cpu_num" in text.header else None,
            "user": text["user"],
            "queue": None if self.QUEUE is None else text[self.QUEUE],
        }


class HeliosReader(AcmeReader):
    """CSV with at least `job_id, user, vc, gpu_num, submit_time, duration`; durations in seconds.

    The virtual cluster is the queue. The column `queue` (seconds spent waiting) and the times of
    start and end are another scheduler's doing and are not read. Jobs without GPU, and those that
    never ran, are excluded.
    """

    CLOCK: ClassVar[str] = CLOCK
    QUEUE: ClassVar[str | None] = "vc"


class ItpReader(LogReader):
    """CSV with the columns `job_id, submission_time, duration, num_gpu`; times are seconds."""

    IDS_ARE_TEXTS: ClassVar[bool] = True

    def columns(self, checks: RowChecks) -> Columns:
        return {
            "job_id": checks.table.columns["job_id"],
            "submit_s": checks.whole("submission_time"),
            "duration_s": checks.whole("duration", 1),
            "num_gpus": checks.whole("num_gpu", 1, MOST_GPUS),
        }


class PhillyReader(LogReader):
    """CSV with the columns `timestamp, duration, num_gpus, cluster`; durations are seconds.

    The rows have no id: their numbers, from 0, are taken. The virtual cluster is the queue.
    """

    def columns(self, checks: RowChecks) -> Columns:
        return {
            "queue": checks.text("cluster"),
            "submit_s": checks.clock("timestamp", CLOCK),
            "duration_s": checks.whole("duration", 1),
            "num_gpus": checks.whole("num_gpus", 1, MOST_GPUS),
        }


SERVER_GPUS = 8  # of the largest servers of PAI; an instance runs on one


@dataclass(frozen=True)
class PaiReader(LogReader):
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

    milli: int = 10  # thousandths of a core or GPU in one unit

    def columns(self, checks: RowChecks) -> Columns:
        text = checks.table.columns
        instances = checks.whole("num_inst", 1, MOST_GPUS)
        asked = checks.numbers("num_gpu")
        checks.exclude(asked == 0, "num_gpu", NO_GPU)
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
        checks.exclude(duration_s == 0, "duration", NEVER_RAN)
        cores = np.rint(checks.numbers("num_cpu") * self.milli).astype(np.int64)
        return {
            "job_id": text["job_id"],
            "submit_s": checks.whole("submit_time"),
            "duration_s": duration_s,
            "num_gpus": num_gpus,
            "gpu_milli": np.where(fraction, share, WHOLE_GPU),
            "cpu_milli": instances * cores,
            "user": text["user"],
            "gpu_type": text["gpu_type"],
        }

    def _check_unit(self, checks: RowChecks, asked: FloatArray) -> None:
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
