"""Jobs and places chosen together: nothing is stopped, GPUs may be shared, and waiting may pay."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.cluster.compiled.cells import Cells, choose, describe, look_around, note
from agents.cluster.compiled.durations import Memory, gpu_seconds, predicted
from agents.cluster.rules.eligible import Record, holds, permitted
from envs.arrays import FloatArray, IntArray
from envs.cluster.interference.kernel import Sums, alone_rate, left_by_neighbours
from envs.cluster.interference.rates import RateTables
from envs.cluster.simulation.cluster_kernel import (
    give,
    give_partial,
    ungive,
)
from envs.cluster.simulation.cluster_state import NONE, ClusterState
from envs.cluster.workload.trace import WHOLE_GPU
from envs.compilation import compiled, compiled_inner, pasted

# `Rule.order`: by arrival, predicted seconds, GPU-seconds, the dominant share of the job's user, or
# `Memory.rank`
QUEUE, SHORTEST, SMALLEST, DOMINANT, RANKED = range(5)
GAIN, TIGHTEST, LOOSEST, ALIGNED = range(4)  # `Rule.choice`
# Rows of `Room`: the shares looked at, the best that are good enough, anywhere, on free GPUs alone.
# They and what follows are no literals, for each of which numba would compile anew.
LOOKED_AT, BEST, WIDEST, FREEST = np.arange(4)
ALONE, STRICT, NARROW = np.int64(1), np.bool_(True), np.bool_(False)
ROUTED, LEAST_LOAD, SHORTEST_QUEUE, BEST_OFFER, VIEWED = range(5)  # `Owners.arrival`


class Rule(NamedTuple):
    """What a scheduler holds to; plain numbers.

    A job starts on a place that is *good enough*: its rate there alone is at least `fast` of that
    on the fastest GPUs that its scheduler has for it; beside others it keeps at least `own` of it;
    each neighbour keeps at least `others` of what it has.
    """

    order: int  # of pending jobs
    first: int  # of them that are looked at
    joint: bool  # the best of all their good places; else that of the first job that has any
    blocking: bool  # a job without a good place keeps those behind it waiting
    share: bool  # whether jobs join others on their GPUs
    own: float
    others: float
    fast: float
    choice: int  # what places are compared by
    hurry: float  # what a place in the order counts, beside a part of the rate gained


class Room(NamedTuple):
    """Scratch memory for N nodes and J jobs."""

    nodes: IntArray  # (4, N) of the shares looked at, and of the best places: see `best_places`
    gpus: IntArray  # (4, N)
    sets: IntArray  # (4, N) or NONE: free GPUs
    shares: IntArray  # (4,) how many, 0: no such place
    worth: FloatArray  # (4,)
    before: FloatArray  # of every share, what neighbours leave its job
    window: IntArray  # (J,) pending jobs, in their order
    key: FloatArray  # (J,)
    running: IntArray  # (J,)


def room_of(nodes: int, shares: int, jobs: int) -> Room:
    return Room(
        nodes=np.zeros((4, nodes), np.int64),
        gpus=np.zeros((4, nodes), np.int64),
        sets=np.zeros((4, nodes), np.int64),
        shares=np.zeros(4, np.int64),
        worth=np.zeros(4),
        before=np.zeros(shares),
        window=np.zeros(jobs, np.int64),
        key=np.zeros(jobs),
        running=np.zeros(jobs, np.int64),
    )


class Owners(NamedTuple):
    """Who has what: S schedulers."""

    arrival: int  # to whose queue jobs come, and what load is
    forward_s: float  # seconds in a queue, after which a job may go to another
    of_node: IntArray  # (N,)
    home: IntArray  # (J,) in whose queue a job is, or NONE
    fastest: FloatArray  # (J, S) rate alone on the fastest GPUs that a scheduler has for a job
    holds: NDArray[np.int8]  # (J, S) whether a scheduler's nodes, were they empty, would hold a job
    gpus: IntArray  # (S,) of a scheduler's nodes
    asked: FloatArray  # (J,) seconds at which it was last asked to whose queue a job goes
    user: IntArray  # (J,) from 0, in jobs of unknown users one for each
    capacity: FloatArray  # (3,) of the cluster: thousandths of GPUs, processors, memory; or inf
    cells: Cells  # what they see of each other, where `arrival` is VIEWED


class Joint(NamedTuple):
    """What schedulers go by."""

    believed: RateTables
    owners: Owners
    memory: Memory
    rule: Rule
    room: Room


@pasted
def route(state: ClusterState, joint: Joint) -> None:
    """Jobs that have arrived come to a queue, and those that have waited for long may leave theirs.

    Who has been asked is asked again after `forward_s`; with late views that happens once.
    """
    owners = joint.owners
    if len(owners.gpus) == 1 or (owners.arrival == ROUTED and owners.forward_s == np.inf):
        return
    job = next_asked(state, owners, state.clock[0].head)
    while job != NONE:
        its = NONE
        if owners.arrival == BEST_OFFER:
            its = best_offer(state, joint, job)
        elif owners.arrival == VIEWED:
            look_at_cells(state, joint, job)
            its = choose(owners.cells)
            note(state, joint.memory, owners.cells, job, its)
        if its == NONE:
            its = least_loaded(state, joint, job)
        come(state, owners, job, its)
        job = next_asked(state, owners, state.jobs[job].after)


@compiled_inner
def next_asked(state: ClusterState, owners: Owners, job: int) -> int:
    """From `job` on, the first pending job of which it is asked to whose queue it goes, or NONE."""
    now = state.clock[0].now
    while job != NONE:
        waited = now - max(state.jobs[job].since, owners.asked[job])
        if owners.home[job] == NONE or waited > owners.forward_s:
            break
        job = state.jobs[job].after
    return job


@compiled_inner
def come(state: ClusterState, owners: Owners, job: int, scheduler: int) -> None:
    """A job comes to the queue of a scheduler."""
    again = owners.arrival != VIEWED or owners.home[job] == NONE
    owners.asked[job] = state.clock[0].now if again else np.inf
    owners.home[job] = scheduler


@compiled_inner
def look_at_cells(state: ClusterState, joint: Joint, job: int) -> None:
    """Write what the scheduler who decides about `job` sees of all cells."""
    owners, memory, cells = joint.owners, joint.memory, joint.owners.cells
    look_around(state, memory, owners.of_node, owners.home, cells, job)
    describe(state, memory, owners.gpus, owners.fastest[job], owners.holds[job], cells, job)


@pasted
def least_loaded(state: ClusterState, joint: Joint, job: int) -> int:
    """The scheduler with the least load besides a job's own, of those whose nodes would hold it.

    Load is how many jobs wait, or GPU-seconds that wait per GPU; of equal ones the scheduler with
    the most free GPUs, then the one where the job is, then the first.
    """
    owners = joint.owners
    schedulers = len(owners.gpus)
    load, free = np.zeros(schedulers), np.zeros(schedulers)
    other = state.clock[0].head
    while other != NONE:
        its = owners.home[other]
        if its != NONE and other != job:
            work = gpu_seconds(state, joint.memory, other)
            load[its] += 1.0 if owners.arrival == SHORTEST_QUEUE else work / owners.gpus[its]
        other = state.jobs[other].after
    for node in range(len(state.nodes)):
        free[owners.of_node[node]] += state.nodes[node].free
    chosen = owners.home[job]
    for one in range(schedulers):
        if owners.holds[job, one] and (
            chosen == NONE
            or load[one] < load[chosen]
            or (load[one] == load[chosen] and free[one] > free[chosen])
        ):
            chosen = one
    return int(chosen)


@pasted
def best_offer(state: ClusterState, joint: Joint, job: int) -> int:
    """The scheduler with the best place for `job` that is good enough and free now, or NONE.

    A gain counts in GPUs times rate, whatever GPUs a scheduler has. Of equal ones the first.
    """
    owners, room = joint.owners, joint.room
    before, chosen, most = owners.home[job], NONE, -np.inf
    for one in range(len(owners.gpus)):
        if not owners.holds[job, one]:
            continue
        owners.home[job] = one
        best_places(state, joint, job, STRICT, NARROW)
        worth = room.worth[BEST]
        if joint.rule.choice == GAIN:
            worth *= owners.fastest[job, one]
        if room.shares[BEST] > 0 and worth > most:
            chosen, most = one, worth
    owners.home[job] = before
    return chosen


@compiled
def dominant_share(state: ClusterState, owners: Owners, job: int) -> float:
    """The largest part of GPUs, processors or memory that running jobs of a job's user hold."""
    gpus = cpu = memory = 0.0
    for place in range(state.clock[0].running):
        if owners.user[state.heap[place]] == owners.user[job]:
            record = state.jobs[state.heap[place]]
            gpus += record.gpus * record.milli
            cpu += record.cpu
            memory += record.memory
    there = owners.capacity
    return float(max(gpus / there[0], cpu / there[1], memory / there[2]))


