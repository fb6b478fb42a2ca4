"""What a scheduler sees; the builder owns the space."""

from __future__ import annotations

from functools import cached_property
from typing import Annotated, Any, NamedTuple

import numpy as np
from annotated_types import Ge
from gymnasium import spaces
from numpy.typing import NDArray

from envs.arrays import IntArray
from envs.bounds import Count, bounded
from envs.cluster.environment.actions import QueueOrder, WindowOrder
from envs.cluster.environment.features import HIGH, LOW, width
from envs.cluster.environment.instance import ClusterBounds
from envs.cluster.environment.observe_kernel import (
    CLUSTER_WIDTH,
    JOB_BASE,
    PEER_BASE,
    RACK_WIDTH,
    SERVER_BASE,
    SHARE_WIDTH,
    ObservationTable,
)
from envs.cluster.environment.views import Adviser
from envs.errors import InputError

ClusterGraph = dict[str, NDArray[Any]]
Shapes = dict[str, tuple[int, ...]]
WINDOW, RUNNING, SHARES = 16, 128, 256
ADVISED = "advised"
MOST_ACTIONS = 2**31 - 1


class Buffers(NamedTuple):
    """An observation in three pieces of memory."""

    floats: NDArray[np.float32]
    indices: IntArray
    flags: NDArray[np.int8]


