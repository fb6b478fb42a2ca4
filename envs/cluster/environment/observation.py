"""What schedulers see: features, their layout, and the compiled code that fills them in.

Jobs submitted one after the other with the same gang size often take a similar time. What is known
of them when durations are not: how long those that have arrived have held their GPUs, and whether
they have finished.
"""

from __future__ import annotations

from functools import cached_property
from math import log, sqrt
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from annotated_types import Ge
from gymnasium import spaces
from numpy.typing import NDArray

from envs.bounds import Count, bounded
from envs.cluster.environment.actions import (
    QUEUE,
    REMAINING_TIME,
    SERVICE,
    ActionTable,
    Bookkeeping,
    Flags,
    IntArray,
    QueueOrder,
    View,
    WindowOrder,
    fill_mask,
)
from envs.cluster.environment.instance import ClusterBounds
from envs.cluster.interference.kernel import spread_of
from envs.cluster.interference.rates import ONE_RACK, SEVERAL_RACKS, RateTables
from envs.cluster.nodes import UNLIMITED, Cluster
from envs.cluster.simulation.borrowed import borrowed
from envs.cluster.simulation.cluster_kernel import progress_of
from envs.cluster.simulation.cluster_state import FINISHED, FUTURE, NONE, RUNNING, ClusterState
from envs.cluster.workload.trace import WHOLE_GPU, Trace
from envs.compilation import compiled, compiled_inner, pasted
from envs.errors import InputError

if TYPE_CHECKING:
    from envs.cluster.environment.episode import SchedulingEpisode

ClusterGraph = dict[str, NDArray[Any]]
Features = NDArray[np.float32]
Shape = tuple[int, ...]

LOW, HIGH = -1.0, 4.0
AREA_WIDTH = 8  # what racks and the whole have in common
RACK_WIDTH, CLUSTER_WIDTH, SHARE_WIDTH, PEER_BASE = AREA_WIDTH, AREA_WIDTH + 8, 2, 7
PROFILE_WIDTH = 8  # features of a job that only its rate model and its requests say
SERVER_BASE, CHANGING = 11, 17  # columns of a server before its type, of a job before its profile
JOB_BASE = CHANGING + PROFILE_WIDTH
NEIGHBOUR_WIDTH, MEAN_WIDTH = 4, 5  # columns of a neighbour, of the means over finished jobs
WINDOW, RUNNING_SHOWN, SHARES = 16, 128, 256
ADVISED = "advised"
MOST_ACTIONS = 2**31 - 1


@pasted
def inside(value: float) -> float:
    """The feature inside its bounds."""
    return min(max(value, LOW), HIGH)


@pasted
def count(number: float) -> float:
    """ln(1 + number) / 4."""
    return min(log(1.0 + number) / 4.0, HIGH)


@pasted
def minutes(seconds: float) -> float:
    """ln(1 + seconds / 60) / 4; what is not finite = above all."""
    return min(log(1.0 + max(seconds, 0.0) / 60.0) / 4.0, HIGH)


NUMBER, MEAN, VARIANCE = 0, 1, 2  # columns of `Bookkeeping.finished`
LEAST_RECENCY = 0.05  # weight of the job that finished last in an exponential mean


@compiled
def history_width(history: int) -> int:
    """Columns that K = `history` neighbours on both sides add to a job."""
    return 2 * NEIGHBOUR_WIDTH * history + MEAN_WIDTH if history else 0


def gangs(trace: Trace) -> IntArray:
    """(J,) number of the gang size of every job: its GPUs, and the part of each it asks for."""
    return _codes(trace.num_gpus, trace.gpu_milli)


def neighbours(trace: Trace, history: int) -> IntArray:
    """(J, 2 K) the K jobs before each job by submission, nearest first, then the K after it.

    Only jobs of the same gang size count, of the same virtual cluster and user where the trace
    says them; NONE where there are fewer.
    """
    kind = _codes(trace.num_gpus, trace.gpu_milli, trace.queue.codes, trace.user.codes)
    order = np.argsort(kind, kind="stable").astype(np.int32)
    sorted_kind = kind[order]
    out = np.full((len(trace), 2 * history), NONE, np.int32)
    for distance in range(1, min(history, len(trace) - 1) + 1):
        alike = sorted_kind[distance:] == sorted_kind[:-distance]
        earlier, later = order[:-distance][alike], order[distance:][alike]
        out[later, distance - 1] = earlier
        out[earlier, history + distance - 1] = later
    return out


