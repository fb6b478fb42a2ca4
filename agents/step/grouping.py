"""The compact problem most planners decide on: the groups of a fused graph, devices alike."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from envs.arrays import BoolArray, FloatArray, IntArray, mean_able
from envs.graphs.contraction import sum_rows
from envs.graphs.op_graph import NONE
from envs.partition.problem import HostTraffic
from envs.placement.types import group_live_bytes
from envs.step.fusion import Fusion, fuse, fused_problem
from envs.step.problem import StepProblem


@dataclass(frozen=True, eq=False)
class GroupedProblem:
    """G groups to be placed, in the linear order of the forward pass."""

    fusion: Fusion
    problem: StepProblem  # of the pieces
    seconds: FloatArray  # (G, D) all pieces of a group; inf where one is not supported
    state: FloatArray  # (G,) bytes
    allowed: BoolArray  # (G, D) supported, and the group alone fits

    @classmethod
    def of(cls, problem: StepProblem, max_groups: int) -> GroupedProblem:
        """Fuse `problem` to at most `max_groups` groups."""
        return cls.fused(problem, fuse(problem, max_groups))

    @classmethod
    def fused(cls, problem: StepProblem, fusion: Fusion) -> GroupedProblem:
        """The groups of `fusion`."""
        return cls._of(problem, fusion, fused_problem(problem, fusion))

    @classmethod
    def _of(cls, problem: StepProblem, fusion: Fusion, pieces: StepProblem) -> GroupedProblem:
        seconds = sum_rows(pieces.op_seconds, fusion.piece_group, fusion.num_groups)
        state = sum_rows(problem.graph.state_bytes, fusion.group, fusion.num_groups)
        allowed = np.isfinite(seconds) & (state[:, None] <= problem.capacity)
        return cls(fusion, pieces, seconds, state, allowed)

    @classmethod
    def unfused(cls, problem: StepProblem) -> GroupedProblem:
        """A group for each co-location group and each free operator."""
        graph, group = problem.graph, atoms(problem)
        count = int(group.max(initial=NONE)) + 1
        fusion = Fusion(
            graph=graph,
            group=group,
            piece=np.arange(graph.num_operators),
            piece_group=group,
            num_groups=count,
            tensor=np.arange(graph.num_tensors),
        )
        return cls._of(problem, fusion, problem)

    def on_devices(self, chosen: IntArray) -> GroupedProblem:
        """The same groups on some of the devices only: device i is `chosen[i]` of this problem."""
        problem, topology = self.problem, self.problem.topology
        pairs = np.ix_(chosen, chosen)
        fewer = replace(
            topology,
            devices=tuple(topology.devices[d] for d in chosen.tolist()),
            link_class=topology.link_class[pairs],
            send_port=topology.send_port[pairs],
            receive_port=topology.receive_port[pairs],
        )
        return replace(
            self,
            problem=replace(
                problem,
                topology=fewer,
                op_seconds=np.ascontiguousarray(problem.op_seconds[:, chosen]),
                capacity=problem.capacity[chosen],
            ),
            seconds=self.seconds[:, chosen],
            allowed=self.allowed[:, chosen],
        )

    @cached_property
    def live(self) -> FloatArray:
        """(G,) bytes of activations that a group holds for each micro-batch under way.

        What forward operators leave for later phases, in the mean of the micro-batches.
        """
        return group_live_bytes(self.problem, self.fusion)

    def holding(self, micro_batches: float) -> GroupedProblem:
        """The same groups, the activations of so many micro-batches under way part of `state`."""
        size = self.state + micro_batches * self.live
        allowed = np.isfinite(self.seconds) & (size[:, None] <= self.problem.capacity)
        return replace(self, state=size, allowed=allowed)

    def less_room(self, room: FloatArray, device: IntArray, excess: FloatArray) -> FloatArray:
        """(D,) bytes left for state once placement `device` (G,) has exceeded a peak.

        `room` (D,), lowered where `excess` (D,) bytes are positive: by them, from what was used.
        """
        state = np.bincount(device, weights=self.state, minlength=len(room))
        return np.where(excess > 0.0, np.minimum(room, state) - excess, room)

    def of_groups(self, device: IntArray) -> IntArray:
        """(G,) the device of each group's operators."""
        found = np.zeros(self.num_groups, dtype=np.int64)
        found[self.fusion.group] = device
        return found

    @property
    def num_groups(self) -> int:
        return self.fusion.num_groups

    @property
    def too_large(self) -> str:
        """Why some group can be on no device, or nothing."""
        stuck = np.flatnonzero(~self.allowed.any(axis=1))
        if not len(stuck):
            return ""
        return f"group {stuck[0]} of {self.num_groups} fits no device: use more groups"

    def device_order(self) -> IntArray:
        """(D,) devices server by server, the fastest server and the fastest device first.

        A device's speed is the inverse of its seconds for all groups it can run.
        """
        topology = self.problem.topology
        finite = np.isfinite(self.seconds)
        mean = mean_able(self.seconds)
        relative = np.where(finite, self.seconds, 0.0).sum(axis=0) / np.maximum(
            np.where(finite, mean[:, None], 0.0).sum(axis=0), np.finfo(np.float64).tiny
        )
        relative[~finite.any(axis=0)] = np.inf
        best = np.full(int(topology.server.max()) + 1, np.inf)
        np.minimum.at(best, topology.server, relative)
        return np.lexsort((relative, topology.server, best[topology.server])).astype(np.int64)


