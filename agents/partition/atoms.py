"""What a partition decides on: atoms, the parcels they exchange, and which come before which."""

from __future__ import annotations

import heapq
from collections import defaultdict
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from agents.partition.kernel import Traffic
from agents.step.grouping import numbered
from envs.arrays import BoolArray, FloatArray, IntArray
from envs.graphs.contraction import sum_rows
from envs.graphs.op_graph import NONE
from envs.partition.problem import PartitionProblem
from envs.step.problem import StepProblem


@dataclass(frozen=True, eq=False)
class PartitionAtoms:
    """The A indivisible units of a partition, numbered by their first operators.

    An atom is a co-location group or a free operator. Atoms that `precedence` puts on a cycle are
    one atom: no contiguous placement separates them. Messages of one atom that the same other
    atoms read are one parcel, whose seconds are the sum of theirs.
    """

    of: IntArray  # (N,) atom of each operator
    seconds: FloatArray  # (A, D) compute; inf where an operator is not supported
    state: FloatArray  # (A,) bytes
    allowed: BoolArray  # (A, D) supported, and the atom alone fits
    sender: IntArray  # (H,) atom of each parcel
    readers: tuple[tuple[int, ...], ...]  # (H,) atoms other than the sender, ascending
    parcel_seconds: FloatArray  # (H, D) between the device and the host
    before: IntArray  # (P, 2) pairs of different atoms: u's device is not behind v's

    @classmethod
    def build(cls, problem: PartitionProblem, precedence: IntArray) -> PartitionAtoms:
        """The atoms of `problem`, contiguous along `precedence` (P, 2) of operators."""
        step = problem.step
        of = _numbers(step.graph.colocation, precedence)
        count = int(of.max(initial=NONE)) + 1
        seconds = sum_rows(step.op_seconds, of, count)
        state = sum_rows(step.graph.state_bytes, of, count)
        parcels: defaultdict[tuple[int, tuple[int, ...]], FloatArray] = defaultdict(
            lambda: np.zeros(step.topology.num_devices)
        )
        traffic = problem.traffic
        for message, row in enumerate(traffic.seconds):
            sender = int(of[traffic.producer[message]])
            ends = slice(traffic.consumer_ptr[message], traffic.consumer_ptr[message + 1])
            readers = tuple(sorted(set(of[traffic.consumer[ends]].tolist()) - {sender}))
            if readers and row.any():
                parcels[sender, readers] += row
        before = np.unique(of[precedence], axis=0).reshape(-1, 2)
        return cls(
            of=of,
            seconds=seconds,
            state=state,
            allowed=np.isfinite(seconds) & (state[:, None] <= step.capacity),
            sender=np.array([sender for sender, _ in parcels], dtype=np.int64),
            readers=tuple(readers for _, readers in parcels),
            parcel_seconds=np.array(list(parcels.values())).reshape(
                len(parcels), step.topology.num_devices
            ),
            before=before[before[:, 0] != before[:, 1]],
        )

    @property
    def num_atoms(self) -> int:
        return len(self.state)

    def expand(self, device: NDArray[np.integer]) -> IntArray:
        """(A,) device of every atom -> (N,) device of every operator."""
        return np.asarray(device, dtype=np.int64)[self.of]

    def contract(self, device: IntArray) -> IntArray:
        """(N,) device of every operator -> (A,) of every atom, which must be on one device."""
        home = np.zeros(self.num_atoms, dtype=np.int64)
        home[self.of] = device
        return home

    def impossible(self, step: StepProblem) -> str:
        """Why some atom can be on no device, a sentence; empty where each can."""
        nowhere = np.flatnonzero(~self.allowed.any(axis=1))
        if not len(nowhere):
            return ""
        atom = int(nowhere[0])
        members = np.flatnonzero(self.of == atom)
        what = f"operator {step.graph.op_names[members[0]]!r}"
        if len(members) > 1:
            what += f" and the {len(members) - 1} that must be on its device"
        supported = np.isfinite(self.seconds[atom])
        if not supported.any():
            return f"no device can run {what}"
        room = float(step.capacity[supported].max())
        return (
            f"does not fit: {what} hold {self.state[atom]:.0f} bytes of parameters and state, the "
            f"largest device that can run them {room:.0f}: {self.state[atom] - room:.0f} too many"
        )

    def traffic(self, room: FloatArray, forbidden: float) -> Traffic:
        """The arrays for kernels; `forbidden` seconds stand where an atom is not allowed."""
        atoms, parcels = self.num_atoms, len(self.sender)
        length = [len(row) for row in self.readers]
        reader = np.array([a for row in self.readers for a in row], dtype=np.int64)
        parcel = np.repeat(np.arange(parcels), length)
        first, last = self.before[:, 0], self.before[:, 1]
        return Traffic(
            seconds=np.where(self.allowed, self.seconds, forbidden),
            state=self.state,
            all_state=max(float(self.state.sum()), 1.0),
            allowed=self.allowed,
            room=room,
            parcel_seconds=self.parcel_seconds,
            sender=self.sender.astype(np.uint32),
            reader_ptr=_pointer(parcel, parcels),
            reader=reader.astype(np.uint32),
            sent_ptr=_pointer(self.sender, atoms),
            sent=np.argsort(self.sender, kind="stable").astype(np.uint32),
            read_ptr=_pointer(reader, atoms),
            read=parcel[np.argsort(reader, kind="stable")].astype(np.uint32),
            after_ptr=_pointer(first, atoms),
            after=last[np.argsort(first, kind="stable")].astype(np.uint32),
            before_ptr=_pointer(last, atoms),
            before=first[np.argsort(last, kind="stable")].astype(np.uint32),
        )


