"""What a partition decides on: atoms, the parcels they exchange, and which come before which."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import coo_array, csr_array

from agents.max_flow import max_flow
from agents.partition.ideals.items import Rows, between, circles
from agents.partition.ideals.search import class_prices, priced
from agents.partition.kernel import Traffic
from agents.step.grouping import atoms, numbered, parcels, topological
from envs.arrays import BoolArray, FloatArray, IntArray
from envs.graphs.contraction import sum_rows
from envs.graphs.op_graph import NONE
from envs.partition.problem import PartitionProblem
from envs.step.kernel import IndexArray


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
        of = numbered(circles(atoms(step), precedence))
        count = int(of.max(initial=NONE)) + 1
        seconds = sum_rows(step.op_seconds, of, count)
        state = sum_rows(step.graph.state_bytes, of, count)
        found = parcels(problem.traffic, of)
        return cls(
            of=of,
            seconds=seconds,
            state=state,
            allowed=np.isfinite(seconds) & (state[:, None] <= step.capacity),
            sender=np.array([sender for sender, _ in found], dtype=np.int64),
            readers=tuple(readers for _, readers in found),
            parcel_seconds=np.array(list(found.values())).reshape(
                len(found), step.topology.num_devices
            ),
            before=between(of[precedence]),
        )

    @property
    def num_atoms(self) -> int:
        return len(self.state)

    def expand(self, device: NDArray[np.integer]) -> IntArray:
        """(A,) device of every atom -> (N,) device of every operator."""
        return np.asarray(device, dtype=np.int64)[self.of]

    def contract(self, device: IntArray) -> IntArray:
        """(N,) device of every operator -> (A,) of every atom, which must be on one device."""
        home = np.zeros(self.num_atoms, np.int64)
        home[self.of] = device
        return home

    def traffic(self, room: FloatArray, forbidden: float) -> Traffic:
        """The arrays for kernels; `forbidden` seconds stand where an atom is not allowed."""
        atoms, parcels = self.num_atoms, len(self.sender)
        parcel, reader = self.reading
        first, last = self.before.T
        return Traffic(
            np.where(self.allowed, self.seconds, forbidden),
            self.state,
            max(float(self.state.sum()), 1.0),
            self.allowed,
            room,
            self.parcel_seconds,
            self.sender.astype(np.uint32),
            *_rows(parcel, reader, parcels),
            *_rows(self.sender, np.arange(parcels), atoms),
            *_rows(reader, parcel, atoms),
            *_rows(first, last, atoms),
            *_rows(last, first, atoms),
        )

    @property
    def reading(self) -> tuple[IntArray, IntArray]:
        """(R,) parcels and the atoms that read them."""
        length = [len(row) for row in self.readers]
        reader = np.array([a for row in self.readers for a in row], dtype=np.int64)
        return np.repeat(np.arange(len(length)), length), reader


def _rows(row: IntArray, value: IntArray, count: int) -> tuple[IndexArray, IndexArray]:
    """As `Rows.of`, for kernels."""
    found = Rows.of(row, value, count)
    return found.ptr.astype(np.uint32), found.value.astype(np.uint32)


_WHOLE = 0.3  # share of the starts that are in one piece, where one device can hold everything


class Lines:
    """Draws placements in which the pairs `arcs` (P, 2) of operators never lead back in the line.

    Atoms on a cycle of arcs stay together. Pieces get shares in proportion to the devices' speeds,
    varied at random; they need not fit the memory, and an atom may be where it is not allowed.
    Some starts are in one piece, on a device that can hold it.
    """

    def __init__(self, atoms: PartitionAtoms, arcs: IntArray, capacity: np.ndarray) -> None:
        pairs = atoms.of[arcs]
        self._knot = circles(np.arange(atoms.num_atoms), pairs)
        number = int(self._knot.max()) + 1
        self._arcs = between(self._knot[pairs])
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
        line = topological(self._arcs, random.random(len(self._work)))
        reached = np.cumsum(self._work[line])
        cuts = np.cumsum(share[device]) * (reached[-1] / share.sum())
        piece = np.empty(len(line), dtype=np.int64)
        piece[line] = np.minimum(np.searchsorted(cuts, reached - self._work[line] / 2), devices - 1)
        return np.asarray(device[piece[self._knot]], dtype=np.int64)


_CUT_UNITS = 2.0**58  # all capacities together: what is rounded down is less than 1e-15 of them
_SAFE = 1.0 - 1e-15  # relative; covers the rounding of a product
_MANY = 2**60  # units: more than any finite cut
_ROUNDING = 1e-12  # relative; covers the rounding of sums of fewer than 4,000 terms
_CUTS = 16  # atoms whose cuts are worked out, at most


def max_load_bound(atoms: PartitionAtoms) -> float:
    """Seconds below which the largest load of no placement is.

    Memory is left out, which only lowers loads, but an atom is put on no device that it does not
    fit alone. The bound is the larger of two.

    *Shares.* Let x[a, d] say that atom a is on device d, taking p[a, d] seconds. For any weights
    w[d] >= 0 that sum up to 1 (`priced`), the largest load T is at least sum_d w[d] load[d]
    >= sum_a sum_d x[a, d] w[d] p[a, d] >= sum_a min_d w[d] p[a, d]. Good weights are the dual
    solution of a linear program; the right side is evaluated on the atoms themselves.

    *Cuts.* The device that holds atom a has at least the load that the cheapest set with a has,
    compute and communication (`Cuts`); the largest load is at least the least of these over the
    devices. The atoms that could matter are tried, the largest alone first.
    """
    compute = np.where(atoms.allowed, atoms.seconds, np.inf)
    known = _shares(compute)
    alike = np.concatenate([compute, atoms.parcel_seconds])
    _, kinds, kind = np.unique(alike, axis=1, return_index=True, return_inverse=True)
    alone = compute.copy()
    for parcel, (sender, readers) in enumerate(zip(atoms.sender, atoms.readers, strict=True)):
        alone[[int(sender), *readers]] += atoms.parcel_seconds[parcel]
    largest = alone.min(axis=1)
    cuts: dict[int, Cuts] = {}
    for atom in np.argsort(-largest, kind="stable").tolist()[:_CUTS]:
        if largest[atom] <= known:
            break
        least = np.inf
        for device in kinds[np.unique(kind.ravel()[atoms.allowed[atom]])].tolist():
            if device not in cuts:
                cuts[device] = Cuts(atoms, device)
            least = min(least, cuts[device].least(atom))
            if least <= known:
                break
        known = max(known, least)
    return known


def _shares(compute: FloatArray) -> float:
    """The bound by shares of `compute` (A, D); atoms that somewhere take no time add nothing."""
    timed = compute[(compute > 0.0).all(axis=1)]
    columns, devices = np.unique(timed, axis=1, return_counts=True)
    if not columns.size:
        return 0.0
    price = class_prices(columns, devices)
    price = price / (price * devices).sum()
    return float(priced(columns, price).sum()) * (1.0 - _ROUNDING)


class Cuts:
    """Minimum cuts that bound what one device has to do.

    The traffic of a device that holds the atoms S is a cut function: a parcel leaves it if its
    sender is in S and a reader is not, and arrives if a reader is in S and its sender is not. The
    least compute and traffic of a set S with a given atom is a minimum cut between the atoms in S,
    on the side of that atom, and the others, on that of a sink (Picard, "Maximal closure of a graph
    and applications to combinatorial problems", Management Science 22(11), 1976). Each parcel with
    several readers has a node that is in S with its sender unless the parcel leaves, and one that
    is in S with any of its readers and pays unless its sender is in S, too.

    A maximum flow is the proof. Capacities are integers, rounded down, so that no rounding can
    overstate it.

    Args:
        atoms: the atoms and their parcels.
        device: whose seconds count.
    """

    def __init__(self, atoms: PartitionAtoms, device: int) -> None:
        count, parcels = atoms.num_atoms, len(atoms.sender)
        parcel, reader = atoms.reading
        leaves, arrives = count + np.arange(parcels), count + parcels + np.arange(parcels)
        self._sink = count + 2 * parcels
        tail = np.concatenate([np.arange(count), atoms.sender, arrives, leaves[parcel], reader])
        head = np.concatenate(
            [np.full(count, self._sink), leaves, atoms.sender, reader, arrives[parcel]]
        )
        self._able = atoms.allowed[:, device] & np.isfinite(atoms.seconds[:, device])
        compute = np.where(self._able, atoms.seconds[:, device], 0.0)
        traffic = atoms.parcel_seconds[:, device]
        total = compute.sum() + 2.0 * traffic.sum()
        self._units = _CUT_UNITS / total if total > 0.0 else 0.0  # in a second
        alone, moved = (
            np.floor(seconds * (self._units * _SAFE)).astype(np.int64)
            for seconds in (compute, traffic)
        )
        alone[~self._able] = _MANY
        room = np.concatenate([alone, moved, moved, np.full(2 * len(reader), _MANY)])
        ends = np.concatenate([tail, head]), np.concatenate([head, tail])
        there_and_back = np.concatenate([room, np.zeros_like(room)])
        self._arcs = coo_array((there_and_back, ends)).tocsr()  # sorted
        number = np.arange(self._arcs.nnz)
        self._twin = csr_array((number, self._arcs.indices, self._arcs.indptr)).T.tocsr().data

    def least(self, atom: int) -> float:
        """At most the seconds of the device with the cheapest set that has `atom`.

        inf: the atom cannot be there.
        """
        if not self._able[atom]:
            return np.inf
        if not self._units:
            return 0.0
        arcs = self._arcs
        flow = max_flow(atom, self._sink, arcs.indptr, arcs.indices, self._twin, arcs.data.copy())
        return float(flow / self._units)
