"""What schedulers see: features, their layout, and the compiled code that fills them in.

Jobs submitted one after the other with the same gang size often take a similar time. What is known
of them when durations are not: how long those that have arrived have held their GPUs, and whether
they have finished.
"""

from __future__ import annotations

from functools import cached_property
from math import log, sqrt
from typing import Annotated, Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
from annotated_types import Ge
from gymnasium import spaces
from numpy.typing import NDArray

from envs.bounds import Count, NonNegative, bounded
from envs.cluster.environment.actions import (
    QUEUE,
    REMAINING_TIME,
    SERVICE,
    Bookkeeping,
    Flags,
    IntArray,
    Layout,
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

ClusterGraph = dict[str, NDArray[Any]]
Features = NDArray[np.float32]

LOW, HIGH = -1.0, 4.0
AREA_WIDTH = 8  # what racks and the whole have in common
RACK_WIDTH, CLUSTER_WIDTH, SHARE_WIDTH, PEER_BASE = AREA_WIDTH, AREA_WIDTH + 8, 2, 7
SENT_WIDTH = 3
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


def numbers_of(*columns: NDArray[np.integer]) -> IntArray:
    """(J,) number of every combination of the columns."""
    _, numbers = np.unique(np.stack(columns, axis=1), axis=0, return_inverse=True)
    return numbers.reshape(-1).astype(np.int32)


def gangs(trace: Trace) -> IntArray:
    """(J,) number of the gang size of every job: its GPUs, and the part of each it asks for."""
    return numbers_of(trace.num_gpus, trace.gpu_milli)


def neighbours(trace: Trace, history: int) -> IntArray:
    """(J, 2 K) the K jobs before each job by submission, nearest first, then the K after it.

    Only jobs of the same gang size count, of the same virtual cluster and user where the trace
    says them; NONE where there are fewer.
    """
    kind = numbers_of(trace.num_gpus, trace.gpu_milli, trace.queue.codes, trace.user.codes)
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
    profile, row, locality = tables.profile, tables.row[:, 0], tables.locality
    by_case = (
        tables.communication.max(axis=(1, 2, 3)),
        tables.demand.max(axis=1),
        tables.pair[row].mean(axis=1),
        tables.pair[:, row].mean(axis=0),
        locality[:, :, ONE_RACK, min(1, locality.shape[3] - 1)].mean(axis=1),
        locality[:, :, SEVERAL_RACKS, -1].mean(axis=1),
    )
    out = np.zeros((len(trace), PROFILE_WIDTH + types))
    out[:, :6] = np.stack(by_case, axis=1)[profile]
    for column, wanted, there in (
        (6, trace.cpu_milli, cluster.cpu_milli),
        (7, trace.memory_mib, cluster.memory_mib),
    ):
        if len(limited := there[there < UNLIMITED]):
            out[:, column] = wanted / max(int(limited.max()), 1)
    for index in range(len(cluster.gpu_types)):
        may = permitted >> index & 1 == 1
        out[:, PROFILE_WIDTH + index] = np.where(may, tables.speed[profile, index], 0.0)
    return np.clip(out, LOW, HIGH).astype(np.float32)


class ExpertActions(Protocol):
    """The decisions of an expert policy in one episode."""

    def action(self, episode: Any, scheduler: int) -> int:
        """An allowed action for a scheduler of a `SchedulingEpisode` whose window is filled."""


@runtime_checkable
class ExpertPolicy(Protocol):
    """An expert policy, asked at every decision; it changes nothing itself."""

    def begin(self, episode: Any) -> ExpertActions:
        """At the start of a `SchedulingEpisode`."""


class Seen(NamedTuple):
    """The arrays of an observation that compiled code fills in; see `ClusterObservation`."""

    cluster_features: Features
    rack_features: Features
    server_features: Features
    running_features: Features
    pending_features: Features
    share_features: Features
    peer_features: Features
    sent_features: Features
    server_rack: NDArray[np.int64]
    share_index: NDArray[np.int64]
    rack_mask: Flags
    server_mask: Flags
    running_mask: Flags
    pending_mask: Flags
    share_mask: Flags


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
    | sent_features | float32 (F, 3), only with a view delay | none |
    | advised | int64 (1,), only with an expert: the action it would take | none |

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

    With a `view_delay_s` columns 1 to 6 are those of the last broadcast. All schedulers broadcast
    together: at the start, and at the first decision when so many seconds have passed since.

    | sent_features | in the order of forwarding |
    |---|---|
    | 0, 1 | jobs forwarded there since the broadcast: count, GPUs they ask for / its GPUs |
    | 2 | time since the broadcast |

    Args:
        bounds: N, R, T and the GPUs of the largest server.
        peers: F.
        window: W.
        running: M.
        shares: E.
        known_durations: whether jobs say how long they take.
        order: by what key the window is filled.
        history: K; 0: no history is shown.
        expert: the policy whose action is shown; None: none.
        view_delay_s: seconds between broadcasts of peer_features; None: they are seen as they are.

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
        expert: ExpertPolicy | None = None,
        view_delay_s: NonNegative | None = None,
    ) -> None:
        if order.needs_durations and not known_durations:
            raise InputError(f"{type(order).__name__} needs known durations", field="order")
        self.bounds, self.expert = bounds, expert
        servers, racks, types = bounds.servers, bounds.racks, bounds.gpu_types
        self.table = Layout(
            servers=servers,
            racks=racks,
            gpu_types=types,
            window=window,
            running=running,
            shares=shares,
            peers=peers,
            known=int(known_durations),
            key=order.code,
            history=history,
            groups=servers + racks + 1,
            view_delay_s=-1.0 if view_delay_s is None else float(view_delay_s),
        )
        job = JOB_BASE + types + history_width(history)
        rows = {
            "rack": (racks, RACK_WIDTH),
            "server": (servers, SERVER_BASE + types),
            "running": (running, job),
            "pending": (window, job),
            "share": (shares, SHARE_WIDTH),
        }
        sinks = np.repeat([[running], [servers]], shares, axis=1)
        # shape, dtype, highest value
        self._arrays: dict[str, tuple[tuple[int, ...], type, Any]] = {
            "cluster_features": ((CLUSTER_WIDTH,), np.float32, HIGH),
            "server_rack": ((servers,), np.int64, racks),
            "share_index": ((2, shares), np.int64, sinks),
            **{f"{name}_features": (shape, np.float32, HIGH) for name, shape in rows.items()},
            **{f"{name}_mask": (shape[:1], np.int8, 1) for name, shape in rows.items()},
        }
        if peers:
            self._arrays["peer_features"] = ((peers, PEER_BASE + types), np.float32, HIGH)
            if view_delay_s is not None:
                self._arrays["sent_features"] = ((peers, SENT_WIDTH), np.float32, HIGH)
        if expert is not None:
            self._arrays[ADVISED] = ((1,), np.int64, MOST_ACTIONS)

    @cached_property
    def space(self) -> spaces.Dict:
        """What an observation can be."""
        return spaces.Dict(
            {
                key: spaces.Box(LOW if dtype is np.float32 else 0, high, shape, dtype)
                for key, (shape, dtype, high) in self._arrays.items()
            }
        )

    def empty(self) -> ClusterGraph:
        """Fresh memory of an observation, all zero."""
        return {key: np.zeros(shape, dtype) for key, (shape, dtype, _) in self._arrays.items()}


