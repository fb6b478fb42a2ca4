"""Proved lower bounds on the largest load of every placement, by shares, minimum cuts and sets."""

from __future__ import annotations

import time
from dataclasses import dataclass

import highspy
import numpy as np

from agents.linear_program import LinearProgram
from agents.max_flow import max_flow
from agents.partition.atoms import PartitionAtoms
from envs.arrays import FloatArray, IntArray
from envs.compilation import compiled

_CUT_UNITS = 2.0**58  # all capacities together: what is rounded down is less than 1e-15 of them
_SAFE = 1.0 - 1e-15  # relative; covers the rounding of a product
_MANY = 2**60  # units: more than any finite cut


class Cuts:
    """Minimum cuts that bound what one device has to do.

    The traffic of a device that holds the atoms S is a cut function: a parcel leaves it if its
    sender is in S and a reader is not, and arrives if a reader is in S and its sender is not. With
    costs m[a] of the atoms, the least of sum of m[a] over S plus w times the traffic of S, over all
    S that hold some given atoms, is a minimum cut between the atoms in S, on the side of a source,
    and the others, on that of a sink (Picard, "Maximal closure of a graph and applications to
    combinatorial problems", Management Science 22(11), 1976). Each parcel with several readers has
    a node that is in S with its sender unless the parcel leaves, and one that is in S with any of
    its readers and pays unless its sender is in S, too.

    A maximum flow is the proof. Capacities are integers, rounded down, so that no rounding can
    overstate it.

    Args:
        atoms: the atoms and their parcels.
        device: whose seconds of parcels count.
    """

    def __init__(self, atoms: PartitionAtoms, device: int) -> None:
        self._atoms = atoms
        count, parcels = atoms.num_atoms, len(atoms.sender)
        length = np.array([len(row) for row in atoms.readers], dtype=np.int64)
        reader = np.array([a for row in atoms.readers for a in row], dtype=np.int64)
        parcel = np.repeat(np.arange(parcels), length)
        leaves, arrives = count + np.arange(parcels), count + parcels + np.arange(parcels)
        self._source, self._sink = count + 2 * parcels, count + 2 * parcels + 1
        everyone = np.arange(count)
        blocks = [
            (np.full(count, self._source), everyone),  # capacities are set by `least`
            (everyone, np.full(count, self._sink)),
            (atoms.sender, leaves),
            (arrives, atoms.sender),
            (leaves[parcel], reader),
            (reader, arrives[parcel]),
        ]
        tail = np.concatenate([block[0] for block in blocks])
        head = np.concatenate([block[1] for block in blocks])
        arcs = len(tail)
        both = np.concatenate([tail, head])
        order = np.argsort(both, kind="stable")
        place = np.empty(2 * arcs, dtype=np.int64)
        place[order] = np.arange(2 * arcs)
        self._place = place[:arcs]
        self._to = np.concatenate([head, tail])[order]
        self._twin = np.concatenate([place[arcs:], place[:arcs]])[order]
        self._ptr = np.concatenate([[0], np.cumsum(np.bincount(both, minlength=self._sink + 1))])
        self._traffic = atoms.parcel_seconds[:, device]
        self._wide = np.full(2 * len(reader), _MANY, dtype=np.int64)

    def least(self, cost: FloatArray, weight: float, inside: IntArray) -> float:
        """At most the least cost of a set with all atoms of `inside`; `cost` (A,) may be negative.

        A cost of inf keeps an atom out; inf is returned if `inside` names it, too.
        """
        if np.isinf(cost[inside]).any():
            return np.inf
        finite = np.where(np.isfinite(cost), cost, 0.0)
        gain, loss = np.maximum(-finite, 0.0), np.maximum(finite, 0.0)
        traffic = weight * self._traffic
        total = gain.sum() + loss.sum() + 2.0 * traffic.sum()
        if total <= 0.0:
            return 0.0
        units = _CUT_UNITS / total
        enter = np.floor(gain * (units * _SAFE)).astype(np.int64)
        exit_ = np.floor(loss * (units * _SAFE)).astype(np.int64)
        exit_[np.isinf(cost)] = _MANY
        enter[inside] = _MANY
        moved = np.floor(traffic * (units * _SAFE)).astype(np.int64)
        capacity = np.zeros(len(self._to), dtype=np.int64)
        capacity[self._place] = np.concatenate([enter, exit_, moved, moved, self._wide])
        flow = max_flow(self._source, self._sink, self._ptr, self._to, self._twin, capacity)
        outside = np.ones(len(cost), dtype=np.bool_)
        outside[inside] = False
        all_gain = float(gain[outside].sum())
        value = flow / units - all_gain + float(np.minimum(finite[inside], 0.0).sum())
        return float(value - 1e-12 * all_gain)


