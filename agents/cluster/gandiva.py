"""Gandiva (Xiao et al., OSDI 2018): over-subscribed nodes, turns, sharing of GPUs, migration."""

from __future__ import annotations

from collections.abc import Iterator, Set
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.cluster.policy import Scheduler
from agents.cluster.policy import Share as NodeShare
from agents.cluster.rules.eligible import emptiest_first, holds
from agents.solver import Knowledge
from envs.arrays import BoolArray, FloatArray
from envs.bounds import Positive, Share, bounded
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_state import NONE, PENDING, RUNNING
from envs.cluster.workload.trace import WHOLE_GPU

Residence = tuple[NodeShare, ...]


class SharedGpu(NamedTuple):
    """A GPU for the fractional jobs that come first in their turn."""

    node: int
    partial: int | None  # which one; None: whichever is free
    jobs: list[int]


@bounded
class Gandiva(Scheduler):
    """Every job is resident on nodes at once, and takes turns there with the others.

    * Residence (reactive mode, section 4.2): `Residents`. No job waits for it; nodes may be
      over-subscribed.
    * Turns: where residents wait, GPUs change hands every quantum. Jobs are taken by ascending time
      received, a newcomer starting level with the least of its nodes, each if the whole of its
      residence is free; a gang on several nodes runs on all of them at once or not at all.
    * Sharing (the paper's packing): only fractional jobs share a GPU, as the simulator's other
      gangs hold whole GPUs. A fractional job tries the GPUs of its node that others run on, the
      fullest first, and stays where the measured rates sum to at least 1 of the jobs' own alone,
      which is what turns would give; the pair of profiles that fails is not tried again. Else it
      takes a GPU of its own.
    * Migration (introspective mode): when jobs have left, waiting jobs move to nodes that are not
      full; gangs on more nodes than need be move together; then nodes with more than
      `defragment_free` of their GPUs free are emptied into fuller ones.

    Growing and shrinking, and priorities set by users, have no counterpart: gangs are rigid.

    Guarantees:
        No job waits for a place: every job is resident from its submission on, and gets its turn.

    Source:
        Xiao, Bhardwaj, Ramjee, Sivathanu, Kwatra, Han, Patel, Peng, Zhao, Zhang, Yang, Zhou,
        "Gandiva: Introspective Cluster Scheduling for Deep Learning", OSDI 2018.

    Args:
        quantum_s: seconds of a turn (60 in the paper).
        defragment_free: part of a node's GPUs (0.75 in the paper).
    """

    name = "gandiva"
    knows: Knowledge = "nothing"
    memoryless = False

    def __init__(self, quantum_s: Positive = 60.0, defragment_free: Share = 0.75) -> None:
        self.quantum_s, self.defragment_free = quantum_s, defragment_free

    def reset(self, simulator: ClusterSimulator) -> None:
        self._simulator, self._residents = simulator, Residents(simulator)
        fractional = (simulator.trace.gpu_milli < WHOLE_GPU) & (simulator.trace.num_gpus == 1)
        self._fractional = set(np.flatnonzero(fractional).tolist())
        self._offset = np.zeros(len(simulator.trace))  # of the time received
        self._harmful: set[frozenset[int]] = set()  # profiles that do not go together on a GPU
        self._due = np.inf

    def decide(self, simulator: ClusterSimulator) -> None:
        """Finds residences, moves jobs when others have left, and changes turns at the quantum."""
        simulator.settle()
        jobs, residents = simulator.state.jobs, self._residents
        leaving = residents.must_leave()
        for job in leaving:
            residents.leave(job)
        new = set(np.flatnonzero(jobs["status"] == PENDING).tolist()) - residents.of.keys()
        for job in simulator.pending().tolist() if new else ():
            residence = residents.find(job) if job in new else None
            if residence is not None:
                self._join(job, residence)
        if leaving:
            self._migrate()
        here = np.array(sorted(residents.of), np.int64)
        received = self._offset[here] + jobs["executed"][here]
        here = here[np.argsort(received, kind="stable")]
        if simulator.now >= self._due:
            self._end_turns(here.tolist())
        for job in here[jobs["status"][here] == PENDING].tolist():
            self._run(job)
        if simulator.state.clock[0]["pending"] == 0:
            self._due = np.inf
        elif self._due <= simulator.now or self._due == np.inf:
            self._due = simulator.now + self.quantum_s

    def wake(self, simulator: ClusterSimulator) -> float:
        """The end of the quantum, if jobs wait for a turn."""
        return self._due

    def _join(self, job: int, residence: Residence) -> None:
        """A newcomer has received as much as the least of its neighbours, or what it had."""
        executed = self._simulator.state.jobs["executed"]
        peers = self._residents.on({node for node, _ in residence})
        level = min((self._offset[p] + executed[p] for p in peers), default=0.0)
        self._offset[job] = max(self._offset[job], level - executed[job])
        self._residents.join(job, residence)

    def _end_turns(self, order: list[int]) -> None:
        """Stops running jobs that are not among the first that fit their nodes together."""
        free: list[int] = self._simulator.state.nodes["gpus"].tolist()
        shared: list[SharedGpu] = []
        late = [job for job in order if not self._fits(job, free, shared)]
        for job in late:
            if self._simulator.state.jobs["status"][job] == RUNNING:
                self._simulator.preempt(job)

    def _fits(self, job: int, free: list[int], shared: list[SharedGpu]) -> bool:
        """Whether there are GPUs for a job beside those of the jobs before, which it takes then."""
        residence = self._residents.of[job]
        if job not in self._fractional:
            fits = all(free[node] >= gpus for node, gpus in residence)
            for node, gpus in residence if fits else ():
                free[node] -= gpus
            return fits
        state, (node, _) = self._simulator.state, residence[0]
        milli, runs = state.jobs["milli"], state.jobs["status"][job] == RUNNING
        own = int(state.shares["partial"][state.jobs["share"][job]]) if runs else None
        here = [gpu for gpu in shared if gpu.node == node and own in (None, gpu.partial)]
        for gpu in here:
            room = WHOLE_GPU - int(milli[gpu.jobs].sum()) >= milli[job]
            if room and (runs or not self._harmful & self._pairs(job, gpu.jobs)):
                gpu.jobs.append(job)
                return True
        if free[node] < 1 or (runs and here):
            return False
        free[node] -= 1
        shared.append(SharedGpu(node, own, [job]))
        return True

    def _pairs(self, job: int, beside: list[int]) -> set[frozenset[int]]:
        """The profiles of a job and of each beside it."""
        profile = self._simulator.tables.profile
        return {frozenset(profile[[job, other]].tolist()) for other in beside}

    def _migrate(self) -> None:
        residents, status = self._residents, self._simulator.state.jobs["status"]
        jobs = sorted(residents.of)
        for job in jobs:
            if not residents.have_room():
                return
            if status[job] == PENDING:
                self._move(job, residents.find_room(job))
        for job in jobs:
            if len(residents.of[job]) > 1:
                residence = residents.find_room(job)
                if residence is not None and len(residence) < len(residents.of[job]):
                    self._move(job, residence)
        for node in residents.sparse(self.defragment_free):
            for job in sorted(residents.on({node})):
                if len(residents.of[job]) == 1:
                    self._move(job, residents.find_fuller(job))

    def _move(self, job: int, residence: Residence | None) -> None:
        if residence is None or residence == self._residents.of[job]:
            return
        if self._simulator.state.jobs["status"][job] == RUNNING:
            self._simulator.preempt(job)
        self._residents.leave(job)
        self._join(job, residence)

    def _run(self, job: int) -> None:
        """Starts a pending job if its residence is free."""
        residence, nodes = self._residents.of[job], self._simulator.state.nodes
        if job in self._fractional and self._share_a_gpu(job, residence[0][0]):
            return
        free = nodes["free"]
        if any(free[node] < gpus for node, gpus in residence):  # soon said of most
            return
        record = np.asarray(self._simulator.state.jobs)[job]
        if all(holds(nodes[node], record, gpus) for node, gpus in residence):
            self._simulator.start(job, residence)

    def _share_a_gpu(self, job: int, node: int) -> bool:
        """Whether a fractional job runs beside others on a GPU of `node` now."""
        simulator, state = self._simulator, self._simulator.state
        record, place, partials = state.jobs[job], state.nodes[node], state.partials
        if record["cpu"] > place["cpu"] or record["memory"] > place["memory"]:
            return False
        able = [
            (int(partials["left"][gpu]), gpu)
            for gpu in linked(partials["next"], place["partial"])
            if partials["gpus"][gpu] == 1 and partials["left"][gpu] >= record["milli"]
        ]
        on_node = list(linked(state.shares["after"], place["share"]))
        for _, gpu in sorted(able):
            shares = [share for share in on_node if state.shares["partial"][share] == gpu]
            beside = state.shares["job"][shares].tolist()
            pairs = self._pairs(job, beside)
            if self._harmful & pairs:
                continue
            simulator.start(job, [(node, 1)], gpu)
            together = [job, *beside]
            alone = simulator.tables.speed[simulator.tables.profile[together], place["type"]]
            if float((state.jobs["rate"][together] / alone).sum()) >= 1.0:
                return True
            simulator.preempt(job)
            self._harmful |= pairs
        return False


