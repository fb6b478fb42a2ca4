"""Time-slicing: the nodes on which jobs are resident, and their turns on the GPUs there."""

from __future__ import annotations

from collections.abc import Set
from typing import NamedTuple

import numpy as np

from agents.cluster.policy import Share
from envs.arrays import BoolArray, FloatArray, IntArray
from envs.cluster.interference.rates import RateTables
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_kernel import begin, give, part, stop
from envs.cluster.simulation.cluster_state import PENDING, RUNNING, ClusterState, Overheads
from envs.cluster.workload.trace import WHOLE_GPU
from envs.compilation import compiled

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

    def must_leave(self) -> list[int]:
        """Those that have finished or gone, and those that wait for a node that is down."""
        table, up = self.table(), self._nodes["up"] != 0
        if len(table.jobs) == 0:
            return []
        status = self._jobs["status"][table.jobs]
        stranded = (status == PENDING) & ~np.logical_and.reduceat(up[table.node], table.first[:-1])
        gone = (status != PENDING) & (status != RUNNING)
        found: list[int] = table.jobs[gone | stranded].tolist()
        return found

    def on(self, nodes: Set[int]) -> set[int]:
        """Jobs that live on any of `nodes`."""
        return {job for node in nodes for job in self._residents_of[node]}

    def find(self, job: int) -> Residence | None:
        """A residence with room, else the least loaded one; None: too many nodes are down."""
        return self.find_room(job) or self._least_loaded(job, crowded=True)

    def find_room(self, job: int) -> Residence | None:
        """A residence where nobody has to take turns, or None.

        The least loaded node of the job's affinity, else an empty one, else the least loaded of
        all; for a gang larger than any node, as few nodes as hold it.
        """
        return self._least_loaded(job, crowded=False)

    def find_fuller(self, job: int) -> Residence | None:
        """The fullest node with room that is fuller than the job's own without it, or None."""
        ((own, gang),) = self.of[job]
        room = self._usable(job) & (self._size - self._used >= gang * self._jobs["milli"][job])
        nodes = np.flatnonzero(room & (self._used > self._used[own]))
        return ((int(nodes[np.argmax(self._load()[nodes])]), gang),) if len(nodes) else None

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

    def _usable(self, job: int) -> BoolArray:
        """(N,) whether a job may live on a node, which is up."""
        types, kind = self._jobs["types"][job], self._nodes["type"].astype(np.int64)
        usable: BoolArray = (types >> kind & 1 == 1) & (self._nodes["up"] != 0)
        return usable

    def _load(self) -> FloatArray:
        load: FloatArray = self._used / np.maximum(self._size, 1)
        return load

    def _least_loaded(self, job: int, *, crowded: bool) -> Residence | None:
        """See `find_room`; if `crowded`, where there is no room as well, and an empty node is then
        like any other.
        """
        gang, left = int(self._jobs["gpus"][job]), self._size - self._used
        large = self._usable(job) & (self._size >= gang * WHOLE_GPU)
        if not large.any():
            return self._on_several(job, self._size if crowded else left)
        room = large if crowded else large & (left >= gang * self._jobs["milli"][job])
        nodes = np.flatnonzero(room)
        if len(nodes) == 0:
            return None
        empty = (self._affinity[nodes] == 0) & (not crowded)
        rank = np.where(self._affinity[nodes] == gang, 0, np.where(empty, 1, 2))
        return ((int(nodes[np.lexsort((self._load()[nodes], rank))[0]]), gang),)

    def _on_several(self, job: int, left: IntArray) -> Residence | None:
        """Nodes with the most GPUs left first, then the least used, until the gang is whole."""
        gang = int(self._jobs["gpus"][job])
        gpus = np.where(self._usable(job), left.clip(0) // WHOLE_GPU, 0)
        if gang == 0 or gpus.sum() < gang:
            return None
        order = np.lexsort((self._used, -gpus))
        before = np.cumsum(gpus[order]) - gpus[order]
        shares = zip(order.tolist(), np.minimum(gpus[order], gang - before).tolist(), strict=True)
        return tuple((node, here) for node, here in shares if here > 0)


class ResidentTable(NamedTuple):
    """Who lives where, J jobs."""

    jobs: IntArray  # (J,) ascending
    first: IntArray  # (J + 1,) of each job's rows of the other two
    node: IntArray
    gpus: IntArray


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
