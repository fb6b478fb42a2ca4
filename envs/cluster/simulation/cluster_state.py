"""The state of a cluster full of jobs, as records that compiled code works on.

J jobs, N nodes. Jobs are numbered as in the trace, so a lower number was submitted earlier. What a
running job holds is a chain of *shares*, one per node; the same shares are chained by node, so that
the jobs of a node, the neighbours, are found at once. The GPUs on which fractional jobs run are
*partial*: sets of one or more GPUs of a node, chained by node, that jobs share as a whole, so that
all jobs on a set ask for as many GPUs as it has. All other GPUs are mere counts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.cluster.nodes import Cluster
from envs.cluster.workload.trace import WHOLE_GPU, Trace
from envs.errors import InputError

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
        ("processor", np.float64),  # and of its processors
        ("gpus", np.int32),  # in all
        ("free", np.int32),  # GPUs with nothing on them; 0 while the node is down
        ("rack", np.int32),
        ("type", np.int32),  # GPU type
        ("share", np.int32),  # first of its shares
        ("partial", np.int32),  # first of its sets of partial GPUs
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
        ("partial", np.int32),  # the set of a fractional job, or NONE
        ("next", np.int32),  # of the job; of the free chain where it is free
        ("before", np.int32),  # of the node
        ("after", np.int32),
    ],
    align=True,
)

PARTIAL = np.dtype(
    [
        ("node", np.int32),
        ("gpus", np.int32),
        ("left", np.int32),  # thousandths of each of them
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
        ("partial", np.int64),  # first free set of partial GPUs
        ("runs", np.int64),  # entries of the log
    ],
    align=True,
)


class Overheads(NamedTuple):
    """What stopping costs.

    A preempted, moved or failed job holds its GPUs for `restart_s` before it progresses again. A
    node's failure takes what a job has done since its last checkpoint.
    """

    restart_s: float = 0.0  # seconds
    checkpoint_s: float = 0.0  # seconds of progress between checkpoints; 0: nothing is ever lost


class ClusterState(NamedTuple):
    """All that changes, as arrays; a copy of the arrays is a copy of the state."""

    jobs: NDArray[np.void]  # JOB (J,)
    nodes: NDArray[np.void]  # NODE (N,)
    shares: NDArray[np.void]  # SHARE
    partials: NDArray[np.void]  # PARTIAL, as many sets as the cluster has GPUs
    heap: NDArray[np.int32]  # (J,) running jobs by their end, then their number
    clock: NDArray[np.void]  # CLOCK (1,)
    incidents: NDArray[np.void]  # INCIDENT, by time
    runs: NDArray[np.void]  # RUN log; of length 0 where none is kept

    def copy(self) -> ClusterState:
        return self._replace(**{name: array.copy() for name, array in self._asdict().items()})


NEVER = -1.0  # start or finish of a job that did not


@dataclass(frozen=True, eq=False)
class Schedule:
    """Times in seconds, one entry per job, in the order of the trace."""

    submit: FloatArray  # (J,)
    start: FloatArray  # (J,) of the first run, or NEVER
    finish: FloatArray  # (J,) or NEVER
    work: FloatArray  # (J,) seconds that the job takes alone
    gpus: FloatArray  # (J,) GPUs held while it runs; fractions where it shares them
    held: FloatArray  # (J,) seconds for which the job has held its GPUs, overheads included
    preemptions: NDArray[np.int32]  # (J,)
    runs: NDArray[np.void] | None = None  # `cluster_state.RUN`; None where no log was kept

    @property
    def finished(self) -> BoolArray:
        """(J,) whether the job has run to its end."""
        finished: BoolArray = self.finish != NEVER
        return finished

    @property
    def jct(self) -> FloatArray:
        """(F,) completion time minus submission of the jobs that finished."""
        return (self.finish - self.submit)[self.finished]

    @property
    def makespan(self) -> float:
        """The last completion, in seconds since the trace's second 0."""
        return float(self.finish.max(initial=0.0))