def gaps(trace: Trace, near: IntArray) -> Features:
    """(J, 2 K) feature: time between the submissions of a job and of its `neighbours`."""
    apart = np.abs(trace.submit_s[near] - trace.submit_s[:, None])
    return np.asarray(np.minimum(np.log1p(apart / 60.0) / 4.0, HIGH), np.float32)


def _codes(*columns: NDArray[np.integer]) -> IntArray:
    """(J,) number of every combination of the columns."""
    _, codes = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    return codes.reshape(-1).astype(np.int32)


@compiled
def add_finished(means: NDArray[np.float64], gang: int, value: float) -> None:
    """Take a value into the exponential mean and variance of its gang size, and of all jobs.

    The n-th value has the weight max(0.05, 1 / n): the first twenty count alike. The recursion is
    that of Welford for a moving weight (Finch, Incremental calculation of weighted mean and
    variance, 2009, section 9).

    Args:
        means: (C + 1, 3) NUMBER, MEAN, VARIANCE by gang size, and over all.
        gang: number of the gang size.
        value: the value.
    """
    for row in (means[gang], means[len(means) - 1]):
        row[NUMBER] += 1.0
        weight = max(LEAST_RECENCY, 1.0 / row[NUMBER])
        away = value - row[MEAN]
        row[MEAN] += weight * away
        row[VARIANCE] = (1.0 - weight) * (row[VARIANCE] + weight * away * away)


@compiled_inner
def write_means(means: NDArray[np.float64], gang: int, row: Features) -> None:
    """Into `row`, of the finished jobs of a gang size: mean, deviation, count; of all: the two."""
    alike, everything = means[gang], means[len(means) - 1]
    row[0], row[1], row[2] = alike[MEAN], sqrt(alike[VARIANCE]), count(alike[NUMBER])
    row[3], row[4] = everything[MEAN], sqrt(everything[VARIANCE])


def job_profiles(
    cluster: Cluster,
    trace: Trace,
    tables: RateTables,
    permitted: NDArray[np.integer],
    types: int,
) -> Features:
    """(J, PROFILE_WIDTH + types) features of jobs that never change.

    Their meaning stands in `ClusterObservation`.

    Args:
        cluster: where they run.
        trace: the jobs.
        tables: how they run there.
        permitted: (J,) bits of the GPU types they may run on.
        types: T of the bounds.
    """
    profile = tables.profile
    row = tables.row[:, 0]
    by_case = np.stack(
        [
            tables.communication.max(axis=(1, 2, 3)),
            tables.demand.max(axis=1),
            tables.pair[row].mean(axis=1),
            tables.pair[:, row].mean(axis=0),
            tables.locality[:, :, ONE_RACK, min(1, tables.locality.shape[3] - 1)].mean(axis=1),
            tables.locality[:, :, SEVERAL_RACKS, -1].mean(axis=1),
        ],
        axis=1,
    )
    out = np.zeros((len(trace), PROFILE_WIDTH + types))
    out[:, :6] = by_case[profile]
    for column, wanted, there in (
        (6, trace.cpu_milli, cluster.cpu_milli),
        (7, trace.memory_mib, cluster.memory_mib),
    ):
        limited = there[there < UNLIMITED]
        out[:, column] = wanted / max(int(limited.max(initial=0)), 1) if len(limited) else 0.0
    for index in range(len(cluster.gpu_types)):
        may = permitted >> index & 1 == 1
        out[:, PROFILE_WIDTH + index] = np.where(may, tables.speed[profile, index], 0.0)
    return np.clip(out, LOW, HIGH).astype(np.float32)


class Advice(Protocol):
    """The decisions of an expert policy in one episode."""

    def action(self, episode: SchedulingEpisode, scheduler: int) -> int:
        """An allowed action for a scheduler whose window has just been filled."""