NO_PEERS = np.zeros((0, 0), np.float32)


def arrays_of(graph: ClusterGraph) -> Seen:
    """The memory of an observation for `observe`."""
    return Seen(*[graph.get(key, NO_PEERS) for key in Seen._fields])


@compiled
def observe(
    state: ClusterState,
    book: Bookkeeping,
    view: View,
    profiles: Features,
    request: IntArray,
    owner: IntArray,
    summaries: NDArray[np.float64],
    table: Layout,
    seen: Seen,
    mask: Flags,
) -> None:
    """Fill an observation, all zero, with what a scheduler sees and may do.

    Args:
        state: of the cluster.
        book: whose queue jobs are in; the jobs shown are written there.
        view: of the scheduler.
        profiles: (J, ...) `job_profiles`.
        request: (J,) number of what a job asks for.
        owner: (nodes,) scheduler of every node.
        summaries: (S, PEER_BASE + T) what schedulers show each other is written there.
        table: its layout.
        seen: the observation.
        mask: (A,) allowed actions.
    """
    state, book, view, seen = borrowed(state), borrowed(book), borrowed(view), borrowed(seen)
    me, cluster = view.scheduler, seen.cluster_features
    summarise(state, book, owner, view.largest, summaries)
    own = summaries[me]
    cluster[8], cluster[10], cluster[12], cluster[14] = own[3], own[5], inside(own[4]), own[6]
    fill_queue(state, book, view, table.key, cluster)
    show_running(state, book, view, cluster)
    fill_servers(state, view, table, seen)
    for chosen, rows, flags in (
        (book.shown[me], seen.running_features, seen.running_mask),
        (book.window[me], seen.pending_features, seen.pending_mask),
    ):
        fill_jobs(state, book, view, profiles, table, chosen, rows, flags)
    fill_shares(state, view, book.shown[me], seen)
    late = table.peers > 0 and table.view_delay_s >= 0.0
    if late and state.clock[0].now - book.broadcast[0] >= table.view_delay_s:
        book.broadcast[0] = state.clock[0].now
        book.seen[:] = summaries
        book.sent[:] = 0.0
    for peer in range(table.peers):
        number = (me + 1 + peer) % (table.peers + 1)
        other = book.seen[number] if late else summaries[number]
        seen.peer_features[peer, 0] = inside(other[0] / max(view.gpus, 1))
        for column in range(1, len(other)):
            seen.peer_features[peer, column] = inside(other[column])
        if late:
            sent = book.sent[me, number]
            seen.sent_features[peer, 0] = count(sent[0])
            seen.sent_features[peer, 1] = inside(sent[1] / max(other[0], 1.0))
            seen.sent_features[peer, 2] = minutes(state.clock[0].now - book.broadcast[0])
    fill_mask(state, book, view, table, request, mask)


