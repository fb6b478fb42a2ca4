"""Few jobs on two servers, whose best schedule is known."""

from __future__ import annotations

import numpy as np

from envs.cluster.nodes import UNLIMITED, Cluster
from envs.cluster.workload.trace import Trace

SERVER_GPUS = (3, 2)
SUBMIT_S = (0, 1, 1, 1, 2, 4)
DURATION_S = (4, 1, 5, 6, 5, 1)
GPUS = (2, 3, 2, 3, 3, 3)
OPTIMUM_S = 35.0  # least sum of completion times without preemption, of all schedules
PREEMPTIVE_OPTIMUM_S = 33.0  # the same where jobs can be stopped and moved at whole seconds
SJF_S = 44.0  # the shortest that fits first, on the fullest server
FIFO_S = 54.0  # the first in the queue that fits, on the fullest server


def toy_cluster() -> tuple[Cluster, Trace]:
    """Six jobs on two servers of three and two GPUs, each in a rack of its own.

    Every job fits on one server, and at least on the larger one; no job is to run on both, which
    hold five GPUs together. It pays to wait: `SJF_S` and `FIFO_S` start whatever fits.
    """
    servers = len(SERVER_GPUS)
    cluster = Cluster(
        name="toy cluster",
        gpus=np.array(SERVER_GPUS, np.int32),
        rack=np.arange(servers, dtype=np.int32),
        gpu_type=np.zeros(servers, np.int32),
        gpu_types=("toy",),
        cpu_milli=np.full(servers, UNLIMITED),
        memory_mib=np.full(servers, UNLIMITED),
    )
    return cluster, Trace.of("toy jobs", SUBMIT_S, DURATION_S, GPUS)