@runtime_checkable
class Adviser(Protocol):
    """An expert policy, asked at every decision; it changes nothing itself."""

    def begin(self, episode: SchedulingEpisode) -> Advice:
        """At the start of an episode."""


class Buffers(NamedTuple):
    """An observation in three pieces of memory."""

    floats: Features
    indices: NDArray[np.int64]
    flags: Flags


class ObservationTable(NamedTuple):
    """Sizes of an observation; plain numbers for compiled code."""

    servers: int  # N
    racks: int  # R
    gpu_types: int  # T
    window: int  # W
    running: int  # M
    shares: int  # E
    peers: int  # F
    known: int  # 1: durations are
    key: int  # of the window
    most_forwards: int
    history: int  # K


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
        running: Count = RUNNING_SHOWN,
        shares: Count = SHARES,
        known_durations: bool = True,
        order: WindowOrder = QueueOrder(),
        history: Annotated[int, Ge(0)] = 0,
        adviser: Adviser | None = None,
    ) -> None:
        if order.needs_durations and not known_durations:
            raise InputError(f"{type(order).__name__} needs known durations", field="order")
        self.bounds, self.adviser = bounds, adviser
        n, r, t = bounds.servers, bounds.racks, bounds.gpu_types
        self.table = ObservationTable(
            n, r, t, window, running, shares, peers, int(known_durations), order.code, 0, history
        )
        job = JOB_BASE + t + history_width(history)
        floats: dict[str, Shape] = {
            "cluster_features": (CLUSTER_WIDTH,),
            "rack_features": (r, RACK_WIDTH),
            "server_features": (n, SERVER_BASE + t),
            "running_features": (running, job),
            "pending_features": (window, job),
            "share_features": (shares, SHARE_WIDTH),
        }
        if peers:
            floats["peer_features"] = (peers, PEER_BASE + t)
        indices: dict[str, Shape] = {"server_rack": (n,), "share_index": (2, shares)}
        if adviser is not None:
            indices[ADVISED] = (1,)  # the last
        rows = {"rack": r, "server": n, "running": running, "pending": window, "share": shares}
        flags: dict[str, Shape] = {f"{name}_mask": (number,) for name, number in rows.items()}
        self._shapes = floats, indices, flags
        self._pieces, self._sizes = [], []
        for shapes in self._shapes:
            ends = np.cumsum([0, *map(np.prod, shapes.values())]).tolist()
            self._pieces.append(list(zip(shapes, ends, ends[1:], shapes.values(), strict=False)))
            self._sizes.append(ends[-1])

    @cached_property
    def space(self) -> spaces.Dict:
        """What an observation can be."""
        floats, indices, flags = self._shapes
        sinks = np.repeat([[self.table.running], [self.table.servers]], self.table.shares, axis=1)
        highest: dict[str, Any] = {"server_rack": self.table.racks, "share_index": sinks, ADVISED: MOST_ACTIONS}
        return spaces.Dict(
            {
                **{key: spaces.Box(LOW, HIGH, shape, np.float32) for key, shape in floats.items()},
                **{
                    key: spaces.Box(0, highest[key], shape, np.int64)
                    for key, shape in indices.items()
                },
                **{key: spaces.Box(0, 1, shape, np.int8) for key, shape in flags.items()},
            }
        )

    def buffers(self) -> Buffers:
        """Fresh memory, all zero, for `observe`."""
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


@compiled_inner
def cut(memory: Features, first: int, rows: int, width: int) -> tuple[Features, int]:
    """The next (rows, width) numbers of a buffer, and where they end."""
    last = first + rows * width
    return memory[first:last].reshape(rows, width), last