@compiled
def effect(
    state: ClusterState, tables: RateTables, room: Room, job: int, count: int
) -> tuple[float, float, float, float]:
    """What would come of `job` on the first `count` shares looked at; nothing is changed.

    Returns:
        Its rate alone; the part of it that neighbours leave; the least part that one of them
        keeps of its own; and the GPUs times rate that the cluster would gain.
    """
    jobs, nodes, shares = state.jobs, state.nodes, state.shares
    record = jobs[job]
    spans = count > 1
    for i in range(count):
        share = nodes[room.nodes[0, i]].share
        while share != NONE:
            other = np.int64(shares[share].job)
            room.before[share] = left_by_neighbours(jobs, nodes, shares, tables, other, Sums.AFRESH)
            share = shares[share].after
    take(state, room, LOOKED_AT, job, count)
    for i in range(count):
        nodes[room.nodes[0, i]].spanning += spans
    alone, _ = alone_rate(jobs, nodes, shares, tables.speed, tables.locality, job)
    own = left_by_neighbours(jobs, nodes, shares, tables, job, Sums.AFRESH)
    least, won = 1.0, record.gpus * alone * own
    for i in range(count):
        share = nodes[room.nodes[0, i]].share
        while share != NONE:
            other = np.int64(shares[share].job)
            if other != job:
                left = left_by_neighbours(jobs, nodes, shares, tables, other, Sums.AFRESH)
                least = min(least, left / room.before[share])
                rate, _ = alone_rate(jobs, nodes, shares, tables.speed, tables.locality, other)
                won -= jobs[other].gpus * rate * (room.before[share] - left)
                held = jobs[other].share
                while held != NONE:  # a gang on several of the nodes loses once
                    room.before[held] = left
                    held = shares[held].next
            share = shares[share].after
    for i in range(count):
        nodes[room.nodes[0, i]].spanning -= spans
    for _ in range(count):
        ungive(state, job)
    return alone, own, least, won


