"""Gandiva (Xiao et al., OSDI 2018): over-subscribed nodes, turns, sharing of GPUs, migration."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from agents.cluster.policy import Scheduler
from agents.cluster.time_slicing import Residence, Residents, end_turns, start_in_order
from agents.solver import Knowledge
from envs.arrays import IntArray
from envs.bounds import Positive, Share, bounded
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.simulation.cluster_kernel import part
from envs.cluster.simulation.cluster_state import NONE, PENDING, RUNNING
from envs.cluster.workload.trace import WHOLE_GPU


class SharedGpu(NamedTuple):
    """A GPU for the fractional jobs that come first in their turn."""

    node: int
    partial: int | None  # which one; None: whichever is free
    jobs: list[int]


@bounded
class Gandiva(Scheduler):
    """Every job is resident on nodes at once, and takes turns there with the others.

    * Residence (reactive mode, section 4.2): `Residents`. Nobody waits for it; nodes may be
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
        Nobody waits for a place: every job is resident from its submission on, and gets its turn.

    Source:
        Xiao, Bhardwaj, Ramjee, Sivathanu, Kwatra, Han, Patel, Peng, Zhao, Zhang, Yang, Zhou,
        "Gandiva: Introspective Cluster Scheduling for Deep Learning", OSDI 2018.

    Args:
        quantum_s: seconds of a turn (60 in the paper).
        defragment_free: part of a node's GPUs (0.75 in the paper).
    """

    name = "gandiva"
    knows: Knowledge = "nothing"

    def __init__(self, quantum_s: Positive = 60.0, defragment_free: Share = 0.75) -> None:
        self.quantum_s, self.defragment_free = quantum_s, defragment_free

    def reset(self, simulator: ClusterSimulator) -> None:
        self._residents = Residents(simulator)
        self._offset = np.zeros(len(simulator.trace))  # of the time received
        self._harmful: set[tuple[int, int]] = set()  # profiles that do not go together on a GPU
        self._shares_gpus = bool((simulator.state.jobs["milli"] < WHOLE_GPU).any())
        self._due = np.inf

    def decide(self, simulator: ClusterSimulator) -> None:
        """Finds residences, moves jobs when others have left, and changes turns at the quantum."""
        simulator.settle()
        residents = self._residents
        leaving = residents.must_leave()
        for job in leaving:
            residents.leave(job)
        new = (simulator.state.jobs["status"] == PENDING) & ~residents.resident
        pending = simulator.pending() if new.any() else np.zeros(0, np.int64)
        for job in pending[new[pending]].tolist():
            residence = residents.find(job)
            if residence is not None:
                self._join(simulator, job, residence)
        if leaving:
            self._migrate(simulator)
        table = residents.table()
        received = self._offset[table.jobs] + simulator.state.jobs["executed"][table.jobs]
        order = np.argsort(received, kind="stable")
        ends = simulator.now >= self._due
        if self._shares_gpus:
            self._take_turns(simulator, table.jobs[order].tolist(), ends)
        else:
            if ends:
                simulator.lengthen_log()
                end_turns(simulator.state, simulator.tables, table, order)
            start_in_order(*simulator.compiled, table, order)
        if simulator.state.clock[0]["pending"] == 0:
            self._due = np.inf
        elif self._due <= simulator.now or self._due == np.inf:
            self._due = simulator.now + self.quantum_s

    def wake(self, simulator: ClusterSimulator) -> float:
        """The end of the quantum, if jobs wait for a turn."""
        return self._due

    def _take_turns(self, simulator: ClusterSimulator, order: list[int], ends: bool) -> None:
        """Where jobs may share a GPU."""
        if ends:
            self._stop_those_whose_turn_ends(simulator, order)
        for job in order:
            if simulator.state.jobs["status"][job] == PENDING:
                self._run(simulator, job)

    def _join(self, simulator: ClusterSimulator, job: int, residence: Residence) -> None:
        """A newcomer has received as much as the least of its neighbours, or what it had."""
        executed = simulator.state.jobs["executed"]
        peers = self._residents.on({node for node, _ in residence})
        level = min((self._offset[p] + executed[p] for p in peers), default=0.0)
        self._offset[job] = max(self._offset[job], level - executed[job])
        self._residents.join(job, residence)

    def _stop_those_whose_turn_ends(self, simulator: ClusterSimulator, order: list[int]) -> None:
        """Stops running jobs that are not among the first that fit their nodes together."""
        records = simulator.state.jobs
        free = simulator.state.nodes["gpus"].astype(np.int64)
        shared: list[SharedGpu] = []
        stopped = []
        for job in order:
            residence = self._residents.of[job]
            if records["milli"][job] < WHOLE_GPU and records["gpus"][job] == 1:
                fits = self._fits_a_gpu(simulator, job, residence[0][0], free, shared)
            else:
                fits = all(free[node] >= gpus for node, gpus in residence)
                for node, gpus in residence if fits else ():
                    free[node] -= gpus
            if not fits and records["status"][job] == RUNNING:
                stopped.append(job)
        for job in stopped:
            simulator.preempt(job)

    def _fits_a_gpu(
        self,
        simulator: ClusterSimulator,
        job: int,
        node: int,
        free: IntArray,
        shared: list[SharedGpu],
    ) -> bool:
        """Whether a fractional job has a place beside those before it; notes it down if so."""
        state = simulator.state
        milli, profile = state.jobs["milli"], simulator.tables.profile
        runs = state.jobs["status"][job] == RUNNING
        own = int(state.shares["partial"][state.jobs["share"][job]]) if runs else None
        here = [gpu for gpu in shared if gpu.node == node and (not runs or gpu.partial == own)]
        for gpu in here:
            room = WHOLE_GPU - int(milli[gpu.jobs].sum()) >= milli[job]
            if room and (runs or not self._harms(profile, job, gpu.jobs)):
                gpu.jobs.append(job)
                return True
        if free[node] < 1 or (runs and here):
            return False
        free[node] -= 1
        shared.append(SharedGpu(node, own, [job]))
        return True

    def _harms(self, profile: NDArray[np.int32], job: int, beside: list[int]) -> bool:
        return any(pair(profile, job, other) in self._harmful for other in beside)

    def _migrate(self, simulator: ClusterSimulator) -> None:
        status = simulator.state.jobs["status"]
        jobs = sorted(self._residents.of)
        for job in jobs:
            if not self._residents.have_room():
                return
            if status[job] == PENDING:
                self._move(simulator, job, self._residents.find_room(job))
        for job in jobs:
            if len(self._residents.of[job]) > 1:
                residence = self._residents.find_room(job)
                if residence is not None and len(residence) < len(self._residents.of[job]):
                    self._move(simulator, job, residence)
        for node in self._residents.sparse(self.defragment_free):
            for job in sorted(self._residents.on({node})):
                if len(self._residents.of[job]) == 1:
                    self._move(simulator, job, self._residents.find_fuller(job))

    def _move(self, simulator: ClusterSimulator, job: int, residence: Residence | None) -> None:
        if residence is None or residence == self._residents.of[job]:
            return
        if simulator.state.jobs["status"][job] == RUNNING:
            simulator.preempt(job)
        self._residents.leave(job)
        self._join(simulator, job, residence)

    def _run(self, simulator: ClusterSimulator, job: int) -> None:
        """Starts a pending job if its residence is free."""
        record, nodes = simulator.state.jobs[job], simulator.state.nodes
        residence = self._residents.of.get(job, ())
        for node, gpus in residence:
            for field in ("cpu", "memory"):
                if part(int(record[field]), gpus, int(record["gpus"])) > nodes[field][node]:
                    return
        fraction = record["milli"] < WHOLE_GPU and record["gpus"] == 1
        if fraction and self._share_a_gpu(simulator, job, residence[0][0]):
            return
        if all(nodes["free"][node] >= gpus for node, gpus in residence):
            simulator.start(job, residence)

    def _share_a_gpu(self, simulator: ClusterSimulator, job: int, node: int) -> bool:
        """Whether a fractional job runs beside others on a GPU of `node` now."""
        state, profile = simulator.state, simulator.tables.profile
        gpus = []
        gpu = int(state.nodes["partial"][node])
        while gpu != NONE:
            single = state.partials["gpus"][gpu] == 1
            if single and state.partials["left"][gpu] >= state.jobs["milli"][job]:
                gpus.append(gpu)
            gpu = int(state.partials["next"][gpu])
        for gpu in sorted(gpus, key=lambda g: (int(state.partials["left"][g]), g)):
            beside = neighbours(simulator, node, gpu)
            if self._harms(profile, job, beside):
                continue
            simulator.start(job, [(node, 1)], gpu)
            kind = int(state.nodes["type"][node])
            alone = simulator.tables.speed[profile[[job, *beside]], kind]
            if float((state.jobs["rate"][[job, *beside]] / alone).sum()) >= 1.0:
                return True
            simulator.preempt(job)
            self._harmful.update(pair(profile, job, other) for other in beside)
        return False


def pair(profile: NDArray[np.int32], a: int, b: int) -> tuple[int, int]:
    """The profiles of two jobs, the lower first."""
    first, second = sorted((int(profile[a]), int(profile[b])))
    return first, second


def neighbours(simulator: ClusterSimulator, node: int, gpu: int) -> list[int]:
    """Jobs on a partial GPU of `node`."""
    shares = simulator.state.shares
    jobs = []
    share = int(simulator.state.nodes["share"][node])
    while share != NONE:
        if shares["partial"][share] == gpu:
            jobs.append(int(shares["job"][share]))
        share = int(shares["after"][share])
    return jobs