_ROUNDING = 1e-12  # relative; covers the rounding of sums of fewer than 4,000 terms
_UNITS = 10000  # of a load, in which the seconds of atoms are counted, rounded down
_CUTS = 16  # atoms whose cuts are always worked out
_CLOSE = 1e-4  # relative distance of the last load that is excluded and the first that is not
_ROUNDS = 400  # sets added for one load
_LP_SECONDS = 5.0  # the linear program only chooses prices: any of them prove a bound


def max_load_bound(atoms: PartitionAtoms, upper: float, seconds: float) -> float:
    """Seconds below which the largest load of no placement is; at most `upper`, a known one.

    Memory is left out, which only lowers loads, but an atom is put on no device that it does not
    fit alone. The bound is the largest
    of three.

    *Shares.* Let x[a, d] say that atom a is on device d, taking p[a, d] seconds. For any weights
    w[d] >= 0 that sum up to 1, the largest load T is at least sum_d w[d] load[d]
    >= sum_a sum_d x[a, d] w[d] p[a, d] >= sum_a min_d w[d] p[a, d]. Good weights are the dual
    solution of a linear program; the right side is evaluated on the atoms themselves.

    *Cuts.* The device that holds atom a has at least the load that the cheapest set with a has,
    compute and communication (`Cuts`); the largest load is at least the least of these over the
    devices. The atoms that could matter are tried, the largest alone first.

    *Sets.* Suppose that every load is at most T. Then the atoms of device d are a set S with
    sum of p[a, d] over S at most T. For any prices y[a] >= 0, let v[d] be the largest price of such
    a set. The atoms together cost sum_a y[a] <= sum_d v[d]; prices for which this fails prove that
    T is too small. The prices are those of the linear program over sets (Gilmore, Gomory, "A linear
    programming approach to the cutting-stock problem", Operations Research 9(6), 1961), put
    together by adding the dearest set of each device; v[d] is worked out by dynamic programming
    over seconds rounded *down* to a part of T, so that it can only be too large. T is bisected
    between the other bounds and `upper`.

    Shares and a few cuts are always worked out, the rest within `seconds`.
    """
    ends = time.perf_counter() + seconds
    classes = _Classes.of(atoms)
    lower = _cuts(atoms, _shares(classes), ends)
    high = upper if len(classes.atoms) else 0.0
    while high < np.inf and lower < high * (1.0 - _CLOSE) and time.perf_counter() < ends:
        load = 0.5 * (lower + high)
        if _excluded(classes, load, ends):
            lower = load
        else:
            high = load
    return min(lower, upper)


def _cuts(atoms: PartitionAtoms, known: float, ends: float) -> float:
    """The bound by cuts, or `known`, whichever is larger."""
    compute = np.where(atoms.allowed, atoms.seconds, np.inf)
    alike = np.concatenate([compute, atoms.parcel_seconds])
    _, kinds, kind = np.unique(alike, axis=1, return_index=True, return_inverse=True)
    alone = compute.copy()
    for parcel, (sender, readers) in enumerate(zip(atoms.sender, atoms.readers, strict=True)):
        alone[[int(sender), *readers]] += atoms.parcel_seconds[parcel]
    largest = alone.min(axis=1)
    cuts: dict[int, Cuts] = {}
    for number, atom in enumerate(np.argsort(-largest, kind="stable").tolist()):
        if largest[atom] <= known or (number >= _CUTS and time.perf_counter() >= ends):
            break
        least = np.inf
        for device in kinds[np.unique(kind.ravel()[atoms.allowed[atom]])].tolist():
            if device not in cuts:
                cuts[device] = Cuts(atoms, device)
            least = min(least, cuts[device].least(compute[:, device], 1.0, np.array([atom])))
            if least <= known:
                break
        known = max(known, least)
    return known


@dataclass(frozen=True, eq=False)
class _Classes:
    """Atoms and devices, those that are alike counted together."""

    seconds: FloatArray  # (K, C) of an atom of class k on a device of class c, inf: not allowed
    atoms: IntArray  # (K,) how many
    devices: IntArray  # (C,) how many

    @classmethod
    def of(cls, atoms: PartitionAtoms) -> _Classes:
        """Those of `atoms` that take time wherever they are: the others add no compute."""
        seconds = np.where(atoms.allowed, atoms.seconds, np.inf)
        timed = seconds[(seconds > 0.0).all(axis=1)]
        columns, devices = np.unique(timed, axis=1, return_counts=True)
        rows, count = np.unique(columns, axis=0, return_counts=True)
        return cls(rows, count.astype(np.int64), devices.astype(np.int64))


