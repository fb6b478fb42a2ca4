"""What happens in a cluster, compiled: time passes, gangs start and stop, nodes fail.

All functions work on `cluster_state.ClusterState`. They trust their callers: a share must be there
to be given. `cluster.ClusterSimulator` is the same with checks.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from envs.arrays import FloatArray
from envs.cluster.interference.kernel import (
    Sums,
    add_up,
    alone_rate,
    disturbs,
    left_by_neighbours,
    shared,
    spread_of,
)
from envs.cluster.interference.rates import ALONE, BOTTLENECK, SEVERAL_RACKS, SHARED, RateTables
from envs.cluster.simulation.cluster_state import (
    FINISHED,
    NONE,
    PENDING,
    REFUSED,
    RUNNING,
    ClusterState,
    Overheads,
)
from envs.cluster.workload.trace import WHOLE_GPU
from envs.compilation import compiled, compiled_inner, joined, joined_inner, pasted

IntArray = NDArray[np.int32]
Records = NDArray[np.void]


@pasted
def earlier(jobs: Records, a: int, b: int) -> bool:
    """Whether job `a` ends before job `b`; of equal ends the lower number."""
    return jobs[a].end < jobs[b].end or (jobs[a].end == jobs[b].end and a < b)


@compiled_inner
def rise(jobs: Records, heap: IntArray, place: int) -> None:
    """Move the job at `place` up to where it belongs."""
    job = heap[place]
    while place > 0:
        parent = (place - 1) >> 1
        if not earlier(jobs, job, heap[parent]):
            break
        heap[place] = heap[parent]
        jobs[heap[place]].place = place
        place = parent
    heap[place] = job
    jobs[job].place = place


@compiled_inner
def sink(jobs: Records, heap: IntArray, size: int, place: int) -> None:
    """Move the job at `place` down to where it belongs among the first `size`."""
    job = heap[place]
    while True:
        child = 2 * place + 1
        if child >= size:
            break
        if child + 1 < size and earlier(jobs, heap[child + 1], heap[child]):
            child += 1
        if not earlier(jobs, heap[child], job):
            break
        heap[place] = heap[child]
        jobs[heap[place]].place = place
        place = child
    heap[place] = job
    jobs[job].place = place


@compiled_inner
def push(jobs: Records, heap: IntArray, size: int, job: int) -> None:
    """Add `job` to a heap of `size` jobs."""
    heap[size] = job
    rise(jobs, heap, size)


@compiled
def remove(jobs: Records, heap: IntArray, size: int, job: int) -> None:
    """Take `job` out of a heap of `size` jobs."""
    place = jobs[job].place
    jobs[job].place = NONE
    last = heap[size - 1]
    if last != job:
        heap[place] = last
        jobs[last].place = place
        rise(jobs, heap, place)
        sink(jobs, heap, size - 1, jobs[last].place)


@compiled_inner
def reorder(jobs: Records, heap: IntArray, size: int, job: int) -> None:
    """Put `job` in its place after its end has changed."""
    rise(jobs, heap, jobs[job].place)
    sink(jobs, heap, size, jobs[job].place)


Record = Any  # one of the records of `cluster_state`
Heap = NDArray[np.int32]
NOTHING, UNTIL, EVENT = 0, 1, 2  # what `advance` came to
ROUNDING_S = 1e-6  # work that may be lacking at a checkpoint: more than rounding ever takes


@joined_inner
def progress_of(record: Record, now: float) -> float:
    """Seconds of work that a running job has done since it was settled."""
    progressing = max(record.settled, record.ready)
    return (now - progressing) * record.rate if now > progressing else 0.0


@joined_inner
def attained_by(record: Record, now: float) -> float:
    """Seconds of work that a job has done, settled or not."""
    attained: float = record.attained
    return attained + progress_of(record, now) if record.status == RUNNING else attained


@joined_inner
def settle_record(record: Record, now: float) -> None:
    """Bring `remaining`, `attained` and `executed` of a running job up to now."""
    progress = progress_of(record, now)
    record.remaining = max(record.remaining - progress, 0.0)
    record.attained += progress
    record.executed += now - record.settled
    record.settled = now


@compiled
def settle(state: ClusterState) -> None:
    """Bring all running jobs up to now."""
    now = state.clock[0].now
    for place in range(state.clock[0].running):
        settle_record(state.jobs[state.heap[place]], now)


@joined_inner
def end_of(record: Record, now: float) -> float:
    """When a settled job will finish at its present rate."""
    if record.rate <= 0.0:
        return np.inf
    end: float = max(now, record.ready) + record.remaining / record.rate
    return end


@joined_inner
def change_rate(jobs: Records, heap: Heap, clock: Record, job: int, rate: float) -> None:
    """A running job goes on at another rate from now."""
    record = jobs[job]
    settle_record(record, clock.now)
    record.rate = rate
    record.end = end_of(record, clock.now)
    reorder(jobs, heap, clock.running, job)


@compiled_inner
def refresh_sharing(
    jobs: Records,
    nodes: Records,
    shares: Records,
    heap: Heap,
    clock: Records,
    demand: FloatArray,
    kind: int,
    share: int,
    besides: int,
) -> None:
    """`refresh` where jobs share what their node has, after `add_up`."""
    while share != NONE:
        place = nodes[shares[share].node]
        other = place.share if place.scarce else NONE
        while other != NONE:
            job = np.int64(shares[other].job)
            record = jobs[job]
            if record.status == RUNNING and job != besides:
                rate = record.alone * shared(jobs, nodes, shares, demand, kind, job, Sums.KEPT)
                if rate != record.rate:
                    change_rate(jobs, heap, clock[0], job, rate)
            other = shares[other].after
        share = shares[share].next


@compiled_inner
def refresh_others(state: ClusterState, tables: RateTables, share: int, besides: int) -> None:
    """`refresh` for all other kinds of interference; after `add_up` where there are demands."""
    far = tables.kind == SHARED and share != NONE and state.shares[share].next != NONE
    far = far and spread_of(state.nodes, state.shares, share) == SEVERAL_RACKS
    while share != NONE:
        place = state.nodes[state.shares[share].node]
        if tables.kind != SHARED or place.scarce:
            refresh_node(state, tables, place.share, besides)
        share = state.shares[share].next
    for node in range(len(state.nodes) if far else 0):  # uplinks reach beyond the job's nodes
        if state.nodes[node].spanning > 0:
            refresh_node(state, tables, state.nodes[node].share, besides)


@compiled_inner
def refresh_node(state: ClusterState, tables: RateTables, share: int, besides: int) -> None:
    """The same for the jobs of a node's chain of shares."""
    while share != NONE:
        job = np.int64(state.shares[share].job)
        record = state.jobs[job]
        if record.status == RUNNING and job != besides:
            rate = record.alone * left_by_neighbours(
                state.jobs, state.nodes, state.shares, tables, job, Sums.KEPT
            )
            if rate != record.rate:
                change_rate(state.jobs, state.heap, state.clock[0], job, rate)
        share = state.shares[share].after