def by_piece(piece: IntArray, order: IntArray) -> IntArray:
    """(N,) the operators, `piece` (N,) by piece in `order` (K,), as numbered inside each."""
    return np.argsort(np.argsort(order)[piece], kind="stable")


def fused_around(problem: StepProblem, fusion: Fusion, device: IntArray) -> IntArray:
    """(N,) groups: those of `fusion`, each split where placement `device` (N,) divides it."""
    keys = fusion.group * problem.topology.num_devices + device
    return np.asarray(np.unique(keys, return_inverse=True)[1].reshape(-1), dtype=np.int64)


def atoms(problem: StepProblem) -> IntArray:
    """(N,) number of each operator's co-location group, or of the operator if it is free.

    Numbered from 0 in the order of the first operator of each.
    """
    colocation = problem.graph.colocation
    n = len(colocation)
    key = np.where(colocation == NONE, problem.graph.num_groups + np.arange(n), colocation)
    return numbered(key)


def numbered(key: NDArray[np.generic]) -> IntArray:
    """`key` (N,) by numbers from 0 in the order of first appearance."""
    _, first, inverse = np.unique(key, return_index=True, return_inverse=True)
    number: IntArray = np.argsort(np.argsort(first))[inverse.reshape(-1)]
    return number


def device_kinds(problem: StepProblem) -> IntArray:
    """(D,) the same number for devices of equal seconds and capacity, whatever links they have."""
    columns = np.concatenate([problem.op_seconds, problem.capacity[None]]).T + 0.0  # no -0.0
    number: dict[bytes, int] = {}
    return np.array([number.setdefault(column.tobytes(), len(number)) for column in columns])


def parcels(traffic: HostTraffic, atom: IntArray) -> dict[tuple[int, tuple[int, ...]], FloatArray]:
    """(D,) seconds of all messages from an atom to the same others, by both; `atom` (N,).

    Those that take no time are left out.
    """
    found: dict[tuple[int, tuple[int, ...]], FloatArray] = {}
    for message, seconds in enumerate(traffic.seconds):
        sender = int(atom[traffic.producer[message]])
        ends = slice(traffic.consumer_ptr[message], traffic.consumer_ptr[message + 1])
        readers = tuple(sorted(set(atom[traffic.consumer[ends]].tolist()) - {sender}))
        if readers and seconds.any():
            found[sender, readers] = found.get((sender, readers), 0.0) + seconds
    return found


def topological(arcs: IntArray, key: NDArray[np.generic]) -> IntArray:
    """The nodes in a topological order of `arcs` (A, 2): of those ready, that of the least `key`.

    Equal keys go by number. Nodes on or behind a circle are left out.
    """
    keys = key.tolist()
    following: list[list[int]] = [[] for _ in keys]
    for u, v in arcs.tolist():
        following[u].append(v)
    waiting = np.bincount(arcs[:, 1], minlength=len(keys)).tolist()
    ready = [(keys[v], v) for v in range(len(keys)) if not waiting[v]]
    heapq.heapify(ready)
    order = []
    while ready:
        _, u = heapq.heappop(ready)
        order.append(u)
        for v in following[u]:
            waiting[v] -= 1
            if not waiting[v]:
                heapq.heappush(ready, (keys[v], v))
    return np.array(order, dtype=np.int64)


def interchangeable(problem: StepProblem, a: int, b: int) -> bool:
    """Whether swapping devices `a` and `b` changes nothing but names, those of ports included."""
    topology = problem.topology
    swap = np.arange(topology.num_devices)
    swap[[a, b]] = b, a
    pairs = np.ix_(swap, swap)
    if not (
        np.array_equal(problem.op_seconds[:, a], problem.op_seconds[:, b])
        and problem.capacity[a] == problem.capacity[b]
        and np.array_equal(topology.link_class[pairs], topology.link_class)
    ):
        return False
    # the ports may be renamed, send and receive ports alike and by one renaming of them all
    old = np.concatenate([topology.send_port.ravel(), topology.receive_port.ravel()])
    new = np.concatenate([topology.send_port[pairs].ravel(), topology.receive_port[pairs].ravel()])
    renamed = len(np.unique(np.stack([old, new]), axis=1).T)
    return renamed == len(np.unique(old)) == len(np.unique(new))


def device_classes(problem: StepProblem) -> list[list[int]]:
    """Classes of interchangeable devices, ascending; every device is in one of them.

    Any permutation within a class is made of swaps that change nothing, so it changes nothing.
    """
    classes: list[list[int]] = []
    for device in range(problem.topology.num_devices):
        for known in classes:
            if interchangeable(problem, known[0], device):
                known.append(device)
                break
        else:
            classes.append([device])
    return classes


def canonical(
    device: IntArray, classes: list[list[int]], order: Sequence[int] | None = None
) -> IntArray:
    """`device` (N,) with the devices of every class renamed in the order of their first use.

    Or in the `order` of those in use.
    """
    new = np.arange(1 + max(max(members) for members in classes))
    order = list(dict.fromkeys(device.tolist())) if order is None else order
    for members in classes:
        used = [d for d in order if d in members]
        unused = [d for d in members if d not in used]
        new[[*used, *unused]] = members
    return np.asarray(new[device], dtype=np.int64)
