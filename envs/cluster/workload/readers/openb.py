"""Reader of Alibaba's "openb" trace of 2023: pods that share GPUs, and the nodes they ran on.

github.com/alibaba/clusterdata, cluster-trace-gpu-v2023, published with Weng et al., *Beware of
Fragmentation: Scheduling GPU-Sharing Workloads with Fragmentation Gradient Descent*, USENIX ATC
2023. `gpu_milli` are thousandths of each of `num_gpu` GPUs; `gpu_spec` are the GPU types on which
a pod may run, separated by "|", none: all.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from envs.cluster.nodes import Cluster, ResourceRequests
from envs.cluster.workload.readers.read_trace import (
    MOST_GPUS,
    ReadTrace,
    canonical_trace,
    trace_name,
)
from envs.cluster.workload.trace import WHOLE_GPU, Labels
from envs.text_table import RowChecks, read_table

RESOURCES = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "gpu_spec")
TIMES = ("pod_phase", "creation_time", "deletion_time", "scheduled_time")
NODE_COLUMNS = ("sn", "cpu_milli", "memory_mib", "gpu", "model")
WAITING = "Pending"  # phase of a pod that was never scheduled
NO_GPU = "no GPU"  # type of a node without GPUs


@dataclass(frozen=True)
class OpenbReader:
    """CSV with the columns of `RESOURCES` and `TIMES`; times are seconds.

    A pod is submitted at `creation_time`; its duration is that from `scheduled_time` to
    `deletion_time`. Pods that were still waiting when the trace ended are left out.
    """

    def read(self, path: str | Path, strict: bool = True) -> ReadTrace:
        checks = RowChecks(read_table(path, (*RESOURCES, *TIMES)))
        columns = checks.table.columns
        waiting = (columns["scheduled_time"] == "") & (columns["pod_phase"] == WAITING)
        checks.exclude(waiting.to_numpy(), "scheduled_time", "was never scheduled")
        resources = _resources(checks)
        created = checks.whole("creation_time")
        scheduled = checks.whole("scheduled_time")
        deleted = checks.whole("deletion_time")
        checks.reject(scheduled < created, "scheduled_time", "is before creation_time")
        checks.reject(deleted < scheduled, "deletion_time", "is before scheduled_time")
        checks.reject(deleted == scheduled, "deletion_time", "is scheduled_time: no duration")
        return canonical_trace(
            checks,
            id_field="name",
            strict=strict,
            job_id=columns["name"],
            submit_s=created,
            duration_s=deleted - scheduled,
            **resources,
        )

    def read_requests(self, path: str | Path) -> ResourceRequests:
        """What all the pods in `path` ask for, those that never ran too, in the order of the file.

        Raises:
            InputError: the file is unusable, or a row is faulty.
        """
        checks = RowChecks(read_table(path, RESOURCES))
        resources = _resources(checks)
        resources["gpu_type"] = Labels.of(resources["gpu_type"].to_list())
        checks.unique("name", checks.table.columns["name"])
        checks.finish(strict=True)
        return ResourceRequests(
            name=trace_name(path),
            job_id=np.array(checks.table.columns["name"].to_list(), np.str_),
            **resources,
        )


def read_openb_nodes(path: str | Path) -> Cluster:
    """The nodes in a CSV file with the columns of `NODE_COLUMNS`; it knows no racks: one for all.

    Raises:
        InputError: the file is unusable, or a row is faulty.
    """
    table = read_table(path, NODE_COLUMNS)
    checks = RowChecks(table)
    gpus = checks.whole("gpu", 0, MOST_GPUS)
    cpu_milli, memory_mib = checks.whole("cpu_milli"), checks.whole("memory_mib")
    model = table.columns["model"]
    checks.reject((model == "").to_numpy() & (gpus > 0), "model", "is missing")
    checks.unique("sn", table.columns["sn"])
    checks.finish(strict=True)
    types = Labels.of([name or NO_GPU for name in model.to_list()])
    return Cluster(
        name=trace_name(path),
        gpus=gpus.astype(np.int32),
        rack=np.zeros(len(table), np.int32),
        gpu_type=types.codes.copy(),
        gpu_types=types.names,
        cpu_milli=cpu_milli,
        memory_mib=memory_mib,
    )


def _resources(checks: RowChecks) -> dict[str, Any]:
    """The columns of `RESOURCES` but the name, as `Trace` has them."""
    gpus, milli = checks.whole("num_gpu", 0, MOST_GPUS), checks.whole("gpu_milli", 0, WHOLE_GPU)
    checks.reject((gpus > 0) & (milli == 0), "gpu_milli", "is zero")
    checks.reject((gpus > 1) & (milli < WHOLE_GPU), "gpu_milli", "is a part of several GPUs")
    checks.reject((gpus == 0) & (milli > 0), "gpu_milli", "is given, but num_gpu is zero")
    none = gpus == 0
    spec = checks.table.columns["gpu_spec"]
    return {
        "num_gpus": gpus.astype(np.int32),
        "gpu_milli": np.where(none, WHOLE_GPU, milli).astype(np.int32),
        "cpu_milli": checks.whole("cpu_milli"),
        "memory_mib": checks.whole("memory_mib"),
        "gpu_type": spec.zip_with(~pl.Series(none), pl.Series([""])),
    }
