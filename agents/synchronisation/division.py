"""How links are divided between sums on their way in and results on their way out.

A linear program over the capacity that either direction of traffic has on every link, and over
what each root forms: `capacity leaving S >= weight of the roots in S` for every set S that a target
stands outside of. There are too many such sets; those that matter are found by maximum flow, one
after the other (ForestColl, section 5.6 and appendix, for the program of all-reduce).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from itertools import chain, pairwise
from math import lcm

import numpy as np

from agents.linear_program import LinearProgram
from agents.synchronisation.optimum import Supply, capacities, common_unit
from envs.arrays import BoolArray, FloatArray, IntArray
from envs.synchronisation.link_graph import LinkGraph

Pair = tuple[int, int]
Number = float | Fraction

_GRID = 2**40  # units of the largest capacity in which cuts are looked for
_FINE = 2**50  # and in which trees are packed where no exact solution is recognised
_SLACK = 1e-9  # of the bandwidth
_DENOMINATOR = 5040  # of a solution that is recognised


@dataclass(frozen=True)
class Division:
    """What either direction may use, with the same weights of roots.

    `reduce` is on the reversed links: its trees, reversed, are in-trees of the network.
    """

    bound: float  # bytes/s of the whole vector: no division has more, but for rounding
    reduce: Supply | None
    broadcast: Supply | None


def divide(
    network: LinkGraph,
    reduces: bool,
    broadcasts: bool,
    targets: tuple[int, ...] = (),
    even: bool = False,
) -> Division | None:
    """The division with the highest bandwidth; None: a target is out of reach.

    Args:
        targets: vertices in every tree; the participants by default.
        even: the participants form equal parts of the sum, and no other target forms any.
    """
    frame = _Frame.of(network, targets or network.participants, even)
    ends, roots, room = frame.ends, list(frame.roots), frame.room / frame.room.max()
    sides = [reverse for reverse, used in ((True, reduces), (False, broadcasts)) if used]
    program = LinearProgram()
    share = {side: program.add_columns(len(ends), upper=room) for side in sides}
    weight = program.add_columns(len(roots), cost=-1.0)
    if len(sides) > 1:
        program.add_rows(len(ends), [(column, 1.0) for column in share.values()], upper=room)
    for v in sorted(set(ends.ravel().tolist()) - set(frame.targets)):
        for column in share.values():
            terms = [(column[ends[:, 1] == v], 1.0), (column[ends[:, 0] == v], -1.0)]
            program.add_row(terms, lower=0.0, upper=0.0)
    for other in weight[1:] if even else ():
        program.add_row([(weight[0], 1.0), (other, -1.0)], lower=0.0, upper=0.0)
    solver = program.solver(time_limit=600.0)
    for option in ("primal_feasibility_tolerance", "dual_feasibility_tolerance"):
        solver.setOptionValue(option, 1e-10)
    known: set[tuple[bool, bytes]] = set()

    def require(side: bool, inside: BoolArray) -> bool:
        """Add the row of a set of vertices, unless it is there."""
        if (side, inside.tobytes()) in known:
            return False
        known.add((side, inside.tobytes()))
        a, b = (ends[:, 1], ends[:, 0]) if side else (ends[:, 0], ends[:, 1])
        leaving, forming = share[side][inside[a] & ~inside[b]], weight[inside[roots]]
        values = np.concatenate([np.ones(len(leaving)), -np.ones(len(forming))])
        columns = np.concatenate([leaving, forming]).astype(np.int32)
        solver.addRow(0.0, np.inf, len(columns), columns, values)
        return True

    for side in sides:
        for v in frame.targets:
            alone = np.arange(frame.size) == v
            require(side, alone)
            require(side, ~alone)
    added = True
    while added:
        solver.run()
        found = np.array(solver.getSolution().col_value)
        if found[weight].sum() <= _SLACK:
            return None
        added = False
        for side in sides:
            links, weights = (np.floor(found[x] * _GRID) for x in (share[side], weight))
            supply = frame.supply(side, links, weights, Fraction(1))
            network_of_flows = supply.flow_network()
            for target in frame.targets:
                got, inside = network_of_flows.cut(frame.size, target, supply.total)
                if got < supply.total * (1.0 - _SLACK / 10):
                    added |= require(side, inside[:-1])
    shares = {side: np.maximum(found[share[side]], 0.0) for side in sides}
    weights = np.maximum(found[weight], 0.0)
    supplies = frame.exact(shares, weights) or frame.rounded(shares, weights)
    bound = float(weights.sum()) * float(frame.unit) * float(frame.room.max())
    return Division(bound, supplies.get(True), supplies.get(False))


@dataclass(frozen=True)
class _Frame:
    """What a solution is read into: the links in whole units of `unit` bytes/s."""

    size: int  # V
    targets: tuple[int, ...]
    roots: tuple[int, ...]
    ends: IntArray  # (K, 2)
    room: FloatArray  # (K,) units
    unit: Fraction  # bytes/s

    @classmethod
    def of(cls, network: LinkGraph, targets: tuple[int, ...], even: bool) -> _Frame:
        link = capacities(network)
        unit = common_unit(link.values())
        roots = network.participants if even else targets
        room = np.array([float(capacity / unit) for capacity in link.values()])
        ends = np.array(list(link), dtype=np.int64)
        return cls(network.num_vertices, targets, roots, ends, room, unit)

    def supply(
        self, reverse: bool, links: Iterable[Number], weights: Iterable[Number], unit: Fraction
    ) -> Supply:
        pairs = (self.ends[:, ::-1] if reverse else self.ends).tolist()
        link = {(u, v): int(c) for (u, v), c in zip(pairs, links, strict=True)}
        weight = {root: int(w) for root, w in zip(self.roots, weights, strict=True)}
        return Supply(self.size, link, weight, self.targets, unit)

    def exact(self, shares: Mapping[bool, FloatArray], weights: FloatArray) -> dict[bool, Supply]:
        """The solution in small fractions of the unit, if it is one; shares are of the largest."""
        scale = float(self.room.max())

        def fractions(values: FloatArray) -> list[Fraction]:
            return [Fraction(x).limit_denominator(_DENOMINATOR) for x in (values * scale).tolist()]

        links, roots = {side: fractions(x) for side, x in shares.items()}, fractions(weights)
        below = lcm(*(x.denominator for x in chain(roots, *links.values())))
        whole = np.array([sum(x) for x in zip(*links.values(), strict=True)], dtype=object)
        if below > _GRID or (whole > self.room.astype(np.int64).astype(object)).any():
            return {}
        supplies = {
            side: self.supply(
                side, (x * below for x in link), (x * below for x in roots), self.unit / below
            )
            for side, link in links.items()
        }
        right = all(supply.balanced() and supply.suffices() for supply in supplies.values())
        return supplies if right else {}

    def rounded(self, shares: Mapping[bool, FloatArray], weights: FloatArray) -> dict[bool, Supply]:
        """The solution in units so small that what is lost does not count."""
        unit = self.unit * Fraction(float(self.room.max())) / _FINE
        links = {}
        for side, share in shares.items():
            whole = self.supply(side, np.floor(share * _FINE * (1.0 - 1e-12)), weights, unit)
            links[side] = _through(whole.link, set(self.targets))
        for less in (1e-11, 1e-10, 1e-9, 1e-8, 1e-7):
            smaller = np.floor(weights * _FINE * (1.0 - less))
            supplies = {
                side: replace(self.supply(side, share, smaller, unit), link=links[side])
                for side, share in shares.items()
            }
            if all(supply.suffices() for supply in supplies.values()):
                return supplies
        raise ArithmeticError("the solution of the linear program is too coarse")


def _through(link: dict[Pair, int], targets: set[int]) -> dict[Pair, int]:
    """Almost all of the links, cut down so that exactly as much leads into others as out of them.

    Args:
        link: of which the same is true but for rounding.
    """
    left = dict(link)
    after: dict[int, list[int]] = defaultdict(list)
    for u, v in link:
        after[u].append(v)
    used: dict[Pair, int] = defaultdict(int)
    for begin in [*sorted(targets), *sorted(set(after) - targets)]:
        way = [begin]
        while way:
            u = way[-1]
            v = next((x for x in after[u] if left[u, x] > 0), -1)
            if v < 0:
                way.pop()
                if way:
                    left[way[-1], u] = 0  # what came here cannot go on
            elif v in targets and begin not in targets:
                left[u, v] = 0
            elif v in targets or v in way:
                first = way.index(v) if v in way[1:] else 0  # a ring of switches is kept too
                pairs = list(pairwise([*way[first:], v]))
                units = min(left[pair] for pair in pairs)
                for pair in pairs:
                    left[pair] -= units
                    used[pair] += units
                way = way[: first + 1]
            else:
                way.append(v)
    return used
