"""What a scheduler has and may do: how actions are numbered, which are allowed, what they do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, NamedTuple, Protocol

import numpy as np
from annotated_types import Gt
from numpy.typing import NDArray

from envs.arrays import FloatArray, sums_before
from envs.bounds import NonNegative, bounded
from envs.cluster.interference.rates import RateTables
from envs.cluster.nodes import Cluster
from envs.cluster.simulation.borrowed import borrowed
from envs.cluster.simulation.cluster_kernel import begin, give, give_partial, stop
from envs.cluster.simulation.cluster_state import NONE, ClusterState, Overheads
from envs.cluster.workload.trace import WHOLE_GPU
from envs.compilation import compiled, compiled_inner
from envs.errors import InputError

IntArray = NDArray[np.int32]
Flags = NDArray[np.int8]
Records = NDArray[np.void]
Record = Any  # one of the records of `cluster_state`

QUEUE, SERVICE, REMAINING_TIME, REMAINING_SERVICE = 0, 1, 2, 3  # codes of the keys


class WindowOrder(Protocol):
    """A key by which pending jobs are ordered; ties by the queue."""

    code: int
    needs_durations: bool


class QueueOrder:
    """As they stand in the queue: by arrival, and again at the tail after each preemption."""

    code, needs_durations = QUEUE, False


class LeastService:
    """GPU-seconds held so far, ascending."""

    code, needs_durations = SERVICE, False


class ShortestRemainingTime:
    """Seconds of work left, ascending."""

    code, needs_durations = REMAINING_TIME, True


class SmallestRemainingService:
    """Seconds of work left times GPUs, ascending."""

    code, needs_durations = REMAINING_SERVICE, True


class Layout(NamedTuple):
    """Sizes of an observation, and how actions are numbered; plain numbers for compiled code."""

    servers: int  # N
    racks: int  # R
    gpu_types: int  # T
    window: int  # W
    running: int  # M
    shares: int  # E
    peers: int  # F: other schedulers, that jobs can be forwarded to
    known: int  # 1: durations are
    key: int  # of the window
    history: int  # K
    groups: int  # G = N + R + 1
    most_forwards: int = 0
    preemptible: int = 0  # P: running jobs that can be preempted, 0 without preemption
    allow_servers: int = 1  # 1: jobs can start on single servers
    allow_racks: int = 1
    allow_all: int = 1
    least_run_s: float = np.inf  # a job runs before it can be preempted, inf without preemption
    longest_wait_s: float = np.inf
    view_delay_s: float = (
        -1.0
    )  # between broadcasts of what others show; below 0: it is seen as it is

    @property
    def size(self) -> int:
        """A: actions."""
        return self.window * (self.groups + self.peers) + self.preemptible + 1


@bounded
@dataclass(frozen=True)
class ClusterActions:
    """The server groups that jobs can start on, preemption, and how long a wait lasts.

    Actions, with N, R and F the bounds of servers, racks and other schedulers, W the window, P the
    running jobs shown where there is preemption and 0 elsewhere, and G = N + R + 1:

    | action | |
    |---|---|
    | w G + g | start job w of the window on server group g |
    | W G + w F + f | forward job w of the window to the f-th other scheduler |
    | W (G + F) + p | preempt the p-th running job shown |
    | W (G + F) + P | wait; always the last |

    Server group g < N is server g, N + r is all servers of rack r, N + R all servers. A job goes to
    a group in a *consolidated* way. Its room on a server is how many of its GPUs could go there
    now: the free ones, if they are of a permitted type; and where processor or memory do not last
    for the whole job, no more than they last for. Where a server has room for all that is left, the
    one with the least room takes it; otherwise the one with the most room is filled, and the same
    is asked for the rest. Of equals the first is taken. A job that asks for fractions of its GPUs
    has room for all of it, too, on a server with a set of exactly so many shared GPUs that have
    enough left. It takes the set with the least left that is enough; where there is none, free GPUs
    of the server with the fewest. Where no server has room for all of it, it goes to free GPUs in
    the consolidated way, and on each server they are a set that others may join.

    A job may start on a server that has room for all of it. It may start on a rack or on all
    servers where their room is enough and it may start on no smaller group inside.

    Attributes:
        servers: whether jobs can start on single servers.
        racks: whether they can on racks.
        all_servers: whether they can on all servers together.
        preempt_after_s: seconds for which a job has run, more than 0, before it can be preempted;
            None: there is no preemption.
        longest_wait_s: a wait ends with the next event or after so many seconds; None: only with
            the next event.

    Raises:
        InputError: jobs can start on no group.
    """

    servers: bool = True
    racks: bool = True
    all_servers: bool = True
    preempt_after_s: NonNegative | None = None
    longest_wait_s: Annotated[float, Gt(0.0)] | None = None

    def __post_init__(self) -> None:
        if not (self.servers or self.racks or self.all_servers):
            raise InputError("no server group is on offer", field="servers")

    def table(self, sizes: Layout, forwards: int) -> Layout:
        """`sizes` with the numbering, where a job may be forwarded so often."""
        never = self.preempt_after_s is None
        return sizes._replace(
            most_forwards=forwards,
            preemptible=0 if never else sizes.running,
            allow_servers=int(self.servers),
            allow_racks=int(self.racks),
            allow_all=int(self.all_servers),
            least_run_s=np.inf if never else float(self.preempt_after_s or 0.0),
            longest_wait_s=float(self.longest_wait_s or np.inf),
        )


class View(NamedTuple):
    """The servers of one scheduler, by rack and then by number."""

    scheduler: int
    node: IntArray  # (n,) node of the cluster
    slot: IntArray  # (nodes of the cluster,) place in `node`, or NONE
    rack: IntArray  # (n,) from 0 in the order shown
    rack_ptr: IntArray  # (r + 1,) first slot of each rack
    gpus: int  # of all of its servers
    largest: int  # GPUs of the largest server in the bounds
    # (n, 3) of a server: processor and memory in all, mean speed over cases / fastest type's
    capacity: FloatArray


def view_of(
    cluster: Cluster, tables: RateTables, nodes: NDArray[np.integer], scheduler: int, largest: int
) -> View:
    """The view of `scheduler`, who owns `nodes` of `cluster`."""
    order = nodes[np.lexsort((nodes, cluster.rack[nodes]))].astype(np.int32)
    slot = np.full(cluster.num_nodes, NONE, np.int32)
    slot[order] = np.arange(len(order))
    _, rack, sizes = np.unique(cluster.rack[order], return_inverse=True, return_counts=True)
    speed = tables.speed.mean(axis=0)
    limits = cluster.cpu_milli, cluster.memory_mib, (speed / speed.max())[cluster.gpu_type]
    return View(
        scheduler,
        order,
        slot,
        rack.astype(np.int32),
        sums_before(sizes).astype(np.int32),
        int(cluster.gpus[order].sum()),
        largest,
        np.stack([column[order].astype(np.float64) for column in limits], axis=1),
    )


class Bookkeeping(NamedTuple):
    """What schedulers know of jobs beside the simulator's state; J jobs, S schedulers."""

    home: IntArray  # (J,) scheduler in whose queue a job is, or was when it started
    there: FloatArray  # (J,) seconds from which it is there
    forwards: IntArray  # (J,) how often it has been forwarded
    holds: Flags  # (J, S) 1: the scheduler's servers can hold it when empty
    window: IntArray  # (S, W) pending jobs shown, or NONE
    shown: IntArray  # (S, M) running jobs shown, or NONE
    row: IntArray  # (J,) scratch: place of a running job
    near: IntArray  # (J, 2 K) jobs submitted before and after of the same kind, or NONE
    gap: NDArray[np.float32]  # (J, 2 K) feature: time between its submission and theirs
    took: FloatArray  # (J,) feature: time for which a job that has finished held its GPUs
    gang: IntArray  # (J,) number of its gang size; (0,) where no history is shown
    finished: FloatArray  # (C + 1, 3) number, mean, variance by gang size, and over all
    broadcast: FloatArray  # (1,) seconds: when schedulers last showed each other what they have
    seen: FloatArray  # (S, ...) what they showed then
    sent: FloatArray  # (S, S, 2) jobs, and GPUs they ask for, forwarded since by whom and to whom


