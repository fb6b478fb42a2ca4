"""Reader of Alibaba's "openb" trace of 2023: pods that share GPUs, and the nodes they ran on.

github.com/alibaba/clusterdata, cluster-trace-gpu-v2023, published with Weng et al., *Beware of
Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent*, USENIX ATC
2023. `gpu_milli` are thousandths of each of `num_gpu` GPUs; `gpu_spec` are the GPU types on which
a pod may run, separated by "|", none: all.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import polars as pl

from envs.cluster.nodes import Cluster, ResourceRequests
from envs.cluster.workload.readers.read_trace import MOST_GPUS, Columns, LogReader, trace_name
from envs.cluster.workload.trace import WHOLE_GPU, Labels
from envs.text_table import RowChecks, read_table

WAITING = "Pending"  # phase of a pod that was never scheduled
NO_GPU = "no GPU"  # type of a node without GPUs


class OpenbReader(LogReader):
    """CSV with the columns `name, cpu_milli, memory_mib, num_gpu, gpu_milli, gpu_spec, pod_phase,
    creation_time, deletion_time, scheduled_time`; times are seconds.

    A pod is submitted at `creation_time`; its duration is that from `scheduled_time` to
    `deletion_time`. Pods that were still waiting when the trace ended are left out.
    """

    ID: ClassVar[str] = "name"

    def columns(self, checks: RowChecks) -> Columns:
        text = checks.table.columns
        waiting = (text["scheduled_time"] == "") & (text["pod_phase"] == WAITING)
        checks.exclude(waiting.to_numpy(), "scheduled_time", "was never scheduled")
        resources = _resources(checks)
        created = checks.whole("creation_time")
        scheduled = checks.whole("scheduled_time")
        deleted = checks.whole("deletion_time")
        checks.reject(scheduled < created, "scheduled_time", "is before creation_time")
        checks.reject(deleted < scheduled, "deletion_time", "is before scheduled_time")
        checks.reject(deleted == scheduled, "deletion_time", "is scheduled_time: no duration")
        return {
            "job_id": text["name"],
            "submit_s": created,
            "duration_s": deleted - scheduled,
            **resources,
        }

    def read_requests(self, path: str | Path) -> ResourceRequests:
        """What all the pods in `path` ask for, those that never ran too, in the order of the file.

        Raises:
            InputError: the file is unusable, or a row is faulty.
        """
        checks = RowChecks(read_table(path, ()))
        names, resources = checks.table.columns["name"], _resources(checks)
        checks.unique("name", names)
        checks.finish(strict=True)
        resources["gpu_type"] = Labels.of(resources["gpu_type"].to_list())
        return ResourceRequests(trace_name(path), np.array(names.to_list(), np.str_), **resources)


def read_openb_nodes(path: str | Path) -> Cluster:
    """The nodes in a CSV file with the columns `sn, cpu_milli, memory_mib, gpu, model`.

    It knows no racks: one for all.

    Raises:
        InputError: the file is unusable, or a row is faulty.
    """
    checks = RowChecks(read_table(path, ()))
    gpus = checks.whole("gpu", 0, MOST_GPUS)
    cpu_milli, memory_mib = checks.whole("cpu_milli"), checks.whole("memory_mib")
    model = checks.table.columns["model"]
    checks.reject((model == "").to_numpy() & (gpus > 0), "model", "is missing")
    checks.unique("sn", checks.table.columns["sn"])
    checks.finish(strict=True)
    types = Labels.of([name or NO_GPU for name in model.to_list()])
    return Cluster(
        name=trace_name(path),
        gpus=gpus.astype(np.int32),
        rack=np.zeros(len(gpus), np.int32),
        gpu_type=types.codes.copy(),
        gpu_types=types.names,
        cpu_milli=cpu_milli,
        memory_mib=memory_mib,
    )


def _resources(checks: RowChecks) -> dict[str, Any]:
    """What pods ask for, as `Trace` has it."""
    gpus, milli = checks.whole("num_gpu", 0, MOST_GPUS), checks.whole("gpu_milli", 0, WHOLE_GPU)
    none = gpus == 0
    checks.reject(~none & (milli == 0), "gpu_milli", "is zero")
    checks.reject((gpus > 1) & (milli < WHOLE_GPU), "gpu_milli", "is a part of several GPUs")
    checks.reject(none & (milli > 0), "gpu_milli", "is given, but num_gpu is zero")
    spec = checks.table.columns["gpu_spec"]
    return {
        "num_gpus": gpus.astype(np.int32),
        "gpu_milli": np.where(none, WHOLE_GPU, milli).astype(np.int32),
        "cpu_milli": checks.whole("cpu_milli"),
        "memory_mib": checks.whole("memory_mib"),
        "gpu_type": spec.zip_with(~pl.Series(none), pl.Series([""])),
    }
