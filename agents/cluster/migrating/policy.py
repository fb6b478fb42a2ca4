"""Who is to run where, in an order of priority: each on the fastest GPUs it can get."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import numpy as np
from annotated_types import Ge, Gt, Lt

from agents.cluster.migrating.priorities import AttainedServiceClasses, Priority
from agents.cluster.policy import Scheduler
from agents.cluster.rules.eligible import permitted
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
# Kinds of targets; their index: slot, rack, 0. No literals, for which numba would compile anew.
NOWHERE, SERVER, RACK, ALL_SERVERS = np.arange(4)


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
            reason = "migrating policies plan whole GPUs alone, without limits of other resources"
            raise InputError(reason, file=trace.name, record=int(np.argmax(beyond)), field=field)


@compiled
def plan(
    state: ClusterState,
    tables: RateTables,
    view: View,
    order: IntArray,
    gain: float,
    least_run_s: float,
    kept_s: float,
) -> tuple[IntArray, IntArray]:
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

    Returns:
        (len(order),) KEEP, WAIT, STOP or START; (len(order), 2) where it goes, a kind and an index.
    """
    state, tables, view = borrowed(state), borrowed(tables), borrowed(view)
    fate, target = np.full(len(order), WAIT), np.zeros((len(order), 2), np.int64)
    free = np.zeros(len(view.node), np.int64)  # if none of the jobs held its GPUs
    for slot in range(len(free)):
        free[slot] = state.nodes[view.node[slot]].free
    there = free.copy()  # free now
    now = state.clock[0].now
    for place in range(len(order)):
        record = state.jobs[order[place]]
        if record.status == RUNNING and now - record.since < kept_s:
            fate[place] = KEEP
        elif record.status == RUNNING:
            fate[place] = STOP
            add(state, view, order[place], free, 1)
    left = free.sum()
    for place in range(len(order)):
        job = order[place]
        record = state.jobs[job]
        if fate[place] == KEEP or left < record.gpus:
            continue
        current = speed_where_it_runs(state, tables, view, job, free)
        early = now - record.since < least_run_s
        kind, index, speed = NOWHERE, 0, 0.0
        if current < 0.0 or not (early or current * gain >= tables.speed[record.profile].max()):
            kind, index, speed = fastest(state, tables, view, job, free, there)
        if current * gain >= speed:  # nothing is fast enough to move for
            fate[place] = KEEP
            add(state, view, job, free, -1)
        elif kind == NOWHERE:
            continue
        else:
            if fate[place] == WAIT:
                fate[place] = START
            target[place, 0], target[place, 1] = kind, index
            take(state, view, job, free, there, kind, index)
        left -= record.gpus
    return fate, target


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
    """Of a job on the GPUs it holds; -1: it waits, or a job before it takes some of them."""
    shares, index = state.shares, state.jobs[job].share
    current = -1.0 if index == NONE else np.inf
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
    record, largest = state.jobs[job], 0
    for kind in range(SERVER, ALL_SERVERS + 1):
        places = (len(view.node), len(view.rack_ptr) - 1, 1)[kind - SERVER]
        speed = -1.0 if kind == ALL_SERVERS else 0.0
        chosen, most, tightest = NONE, 0, 0
        for index in range(places):
            first, last = slots_at(view, kind, index)
            held, fast, now = 0, np.inf, 0
            for slot in range(first, last):
                node = state.nodes[view.node[slot]]
                if node.up and permitted(node, record) and (kind == SERVER or free[slot] > 0):
                    largest = max(largest, node.gpus)
                    held += free[slot]
                    now += there[slot]
                    fast = min(fast, tables.speed[record.profile, node.type])
            now = min(now, record.gpus)
            better = fast > speed
            if fast == speed:
                better = now > most or (kind == SERVER and now == most and held < tightest)
            if better and fast < np.inf and held >= record.gpus:
                chosen, speed, most, tightest = index, fast, now, held
        if chosen != NONE:
            return kind, chosen, speed
        if record.gpus <= largest:  # waits for a server
            break
    return int(NOWHERE), 0, 0.0


@compiled_inner
def take(
    state: ClusterState,
    view: View,
    job: int,
    free: IntArray,
    there: IntArray,
    kind: int,
    index: int,
) -> None:
    """Take GPUs from the slots, the tightest that has room for all, else the one with the most."""
    record, left = state.jobs[job], state.jobs[job].gpus
    first, last = slots_at(view, kind, index)
    while left > 0:
        enough, most = NONE, NONE
        for slot in range(first, last):
            if not permitted(state.nodes[view.node[slot]], record):
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


@compiled_inner
def has_room(state: ClusterState, view: View, job: int, kind: int, index: int) -> bool:
    """Whether a job could start on a target now."""
    record, held = state.jobs[job], 0
    first, last = slots_at(view, kind, index)
    for slot in range(first, last):
        there = room(record, state.nodes[view.node[slot]], state.partials)
        held += there if kind == SERVER else max(there, 0)
    return bool(held >= record.gpus)


@compiled
def startable(state: ClusterState, view: View, job: int, kind: int, index: int) -> bool:
    """Whether the place a plan has for a job is free now, and no smaller one that it would take."""
    for rack in range(len(view.rack_ptr) - 1 if kind == ALL_SERVERS else 0):
        if has_room(state, view, job, RACK, rack):
            return False
    return bool(has_room(state, view, job, kind, index))


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
        cluster, largest = simulator.cluster, int(simulator.cluster.gpus.max())
        self._view = view_of(cluster, simulator.tables, np.arange(cluster.num_nodes), 0, largest)

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
        limits = (self.gain, self.least_run_s, 0.0)
        fate, target = plan(state, simulator.tables, view, order, *limits)
        for job in order[fate == STOP].tolist():
            simulator.preempt(job)
            yield STOP, job
        for job, at in zip(order.tolist(), target.tolist(), strict=True):
            if at[0] != NOWHERE and startable(state, view, job, *at):
                start_on(*simulator.compiled, view, job, *slots_at(view, *at))
                yield START, job

    def wake(self, simulator: ClusterSimulator) -> float:
        """While jobs wait and others run, from time to time."""
        clock = simulator.state.clock[0]
        return simulator.now + self.wake_s if clock["pending"] and clock["running"] else np.inf