@pasted
def refresh(state: ClusterState, tables: RateTables, share: int, besides: int) -> None:
    """Give the jobs beside a chain of shares, but one, the rates that are left to them now."""
    if tables.kind == BOTTLENECK:
        refresh_sharing(
            state.jobs,
            state.nodes,
            state.shares,
            state.heap,
            state.clock,
            tables.demand,
            tables.kind,
            share,
            besides,
        )
    else:
        refresh_others(state, tables, share, besides)


@joined_inner
def enqueue(state: ClusterState, job: int) -> None:
    """Put a job at the tail of the pending ones."""
    clock, record = state.clock[0], state.jobs[job]
    record.status = PENDING
    record.since = clock.now
    record.before = clock.tail
    record.after = NONE
    if clock.tail == NONE:
        clock.head = job
    else:
        state.jobs[clock.tail].after = job
    clock.tail = job
    clock.pending += 1


@joined_inner
def dequeue(state: ClusterState, job: int) -> None:
    """Take a job out of the pending ones."""
    clock, record = state.clock[0], state.jobs[job]
    if record.before == NONE:
        clock.head = record.after
    else:
        state.jobs[record.before].after = record.after
    if record.after == NONE:
        clock.tail = record.before
    else:
        state.jobs[record.after].before = record.before
    record.before = NONE
    record.after = NONE
    clock.pending -= 1


