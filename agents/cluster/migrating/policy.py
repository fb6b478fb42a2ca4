"""Who is to run where, in an order of priority: each on the fastest GPUs it can get."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Lt

from agents.cluster.migrating.priorities import AttainedServiceClasses, Priority
from agents.cluster.policy import Scheduler
from agents.solver import Knowledge
from envs.arrays import IntArray
from envs.bounds import bounded
from envs.cluster.environment.actions import View, room, start_on, view_of
from envs.cluster.interference.rates import RateTables
from envs.cluster.nodes import UNLIMITED
from envs.cluster.simulation.borrowed import borrowed
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import NONE, PENDING, RUNNING, ClusterState
from envs.cluster.workload.trace import WHOLE_GPU
from envs.compilation import compiled, compiled_inner
from envs.errors import InputError

KEEP, WAIT, STOP, START = 0, 1, 2, 3  # what becomes of a job
NOWHERE, SERVER, RACK, ALL_SERVERS = 0, 1, 2, 3  # kinds of targets; their index: slot, rack, 0


def check_whole_gpus(simulator: ClusterSimulator) -> None:
    """Raise where more than whole GPUs would have to be planned.

    Raises:
        InputError: naming the job that asks for a part of a GPU, or for processor or memory on
            nodes where they are limited.
    """
    cluster, trace = simulator.cluster, simulator.trace
    for field, beyond in (
        ("gpu_milli", (trace.gpu_milli < WHOLE_GPU) & (trace.num_gpus > 0)),
        ("cpu_milli", (trace.cpu_milli > 0) & (cluster.cpu_milli < UNLIMITED).any()),
        ("memory_mib", (trace.memory_mib > 0) & (cluster.memory_mib < UNLIMITED).any()),
    ):
        if beyond.any():
            told = "migrating policies plan whole GPUs alone, without limits of other resources"
            raise InputError(told, file=trace.name, record=int(np.argmax(beyond)), field=field)


@compiled
def plan(
    state: ClusterState,
    tables: RateTables,
    view: View,
    order: IntArray,
    gain: float,
    least_run_s: float,
    kept_s: float,
    fate: IntArray,
    target: IntArray,
) -> None:
    """Decide on all jobs in `order`, as if none of them held its GPUs.

    A running job stays where it is unless a job before it takes its GPUs or, once it has run for
    `least_run_s`, somewhere its speed is more than `gain` times as high; then it stops, and its
    place is kept for it. Before all others come those that cannot stop yet. A waiting job goes
    where its speed is highest; of equally fast places to one that is free now, of these the
    fullest. A job that fits a server waits for one; a larger one goes to the servers of a rack, or
    of all where no rack holds it.

    Args:
        state: of the cluster, settled.
        tables: of which the speeds by GPU type are used.
        view: the servers.
        order: jobs that wait, and jobs that run on servers of the view alone.
        gain: at least 1.
        least_run_s: seconds.
        kept_s: seconds for which a job runs before it can stop.
        fate: (len(order),) out: KEEP, WAIT, STOP or START.
        target: (len(order), 2) out: where it goes, a kind and an index.
    """
    state, tables, view = borrowed(state), borrowed(tables), borrowed(view)
    free = np.zeros(len(view.node), np.int64)
    there = np.zeros(len(view.node), np.int64)  # free now
    release(state, view, order, free, there)
    left = free.sum()
    for place in range(len(order)):
        job = order[place]
        record = state.jobs[job]
        fate[place], target[place, 0], target[place, 1] = WAIT, NOWHERE, 0
        if record.status == RUNNING:
            fate[place] = STOP
            if state.clock[0].now - record.since < kept_s:
                fate[place] = KEEP
                add(state, view, job, free, -1)
                left -= record.gpus
    for place in range(len(order)):
        job = order[place]
        record = state.jobs[job]
        runs = record.status == RUNNING
        if fate[place] == KEEP or left < record.gpus:
            continue
        current = speed_where_it_runs(state, tables, view, job, free) if runs else -1.0
        early = state.clock[0].now - record.since < least_run_s
        if current >= 0.0 and (early or current * gain >= tables.speed[record.profile].max()):
            kind, index, speed = NOWHERE, 0, 0.0  # nothing is fast enough to move for
        else:
            kind, index, speed = fastest(state, tables, view, job, free, there)
        if current >= 0.0 and (early or kind == NOWHERE or current * gain >= speed):
            fate[place] = KEEP
            add(state, view, job, free, -1)
        elif kind == NOWHERE:
            continue
        else:
            if not runs:
                fate[place] = START
            target[place, 0], target[place, 1] = kind, index
            first, last = slots_at(view, kind, index)
            take(state, view, job, free, there, first, last)
        left -= record.gpus


@compiled_inner
def release(
    state: ClusterState, view: View, order: IntArray, free: IntArray, there: IntArray
) -> None:
    """Count what is free on every slot, now and if none of the jobs in `order` held its GPUs."""
    for slot in range(len(view.node)):
        node = state.nodes[view.node[slot]]
        if node.up:
            free[slot] = there[slot] = node.free
    for place in range(len(order)):
        if state.jobs[order[place]].status == RUNNING:
            add(state, view, order[place], free, 1)


@compiled_inner
def add(state: ClusterState, view: View, job: int, free: IntArray, sign: int) -> None:
    """Add the GPUs that a running job holds to those that are free; sign -1: take them away."""
    shares = state.shares
    index = state.jobs[job].share
    while index != NONE:
        free[view.slot[shares[index].node]] += sign * shares[index].gpus
        index = shares[index].next


@compiled_inner
def speed_where_it_runs(
    state: ClusterState, tables: RateTables, view: View, job: int, free: IntArray
) -> float:
    """Of a running job on the GPUs it holds; -1 where a job before it takes some of them."""
    shares = state.shares
    current = np.inf
    index = state.jobs[job].share
    while index != NONE:
        node = shares[index].node
        if free[view.slot[node]] < shares[index].gpus:
            return -1.0
        current = min(current, tables.speed[tables.profile[job], state.nodes[node].type])
        index = shares[index].next
    return current


@compiled
def slots_at(view: View, kind: int, index: int) -> tuple[int, int]:
    """The first slot of a target and the one after the last."""
    if kind == SERVER:
        return index, index + 1
    if kind == RACK:
        return view.rack_ptr[index], view.rack_ptr[index + 1]
    return 0, len(view.node)


@compiled_inner
def fastest(
    state: ClusterState,
    tables: RateTables,
    view: View,
    job: int,
    free: IntArray,
    there: IntArray,
) -> tuple[int, int, float]:
    """Where a job is fastest, a kind and an index, and its speed there."""
    jobs, nodes, wanted = state.jobs, state.nodes, state.jobs[job].gpus
    chosen, speed, now, tightest = NONE, 0.0, 0, 0
    largest = 0
    for slot in range(len(view.node)):
        node = nodes[view.node[slot]]
        if (jobs[job].types >> node.type) & 1 == 0 or not node.up:
            continue
        largest = max(largest, node.gpus)
        if free[slot] < wanted:
            continue
        fast = tables.speed[tables.profile[job], node.type]
        free_now = min(there[slot], wanted)
        better = fast > speed
        if fast == speed:
            better = free_now > now or (free_now == now and free[slot] < tightest)
        if better:
            chosen, speed, now, tightest = slot, fast, free_now, free[slot]
    if chosen != NONE:
        return SERVER, chosen, speed
    if wanted <= largest:
        return NOWHERE, 0, 0.0
    found: tuple[int, int, float] = fastest_rack(state, tables, view, job, free, there)
    return found


@compiled_inner
def fastest_rack(
    state: ClusterState,
    tables: RateTables,
    view: View,
    job: int,
    free: IntArray,
    there: IntArray,
) -> tuple[int, int, float]:
    """`fastest` for a job that no server holds."""
    jobs, nodes, wanted = state.jobs, state.nodes, state.jobs[job].gpus
    chosen, speed, now = NONE, 0.0, 0
    in_all, slowest = 0, np.inf
    for rack in range(len(view.rack_ptr) - 1):
        held, fast, free_now = 0, np.inf, 0
        for slot in range(view.rack_ptr[rack], view.rack_ptr[rack + 1]):
            node = nodes[view.node[slot]]
            if (jobs[job].types >> node.type) & 1 == 0 or free[slot] == 0:
                continue
            held += free[slot]
            free_now += there[slot]
            fast = min(fast, tables.speed[tables.profile[job], node.type])
        in_all += held
        slowest = min(slowest, fast)
        if held < wanted:
            continue
        free_now = min(free_now, wanted)
        if fast > speed or (fast == speed and free_now > now):
            chosen, speed, now = rack, fast, free_now
    if chosen != NONE:
        return RACK, chosen, speed
    return (ALL_SERVERS, 0, slowest) if in_all >= wanted else (NOWHERE, 0, 0.0)


@compiled_inner
def take(
    state: ClusterState,
    view: View,
    job: int,
    free: IntArray,
    there: IntArray,
    first: int,
    last: int,
) -> None:
    """Take GPUs from the slots, the tightest that has room for all, else the one with the most."""
    types, left = state.jobs[job].types, state.jobs[job].gpus
    while left > 0:
        enough, most = NONE, NONE
        for slot in range(first, last):
            if (types >> state.nodes[view.node[slot]].type) & 1 == 0:
                continue
            if free[slot] >= left and (enough == NONE or free[slot] < free[enough]):
                enough = slot
            if most == NONE or free[slot] > free[most]:
                most = slot
        slot = enough if enough != NONE else most
        part = min(left, free[slot])
        free[slot] -= part
        there[slot] = max(there[slot] - part, 0)
        left -= part


@compiled
def startable(state: ClusterState, view: View, job: int, kind: int, index: int) -> bool:
    """Whether the place a plan has for a job is free now, and no smaller one that it would take."""
    record, nodes, partials = state.jobs[job], state.nodes, state.partials
    wanted = record.gpus
    if kind == SERVER:
        return bool(room(record, nodes[view.node[index]], partials) >= wanted)
    in_all, in_a_rack = 0, False
    for rack in range(len(view.rack_ptr) - 1):
        held = 0
        for slot in range(view.rack_ptr[rack], view.rack_ptr[rack + 1]):
            held += max(room(record, nodes[view.node[slot]], partials), 0)
        if kind == RACK and rack == index:
            return bool(held >= wanted)
        in_all += held
        in_a_rack = in_a_rack or held >= wanted
    return bool(in_all >= wanted and not in_a_rack)


@bounded
class Migrating(Scheduler):
    """Jobs in an order of priority get the fastest GPUs there are, and move to faster ones.

    At every event all jobs are planned anew (`plan.plan`): in the order of priority each gets the
    place where its speed is highest. A running job stays unless its GPUs go to a job before it, or
    it would run more than `gain` times as fast elsewhere.

    Guarantees:
        None proved; no job moves for speed alone before it has run for `least_run_s`.

    Args:
        priority: the order.
        gain: ratio of speeds above which a running job moves, at least 1.
        least_run_s: seconds for which a job runs before it moves for speed alone.
        wake_s: seconds after which it plans again even if nothing happens, while jobs
            wait and others run.

    """

    name = "migrating"

    def __init__(
        self,
        priority: Priority = AttainedServiceClasses(),
        gain: Annotated[float, Ge(1.0), Lt(np.inf)] = 1.33,
        least_run_s: Annotated[float, Gt(0.0)] = 600.0,
        wake_s: Annotated[float, Gt(0.0)] = 600.0,
    ) -> None:
        self.priority, self.gain = priority, gain
        self.least_run_s, self.wake_s = least_run_s, wake_s
        self.knows: Knowledge = priority.knows

    def reset(self, simulator: ClusterSimulator) -> None:
        """All servers are its own.

        Raises:
            InputError: a job asks for more than whole GPUs.
        """
        check_whole_gpus(simulator)
        self.priority.reset(simulator)
        cluster = simulator.cluster
        nodes = np.arange(cluster.num_nodes)
        largest = int(cluster.gpus.max())
        self._view = view_of(cluster, simulator.tables, nodes, 0, largest)

    def decide(self, simulator: ClusterSimulator) -> None:
        for _ in self.moves(simulator):
            pass

    def moves(self, simulator: ClusterSimulator) -> Iterator[tuple[int, int]]:
        """STOP or START and the job, each when it is done; all stops before the first start."""
        simulator.settle()
        state, view = simulator.state, self._view
        status = state.jobs["status"]
        jobs = np.flatnonzero((status == PENDING) | (status == RUNNING))
        if len(jobs) == 0:
            return
        order = jobs[np.lexsort((jobs, self.priority(state, jobs)))]
        fate, target = np.zeros(len(order), np.int64), np.zeros((len(order), 2), np.int64)
        plan(state, simulator.tables, view, order, self.gain, self.least_run_s, 0.0, fate, target)
        for job in order[fate == STOP].tolist():
            simulator.preempt(job)
            yield STOP, job
        going = fate >= STOP
        for job, (kind, index) in zip(order[going].tolist(), target[going], strict=True):
            if kind != NOWHERE and startable(simulator.state, view, job, kind, index):
                at = slots_at(view, kind, index)
                start_on(*simulator.compiled, view, job, *at)
                yield START, job

    def wake(self, simulator: ClusterSimulator) -> float:
        """While jobs wait and others run, from time to time."""
        clock = simulator.state.clock[0]
        return simulator.now + self.wake_s if clock["pending"] and clock["running"] else np.inf