def _pointer(row: IntArray, count: int) -> NDArray[np.uint32]:
    """(count + 1,) row pointer of entries that are in `row`."""
    return np.concatenate([[0], np.cumsum(np.bincount(row, minlength=count))]).astype(np.uint32)


def _numbers(colocation: IntArray, precedence: IntArray) -> IntArray:
    """(N,) atom of each operator, numbered by the atoms' first operators."""
    free = colocation == NONE
    of = np.where(free, colocation.max(initial=NONE) + np.cumsum(free), colocation)
    if len(precedence):
        pairs = of[precedence]
        size = int(of.max()) + 1
        arcs = csr_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(size, size))
        of = connected_components(arcs, directed=True, connection="strong")[1][of]
    return numbered(of)


_WHOLE = 0.3  # share of the starts that are in one piece, where one device can hold everything


class Lines:
    """Draws placements in which the pairs `arcs` (P, 2) of operators never lead back in the line.

    Atoms on a cycle of arcs stay together. Pieces get shares in proportion to the devices' speeds,
    varied at random; they need not fit the memory, and an atom may be where it is not allowed.
    Some starts are in one piece, on a device that can hold it.
    """

    def __init__(self, atoms: PartitionAtoms, arcs: IntArray, capacity: np.ndarray) -> None:
        size = atoms.num_atoms
        pairs = np.unique(atoms.of[arcs], axis=0).reshape(-1, 2)
        matrix = csr_array((np.ones(len(pairs)), (pairs[:, 0], pairs[:, 1])), shape=(size, size))
        number, self._knot = connected_components(matrix, directed=True, connection="strong")
        self._following: list[list[int]] = [[] for _ in range(number)]
        self._waiting = np.zeros(number, dtype=np.int64)
        for u, v in np.unique(self._knot[pairs], axis=0).reshape(-1, 2).tolist():
            if u != v:
                self._following[u].append(v)
                self._waiting[v] += 1
        seconds = np.where(atoms.allowed, atoms.seconds, 0.0)
        self._work = np.bincount(self._knot, weights=seconds.min(axis=1), minlength=number)
        whole = atoms.allowed.all(axis=0) & (atoms.state.sum() <= capacity)
        self._whole = np.flatnonzero(whole)
        total = seconds.sum(axis=0)
        self._speed = 1.0 / np.maximum(total, max(float(total.max()), 1e-15) * 1e-6)

    def draw(self, random: np.random.Generator) -> IntArray:
        """(A,) device of every atom."""
        devices = len(self._speed)
        if len(self._whole) and random.random() < _WHOLE:
            return np.full(len(self._knot), random.choice(self._whole), dtype=np.int64)
        share = self._speed * random.exponential(size=devices)
        device = random.permutation(devices)
        line = self._line(random)
        reached = np.cumsum(self._work[line])
        cuts = np.cumsum(share[device]) * (reached[-1] / share.sum())
        piece = np.empty(len(line), dtype=np.int64)
        piece[line] = np.minimum(np.searchsorted(cuts, reached - self._work[line] / 2), devices - 1)
        return np.asarray(device[piece[self._knot]], dtype=np.int64)

    def _line(self, random: np.random.Generator) -> IntArray:
        """The knots in a random topological order."""
        priority = random.random(len(self._waiting)).tolist()
        waiting = self._waiting.copy()
        ready = [(priority[k], k) for k in np.flatnonzero(waiting == 0).tolist()]
        heapq.heapify(ready)
        line = []
        while ready:
            _, knot = heapq.heappop(ready)
            line.append(knot)
            for other in self._following[knot]:
                waiting[other] -= 1
                if not waiting[other]:
                    heapq.heappush(ready, (priority[other], other))
        return np.array(line, dtype=np.int64)