@compiled
def observe(
    state: ClusterState,
    book: Bookkeeping,
    view: View,
    profiles: Features,
    summaries: NDArray[np.float64],
    actions: ActionTable,
    sizes: ObservationTable,
    floats: Features,
    indices: NDArray[np.int64],
    flags: Flags,
    mask: Flags,
) -> None:
    """Fill fresh buffers, all zero, with what a scheduler sees and may do.

    Args:
        state: of the cluster.
        book: whose queue jobs are in; the jobs shown are written there.
        view: of the scheduler.
        profiles: (J, ...) `job_profiles`.
        summaries: (S, PEER_BASE + T) of all schedulers; not read where there is one.
        actions: their numbering.
        sizes: of the observation.
        floats: cluster, racks, servers, running jobs, pending jobs, shares, peers.
        indices: rack of every server; running job, server of every share.
        flags: masks of racks, servers, running jobs, pending jobs, shares.
        mask: (A,) allowed actions.
    """
    state, book, view = borrowed(state), borrowed(book), borrowed(view)
    n, r, w, m = sizes.servers, sizes.racks, sizes.window, sizes.running
    me, peer_width = view.scheduler, PEER_BASE + sizes.gpu_types
    job_width = JOB_BASE + sizes.gpu_types + history_width(sizes.history)
    cluster = floats[:CLUSTER_WIDTH]
    racks, at = cut(floats, CLUSTER_WIDTH, r, RACK_WIDTH)
    servers, at = cut(floats, at, n, SERVER_BASE + sizes.gpu_types)
    running, at = cut(floats, at, m, job_width)
    pending, at = cut(floats, at, w, job_width)
    shares, at = cut(floats, at, sizes.shares, SHARE_WIDTH)
    peers, at = cut(floats, at, sizes.peers, peer_width)

    fill_queue(state, book, view, sizes.key, cluster)
    show_running(state, book, view, cluster)
    window, shown = book.window[me], book.shown[me]
    flags[: len(view.rack_ptr) - 1] = 1
    flags[r : r + len(view.node)] = 1
    indices[len(view.node) : n] = r
    fill_servers(state, view, servers, racks, cluster, indices)
    marks = flags[r + n :]
    fill_jobs(state, book, view, profiles, sizes, shown, running, marks[:m])
    fill_jobs(state, book, view, profiles, sizes, window, pending, marks[m : m + w])
    left_out = fill_shares(state, view, shown, shares, indices[n:], marks[m + w :], n)
    cluster[15] = count(left_out)
    for peer in range(sizes.peers):
        other = summaries[(me + 1 + peer) % (sizes.peers + 1)]
        peers[peer, 0] = inside(other[0] / max(view.gpus, 1))
        for column in range(1, peer_width):
            peers[peer, column] = inside(other[column])
    fill_mask(state, book, view, actions, sizes.most_forwards, mask)


@compiled_inner
def fill_queue(
    state: ClusterState, book: Bookkeeping, view: View, key: int, cluster: Features
) -> None:
    """Choose the jobs of the window; what the whole queue asks for, and what is on its way."""
    window = book.window[view.scheduler]
    keys, filled = np.empty(len(window)), 0
    waiting, coming, asked, oldest = 0, 0, 0.0, 0.0
    now, job = state.clock[0].now, state.clock[0].head
    while job != NONE:
        record = state.jobs[job]
        mine = book.home[job] == view.scheduler
        if mine and book.there[job] > now:
            coming += 1
        elif mine:
            waiting += 1
            asked += record.gpus * record.milli / WHOLE_GPU
            oldest = max(oldest, now - record.submit)
            value = record.executed if key == SERVICE else record.remaining
            if key == QUEUE:
                value = 0.0
            elif key != REMAINING_TIME:
                value = value * record.gpus * record.milli
            if filled < len(window) or value < keys[filled - 1]:
                place = min(filled, len(window) - 1)
                filled = place + 1
                while place > 0 and value < keys[place - 1]:
                    keys[place] = keys[place - 1]
                    window[place] = window[place - 1]
                    place -= 1
                keys[place] = value
                window[place] = job
        job = record.after
    window[filled:] = NONE
    cluster[8] = count(waiting)
    cluster[9] = count(max(waiting - len(window), 0))
    cluster[12] = inside(asked / max(view.gpus, 1))
    cluster[13] = minutes(oldest)
    cluster[14] = count(coming)


@compiled_inner
def show_running(state: ClusterState, book: Bookkeeping, view: View, cluster: Features) -> None:
    """Choose the running jobs shown, by their first server: nothing shows when they will end."""
    running, row, shown = 0, book.row, book.shown[view.scheduler]
    for place in range(state.clock[0].running):
        row[state.heap[place]] = NONE
    for slot in range(len(view.node)):
        share = state.nodes[view.node[slot]].share
        while share != NONE:
            job = state.shares[share].job
            if row[job] == NONE:
                row[job] = running
                if running < len(shown):
                    shown[running] = job
                running += 1
            share = state.shares[share].after
    shown[min(running, len(shown)) :] = NONE
    cluster[10] = count(running)
    cluster[11] = count(max(running - len(shown), 0))


