"""Time-slicing: the nodes on which jobs are resident, and their turns on the GPUs there."""

from __future__ import annotations

from collections.abc import Set
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.cluster.policy import Share
from envs.arrays import BoolArray, FloatArray, IntArray
from envs.cluster.interference.rates import RateTables
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_kernel import (
    EVENT,
    NOTHING,
    advance,
    begin,
    give,
    part,
    settle,
    stop,
)
from envs.cluster.simulation.cluster_state import NONE, PENDING, RUNNING, ClusterState, Overheads
from envs.cluster.workload.trace import WHOLE_GPU
from envs.compilation import compiled, pasted

Records = NDArray[np.void]


Residence = tuple[Share, ...]


class Residents:
    """Which jobs are resident on which nodes, as (node, GPUs), whoever runs there now.

    The load of a node is the GPUs of all its residents over its GPUs; its affinity is the gang of
    the resident that came first (Gandiva, OSDI 2018, section 4.2). A gang that no node can hold
    lives on several.
    """

    def __init__(self, simulator: ClusterSimulator) -> None:
        self.of: dict[int, Residence] = {}
        self._jobs, self._nodes = simulator.state.jobs, simulator.state.nodes
        self._size = self._nodes["gpus"].astype(np.int64) * WHOLE_GPU
        self._used = np.zeros(len(self._nodes), np.int64)  # thousandths of GPUs of residents
        self._residents_of: list[list[int]] = [[] for _ in range(len(self._nodes))]
        self._affinity = np.zeros(len(self._nodes), np.int64)  # gang of the first, 0: nobody
        self._several = np.zeros((len(self._nodes), 2), np.int64)
        self._table: ResidentTable | None = None
        self.resident = np.zeros(len(self._jobs), np.bool_)

    def join(self, job: int, residence: Residence) -> None:
        """Make `residence` the job's."""
        self.of[job] = residence
        self._table, self.resident[job] = None, True
        for node, gpus in residence:
            self._used[node] += gpus * int(self._jobs["milli"][job])
            self._residents_of[node].append(job)
            self._note_affinity(node)

    def leave(self, job: int) -> None:
        """The job has no residence any more."""
        self._table, self.resident[job] = None, False
        for node, gpus in self.of.pop(job):
            self._used[node] -= gpus * int(self._jobs["milli"][job])
            self._residents_of[node].remove(job)
            self._note_affinity(node)

    def table(self) -> ResidentTable:
        """All residences as arrays, good until somebody moves."""
        if self._table is None:
            jobs = sorted(self.of)
            residences = [self.of[job] for job in jobs]
            shares = np.array([share for residence in residences for share in residence], np.int64)
            node, gpus = np.ascontiguousarray(shares.reshape(-1, 2).T)
            first = np.cumsum([0, *(len(residence) for residence in residences)], dtype=np.int64)
            self._table = ResidentTable(np.array(jobs, np.int64), first, node, gpus)
        return self._table

    def on(self, nodes: Set[int]) -> set[int]:
        """Jobs that live on any of `nodes`."""
        return {job for node in nodes for job in self._residents_of[node]}

    def find(self, job: int) -> Residence | None:
        """A residence with room, else the least loaded one; None: too many nodes are down."""
        room = self.find_room(job)
        if room is not None:
            return room
        node = self._best(job, crowded=True)
        if node == TOO_LARGE:
            return self._on_several(job, self._size)
        return ((node, int(self._jobs["gpus"][job])),)

    def find_room(self, job: int) -> Residence | None:
        """A residence where nobody has to take turns, or None.

        The least loaded node of the job's affinity, else an empty one, else the least loaded of
        all; for a gang larger than any node, as few nodes as hold it.
        """
        node = self._best(job, crowded=False)
        if node == TOO_LARGE:
            return self._on_several(job, self._size - self._used)
        return None if node == NO_ROOM else ((node, int(self._jobs["gpus"][job])),)

    def find_fuller(self, job: int) -> Residence | None:
        """The fullest node with room that is fuller than the job's own without it, or None."""
        ((own, gang),) = self.of[job]
        node = fuller_node(self._jobs, self._nodes, self._size, self._used, job, own)
        return None if node == NO_ROOM else ((int(node), gang),)

    def have_room(self) -> bool:
        """Whether some node has a GPU, or part of one, on which nobody lives."""
        return bool((self._used < self._size)[self._nodes["up"] != 0].any())

    def sparse(self, free: float) -> list[int]:
        """Occupied nodes with more than `free` of their GPUs free, the emptiest first."""
        nodes = np.flatnonzero((self._used > 0) & (self._size - self._used > free * self._size))
        return [int(node) for node in nodes[np.argsort(self._used[nodes], kind="stable")]]

    def _note_affinity(self, node: int) -> None:
        first = self._residents_of[node][:1]
        self._affinity[node] = max(int(self._jobs["gpus"][first[0]]), 1) if first else 0

    def _best(self, job: int, *, crowded: bool) -> int:
        arrays = (self._size, self._used, self._affinity)
        return int(best_node(self._jobs, self._nodes, *arrays, job, crowded))

    def _on_several(self, job: int, left: NDArray[np.int64]) -> Residence | None:
        count = several_nodes(self._jobs, self._nodes, left, self._used, job, self._several)
        if count == NO_ROOM:
            return None
        return tuple((node, gpus) for node, gpus in self._several[:count].tolist())


