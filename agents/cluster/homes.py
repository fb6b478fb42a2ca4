"""Where jobs live on a cluster on which several may live on the same GPUs, by turns."""

from __future__ import annotations

from collections.abc import Set

import numpy as np
from numpy.typing import NDArray

from agents.cluster.gandiva_turns import HomeTable
from agents.cluster.homes_kernel import (
    NO_ROOM,
    TOO_LARGE,
    best_node,
    fuller_node,
    several_nodes,
)
from agents.cluster.policy import Share
from envs.cluster.simulation.cluster import ClusterSimulator
from envs.cluster.workload.trace import WHOLE_GPU

Home = tuple[Share, ...]


class Homes:
    """Homes of jobs: (node, GPUs), whoever runs there now.

    The load of a node is the GPUs of all its inhabitants over its GPUs; its affinity is the gang of
    the inhabitant that came first (Gandiva, OSDI 2018, section 4.2). A gang that no node can hold
    lives on several.
    """

    def __init__(self, simulator: ClusterSimulator) -> None:
        self.of: dict[int, Home] = {}
        self._jobs, self._nodes = simulator.state.jobs, simulator.state.nodes
        self._size = self._nodes["gpus"].astype(np.int64) * WHOLE_GPU
        self._used = np.zeros(len(self._nodes), np.int64)  # thousandths of GPUs of inhabitants
        self._inhabitants: list[list[int]] = [[] for _ in range(len(self._nodes))]
        self._affinity = np.zeros(len(self._nodes), np.int64)  # gang of the first, 0: nobody
        self._several = np.zeros((len(self._nodes), 2), np.int64)
        self._table: HomeTable | None = None
        self.housed = np.zeros(len(self._jobs), np.bool_)

    def join(self, job: int, home: Home) -> None:
        """Make `home` the job's."""
        self.of[job] = home
        self._table, self.housed[job] = None, True
        for node, gpus in home:
            self._used[node] += gpus * int(self._jobs["milli"][job])
            self._inhabitants[node].append(job)
            self._note_affinity(node)

    def leave(self, job: int) -> None:
        """The job has no home any more."""
        self._table, self.housed[job] = None, False
        for node, gpus in self.of.pop(job):
            self._used[node] -= gpus * int(self._jobs["milli"][job])
            self._inhabitants[node].remove(job)
            self._note_affinity(node)

    def table(self) -> HomeTable:
        """All homes as arrays, good until somebody moves."""
        if self._table is None:
            jobs = sorted(self.of)
            homes = [self.of[job] for job in jobs]
            shares = np.array([share for home in homes for share in home], np.int64)
            node, gpus = np.ascontiguousarray(shares.reshape(-1, 2).T)
            first = np.cumsum([0, *(len(home) for home in homes)], dtype=np.int64)
            self._table = HomeTable(np.array(jobs, np.int64), first, node, gpus)
        return self._table

    def on(self, nodes: Set[int]) -> set[int]:
        """Jobs that live on any of `nodes`."""
        return {job for node in nodes for job in self._inhabitants[node]}

    def find(self, job: int) -> Home | None:
        """A home with room, else the least loaded one; None: too many nodes are down."""
        room = self.find_room(job)
        if room is not None:
            return room
        node = self._best(job, crowded=True)
        if node == TOO_LARGE:
            return self._on_several(job, self._size)
        return ((node, int(self._jobs["gpus"][job])),)

    def find_room(self, job: int) -> Home | None:
        """A home where nobody has to take turns, or None.

        The least loaded node of the job's affinity, else an empty one, else the least loaded of
        all; for a gang larger than any node, as few nodes as hold it.
        """
        node = self._best(job, crowded=False)
        if node == TOO_LARGE:
            return self._on_several(job, self._size - self._used)
        return None if node == NO_ROOM else ((node, int(self._jobs["gpus"][job])),)

    def find_fuller(self, job: int) -> Home | None:
        """The fullest node with room that is fuller than the job's own without it, or None."""
        ((own, gang),) = self.of[job]
        node = fuller_node(self._jobs, self._nodes, self._size, self._used, job, own)
        return None if node == NO_ROOM else ((int(node), gang),)

    def have_room(self) -> bool:
        """Whether some node has a GPU, or part of one, on which nobody lives."""
        return bool((self._used < self._size)[self._nodes["up"] != 0].any())

    def sparse(self, free: float) -> list[int]:
        """Inhabited nodes with more than `free` of their GPUs free, the emptiest first."""
        nodes = np.flatnonzero((self._used > 0) & (self._size - self._used > free * self._size))
        return [int(node) for node in nodes[np.argsort(self._used[nodes], kind="stable")]]

    def _note_affinity(self, node: int) -> None:
        first = self._inhabitants[node][:1]
        self._affinity[node] = max(int(self._jobs["gpus"][first[0]]), 1) if first else 0

    def _best(self, job: int, *, crowded: bool) -> int:
        arrays = (self._size, self._used, self._affinity)
        return int(best_node(self._jobs, self._nodes, *arrays, job, crowded))

    def _on_several(self, job: int, left: NDArray[np.int64]) -> Home | None:
        count = several_nodes(self._jobs, self._nodes, left, self._used, job, self._several)
        if count == NO_ROOM:
            return None
        return tuple((node, gpus) for node, gpus in self._several[:count].tolist())