@joined
def give(state: ClusterState, job: int, node: int, gpus: int) -> int:
    """Give a job whole GPUs of a node, and its share of processor and memory; the share made."""
    clock, record, place = state.clock[0], state.jobs[job], state.nodes[node]
    index: int = clock.share
    share = state.shares[index]
    clock.share = share.next
    share.job, share.node, share.gpus, share.partial = job, node, gpus, NONE
    share.next = record.share
    record.share = index
    record.nodes += 1
    share.before = NONE
    share.after = place.share
    if place.share != NONE:
        state.shares[place.share].before = index
    place.share = index
    place.jobs += 1
    place.free -= gpus
    clock.free -= gpus
    place.cpu -= part(record.cpu, gpus, record.gpus)
    place.memory -= part(record.memory, gpus, record.gpus)
    return index


@pasted
def part(amount: int, gpus: int, of: int) -> int:
    """The part of a job's processor or memory, rounded up, that goes with `gpus` of its GPUs."""
    return amount if gpus == of else -(-amount * gpus // of)


@compiled
def give_partial(state: ClusterState, job: int, node: int, partial: int, gpus: int) -> int:
    """Give a fractional job its part of a set of partial GPUs; NONE: of GPUs that are free.

    Returns:
        The share made.
    """
    clock, record, place = state.clock[0], state.jobs[job], state.nodes[node]
    index: int = give(state, job, node, gpus)
    place.free += gpus
    clock.free += gpus
    if partial == NONE:
        partial = clock.partial
        opened = state.partials[partial]
        clock.partial = opened.next
        opened.node, opened.gpus, opened.left = node, gpus, WHOLE_GPU
        opened.before = NONE
        opened.next = place.partial
        if place.partial != NONE:
            state.partials[place.partial].before = partial
        place.partial = partial
        place.free -= gpus
        clock.free -= gpus
    state.partials[partial].left -= record.milli
    state.shares[index].partial = partial
    return index


@compiled_inner
def ungive(state: ClusterState, job: int) -> None:
    """Undo the last `give` or `give_partial` to a job that has not begun."""
    clock, record = state.clock[0], state.jobs[job]
    index = record.share
    share = state.shares[index]
    record.share = share.next
    record.nodes -= 1
    give_back(state, record, share)
    share.next = clock.share
    clock.share = index


@joined
def begin(state: ClusterState, tables: RateTables, overheads: Overheads, job: int) -> None:
    """A pending job runs on the shares it was given."""
    clock, record = state.clock[0], state.jobs[job]
    dequeue(state, job)
    record.status = RUNNING
    record.since = clock.now
    record.settled = clock.now
    record.ready = clock.now + (overheads.restart_s if record.preemptions > 0 else 0.0)
    if record.start < 0.0:
        record.start = clock.now
    clock.held += record.gpus * record.milli
    if record.nodes > 1:
        share = record.share
        while share != NONE:
            state.nodes[state.shares[share].node].spanning += 1
            share = state.shares[share].next
    record.alone, _ = alone_rate(
        state.jobs, state.nodes, state.shares, tables.speed, tables.locality, job
    )
    if tables.kind in (BOTTLENECK, SHARED):
        add_up(state.jobs, state.nodes, state.shares, tables.demand, record.share)
    record.rate = record.alone
    if tables.kind != ALONE:
        record.rate *= left_by_neighbours(
            state.jobs, state.nodes, state.shares, tables, job, Sums.KEPT
        )
    record.end = end_of(record, clock.now)
    push(state.jobs, state.heap, clock.running, job)
    clock.running += 1
    if disturbs(state.jobs, state.shares, tables, job):
        refresh(state, tables, record.share, job)


@joined_inner
def take_back(state: ClusterState, tables: RateTables, job: int) -> None:
    """A running job gives back all it holds, and its neighbours notice."""
    clock, record = state.clock[0], state.jobs[job]
    remove(state.jobs, state.heap, clock.running, job)
    clock.running -= 1
    clock.held -= record.gpus * record.milli
    spans = record.nodes > 1
    disturbed = disturbs(state.jobs, state.shares, tables, job)
    first = index = record.share
    last = NONE
    record.share = NONE
    record.nodes = 0
    record.rate = 0.0
    record.status = PENDING
    while index != NONE:
        share = state.shares[index]
        following = share.next
        node = share.node
        place = state.nodes[node]
        if len(state.runs) > 0:
            log(state, job, node, share.gpus)
        place.spanning -= spans
        give_back(state, record, share)
        last, index = index, following
    if last == NONE:
        return
    if disturbed:
        if tables.kind in (BOTTLENECK, SHARED):
            add_up(state.jobs, state.nodes, state.shares, tables.demand, first)
        refresh(state, tables, first, job)
    state.shares[last].next = clock.share
    clock.share = first


@joined_inner
def give_back(state: ClusterState, record: Record, share: Record) -> None:
    """Take a share of a job out of its node, which has its GPUs, processor and memory again."""
    clock, place = state.clock[0], state.nodes[share.node]
    if share.before == NONE:
        place.share = share.after
    else:
        state.shares[share.before].after = share.after
    if share.after != NONE:
        state.shares[share.after].before = share.before
    place.jobs -= 1
    place.cpu += part(record.cpu, share.gpus, record.gpus)
    place.memory += part(record.memory, share.gpus, record.gpus)
    if share.partial == NONE:
        place.free += share.gpus
        clock.free += share.gpus
    else:
        give_back_partial(state, share.partial, record.milli)


@compiled_inner
def give_back_partial(state: ClusterState, partial: int, milli: int) -> None:
    """Part of a set is free again; GPUs that nothing runs on are whole ones again."""
    clock, gpus = state.clock[0], state.partials[partial]
    gpus.left += milli
    if gpus.left < WHOLE_GPU:
        return
    place = state.nodes[gpus.node]
    if gpus.before == NONE:
        place.partial = gpus.next
    else:
        state.partials[gpus.before].next = gpus.next
    if gpus.next != NONE:
        state.partials[gpus.next].before = gpus.before
    gpus.next = clock.partial
    clock.partial = partial
    place.free += gpus.gpus
    clock.free += gpus.gpus


@compiled_inner
def log(state: ClusterState, job: int, node: int, gpus: int) -> None:
    """Write down one share of the run that ends now."""
    clock, record = state.clock[0], state.jobs[job]
    run = state.runs[clock.runs]
    run.start, run.end, run.job, run.node = record.since, clock.now, job, node
    run.gpus, run.milli = gpus, record.milli
    clock.runs += 1


@compiled
def stop(state: ClusterState, tables: RateTables, job: int) -> None:
    """Preempt a running job: it keeps its progress and goes to the tail of the queue."""
    settle_record(state.jobs[job], state.clock[0].now)
    take_back(state, tables, job)
    state.jobs[job].preemptions += 1
    enqueue(state, job)


@compiled
def refuse(state: ClusterState, job: int) -> None:
    """A pending job leaves without having run."""
    dequeue(state, job)
    state.jobs[job].status = REFUSED


@pasted
def fail_node(state: ClusterState, tables: RateTables, overheads: Overheads, node: int) -> None:
    """A node goes down: its jobs stop and lose what they did since their last checkpoint.

    A checkpoint counts as reached where less than `ROUNDING_S` of work is lacking. The jobs are
    queued in the reverse order of their starts.
    """
    place = state.nodes[node]
    while place.share != NONE:
        job = np.int64(state.shares[place.share].job)
        stop(state, tables, job)
        record = state.jobs[job]
        if overheads.checkpoint_s > 0.0:
            reached = (record.attained + ROUNDING_S) // overheads.checkpoint_s
            record.attained = reached * overheads.checkpoint_s
            record.remaining = max(record.work - record.attained, 0.0)
    state.clock[0].free -= place.free
    place.free = 0
    place.up = 0


@pasted
def repair_node(state: ClusterState, node: int) -> None:
    """A node comes back, empty."""
    place = state.nodes[node]
    place.free = place.gpus
    state.clock[0].free += place.free
    place.up = 1


@compiled
def next_event(state: ClusterState) -> float:
    """When the next completion, incident or arrival is due; inf: never."""
    clock = state.clock[0]
    due = np.inf
    if clock.running > 0:
        due = state.jobs[state.heap[0]].end
    if clock.arrived < len(state.jobs):
        due = min(due, state.jobs[clock.arrived].submit)
    if clock.incident < len(state.incidents):
        due = min(due, state.incidents[clock.incident].time)
    return due


@joined
def advance(state: ClusterState, tables: RateTables, overheads: Overheads, until: float) -> int:
    """Go to the next instant at which something happens, and let all of that instant happen.

    Completions come first, then nodes fail and come back, then jobs arrive.

    Returns:
        EVENT; UNTIL where nothing happens up to and including `until`, which is then the time; or
        NOTHING where nothing is going to happen and `until` is infinite.
    """
    clock = state.clock[0]
    due = next_event(state)
    outcome = EVENT
    if due > until or due == np.inf:
        if until == np.inf:
            return NOTHING
        due = until
        outcome = UNTIL
    clock.busy += clock.held * (due - clock.now) / WHOLE_GPU
    clock.now = due
    if outcome == UNTIL:
        return outcome
    while clock.running > 0 and state.jobs[state.heap[0]].end <= due:
        complete(state, tables, np.int64(state.heap[0]))
    while clock.incident < len(state.incidents):
        incident = state.incidents[clock.incident]
        if incident.time > due:
            break
        clock.incident += 1
        if incident.up:
            repair_node(state, incident.node)
        else:
            fail_node(state, tables, overheads, incident.node)
    while clock.arrived < len(state.jobs) and state.jobs[clock.arrived].submit <= due:
        enqueue(state, clock.arrived)
        clock.arrived += 1
    return outcome


@pasted
def complete(state: ClusterState, tables: RateTables, job: int) -> None:
    """A running job has done its work."""
    clock, record = state.clock[0], state.jobs[job]
    record.executed += clock.now - record.settled
    record.settled = clock.now
    record.remaining, record.attained = 0.0, record.work
    record.finish = clock.now
    take_back(state, tables, job)
    record.status = FINISHED
    clock.finished += 1


@compiled
def imagine(state: ClusterState, jobs: NDArray[np.int64], remaining: FloatArray) -> None:
    """Settled `jobs` that wait or run have so many seconds of work left; nothing else is to come.

    Neither jobs nor nodes that fail or come back.
    """
    clock = state.clock[0]
    for i in range(len(jobs)):
        record = state.jobs[jobs[i]]
        record.remaining = remaining[i]
        record.work = record.attained + remaining[i]
        record.end = end_of(record, clock.now)
    for place in range(clock.running // 2 - 1, -1, -1):
        sink(state.jobs, state.heap, clock.running, place)
    clock.arrived = len(state.jobs)
    clock.incident = len(state.incidents)


@compiled
def log_is_short(state: ClusterState) -> bool:
    """Whether the log, where one is kept, could not take the runs of all shares once more."""
    short: bool = 0 < len(state.runs) < state.clock[0].runs + len(state.shares)
    return short