@compiled_inner
def fill_queue(
    state: ClusterState, book: Bookkeeping, view: View, key: int, cluster: Features
) -> None:
    """Choose the jobs of the window."""
    window = book.window[view.scheduler]
    keys, filled, waiting, oldest = np.empty(len(window)), 0, 0, 0.0
    now, job = state.clock[0].now, state.clock[0].head
    while job != NONE:
        record = state.jobs[job]
        if book.home[job] == view.scheduler and book.there[job] <= now:
            waiting += 1
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
    cluster[9] = count(max(waiting - len(window), 0))
    cluster[13] = minutes(oldest)


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
    cluster[11] = count(max(running - len(shown), 0))


@compiled_inner
def fill_servers(state: ClusterState, view: View, table: Layout, seen: Seen) -> None:
    """Servers, their racks and the whole."""
    largest, cluster = float(view.largest), seen.cluster_features
    areas = np.zeros((len(view.rack_ptr), AREA_WIDTH + 1))  # the last row is the whole
    seen.rack_mask[: len(areas) - 1] = 1
    seen.server_mask[: len(view.node)] = 1
    seen.server_rack[len(view.node) :] = table.racks
    for slot in range(len(view.node)):
        rack = seen.server_rack[slot] = view.rack[slot]
        place, row, area = state.nodes[view.node[slot]], seen.server_features[slot], areas[rack]
        gpus, jobs = float(max(place.gpus, 1)), float(max(place.jobs, 1))
        rates, share = 0.0, place.share
        while share != NONE:
            rates += state.jobs[state.shares[share].job].rate
            share = state.shares[share].after
        left, partial = 0, place.partial
        while partial != NONE:
            left += state.partials[partial].left * state.partials[partial].gpus
            partial = state.partials[partial].next
        row[0], row[1], row[2] = place.gpus / largest, place.free / gpus, place.free / largest
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
        row = seen.rack_features[rack] if rack < len(areas) - 1 else cluster
        gpus, jobs, number = max(area[0], 1.0), max(area[5], 1.0), area[8]
        row[0], row[1], row[2] = area[0] / max(view.gpus, 1), area[1] / gpus, area[2] / largest
        row[3], row[4] = area[3] / number, area[4] / number
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
    table: Layout,
    chosen: IntArray,
    rows: Features,
    flags: Flags,
) -> None:
    """The jobs `chosen`, pending or running; what is settled may be of an earlier instant."""
    jobs, now = state.jobs, state.clock[0].now
    largest, gpus = float(view.largest), float(max(view.gpus, 1))
    servers, most_forwards = len(view.node), max(table.most_forwards, 1)
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
            if table.known:
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
        if table.known:
            row[13] = minutes(remaining)
            row[14] = minutes(record.work)
            row[15] = 1.0 - remaining / record.work
        for column in range(profiles.shape[1]):
            row[CHANGING + column] = profiles[job, column]
        if table.history > 0:
            fill_history(state, book, job, row[JOB_BASE + table.gpu_types :])


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
def fill_shares(state: ClusterState, view: View, shown: IntArray, seen: Seen) -> None:
    """Edges from the running jobs shown to their servers; those that find no place are counted."""
    edge, left_out = 0, 0
    seen.share_index[0] = len(shown)
    seen.share_index[1] = len(seen.server_mask)
    for row in range(len(shown)):
        if shown[row] == NONE:
            break
        record = state.jobs[shown[row]]
        index = record.share
        while index != NONE:
            share = state.shares[index]
            if edge < len(seen.share_mask):
                seen.share_index[0, edge] = row
                seen.share_index[1, edge] = view.slot[share.node]
                seen.share_mask[edge] = 1
                held = share.gpus * record.milli / WHOLE_GPU
                seen.share_features[edge, 0] = held / max(state.nodes[share.node].gpus, 1)
                seen.share_features[edge, 1] = share.gpus / max(record.gpus, 1)
                edge += 1
            else:
                left_out += 1
            index = share.next
    seen.cluster_features[15] = count(left_out)


@compiled_inner
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
        row[1], row[4] = row[1] / gpus, row[4] / gpus
        row[3], row[5], row[6] = count(row[3]), count(row[5]), count(row[6])
        row[PEER_BASE:] /= gpus