@compiled_inner
def take(state: ClusterState, room: Room, which: int, job: int, count: int) -> None:
    """Give a job the first `count` shares of a row of `room`."""
    for i in range(count):
        node, gpus = room.nodes[which, i], room.gpus[which, i]
        if gpus > 0 and state.jobs[job].milli < WHOLE_GPU:
            give_partial(state, job, node, room.sets[which, i], gpus)
        else:
            give(state, job, node, gpus)


@compiled_inner
def best_places(state: ClusterState, joint: Joint, job: int, strict: bool, wide: bool) -> None:
    """Find the best places for `job`, into rows of `room`.

    A place is a node, or a set of GPUs there; for gangs that are larger than all nodes a rack, or
    all nodes. BEST is the best of those that are good enough; unless `strict`, every place is. If
    `wide`, WIDEST is the place anywhere, and FREEST that on free GPUs, with the greatest gain.
    """
    owners, rule, room = joint.owners, joint.rule, joint.room
    record, scheduler = state.jobs[job], owners.home[job]
    fastest = owners.fastest[job, scheduler]
    room.shares[:], room.worth[:] = 0, -np.inf
    if record.milli == WHOLE_GPU and record.gpus > 0:
        free = 0
        for node in range(len(state.nodes)):
            if owners.of_node[node] == scheduler:
                free += state.nodes[node].free
        if free < record.gpus:
            return
    anywhere = False
    for node in range(len(state.nodes)):
        place = state.nodes[node]
        if owners.of_node[node] != scheduler or not place.up or not permitted(place, record):
            continue
        if place.gpus >= record.gpus:
            anywhere = True
        if strict and not wide and rate_on(joint.believed, record, place) < rule.fast * fastest:
            continue
        if holds(place, record, record.gpus):
            room.nodes[0, 0], room.gpus[0, 0], room.sets[0, 0] = node, record.gpus, NONE
            consider(state, joint, job, ALONE, fastest, strict, wide)
        if not rule.share or record.milli == WHOLE_GPU:
            continue
        if place.cpu < record.cpu or place.memory < record.memory:
            continue
        index = place.partial
        while index != NONE:
            there = state.partials[index]
            if there.gpus == record.gpus and there.left >= record.milli:
                room.nodes[0, 0], room.gpus[0, 0], room.sets[0, 0] = node, record.gpus, index
                consider(state, joint, job, ALONE, fastest, strict, wide)
            index = there.next
    if anywhere:
        return
    racks = 0
    for node in range(len(state.nodes)):
        racks = max(racks, state.nodes[node].rack + 1)
    for rack in range(racks + 1):  # the last: all of them, where no rack is good enough
        if rack == racks and room.shares[BEST] > 0:
            break
        count = gather(state, joint, job, rack if rack < racks else NONE)
        if count > 0:
            consider(state, joint, job, count, fastest, strict, wide)