@bounded
class ClusterObservation:
    """A hierarchical graph: racks, servers, running jobs on them, jobs that wait.

    GPUs are counts on servers. All shapes are constant:

    | key | dtype, shape | padding |
    |---|---|---|
    | cluster_features | float32 (16,) | none |
    | rack_features | float32 (R, 8) | 0 |
    | rack_mask | int8 (R,): 1 = a rack | 0 |
    | server_features | float32 (N, 11 + T) | 0 |
    | server_rack | int64 (N,): its rack | R, the sink node a model appends |
    | server_mask | int8 (N,): 1 = a server | 0 |
    | running_features | float32 (M, 25 + T + H) | 0 |
    | running_mask | int8 (M,): 1 = a running job | 0 |
    | pending_features | float32 (W, 25 + T + H) | 0 |
    | pending_mask | int8 (W,): 1 = a job of the window | 0 |
    | share_index | int64 (2, E): a running job, a server it runs on | M, N: sink nodes |
    | share_features | float32 (E, 2) | 0 |
    | share_mask | int8 (E,) | 0 |
    | peer_features | float32 (F, 7 + T), only with other schedulers | none |
    | advised | int64 (1,), only with an adviser: the action it would take | none |

    N servers, R racks and T GPU types are bounds; W, M and E arguments; F is the number of other
    schedulers; H is 8 K + 5 with a history of K jobs, and 0 without. A scheduler sees its own
    servers and its own jobs, of others the last row and the history. It sees its servers by rack
    and number, racks by number, the first W pending jobs by the key of the window, and running jobs
    by their first server, M of them; running jobs and shares beyond M and E are only counted.

    Features lie in [-1, 4] and are cut off there. *Count* of n is ln(1 + n) / 4, *time* of t
    seconds ln(1 + t / 60) / 4, which is 1.03 for an hour, 1.82 for a day, 2.67 for 30 days.
    Durations come in from outside: known, they are columns 13 to 16 of jobs; unknown, those are 0.

    | rack_features; the same in cluster_features | |
    |---|---|
    | 0 | GPUs / all GPUs of the scheduler; cluster: log2 of the GPUs / 10 |
    | 1 | free GPUs / GPUs |
    | 2 | most free GPUs on one server / GPUs of the largest server in the bounds |
    | 3, 4 | share of the servers with all GPUs free, share that is up |
    | 5 | jobs on its servers, each counted on each of them, / GPUs |
    | 6 | share of those that run on several servers |
    | 7 | interference: 1 - mean rate of those; 0 without |

    | cluster_features | |
    |---|---|
    | 8, 9 | count of the pending jobs, of those not shown |
    | 10, 11 | count of the running jobs, of those not shown |
    | 12 | GPUs that pending jobs ask for / GPUs |
    | 13 | time since the oldest pending job was submitted |
    | 14 | count of the jobs on their way to this queue |
    | 15 | count of the shares of running jobs shown that are not |

    | server_features | |
    |---|---|
    | 0, 1, 2 | GPUs / largest server's, free / its GPUs, free / largest server's GPUs |
    | 3 | 1: up |
    | 4 | jobs / GPUs |
    | 5 | share of its jobs that run on several servers |
    | 6 | interference: 1 - mean rate of its jobs; 0 without |
    | 7 | what is left on GPUs with fractional jobs / GPUs |
    | 8, 9 | free processor / all, free memory / all |
    | 10 | speed of its GPU type, mean of all cases of the rate model / the fastest type's |
    | 11.. | 1 in the column of its GPU type |

    | running_features, pending_features | |
    |---|---|
    | 0, 1 | GPUs / largest server's, / all GPUs of the scheduler |
    | 2 | part of each GPU that it asks for |
    | 3 | servers it runs on / servers of the scheduler |
    | 4 | 0: on one or none, 0.5: on several of one rack, 1: of several racks |
    | 5 | time since it was submitted |
    | 6 | time since it began to run, or since it last began to wait |
    | 7, 8 | time for which it has held its GPUs, the same times GPUs |
    | 9 | its rate, 0 while it waits |
    | 10 | time until it progresses again after a restart |
    | 11, 12 | preemptions / 4, forwards / most allowed |
    | 13, 14 | known durations: time it still needs alone, and needed at first |
    | 15 | known durations: share of its work that is done |
    | 16 | known durations: time to its end at the present rate; 0 while it waits |
    | 17 | share of its time in communication when alone, at its largest |
    | 18 | its largest demand on a shared resource |
    | 19, 20 | mean rate the cases of the rate model leave it, and it leaves them, in pairs |
    | 21, 22 | its rate on two servers of a rack, on many of several racks |
    | 23, 24 | processor, memory it asks for / most of a server; 0 where nothing limits them |
    | 25.. | its speed on each GPU type, 0 where it may not run |
    | 25 + T.. | with a history, which follows |

    A history is 4 columns for each of the K jobs before it, nearest first, 4 for each of the K jobs
    after it, nearest first, and 5 for the jobs that have finished.

    | of a job before or after; all 0 while it has not arrived, or where there is none | |
    |---|---|
    | 0 | 1 |
    | 1 | time for which it has held its GPUs |
    | 2 | 1: it has finished |
    | 3 | time between the two submissions |

    | of the jobs that have finished; 0 before the first | |
    |---|---|
    | 0, 1 | those of its gang size: mean of the time they held their GPUs, standard deviation |
    | 2 | count of them |
    | 3, 4 | all: mean, standard deviation |

    Before and after are by submission, among the jobs of the same gang size (GPUs, and the part of
    each), of the same virtual cluster and user where the trace says them, whoever schedules them.
    The means are of the *time* as a feature, over the jobs of all schedulers, and exponential: the
    n-th job to finish has the weight max(0.05, 1 / n). Of those that finish at once, the one
    submitted first comes first.

    | share_features | |
    |---|---|
    | 0, 1 | GPUs / GPUs of the server, / GPUs of the job |

    | peer_features | in the order of forwarding: the next scheduler first |
    |---|---|
    | 0, 1 | GPUs / own GPUs, free GPUs / its GPUs |
    | 2 | most free GPUs on one of its servers / largest server's in the bounds |
    | 3, 4 | count of its pending jobs, GPUs they ask for / its GPUs |
    | 5, 6 | count of its running jobs, of the jobs on their way to it |
    | 7.. | share of its GPUs that are of each type |

    Args:
        bounds: N, R, T and the GPUs of the largest server.
        peers: F.
        window: W.
        running: M.
        shares: E.
        known_durations: whether jobs say how long they take.
        order: by what key the window is filled.
        history: K; 0: no history is shown.
        adviser: whose action is shown; None: nobody's.

    Raises:
        InputError: the window's key needs durations that are not known.
    """

    def __init__(
        self,
        bounds: ClusterBounds,
        peers: int = 0,
        *,
        window: Count = WINDOW,
        running: Count = RUNNING,
        shares: Count = SHARES,
        known_durations: bool = True,
        order: WindowOrder = QueueOrder(),
        history: Annotated[int, Ge(0)] = 0,
        adviser: Adviser | None = None,
    ) -> None:
        if order.needs_durations and not known_durations:
            raise InputError(f"{type(order).__name__} needs known durations", field="order")
        self.bounds, self.adviser = bounds, adviser
        self.table = ObservationTable(
            servers=bounds.servers,
            racks=bounds.racks,
            gpu_types=bounds.gpu_types,
            window=window,
            running=running,
            shares=shares,
            peers=peers,
            known=int(known_durations),
            key=order.code,
            most_forwards=0,
            history=history,
        )
        n, r, t = bounds.servers, bounds.racks, bounds.gpu_types
        job = JOB_BASE + t + width(history)
        floats: Shapes = {
            "cluster_features": (CLUSTER_WIDTH,),
            "rack_features": (r, RACK_WIDTH),
            "server_features": (n, SERVER_BASE + t),
            "running_features": (running, job),
            "pending_features": (window, job),
            "share_features": (shares, SHARE_WIDTH),
        }
        if peers:
            floats["peer_features"] = (peers, PEER_BASE + t)
        indices: Shapes = {"server_rack": (n,), "share_index": (2, shares)}
        if adviser is not None:
            indices[ADVISED] = (1,)  # the last
        flags: Shapes = {
            "rack_mask": (r,),
            "server_mask": (n,),
            "running_mask": (running,),
            "pending_mask": (window,),
            "share_mask": (shares,),
        }
        self._pieces = tuple(_pieces(shapes) for shapes in (floats, indices, flags))
        self._sizes = tuple(pieces[-1][2] for pieces in self._pieces)

    @cached_property
    def space(self) -> spaces.Dict:
        """What an observation can be."""
        floats, _, flags = ({key: shape for key, *_, shape in kind} for kind in self._pieces)
        table = self.table
        sinks = np.repeat([[table.running], [table.servers]], table.shares, axis=1).astype(np.int64)
        space = spaces.Dict(
            {
                **{key: spaces.Box(LOW, HIGH, shape, np.float32) for key, shape in floats.items()},
                "server_rack": spaces.Box(0, table.racks, (table.servers,), np.int64),
                "share_index": spaces.Box(0, sinks, (2, table.shares), np.int64),
                **{key: spaces.Box(0, 1, shape, np.int8) for key, shape in flags.items()},
            }
        )
        if self.adviser is not None:
            space[ADVISED] = spaces.Box(0, MOST_ACTIONS, (1,), np.int64)
        return space

    def advised(self, buffers: Buffers) -> IntArray:
        """(1,) the action that the adviser would take, in buffers."""
        key, first, last, _ = self._pieces[1][-1]
        assert key == ADVISED, "there is no adviser"
        return buffers.indices[first:last]

    def buffers(self) -> Buffers:
        """Fresh memory, all zero, for `envs.cluster.environment.observe_kernel.observe`."""
        floats, indices, flags = self._sizes
        return Buffers(
            np.zeros(floats, np.float32), np.zeros(indices, np.int64), np.zeros(flags, np.int8)
        )

    def graph(self, buffers: Buffers) -> ClusterGraph:
        """Filled buffers as the observation; no copy."""
        graph: ClusterGraph = {}
        memory: tuple[NDArray[Any], ...] = tuple(buffers)
        for buffer, pieces in zip(memory, self._pieces, strict=True):
            for key, first, last, shape in pieces:
                piece = buffer[first:last]
                graph[key] = piece if len(shape) == 1 else piece.reshape(shape)
        return graph


def _pieces(shapes: Shapes) -> tuple[tuple[str, int, int, tuple[int, ...]], ...]:
    """(key, first, last, shape) of each array in its buffer."""
    out, at = [], 0
    for key, shape in shapes.items():
        size = int(np.prod(shape))
        out.append((key, at, at + size, shape))
        at += size
    return tuple(out)
