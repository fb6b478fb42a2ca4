"""The queue policies, compiled: in their order of priority jobs meet the GPUs that are free."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.cluster.rules.gangs import HELIOS_CONSOLIDATE, Room, choose
from envs.arrays import FloatArray, IntArray
from envs.cluster.interference.rates import RateTables
from envs.cluster.simulation.borrowed import borrowed
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_kernel import (
    NOTHING,
    advance,
    begin,
    give,
    log_is_short,
    part,
    settle,
    stop,
)
from envs.cluster.simulation.cluster_state import NONE, PENDING, RUNNING, ClusterState, Overheads
from envs.cluster.workload.trace import WHOLE_GPU
from envs.compilation import compiled, compiled_inner, joined_inner, pasted

# Orders: a constant key, seconds left, GPU-seconds left, queues by attained service, and these with
# the arithmetic of Tiresias' simulator.
BY_KEY, BY_TIME, BY_SERVICE, BY_QUEUE, BY_PUBLISHED_QUEUE = range(5)
# Passes: a job that does not fit blocks those behind it, is passed over, has a reservation; or jobs
# give way to those before them.
BLOCKING, PASSING, RESERVING, PREEMPTING = range(4)


class Queue(NamedTuple):
    """The jobs that wait, and in preempting passes those that run, of J with C requests."""

    kind: IntArray  # (J,) index of the job's request
    size: IntArray  # (C,) GPUs of the request
    gpus: FloatArray  # (J,) of the job's gang
    key: FloatArray  # (J,) constant priority, the least first
    number: IntArray  # (2,) where `ranked` begins and ends, in an order by queues `order`
    waits: IntArray  # (C,) how many wait, but in preempting passes
    ranked: IntArray  # (J,) of the pass, in its order
    keys: FloatArray  # (J,) of `ranked`
    listed: IntArray  # (J,) jobs demoted, then those that are to start
    victims: IntArray  # (J,) running jobs that need not go on
    order: IntArray  # (J,) queue by queue
    level: IntArray  # (J,) queue of the job, or NONE: it has not arrived
    ran: NDArray[np.bool_]  # (J,) it ran after the last pass


def empty_queue(simulator: ClusterSimulator, key: FloatArray | IntArray) -> Queue:
    """An empty queue, for the jobs of a simulator and their constant priorities (J,)."""
    jobs, trace = simulator.state.jobs, simulator.trace
    code = np.zeros(len(trace), np.int64)
    columns: tuple[NDArray[Any], ...]
    columns = (trace.num_gpus, trace.gpu_milli, trace.cpu_milli, trace.memory_mib, jobs["types"])
    for column in columns:
        if (column != column[:1]).any():
            values, place = np.unique(column, return_inverse=True)
            code = code * len(values) + place
    _, member, kind = np.unique(code, return_index=True, return_inverse=True)
    ranked, listed, victims, order = np.zeros((4, len(trace)), np.int64)
    return Queue(
        kind=kind.astype(np.int64),
        size=trace.num_gpus[member].astype(np.int64),
        gpus=jobs["gpus"] * (jobs["milli"] / WHOLE_GPU),
        key=key.astype(np.float64),
        number=np.zeros(2, np.int64),
        waits=np.zeros(len(member), np.int64),
        ranked=ranked,
        keys=np.zeros(len(trace)),
        listed=listed,
        victims=victims,
        order=order,
        level=np.full(len(trace), NONE, np.int64),
        ran=np.zeros(len(trace), np.bool_),
    )


@compiled
def run(
    state: ClusterState,
    tables: RateTables,
    overheads: Overheads,
    queue: Queue,
    order: int,
    limits: IntArray,
    mode: int,
    rule: int,
    room: Room,
) -> bool:
    """Simulate until nothing is to come; False: the log must be lengthened first.

    Args:
        state: of the simulator.
        tables: rates.
        overheads: what stopping costs.
        queue: empty, or as the last call left it.
        order: of priority, by its code.
        limits: GPU-seconds at which a job leaves a queue for the next, ascending.
        mode: of the pass, by its code.
        rule: of placement, by its code.
        room: of the rule.
    """
    state, tables, queue, room = (
        borrowed(state),
        borrowed(tables),
        borrowed(queue),
        borrowed(room),
    )
    hopeless = np.zeros(len(queue.size), np.bool_)  # requests that do not fit
    least = queue.size.min() if len(queue.size) else np.int64(0)
    published = order == BY_PUBLISHED_QUEUE
    clock = state.clock[0]
    while True:
        if log_is_short(state):
            return False
        arrived, finished, incident = clock.arrived, clock.finished, clock.incident
        until = np.inf
        if order >= BY_QUEUE:
            until = next_demotion(state.jobs, state.heap, clock.now, clock.running, queue,
                                  limits, published)  # fmt: skip
        if advance(state, tables, overheads, until) == NOTHING:
            return True
        if mode >= RESERVING:
            settle(state)
        released = clock.finished > finished or clock.incident > incident
        if mode == PREEMPTING or released or rule == HELIOS_CONSOLIDATE:
            hopeless[:] = False
        jobs = 0
        if mode != PREEMPTING:
            if clock.incident > incident:
                arrived = list_pending(state, queue)
            line_up(queue, arrived, clock.arrived)
        elif order >= BY_QUEUE:
            jobs = rank(state.jobs, arrived, clock.arrived, queue, limits, published)
        else:
            jobs = sort(state, queue, order, arrived)
        start_jobs(state, tables, overheads, queue, jobs, mode, hopeless, least, rule, room)
        if order >= BY_QUEUE:
            put_running_first(state.jobs, queue, jobs)


@pasted
def list_pending(state: ClusterState, queue: Queue) -> int:
    """Line all jobs up that wait; how many have arrived."""
    count, job = 0, state.clock[0].head
    while job != NONE:
        queue.listed[count] = job
        count += 1
        job = state.jobs[job].after
    queue.number[:], queue.waits[:] = 0, 0
    for job in np.sort(queue.listed[:count]):
        line_up(queue, job, job + 1)
    return int(state.clock[0].arrived)


@joined_inner
def line_up(queue: Queue, first: int, last: int) -> None:
    """Put the jobs from `first` to before `last` behind those of equal keys."""
    ranked, keys = queue.ranked, queue.keys
    for job in range(first, last):
        place, key = queue.number[1], queue.key[job]
        while place > queue.number[0] and key < keys[place - 1]:
            ranked[place], keys[place] = ranked[place - 1], keys[place - 1]
            place -= 1
        ranked[place], keys[place] = job, key
        queue.number[1] += 1
        queue.waits[queue.kind[job]] += 1


@compiled_inner
def sort(state: ClusterState, queue: Queue, order: int, first: int) -> int:
    """Put the jobs of the last pass and those from `first` on in order; how many.

    They nearly are in order. Equal ones stay in the order of the pass before, new ones come last.
    """
    jobs, ranked, keys = state.jobs, queue.ranked, queue.keys
    count, size = queue.number[1], 0
    for i in range(count + state.clock[0].arrived - first):
        job = ranked[i] if i < count else first + i - count
        record = jobs[job]
        if not PENDING <= record.status <= RUNNING:
            continue
        key = record.remaining * record.gpus if order == BY_SERVICE else record.remaining
        place = size
        while place > 0 and key < keys[place - 1]:
            ranked[place], keys[place] = ranked[place - 1], keys[place - 1]
            place -= 1
        ranked[place], keys[place] = job, key
        size += 1
    queue.number[1] = size
    return size


@compiled_inner
def choose_greedily(state: ClusterState, queue: Queue, number: int, least: int) -> tuple[int, int]:
    """Choose by numbers alone who is to run: greedily, in order.

    Returns:
        How many `queue.listed`, who are to start, and how many `queue.victims`.
    """
    jobs, clock = state.jobs, state.clock[0]
    budget, running = clock.free + clock.held // WHOLE_GPU, clock.running
    picked = victims = 0
    for i in range(number):
        if running == 0 and budget < least:
            break
        job = queue.ranked[i]
        runs = jobs[job].status == RUNNING
        running -= runs
        if jobs[job].gpus <= budget:
            budget -= jobs[job].gpus
            if not runs:
                queue.listed[picked] = job
                picked += 1
        elif runs:
            queue.victims[victims] = job
            victims += 1
    return picked, victims


@pasted
def needed_victims(
    state: ClusterState,
    tables: RateTables,
    job: int,
    victims: IntArray,
    count: int,
    rule: int,
    room: Room,
) -> int:
    """How many of the last of `count` victims must stop so that a pending job fits; 0: it cannot.

    Nothing is stopped.
    """
    without = room.without
    without[:] = state.nodes
    free = state.clock[0].free
    imagined = ClusterState(
        state.jobs,
        without,
        state.shares,
        state.partials,
        state.heap,
        state.clock,
        state.incidents,
        state.runs,
    )
    for stopped in range(1, count + 1):
        victim = victims[count - stopped]
        record = state.jobs[victim]
        index = record.share
        while index != NONE:
            share = state.shares[index]
            without[share.node].free += share.gpus
            without[share.node].cpu += part(record.cpu, share.gpus, record.gpus)
            without[share.node].memory += part(record.memory, share.gpus, record.gpus)
            index = share.next
        free += record.gpus
        if free >= state.jobs[job].gpus and choose(rule, imagined, tables, job, room) > 0:
            return stopped
    return 0


@joined_inner
def worth_trying(
    queue: Queue, mode: int, hopeless: NDArray[np.bool_], least: int, free: int
) -> bool:
    """Whether any job that waits may fit."""
    if mode in (BLOCKING, PREEMPTING):
        return mode == BLOCKING or free >= least
    for kind in range(len(hopeless)):
        if queue.waits[kind] > 0 and not hopeless[kind] and queue.size[kind] <= free:
            return True
    return False


@pasted
def start_jobs(
    state: ClusterState,
    tables: RateTables,
    overheads: Overheads,
    queue: Queue,
    jobs: int,
    mode: int,
    hopeless: NDArray[np.bool_],
    least: int,
    rule: int,
    room: Room,
) -> None:
    """One pass: jobs that wait start where they fit, in order.

    In a preempting pass those come first that are to run by numbers alone, and others stop for them
    where needed. In a pass with reservations the first that does not fit is promised the time at
    which enough GPUs are free; another may start before it if it ends by then, or if it takes only
    GPUs that the promise leaves over.
    """
    clock, size, ranked, keys = state.clock[0], queue.size, queue.ranked, queue.keys
    promised, until, spare = False, np.inf, np.inf
    low, high, picked, victims, again = queue.number[0], queue.number[1], 0, 0, False
    if mode == PREEMPTING:
        low, high = np.int64(0), np.int64(jobs)
        picked, victims = choose_greedily(state, queue, jobs, least)
    trying = worth_trying(queue, mode, hopeless, least, clock.free)
    i, place = low - picked, low  # no job from `place` on has started
    while i < low or (trying and i < high):
        first = i < low
        job = queue.listed[i - low + picked] if first else ranked[i]
        asked = queue.kind[job]
        i += 1
        fits = first or (not hopeless[asked] and size[asked] <= clock.free)
        if not fits and mode == PASSING:
            continue
        if not first and state.jobs[job].status != PENDING:
            continue
        late = promised and clock.now + state.jobs[job].remaining > until
        if late and size[asked] > spare:
            continue
        if fits:
            shares: int = choose(rule, state, tables, job, room)
            for share in range(shares):
                give(state, job, room.nodes[share], room.gpus[share])
            fits = shares > 0
            if fits:
                begin(state, tables, overheads, job)
            elif first and victims > 0 and not again:
                needed = needed_victims(state, tables, job, queue.victims, victims, rule, room)
                for _ in range(needed):
                    victims -= 1
                    stop(state, tables, queue.victims[victims])
                again = needed > 0
                i -= again
                continue
            again = False
            if not first:
                hopeless[asked] = not fits
                if fits and mode != PREEMPTING:
                    ranked[i - 1], place = NONE, i
                    queue.waits[asked] -= 1
                    spare -= size[asked] if late else 0
            trying = worth_trying(queue, mode, hopeless, least, clock.free)
        if not fits and mode == BLOCKING:
            break
        if not fits and mode == RESERVING and not promised:
            promised = True
            until, spare = promise(state, size[asked])
    if mode != PREEMPTING:
        for at in range(place - 1, low - 1, -1):  # those passed over stay before the others
            if ranked[at] != NONE:
                place -= 1
                ranked[place], keys[place] = ranked[at], keys[at]
        queue.number[0] = place


@pasted
def promise(state: ClusterState, need: int) -> tuple[float, float]:
    """When `need` GPUs will be free, and how many more; (inf, inf): not that nodes are down."""
    clock, running = state.clock[0], state.heap[: state.clock[0].running]
    ends = np.empty(len(running))
    for i in range(len(running)):
        ends[i] = state.jobs[running[i]].end
    free, until = float(clock.free), float(clock.now)
    for i in np.argsort(ends):
        if free >= need and ends[i] > until:
            break
        until = ends[i]
        free += state.jobs[running[i]].gpus
    if free < need:
        return np.inf, np.inf
    return until, free - need


@compiled
def next_demotion(
    jobs: NDArray[np.void],
    running: NDArray[np.int32],
    now: float,
    number: int,
    queue: Queue,
    limits: IntArray,
    published: bool,
) -> float:
    """When a settled running job may have to leave its queue; inf: never."""
    least = np.inf
    for place in range(number):
        job = running[place]
        record, gpus, level = jobs[job], queue.gpus[job], queue.level[job]
        if gpus == 0.0 or level == len(limits):
            continue
        limit = limits[level]
        if published:
            seconds = np.floor((limit - record.executed) / gpus)
        else:
            seconds = np.ceil((limit - record.executed * gpus) / gpus)
        if seconds > 0.0:
            least = min(least, seconds)
    return now + least


@compiled
def rank(
    jobs: NDArray[np.void],
    first: int,
    last: int,
    queue: Queue,
    limits: IntArray,
    published: bool,
) -> int:
    """Demote, add the jobs from `first` to before `last`, and put all in order; how many."""
    order, level, ranked, demoted = queue.order, queue.level, queue.ranked, queue.listed
    kept = gone = 0
    for i in range(queue.number[1]):
        job = order[i]
        record = jobs[job]
        if not PENDING <= record.status <= RUNNING:
            continue
        lower = level[job]
        if queue.ran[job]:
            service = record.executed * queue.gpus[job]
            while lower < len(limits) and service >= limits[lower]:
                lower += 1
                if published:
                    break
        if lower == level[job]:
            order[kept] = job
            kept += 1
        else:
            level[job] = lower
            demoted[gone] = job
            gone += 1
    demoted[:gone].sort()
    i = size = 0
    for k in range(len(limits) + 1):
        while i < kept and level[order[i]] == k:
            ranked[size] = order[i]
            size += 1
            i += 1
        for m in range(gone):
            if level[demoted[m]] == k:
                ranked[size] = demoted[m]
                size += 1
        if k == 0:
            for job in range(first, last):
                if PENDING <= jobs[job].status <= RUNNING:
                    level[job] = 0
                    ranked[size] = job
                    size += 1
    return size


@compiled
def put_running_first(jobs: NDArray[np.void], queue: Queue, number: int) -> None:
    """In each queue the jobs that wait go behind those that run, in the same order."""
    level, ranked, size, i = queue.level, queue.ranked, 0, 0
    while i < number:
        k, end = level[ranked[i]], i
        while end < number and level[ranked[end]] == k:
            job = ranked[end]
            queue.ran[job] = jobs[job].status == RUNNING
            if queue.ran[job]:
                queue.order[size] = job
                size += 1
            end += 1
        for m in range(i, end):
            if not queue.ran[ranked[m]]:
                queue.order[size] = ranked[m]
                size += 1
        i = end
    queue.number[1] = size