@compiled_inner
def fill_servers(
    state: ClusterState,
    view: View,
    servers: Features,
    racks: Features,
    cluster: Features,
    rack_of: NDArray[np.int64],
) -> None:
    """Servers, their racks and the whole."""
    largest = float(view.largest)
    areas = np.zeros((len(view.rack_ptr), AREA_WIDTH + 1))  # the last row is the whole
    for slot in range(len(view.node)):
        rack_of[slot] = view.rack[slot]
        place, row, area = state.nodes[view.node[slot]], servers[slot], areas[view.rack[slot]]
        gpus, jobs = float(max(place.gpus, 1)), float(max(place.jobs, 1))
        rates = 0.0
        share = place.share
        while share != NONE:
            rates += state.jobs[state.shares[share].job].rate
            share = state.shares[share].after
        left = 0
        partial = place.partial
        while partial != NONE:
            left += state.partials[partial].left * state.partials[partial].gpus
            partial = state.partials[partial].next
        row[0] = place.gpus / largest
        row[1] = place.free / gpus
        row[2] = place.free / largest
        row[3] = place.up
        row[4] = inside(place.jobs / gpus)
        row[5] = place.spanning / jobs
        row[6] = inside(1.0 - rates / jobs) if place.jobs > 0 else 0.0
        row[7] = left / WHOLE_GPU / gpus
        row[8] = place.cpu / max(view.capacity[slot, 0], 1.0)
        row[9] = place.memory / max(view.capacity[slot, 1], 1.0)
        row[10] = view.capacity[slot, 2]
        row[SERVER_BASE + place.type] = 1.0
        area[0] += place.gpus
        area[1] += place.free
        area[2] = max(area[2], place.free)
        area[3] += place.free == place.gpus and place.up == 1
        area[4] += place.up
        area[5] += place.jobs
        area[6] += place.spanning
        area[7] += rates
        area[8] += 1.0  # servers
    whole = areas[len(areas) - 1]
    for rack in range(len(areas)):
        area = areas[rack]
        row = racks[rack] if rack < len(areas) - 1 else cluster
        gpus, jobs, number = max(area[0], 1.0), max(area[5], 1.0), area[8]
        row[0] = area[0] / max(view.gpus, 1)
        row[1] = area[1] / gpus
        row[2] = area[2] / largest
        row[3] = area[3] / number
        row[4] = area[4] / number
        row[5] = inside(area[5] / gpus)
        row[6] = area[6] / jobs
        row[7] = inside(1.0 - area[7] / jobs) if area[5] > 0.0 else 0.0
        if rack < len(areas) - 1:
            most = max(whole[2], area[2])
            whole += area
            whole[2] = most
    cluster[0] = inside(np.log2(max(view.gpus, 1)) / 10.0)


@compiled_inner
def fill_jobs(
    state: ClusterState,
    book: Bookkeeping,
    view: View,
    profiles: Features,
    sizes: ObservationTable,
    chosen: IntArray,
    rows: Features,
    flags: Flags,
) -> None:
    """The jobs `chosen`, pending or running; what is settled may be of an earlier instant."""
    jobs, now = state.jobs, state.clock[0].now
    largest, gpus = float(view.largest), float(max(view.gpus, 1))
    servers, most_forwards = len(view.node), max(sizes.most_forwards, 1)
    for number in range(len(chosen)):
        job = chosen[number]
        if job == NONE:
            return
        flags[number] = 1
        record, row = jobs[job], rows[number]
        executed, remaining = record.executed, record.remaining
        held = record.gpus * record.milli / WHOLE_GPU
        if record.status == RUNNING:
            executed += now - record.settled
            remaining = max(remaining - progress_of(record, now), 0.0)
            row[3] = record.nodes / servers
            row[4] = spread_of(state.nodes, state.shares, record.share) / SEVERAL_RACKS
            row[9] = inside(record.rate)
            if record.ready > now:
                row[10] = minutes(record.ready - now)
            if sizes.known:
                row[16] = minutes(record.end - now)
        row[0] = inside(record.gpus / largest)
        row[1] = inside(record.gpus / gpus)
        row[2] = record.milli / WHOLE_GPU
        row[5] = minutes(now - record.submit)
        row[6] = minutes(now - record.since)
        row[7] = minutes(executed)
        row[8] = row[7] if held == 1.0 else minutes(executed * held)
        row[11] = inside(record.preemptions / 4.0)
        row[12] = book.forwards[job] / most_forwards
        if sizes.known:
            row[13] = minutes(remaining)
            row[14] = minutes(record.work)
            row[15] = 1.0 - remaining / record.work
        for column in range(profiles.shape[1]):
            row[CHANGING + column] = profiles[job, column]
        if sizes.history > 0:
            fill_history(state, book, job, row[JOB_BASE + sizes.gpu_types :])