def _shares(classes: _Classes) -> float:
    """The bound by shares: a linear program's weights, evaluated."""
    k, c = classes.seconds.shape
    if k == 0:
        return 0.0
    allowed = np.isfinite(classes.seconds)
    finite = np.where(allowed, classes.seconds, 0.0)
    scale = float(finite.max())
    program = LinearProgram()
    top = program.add_columns(1, cost=1.0)
    share = program.add_columns((k, c), upper=np.where(allowed, 1.0, 0.0))
    for j in range(c):
        count, work = float(classes.devices[j]), classes.atoms * finite[:, j] / scale
        program.add_row([(top, count), (share[:, j], -work)], lower=0.0)
    program.add_rows(k, [(share, 1.0)], lower=1.0, upper=1.0)
    solver = program.solver(time_limit=_LP_SECONDS)
    solver.run()
    weight = np.ones(c)
    if solver.getModelStatus() == highspy.HighsModelStatus.kOptimal:
        dual = np.maximum(np.array(solver.getSolution().row_dual[:c], dtype=np.float64), 0.0)
        weight = dual if dual.any() else weight
    weight /= (weight * classes.devices).sum()
    cheapest = np.where(allowed, weight * finite, np.inf).min(axis=1)
    return float((classes.atoms * cheapest).sum()) * (1.0 - _ROUNDING)


def _excluded(classes: _Classes, load: float, ends: float) -> bool:
    """Whether prices are found that prove every placement to have a load above `load`."""
    k, c = classes.seconds.shape
    units = np.floor(classes.seconds / load * (_UNITS * (1.0 - _ROUNDING)))
    units = np.minimum(units, _UNITS + 1)
    weight = units.astype(np.int64)
    solver = _cover(classes)
    for _ in range(_ROUNDS):
        left = ends - time.perf_counter()
        if left <= 0.0:
            return False
        solver.setOptionValue("time_limit", solver.getRunTime() + left)
        solver.run()
        if solver.getModelStatus() != highspy.HighsModelStatus.kOptimal:
            return False
        if solver.getInfo().objective_function_value <= 0.0:
            return False
        dual = np.array(solver.getSolution().row_dual, dtype=np.float64)
        price, rent = np.maximum(dual[:k], 0.0), dual[k:]
        worth, added = 0.0, False
        for j in range(c):
            value, chosen = dearest(weight[:, j], classes.atoms, price, _UNITS)
            worth += classes.devices[j] * value
            if value > -rent[j] * (1.0 + 1e-9) + 1e-12:
                used = np.flatnonzero(chosen)
                solver.addCol(
                    0.0, 0.0, highspy.kHighsInf, len(used) + 1,
                    np.append(used, k + j).astype(np.int32),
                    np.append(chosen[used], 1).astype(np.float64),
                )  # fmt: skip
                added = True
        if worth * (1.0 + _ROUNDING) < float((price * classes.atoms).sum()) * (1.0 - _ROUNDING):
            return True
        if not added:
            return False
    return False


def _cover(classes: _Classes) -> highspy.Highs:
    """Cover all atoms by sets, one per device; what is not covered costs its fastest seconds."""
    k, c = classes.seconds.shape
    program = LinearProgram()
    fastest = classes.seconds.min(axis=1)
    slack = [program.add_columns(1, cost=float(s / fastest.max())) for s in fastest]
    program.add_rows(k, [(np.concatenate(slack), 1.0)], lower=classes.atoms)
    for j in range(c):
        program.add_row([], upper=float(classes.devices[j]))
    return program.solver(time_limit=_LP_SECONDS)


@compiled
def dearest(
    weight: IntArray,  # (K,) units of an atom of each class; above `room`: not allowed
    count: IntArray,  # (K,) atoms of each class
    price: FloatArray,  # (K,) of an atom
    room: int,  # units
) -> tuple[float, IntArray]:
    """The dearest set of atoms with at most `room` units: its price, (K,) how many of each class.

    Dynamic programming over room. Classes are split into bundles of 1, 2, 4, ... atoms.
    """
    classes = len(weight)
    bundles = 0
    for i in range(classes):
        left = count[i]
        size = 1
        while left > 0:
            bundles += 1
            left -= min(size, left)
            size *= 2
    value = np.zeros(room + 1)
    taken = np.zeros((bundles, room + 1), dtype=np.bool_)
    of = np.empty(bundles, dtype=np.int64)
    many = np.empty(bundles, dtype=np.int64)
    b = 0
    for i in range(classes):
        left = count[i]
        size = 1
        while left > 0:
            part = min(size, left)
            of[b], many[b] = i, part
            left -= part
            size *= 2
            units, worth = part * weight[i], part * price[i]
            if worth > 0.0 and weight[i] <= room:
                for r in range(room, units - 1, -1):
                    then = value[r - units] + worth
                    if then > value[r]:
                        value[r] = then
                        taken[b, r] = True
            b += 1
    chosen = np.zeros(classes, dtype=np.int64)
    r = room
    for b in range(bundles - 1, -1, -1):
        if taken[b, r]:
            chosen[of[b]] += many[b]
            r -= many[b] * weight[of[b]]
    return value[room], chosen