@pasted
def rate_on(tables: RateTables, job: Record, node: Record) -> float:
    """A job's rate alone on the GPUs of one node."""
    rate: float = (
        tables.speed[job.profile, node.type] * tables.locality[job.profile, node.type, 0, 0]
    )
    return rate


@compiled_inner
def consider(
    state: ClusterState,
    joint: Joint,
    job: int,
    count: int,
    fastest: float,
    strict: bool,
    wide: bool,
) -> None:
    """Keep the shares looked at wherever they are the best so far."""
    rule, room = joint.rule, joint.room
    alone, own, least, won = effect(state, joint.believed, room, job, count)
    gpus = state.jobs[job].gpus
    gain = won / (max(gpus, 1) * fastest)
    if wide:
        if gain > room.worth[WIDEST]:
            keep(room, WIDEST, count, gain)
        if room.sets[0, 0] == NONE and gain > room.worth[FREEST]:
            keep(room, FREEST, count, gain)
    if strict and (alone < rule.fast * fastest or own < rule.own or least < rule.others):
        return
    worth = gain
    if rule.choice != GAIN:
        free = 0
        for i in range(count):
            free += state.nodes[room.nodes[0, i]].free
        worth = float(free)
        if rule.choice == ALIGNED:
            worth *= gpus
        elif rule.choice == TIGHTEST:
            worth = -worth
    if worth > room.worth[BEST]:
        keep(room, BEST, count, worth)


@compiled_inner
def keep(room: Room, row: int, count: int, worth: float) -> None:
    """Remember the shares looked at in a row."""
    room.nodes[row, :count] = room.nodes[0, :count]
    room.gpus[row, :count] = room.gpus[0, :count]
    room.sets[row, :count] = room.sets[0, :count]
    room.shares[row], room.worth[row] = count, worth


@compiled_inner
def gather(state: ClusterState, joint: Joint, job: int, rack: int) -> int:
    """Free GPUs for a gang on several nodes of a rack, or NONE: of all; the fewest nodes.

    Returns:
        How many nodes, written as the shares looked at; 0: there are not enough GPUs.
    """
    owners, room = joint.owners, joint.room
    record, scheduler = state.jobs[job], owners.home[job]
    left, count = int(record.gpus), 0
    while left > 0:
        enough, tightest, fullest, most = NONE, 0, NONE, 0
        for node in range(len(state.nodes)):
            place = state.nodes[node]
            if owners.of_node[node] != scheduler or (rack >= 0 and place.rack != rack):
                continue
            taken = False
            for i in range(count):
                taken = taken or room.nodes[0, i] == node
            there = min(int(place.free), left)
            if taken or there == 0 or not holds(place, record, there):
                continue
            if there >= left and (enough == NONE or place.free < tightest):
                enough, tightest = node, int(place.free)
            if there > most:
                fullest, most = node, there
        node = enough if enough != NONE else fullest
        if node == NONE or count == room.nodes.shape[1]:
            return 0
        gpus = min(left, int(state.nodes[node].free))
        room.nodes[0, count], room.gpus[0, count], room.sets[0, count] = node, gpus, NONE
        left -= gpus
        count += 1
    return count


@compiled_inner
def look(state: ClusterState, joint: Joint, first: int, scheduler: int) -> int:
    """The `first` pending jobs of a scheduler, which it looks at, in their order; how many."""
    owners, room, order = joint.owners, joint.room, joint.rule.order
    filled = 0
    job = state.clock[0].head
    while job != NONE:
        if owners.home[job] == scheduler:
            key = 0.0
            if order == SHORTEST:
                key = predicted(joint.memory, job)
            elif order == SMALLEST:
                key = gpu_seconds(state, joint.memory, job)
            elif order == DOMINANT:
                key = dominant_share(state, owners, job)
            elif order == RANKED:
                key = joint.memory.rank[job]
            place = filled
            while place > 0 and key < room.key[place - 1]:
                if place < first:
                    room.key[place], room.window[place] = (
                        room.key[place - 1],
                        room.window[place - 1],
                    )
                place -= 1
            if place < first:
                room.key[place], room.window[place] = key, job
                filled = min(filled + 1, first)
        job = state.jobs[job].after
    return filled


@compiled_inner
def owns_running(state: ClusterState, owners: Owners, scheduler: int) -> bool:
    """Whether a job of a scheduler runs."""
    for place in range(state.clock[0].running):
        if owners.home[state.heap[place]] == scheduler:
            return True
    return False