NO_ROOM, TOO_LARGE = -1, -2  # no node has room; no node could hold the gang if it were empty


@pasted
def usable(record: Any, place: Any) -> bool:
    """Whether a job may live on a node, which is up."""
    permitted: bool = (record.types >> np.int64(place.type)) & 1 == 1
    return permitted and place.up != 0


@compiled
def best_node(
    jobs: Records,
    nodes: Records,
    size: IntArray,
    used: IntArray,
    affinity: IntArray,
    job: int,
    crowded: bool,
) -> int:
    """The least loaded node of the job's affinity, else an empty one, else the least loaded one.

    Args:
        jobs: `cluster_state.JOB` records.
        nodes: (N,) `cluster_state.NODE` records.
        size: (N,) thousandths of GPUs.
        used: (N,) thousandths of GPUs of the residents.
        affinity: (N,) gang of the first resident, 0: there is none.
        job: who looks for a residence.
        crowded: whether nodes without room count as well; an empty node is then like any other.

    Returns:
        The number of the node, the lowest of several, or NO_ROOM or TOO_LARGE.
    """
    record = jobs[job]
    gang = np.int64(record.gpus)
    best, best_rank, best_load = TOO_LARGE, 3, np.inf
    for node in range(len(nodes)):
        if not usable(record, nodes[node]) or size[node] < gang * WHOLE_GPU:
            continue
        if not crowded and size[node] - used[node] < gang * record.milli:
            if best == TOO_LARGE:
                best = NO_ROOM
            continue
        rank = 2
        if affinity[node] == gang:
            rank = 0
        elif affinity[node] == 0 and not crowded:
            rank = 1
        load = used[node] / max(size[node], 1)
        if rank < best_rank or (rank == best_rank and load < best_load):
            best, best_rank, best_load = node, rank, load
    return best


@compiled
def several_nodes(
    jobs: Records, nodes: Records, left: IntArray, used: IntArray, job: int, residence: IntArray
) -> int:
    """Nodes with the most GPUs left first, then the least used, until the gang is whole.

    Args:
        jobs: `cluster_state.JOB` records.
        nodes: (N,) `cluster_state.NODE` records.
        left: (N,) thousandths of GPUs.
        used: (N,) thousandths of GPUs of the residents.
        job: who looks for a residence.
        residence: (N, 2) node and GPUs there, filled.

    Returns:
        The number of nodes, or NO_ROOM.
    """
    record = jobs[job]
    gpus = np.zeros(len(nodes), np.int64)
    for node in range(len(nodes)):
        if usable(record, nodes[node]):
            gpus[node] = max(left[node], 0) // WHOLE_GPU
    gang, count = np.int64(record.gpus), 0
    if gang == 0:  # needs no GPU, but a node, and none is up
        return NO_ROOM
    while gang > 0:
        best = 0
        for node in range(1, len(nodes)):
            more = gpus[node] > gpus[best]
            if more or (gpus[node] == gpus[best] and used[node] < used[best]):
                best = node
        here = min(gang, gpus[best])
        if here == 0:
            return NO_ROOM
        residence[count, 0], residence[count, 1] = best, here
        gpus[best] = 0
        gang -= here
        count += 1
    return count


@compiled
def fuller_node(
    jobs: Records, nodes: Records, size: IntArray, used: IntArray, job: int, own: int
) -> int:
    """The fullest node with room that more is used of than of `own`, or NO_ROOM."""
    record = jobs[job]
    best, best_load = NO_ROOM, -1.0
    for node in range(len(nodes)):
        room = size[node] - used[node] >= np.int64(record.gpus) * record.milli
        if not room or used[node] <= used[own] or not usable(record, nodes[node]):
            continue
        load = used[node] / max(size[node], 1)
        if load > best_load:
            best, best_load = node, load
    return best


class ResidentTable(NamedTuple):
    """Who lives where, J jobs."""

    jobs: IntArray  # (J,) ascending
    first: IntArray  # (J + 1,) of each job's rows of the other two
    node: IntArray
    gpus: IntArray