def initial_state(
    cluster: Cluster, trace: Trace, incidents: NDArray[np.void], keep_runs: bool
) -> ClusterState:
    """Nothing has arrived, everything is free.

    Raises:
        InputError: a job asks for more GPUs than the cluster has of the types it permits, or for
            none of its types.
    """
    jobs = np.zeros(len(trace), JOB)
    jobs["submit"] = trace.submit_s
    jobs["work"] = jobs["remaining"] = trace.duration_s
    jobs["start"] = jobs["finish"] = NEVER
    jobs["cpu"], jobs["memory"] = trace.cpu_milli, trace.memory_mib
    jobs["gpus"], jobs["milli"] = trace.num_gpus, trace.gpu_milli
    jobs["types"] = permitted_types(cluster, trace)
    for chain in ("share", "place", "before", "after"):
        jobs[chain] = NONE
    nodes = np.zeros(cluster.num_nodes, NODE)
    nodes["gpus"] = nodes["free"] = cluster.gpus
    nodes["rack"], nodes["type"] = cluster.rack, cluster.gpu_type
    nodes["cpu"], nodes["memory"] = cluster.cpu_milli, cluster.memory_mib
    nodes["share"] = nodes["partial"] = NONE
    nodes["up"] = 1
    shares = np.zeros(max_shares(cluster, trace), SHARE)
    shares["next"] = np.append(np.arange(1, len(shares)), NONE)
    partials = np.zeros(cluster.num_gpus, PARTIAL)
    partials["next"] = np.append(np.arange(1, len(partials)), NONE)
    clock = np.zeros(1, CLOCK)
    clock["head"] = clock["tail"] = NONE
    clock["free"] = cluster.num_gpus
    return ClusterState(
        jobs=jobs,
        nodes=nodes,
        shares=shares,
        partials=partials,
        heap=np.zeros(len(trace), np.int32),
        clock=clock,
        incidents=incidents,
        runs=np.zeros(4 * len(shares) if keep_runs else 0, RUN),
    )


def max_shares(cluster: Cluster, trace: Trace) -> int:
    """Shares that suffice for all jobs at once, and for one more gang that is only imagined.

    Compiled rules ask whether a gang would fit if others stopped, while these still hold theirs.
    """
    gangs = int(np.minimum(np.maximum(trace.num_gpus, 1), cluster.num_nodes).sum())
    on_gpus = trace.num_gpus > 0
    smallest = int(trace.gpu_milli[on_gpus].min(initial=WHOLE_GPU))
    held = cluster.num_gpus * (WHOLE_GPU // smallest) + int((~on_gpus).sum())
    return max(1, min(gangs, held)) + cluster.num_nodes


def fitting(gpus: int) -> str:
    """What leaves out the jobs that are too large."""
    return f"trace.max_gpus={gpus} leaves larger ones out" if gpus else "none can run it"


def permitted_types(cluster: Cluster, trace: Trace) -> IntArray:
    """(J,) bit t is set where a job may run on GPU type t.

    Raises:
        InputError: a job asks for types that the cluster does not have, or for more GPUs of its
            types than there are.
    """
    masks = cluster.type_masks(trace.gpu_type.names)
    types = masks[trace.gpu_type.codes]
    if (types == 0).any():
        job = int(np.argmax(types == 0))
        raise InputError(
            f"asks for {trace.gpu_type[job]}, the cluster has {', '.join(cluster.gpu_types)}",
            file=trace.name,
            record=job,
            field="gpu_type",
        )
    of_type = np.bincount(cluster.gpu_type, cluster.gpus, len(cluster.gpu_types)).astype(np.int64)
    for mask in np.unique(masks):
        usable = mask >> np.arange(len(of_type)) & 1 == 1
        available = int(of_type[usable].sum())
        too_large = (types == mask) & (trace.num_gpus > available)
        if too_large.any():
            job = int(np.argmax(too_large))
            raise InputError(
                f"job '{trace.job_id[job]}' asks for {trace.num_gpus[job]} GPUs, "
                f"the cluster has {available} for it, {fitting(available)}",
                file=trace.name,
                record=job,
                field="num_gpus",
            )
    return types
