"""Where jobs live on a cluster on which several may live on the same GPUs, by turns."""

from __future__ import annotations

from collections.abc import Set

import numpy as np
from numpy.typing import NDArray

from agents.cluster.policy import Share
from envs.simulation.cluster import ClusterSimulator
from envs.workload.trace import WHOLE_GPU

Home = tuple[Share, ...]
BoolArray = NDArray[np.bool_]


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

    def join(self, job: int, home: Home) -> None:
        """Make `home` the job's."""
        self.of[job] = home
        for node, gpus in home:
            self._used[node] += gpus * int(self._jobs["milli"][job])
            self._inhabitants[node].append(job)

    def leave(self, job: int) -> None:
        """The job has no home any more."""
        for node, gpus in self.of.pop(job):
            self._used[node] -= gpus * int(self._jobs["milli"][job])
            self._inhabitants[node].remove(job)

    def on(self, nodes: Set[int]) -> set[int]:
        """Jobs that live on any of `nodes`."""
        return {job for node in nodes for job in self._inhabitants[node]}

    def is_up(self, job: int) -> bool:
        """Whether all nodes of the job's home are up."""
        return all(self._nodes["up"][node] for node, _ in self.of[job])

    def find(self, job: int) -> Home | None:
        """A home with room, else the least loaded one; None: too many nodes are down."""
        room = self.find_room(job)
        if room is not None:
            return room
        gang, usable = int(self._jobs["gpus"][job]), self._usable(job)
        single = usable & (self._size >= gang * WHOLE_GPU)
        load = self._used / np.maximum(self._size, 1)
        if single.any():
            alike = single & (self._affinities() == gang)
            return ((_least(load, alike if alike.any() else single), gang),)
        return self._several(gang, usable, self._size)

    def find_room(self, job: int) -> Home | None:
        """A home where nobody has to take turns, or None.

        The least loaded node of the job's affinity, else an empty one, else the least loaded of
        all; for a gang larger than any node, as few nodes as hold it.
        """
        gang, usable = int(self._jobs["gpus"][job]), self._usable(job)
        milli = int(self._jobs["milli"][job])
        left = self._size - self._used
        single = usable & (self._size >= gang * WHOLE_GPU)
        if not single.any():
            return self._several(gang, usable, left)
        room = single & (left >= gang * milli)
        affinity = self._affinities()
        for choice in (room & (affinity == gang), room & (affinity == 0), room):
            if choice.any():
                return ((_least(self._used / np.maximum(self._size, 1), choice), gang),)
        return None

    def find_fuller(self, job: int) -> Home | None:
        """The fullest node with room that is fuller than the job's own without it, or None."""
        ((own, gang),) = self.of[job]
        milli = int(self._jobs["milli"][job])
        room = self._usable(job) & (self._size - self._used >= gang * milli)
        room &= (self._used > self._used[own]) & (np.arange(len(room)) != own)
        if not room.any():
            return None
        return ((_least(-self._used / np.maximum(self._size, 1), room), gang),)

    def have_room(self) -> bool:
        """Whether some node has a GPU, or part of one, on which nobody lives."""
        return bool((self._used < self._size)[self._nodes["up"] != 0].any())

    def sparse(self, free: float) -> list[int]:
        """Inhabited nodes with more than `free` of their GPUs free, the emptiest first."""
        nodes = np.flatnonzero((self._used > 0) & (self._size - self._used > free * self._size))
        return [int(node) for node in nodes[np.argsort(self._used[nodes], kind="stable")]]

    def _affinities(self) -> NDArray[np.int64]:
        """(N,) gang of the first inhabitant; 0: there is none."""
        first = [jobs[0] if jobs else -1 for jobs in self._inhabitants]
        gangs = np.maximum(self._jobs["gpus"][first], 1)
        return np.where(np.array(first) < 0, 0, gangs).astype(np.int64)

    def _usable(self, job: int) -> BoolArray:
        kind = self._nodes["type"].astype(np.int64)
        permitted = int(self._jobs["types"][job]) >> kind & 1 == 1
        usable: BoolArray = (self._nodes["up"] != 0) & permitted
        return usable

    def _several(self, gang: int, usable: BoolArray, left: NDArray[np.int64]) -> Home | None:
        """Nodes with the most GPUs left first, lowest number first, until the gang is whole."""
        gpus = np.where(usable, np.maximum(left, 0) // WHOLE_GPU, 0)
        home = []
        for node in np.lexsort((np.arange(len(gpus)), self._used, -gpus)):
            here = min(gang, int(gpus[node]))
            if here == 0:
                break
            home.append((int(node), here))
            gang -= here
        return None if gang else tuple(home)


def _least(measure: NDArray[np.float64], among: BoolArray) -> int:
    """The number of the node with the least measure, the lowest of several."""
    return int(np.argmin(np.where(among, measure, np.inf)))