@compiled
def must_leave(state: ClusterState, table: ResidentTable) -> IntArray:
    """Residents that have finished or gone, and those that wait for a node that is down."""
    leaving = np.empty(len(table.jobs), np.int64)
    count = 0
    for row in range(len(table.jobs)):
        job = table.jobs[row]
        status = state.jobs[job].status
        goes = status not in (PENDING, RUNNING)
        if status == PENDING:
            for place in range(table.first[row], table.first[row + 1]):
                goes = goes or state.nodes[table.node[place]].up == 0
        if goes:
            leaving[count] = job
            count += 1
    return leaving[:count]


@compiled
def without_residence(state: ClusterState, resident: BoolArray) -> IntArray:
    """Pending jobs that live nowhere, in the order of the queue."""
    clock = state.clock[0]
    found = np.empty(clock.pending, np.int64)
    count = 0
    job = np.int64(clock.head)
    while job != NONE:
        if not resident[job]:
            found[count] = job
            count += 1
        job = np.int64(state.jobs[job].after)
    return found[:count]


@compiled
def end_turns(
    state: ClusterState, tables: RateTables, table: ResidentTable, order: IntArray
) -> None:
    """Stop running jobs that are not among the first that fit their nodes together.

    Args:
        state: of the simulator; its log has room for a run of every share.
        tables: rates.
        table: who lives where.
        order: rows of the table.
    """
    free = state.nodes["gpus"].astype(np.int64)
    late = np.empty(len(order), np.int64)
    count = 0
    for row in order:
        fits = True
        for place in range(table.first[row], table.first[row + 1]):
            fits = fits and free[table.node[place]] >= table.gpus[place]
        if fits:
            for place in range(table.first[row], table.first[row + 1]):
                free[table.node[place]] -= table.gpus[place]
        elif state.jobs[table.jobs[row]].status == RUNNING:
            late[count] = table.jobs[row]
            count += 1
    for job in late[:count]:
        stop(state, tables, job)


@compiled
def start_in_order(
    state: ClusterState,
    tables: RateTables,
    overheads: Overheads,
    table: ResidentTable,
    order: IntArray,
) -> None:
    """Start each pending job whose residence is free, in the order of rows of the table."""
    for row in order:
        job = table.jobs[row]
        record = state.jobs[job]
        if record.status != PENDING:
            continue
        fits = True
        for place in range(table.first[row], table.first[row + 1]):
            node, gpus = state.nodes[table.node[place]], table.gpus[place]
            enough = part(record.cpu, gpus, record.gpus) <= node.cpu
            enough = enough and part(record.memory, gpus, record.gpus) <= node.memory
            fits = fits and enough and node.free >= gpus
        if fits:
            for place in range(table.first[row], table.first[row + 1]):
                give(state, job, table.node[place], table.gpus[place])
            begin(state, tables, overheads, job)


@compiled
def turn_after_turn(
    state: ClusterState,
    tables: RateTables,
    overheads: Overheads,
    table: ResidentTable,
    resident: BoolArray,
    offset: FloatArray,
    quantum_s: float,
    due: float,
) -> tuple[bool, float]:
    """Let time pass and turns change while nobody comes, leaves or has lost a residence.

    Args:
        state: of a simulator that keeps no log.
        tables: rates.
        overheads: what stopping costs.
        table: who lives where.
        resident: (jobs,) who lives anywhere.
        offset: (jobs,) seconds that count as received from the first on.
        quantum_s: seconds of a turn.
        due: end of the present turn; inf: nobody waits for one.

    Returns:
        Whether residences are to be looked after now; false: nothing is going to happen any more.
        When the present turn ends.
    """
    clock = state.clock[0]
    while True:
        outcome = advance(state, tables, overheads, due)
        if outcome == NOTHING:
            return False, due
        settle(state)
        if outcome == EVENT and (
            len(must_leave(state, table)) > 0 or len(without_residence(state, resident)) > 0
        ):
            return True, due
        received = np.empty(len(table.jobs))
        for row in range(len(table.jobs)):
            job = table.jobs[row]
            received[row] = offset[job] + state.jobs[job].executed
        order = np.argsort(received, kind="mergesort")  # stable
        if clock.now >= due:
            end_turns(state, tables, table, order)
        start_in_order(state, tables, overheads, table, order)
        due = end_of_turn(state, quantum_s, due)


@compiled
def end_of_turn(state: ClusterState, quantum_s: float, due: float) -> float:
    """When the present turn ends: a quantum after it began; inf where nobody waits."""
    clock = state.clock[0]
    if clock.pending == 0:
        return np.inf
    if due <= clock.now or due == np.inf:
        end: float = clock.now + quantum_s
        return end
    return due