def linked(after: NDArray[np.int32], first: int) -> Iterator[int]:
    """Numbers of records from `first` on, each followed by that in `after` (N,)."""
    while first != NONE:
        yield int(first)
        first = after[first]


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
        # thousandths of GPUs of residents; gang of the first, 0: none
        self._used, self._affinity = np.zeros((2, len(self._nodes)), np.int64)
        self._on: list[list[int]] = [[] for _ in self._nodes]  # the first to come first

    def join(self, job: int, residence: Residence) -> None:
        """Make `residence` the job's."""
        self.of[job] = residence
        for node, gpus in residence:
            self._on[node].append(job)
            self._count(job, node, gpus)

    def leave(self, job: int) -> None:
        """The job has no residence any more."""
        for node, gpus in self.of.pop(job):
            self._on[node].remove(job)
            self._count(job, node, -gpus)

    def _count(self, job: int, node: int, gpus: int) -> None:
        self._used[node] += gpus * int(self._jobs["milli"][job])
        first = self._on[node][:1]
        self._affinity[node] = np.maximum(self._jobs["gpus"][first], 1).sum()

    def must_leave(self) -> list[int]:
        """Those that have finished or gone, and those that wait for a node that is down."""
        status = self._jobs["status"][list(self.of)].tolist()
        down = set(np.flatnonzero(self._nodes["up"] == 0).tolist())
        return [
            job
            for (job, residence), now in zip(self.of.items(), status, strict=True)
            if now not in (PENDING, RUNNING)
            or (down and now == PENDING and any(node in down for node, _ in residence))
        ]

    def on(self, nodes: Set[int]) -> set[int]:
        """Jobs that live on any of `nodes`."""
        return {job for node in nodes for job in self._on[node]}

    def find(self, job: int) -> Residence | None:
        """A residence with room, else the least loaded one; None: too many nodes are down."""
        return self.find_room(job) or self.find_room(job, crowded=True)

    def find_room(self, job: int, *, crowded: bool = False) -> Residence | None:
        """A residence without taking turns, or None; if `crowded`, also where some have.

        The least loaded node of the job's affinity, else an empty one unless `crowded`, else the
        least loaded of all. A gang larger than any node has nodes with the most GPUs left first,
        then the least used.
        """
        gang, usable = int(self._jobs["gpus"][job]), self._usable(job)
        left = self._size if crowded else self._size - self._used
        large = usable & (self._size >= gang * WHOLE_GPU)
        if large.any():
            room = large & (left >= gang * self._jobs["milli"][job])
            occupied = (self._affinity != 0) & (not crowded)
            return self._least(gang, room, self._load(), occupied, self._affinity != gang)
        gpus = np.where(usable, left.clip(0) // WHOLE_GPU, 0)
        if gang == 0 or gpus.sum() < gang:
            return None
        return tuple(emptiest_first(gpus, self._used, gang))

    def find_fuller(self, job: int) -> Residence | None:
        """The fullest node with room that is fuller than the job's own, or None."""
        ((own, gang),) = self.of[job]
        room = self._usable(job) & (self._size - self._used >= gang * self._jobs["milli"][job])
        return self._least(gang, room & (self._used > self._used[own]), -self._load())

    def _load(self) -> FloatArray:
        """(N,) of the nodes."""
        return np.asarray(self._used / self._size.clip(1))

    @staticmethod
    def _least(gang: int, able: BoolArray, *keys: NDArray[Any]) -> Residence | None:
        """The node of those that are `able` (N,) with the least last key (N,), then the others."""
        nodes = np.flatnonzero(able)
        order = np.lexsort([key[nodes] for key in keys])
        return ((int(nodes[order[0]]), gang),) if len(nodes) else None

    def have_room(self) -> bool:
        """Whether some node has a GPU, or part of one, on which no job resides."""
        return bool(((self._used < self._size) & (self._nodes["up"] != 0)).any())

    def sparse(self, free: float) -> list[int]:
        """Occupied nodes with more than `free` of their GPUs free, the emptiest first."""
        nodes = np.flatnonzero((self._used > 0) & (self._size - self._used > free * self._size))
        emptiest_first: list[int] = nodes[np.argsort(self._used[nodes], kind="stable")].tolist()
        return emptiest_first

    def _usable(self, job: int) -> BoolArray:
        """(N,) whether a job may live on a node, which is up."""
        types, kind = self._jobs["types"][job], self._nodes["type"].astype(np.int64)
        usable: BoolArray = (types >> kind & 1 == 1) & (self._nodes["up"] != 0)
        return usable