@compiled_inner
def partial_for(job: Record, node: Record, partials: Records) -> int:
    """The set of as many partial GPUs with the least left that is enough, or NONE."""
    best, least = NONE, WHOLE_GPU + 1
    index = node.partial
    while index != NONE:
        left = partials[index].left
        if partials[index].gpus == job.gpus and job.milli <= left < least:
            best, least = index, left
        index = partials[index].next
    return best


@compiled_inner
def room(job: Record, node: Record, partials: Records) -> int:
    """How many GPUs a job like `job` could get on `node` now; -1: it cannot be there at all."""
    if node.up == 0 or (job.types >> node.type) & 1 == 0:
        return -1
    wanted, free = np.int64(job.gpus), np.int64(node.free)
    lasting: Any = wanted  # GPUs for which processor and memory last
    for asked, there in ((job.cpu, node.cpu), (job.memory, node.memory)):
        if asked > there:
            lasting = min(lasting, there * wanted // asked if wanted > 0 else -1)
    if lasting < wanted:
        return int(min(free, lasting))
    shares = free < wanted and job.milli < WHOLE_GPU
    return int(wanted if shares and partial_for(job, node, partials) != NONE else free)


@compiled
def start_on(
    state: ClusterState,
    tables: RateTables,
    overheads: Overheads,
    view: View,
    job: int,
    first: int,
    last: int,
) -> None:
    """Start `job` on the servers in slots `first`..`last` - 1, which have room for it."""
    record, nodes, partials = state.jobs[job], state.nodes, state.partials
    left = np.int64(record.gpus)
    fractional = record.milli < WHOLE_GPU and left > 0
    joined, on, least = NONE, NONE, WHOLE_GPU + 1  # the fullest set of its size
    for slot in range(first, last if fractional else first):
        node = nodes[view.node[slot]]
        if room(record, node, partials) >= left:
            index = partial_for(record, node, partials)
            if index != NONE and partials[index].left < least:
                joined, on, least = index, slot, partials[index].left
    if joined != NONE:
        give_partial(state, job, view.node[on], joined, left)
    while joined == NONE:  # free GPUs of as few servers as possible, the last of them the tightest
        enough, tightest, fullest, most = NONE, 0, NONE, 0
        for slot in range(first, last):
            there = room(record, nodes[view.node[slot]], partials)
            if there >= left and (enough == NONE or there < tightest):
                enough, tightest = slot, there
            if there > most:
                fullest, most = slot, there
        gpus = left if enough != NONE else most
        node_number = view.node[enough if enough != NONE else fullest]
        if fractional:  # a set that others may join
            give_partial(state, job, node_number, NONE, gpus)
        else:
            give(state, job, node_number, gpus)
        left -= gpus
        if left == 0:
            break
    begin(state, tables, overheads, job)


@compiled_inner
def allow_starts(state: ClusterState, table: Layout, view: View, job: int, mask: Flags) -> None:
    """Write into `mask` (G,) on which groups a job may start."""
    record = state.jobs[job]
    in_all, smaller = -1, False  # room, -1: of no server; whether it may start on a smaller group
    for rack in range(len(view.rack_ptr) - 1):
        in_rack, inside = -1, False
        for slot in range(view.rack_ptr[rack], view.rack_ptr[rack + 1]):
            there = room(record, state.nodes[view.node[slot]], state.partials)
            if there >= 0:
                in_rack = max(in_rack, 0) + there
            if there >= record.gpus and table.allow_servers:
                mask[slot] = 1
                inside = True
        if in_rack >= 0:
            in_all = max(in_all, 0) + in_rack
        if table.allow_racks and in_rack >= record.gpus and not inside:
            mask[table.servers + rack] = 1
            inside = True
        smaller = smaller or inside
    if table.allow_all and in_all >= record.gpus and not smaller:
        mask[table.groups - 1] = 1


@compiled
def holding(state: ClusterState, table: Layout, view: View, holds: Flags) -> None:
    """Write into `holds` (J,) which jobs some server group of a view can hold; nothing runs yet."""
    groups = np.empty(table.groups, np.int8)
    for job in range(len(state.jobs)):
        groups[:] = 0
        allow_starts(state, table, view, job, groups)
        holds[job] = groups.max()


@compiled
def fill_mask(
    state: ClusterState,
    book: Bookkeeping,
    view: View,
    table: Layout,
    request: IntArray,
    mask: Flags,
) -> None:
    """Allowed actions: to wait wherever something is to come, or nothing else is left.

    To come are the ends of jobs that run, jobs that arrive or are on their way to a queue, and
    nodes that fail or return. Jobs of the same `request` (J,) may start on the same groups.
    """
    me, peers, groups, clock = view.scheduler, table.peers, table.groups, state.clock[0]
    window, at = book.window[me], table.window * groups
    for row in range(len(window)):
        job = window[row]
        if job == NONE:
            break
        same = 0  # the first row with the same request
        while request[window[same]] != request[job]:
            same += 1
        starts = mask[row * groups : (row + 1) * groups]
        if same < row:
            starts[:] = mask[same * groups : (same + 1) * groups]
        else:
            allow_starts(state, table, view, job, starts)
        if book.forwards[job] < table.most_forwards:
            for peer in range(peers):
                mask[at + row * peers + peer] = book.holds[job, (me + 1 + peer) % (peers + 1)]
    at += table.window * peers
    for row in range(table.preemptible):
        job = book.shown[me, row]
        if job == NONE:
            break
        ran = clock.now - state.jobs[job].since
        mask[at + row] = ran > 0.0 and ran >= table.least_run_s
    waits = clock.running > 0 or clock.arrived < len(state.jobs)
    waits = waits or clock.incident < len(state.incidents)
    job = clock.head
    while job != NONE and not waits:
        waits = book.there[job] > clock.now
        job = state.jobs[job].after
    mask[len(mask) - 1] = waits or not mask.any()


STARTED, FORWARDED, PREEMPTED, WAITED = 0, 1, 2, 3  # what an action was


@compiled
def act(
    state: ClusterState,
    tables: RateTables,
    overheads: Overheads,
    book: Bookkeeping,
    view: View,
    table: Layout,
    forward_delay: float,
    action: int,
) -> int:
    """Carry out an allowed action of a scheduler other than to wait.

    Returns:
        What it was; WAITED without doing anything where it is to wait.
    """
    state, tables, book, view = borrowed(state), borrowed(tables), borrowed(book), borrowed(view)
    me = view.scheduler
    if action < table.window * table.groups:
        row, group = action // table.groups, action % table.groups
        rack = group - table.servers
        first, last = 0, len(view.node)
        if rack < 0:
            first, last = group, group + 1
        elif group < table.groups - 1:
            first, last = view.rack_ptr[rack], view.rack_ptr[rack + 1]
        start_on(state, tables, overheads, view, np.int64(book.window[me, row]), first, last)
        return STARTED
    action -= table.window * table.groups
    if action < table.window * table.peers:
        job = book.window[me, action // table.peers]
        other = (me + 1 + action % table.peers) % (table.peers + 1)
        book.home[job] = other
        book.sent[me, other, 0] += 1.0
        book.sent[me, other, 1] += state.jobs[job].gpus * state.jobs[job].milli / WHOLE_GPU
        book.there[job] = state.clock[0].now + forward_delay
        book.forwards[job] += 1
        return FORWARDED
    action -= table.window * table.peers
    if action < table.preemptible:
        stop(state, tables, np.int64(book.shown[me, action]))
        return PREEMPTED
    return WAITED
