"""The state of a cluster full of jobs, as records that compiled code works on.

J jobs, N nodes. Jobs are numbered as in the trace, so a lower number was submitted earlier. What a
running job holds is a chain of *shares*, one per node; the same shares are chained by node, so that
the jobs of a node, the neighbours, are found at once. A GPU on which fractional jobs run is a
*partial* GPU, chained by node; all others are mere counts.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

NONE = -1  # end of a chain
FUTURE, PENDING, RUNNING, FINISHED, REFUSED = 0, 1, 2, 3, 4  # jobs["status"]

JOB = np.dtype(
    [
        ("submit", np.float64),  # seconds
        ("work", np.float64),  # seconds at rate 1
        ("remaining", np.float64),  # seconds at rate 1, as of `settled`
        # seconds of work done, as of `settled`; work - remaining would round with the work
        ("attained", np.float64),
        ("rate", np.float64),  # work per second; 0 unless it runs
        ("alone", np.float64),  # its rate where it runs if it had no neighbours
        ("settled", np.float64),  # time up to which `remaining`, `attained` and `executed` are true
        ("ready", np.float64),  # time at which it progresses: the start and its overhead
        ("end", np.float64),  # predicted completion while it runs
        ("start", np.float64),  # of the first run, or -1
        ("finish", np.float64),  # or -1
        ("executed", np.float64),  # seconds for which it has held its GPUs
        ("since", np.float64),  # when it last became pending or began to run
        ("cpu", np.int64),  # thousandths of a core
        ("memory", np.int64),  # MiB
        ("types", np.int64),  # bit t: may run on GPU type t
        ("gpus", np.int32),
        ("milli", np.int32),  # thousandths of each GPU
        ("profile", np.int32),  # its case in the rate model's tables
        ("share", np.int32),  # the share it took last, first of its chain
        ("nodes", np.int32),  # number of its shares
        ("place", np.int32),  # its place in the heap of completions
        ("before", np.int32),  # in the queue of pending jobs
        ("after", np.int32),
        ("preemptions", np.int32),
        ("status", np.int8),
    ],
    align=True,
)

NODE = np.dtype(
    [
        ("cpu", np.int64),  # thousandths of a core that are free
        ("memory", np.int64),  # MiB that are free
        ("pcie", np.float64),  # demand of the running jobs, kept where they share it
        ("nic", np.float64),  # the same of its network port
        ("gpus", np.int32),  # in all
        ("free", np.int32),  # GPUs with nothing on them; 0 while the node is down
        ("rack", np.int32),
        ("type", np.int32),  # GPU type
        ("share", np.int32),  # first of its shares
        ("partial", np.int32),  # first of its partial GPUs
        ("jobs", np.int32),  # shares on it
        ("spanning", np.int32),  # shares of jobs on several nodes
        ("up", np.int8),
        (
            "scarce",
            np.int8,
        ),  # whether their last change can have changed rates
    ],
    align=True,
)

SHARE = np.dtype(
    [
        ("job", np.int32),
        ("node", np.int32),
        ("gpus", np.int32),
        ("partial", np.int32),  # the GPU of a fractional job, or NONE
        ("next", np.int32),  # of the job; of the free chain where it is free
        ("before", np.int32),  # of the node
        ("after", np.int32),
    ],
    align=True,
)

PARTIAL = np.dtype(
    [
        ("node", np.int32),
        ("left", np.int32),  # thousandths
        ("before", np.int32),  # of the node
        ("next", np.int32),  # of the node; of the free chain where it is free
    ],
    align=True,
)

INCIDENT = np.dtype([("time", np.float64), ("node", np.int32), ("up", np.int8)], align=True)

RUN = np.dtype(  # one share of one run, for pictures and checks
    [
        ("start", np.float64),
        ("end", np.float64),
        ("job", np.int32),
        ("node", np.int32),
        ("gpus", np.int32),
        ("milli", np.int32),
    ],
    align=True,
)

CLOCK = np.dtype(
    [
        ("now", np.float64),  # seconds
        ("busy", np.float64),  # GPU-seconds held so far
        ("held", np.int64),  # thousandths of GPUs held now
        ("arrived", np.int64),  # jobs whose submission has passed
        ("incident", np.int64),  # incidents that have passed
        ("running", np.int64),  # jobs, which is also the size of the heap
        ("pending", np.int64),  # jobs
        ("finished", np.int64),  # jobs
        ("head", np.int64),  # of the queue of pending jobs
        ("tail", np.int64),
        ("free", np.int64),  # GPUs with nothing on them, of all nodes that are up
        ("share", np.int64),  # first free share
        ("partial", np.int64),  # first free partial GPU
        ("runs", np.int64),  # entries of the log
    ],
    align=True,
)


class Overheads(NamedTuple):
    """What stopping costs.

    A preempted, moved or failed job holds its GPUs for `restart_s` before it progresses again. A
    node's failure takes what a job has done since its last checkpoint.
    """

    restart_s: float  # seconds
    checkpoint_s: float  # seconds of progress between checkpoints; 0: nothing is ever lost


class ClusterState(NamedTuple):
    """All that changes, as arrays; a copy of the arrays is a copy of the state."""

    jobs: NDArray[np.void]  # JOB (J,)
    nodes: NDArray[np.void]  # NODE (N,)
    shares: NDArray[np.void]  # SHARE
    partials: NDArray[np.void]  # PARTIAL, one per GPU of the cluster
    heap: NDArray[np.int32]  # (J,) running jobs by their end, then their number
    clock: NDArray[np.void]  # CLOCK (1,)
    incidents: NDArray[np.void]  # INCIDENT, by time
    runs: NDArray[np.void]  # RUN log; of length 0 where none is kept

    def copy(self) -> ClusterState:
        """An independent copy."""
        return self._replace(**{name: array.copy() for name, array in self._asdict().items()})