@compiled_inner
def fill_history(state: ClusterState, book: Bookkeeping, job: int, row: Features) -> None:
    """What is known of the jobs submitted before and after `job`, and of those that finished."""
    now, at = state.clock[0].now, 0
    for place in range(book.near.shape[1]):
        other = book.near[job, place]
        if other != NONE and state.jobs[other].status != FUTURE:
            record = state.jobs[other]
            row[at] = 1.0
            row[at + 3] = book.gap[job, place]
            if record.status == FINISHED:
                row[at + 1] = book.took[other]
                row[at + 2] = 1.0
            elif record.status == RUNNING:
                row[at + 1] = minutes(record.executed + now - record.settled)
            elif record.executed > 0.0:
                row[at + 1] = minutes(record.executed)
        at += NEIGHBOUR_WIDTH
    write_means(book.finished, book.gang[job], row[at:])


@compiled_inner
def fill_shares(
    state: ClusterState,
    view: View,
    shown: IntArray,
    rows: Features,
    ends: NDArray[np.int64],
    flags: Flags,
    servers: int,
) -> int:
    """Edges from the running jobs shown to their servers; how many found no place."""
    edges, left_out = len(rows), 0
    ends[:edges] = len(shown)
    ends[edges:] = servers
    edge = 0
    for row in range(len(shown)):
        if shown[row] == NONE:
            break
        record = state.jobs[shown[row]]
        index = record.share
        while index != NONE:
            share = state.shares[index]
            if edge < edges:
                ends[edge] = row
                ends[edges + edge] = view.slot[share.node]
                flags[edge] = 1
                held = share.gpus * record.milli / WHOLE_GPU
                rows[edge, 0] = held / max(state.nodes[share.node].gpus, 1)
                rows[edge, 1] = share.gpus / max(record.gpus, 1)
                edge += 1
            else:
                left_out += 1
            index = share.next
    return left_out


@compiled
def summarise(
    state: ClusterState,
    book: Bookkeeping,
    owner: IntArray,
    largest: int,
    out: NDArray[np.float64],
) -> None:
    """Write into `out` (S, PEER_BASE + T) what schedulers show each other; `owner` (nodes,)."""
    out[:, :] = 0.0
    for node in range(len(owner)):
        place, row = state.nodes[node], out[owner[node]]
        row[0] += place.gpus
        row[1] += place.free
        row[2] = max(row[2], place.free / largest)
        row[PEER_BASE + place.type] += place.gpus
    now = state.clock[0].now
    job = state.clock[0].head
    while job != NONE:
        record, row = state.jobs[job], out[book.home[job]]
        if book.there[job] <= now:
            row[3] += 1.0
            row[4] += record.gpus * record.milli / WHOLE_GPU
        else:
            row[6] += 1.0
        job = record.after
    for place in range(state.clock[0].running):
        out[book.home[state.heap[place]], 5] += 1.0
    for scheduler in range(len(out)):
        row = out[scheduler]
        gpus = max(row[0], 1.0)
        row[1] /= gpus
        row[3] = count(row[3])
        row[4] /= gpus
        row[5] = count(row[5])
        row[6] = count(row[6])
        for column in range(PEER_BASE, out.shape[1]):
            row[column] /= gpus
