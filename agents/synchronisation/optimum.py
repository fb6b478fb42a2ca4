"""The most bytes a second that all-gather, reduce-scatter and all-reduce can pass, exactly.

Every byte of the participants in a set S of vertices leaves S if a participant stands outside.
All-gather therefore passes at most `n min_S capacity leaving S / participants in S`, and trees
reach it where as much leads into every switch as out of it (Zhang, Wu and Li, INFOCOM 2021; Zhao et
al., ForestColl, NSDI 2025, section 4). The cuts are found by maximum flow.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from fractions import Fraction
from math import gcd, lcm

from agents.synchronisation.max_flow import FlowNetwork
from envs.synchronisation.link_graph import LinkGraph
from envs.synchronisation.problem import SynchronisationProblem

Capacities = dict[tuple[int, int], Fraction]


@dataclass(frozen=True)
class Supply:
    """Integer capacities, and what each root sends to all targets over them.

    `link[u, v]` and `weight[r]` count units of `unit` bytes/s. Vertices that are no targets only
    forward.
    """

    size: int  # V
    link: dict[tuple[int, int], int]
    weight: dict[int, int]  # at least one
    targets: tuple[int, ...]  # vertices that receive everything
    unit: Fraction  # bytes/s

    @property
    def total(self) -> int:
        """What every target has in the end: the weights' sum."""
        return sum(self.weight.values())

    @property
    def rate(self) -> Fraction:
        """Bytes/s that every target receives, itself included."""
        return self.unit * self.total

    def flow_network(self) -> FlowNetwork:
        """The links, and one from vertex V to every root with its weight."""
        sent = {(self.size, root): weight for root, weight in self.weight.items()}
        return FlowNetwork(self.size + 1, self.link | sent, 2 * self.total)

    def suffices(self) -> bool:
        """Whether every target can receive what all roots send."""
        network, needed = self.flow_network(), self.total
        return all(network.flow([self.size], [v], needed) >= needed for v in self.targets)

    def balanced(self) -> bool:
        """Whether as much leads into every vertex that only forwards as out of it."""
        surplus = [0] * self.size
        for (u, v), capacity in self.link.items():
            surplus[u] -= capacity
            surplus[v] += capacity
        return not any(surplus[v] for v in set(range(self.size)) - set(self.targets))


def reverse(network: LinkGraph) -> LinkGraph:
    """Every link the other way: its out-trees are in-trees of the network."""
    return replace(network, source=network.destination, destination=network.source)


def capacities(network: LinkGraph) -> Capacities:
    """Bytes/s between vertices that take part, add or forward."""
    uses = network.participant | network.sums | network.forwards
    return {
        pair: Fraction(float(network.capacity[number]))
        for pair, number in network.link.items()
        if uses[list(pair)].all()
    }


def even_supply(network: LinkGraph, targets: tuple[int, ...] = ()) -> Supply | None:
    """All-gather at the highest rate that every cut allows; None: a participant is out of reach.

    The unit is the largest that divides the rate of a participant and all capacities, so that its
    weight is the least number of equal trees a root needs (ForestColl, section 5).

    Args:
        targets: the participants by default; others may receive everything too, and pass it on.
    """
    link, roots = capacities(network), network.participants
    targets = targets or roots
    unit = common_unit(link.values()) if link else Fraction(1)
    supply = Supply(
        network.num_vertices,
        {pair: int(value / unit) for pair, value in link.items()},
        dict.fromkeys(roots, 1),
        targets,
        unit,
    )
    rate = Fraction(sum(supply.link.values()))
    for target in targets:
        while rate:
            scaled = _scaled(supply, rate)
            needed = scaled.total
            found, side = scaled.flow_network().cut(supply.size, target, needed)
            if found >= needed:
                break
            inside = sum(bool(side[root]) for root in roots)
            leaving = sum(c for (u, v), c in supply.link.items() if side[u] and not side[v])
            rate = Fraction(leaving, inside)
    return _scaled(supply, rate) if rate else None


def supply_of_few(network: LinkGraph, most: int, targets: tuple[int, ...] = ()) -> Supply | None:
    """The highest rate that at most `most` equal trees per root reach (ForestColl, section 5.5).

    With trees of y bytes/s a link carries `floor(capacity / y)` of them; y grows as long as every
    cut still lets through what it must. None: as `even_supply`, or rounding down leaves no balance
    at a switch.
    """
    whole = even_supply(network, targets)
    if whole is None or whole.weight[network.participants[0]] <= most:
        return whole
    link = capacities(network)
    rate = whole.unit * whole.weight[network.participants[0]]

    def rounded(unit: Fraction, trees: int) -> Supply:
        floors = {pair: int(value / unit) for pair, value in link.items()}
        weight = dict.fromkeys(network.participants, trees)
        return Supply(whole.size, floors, weight, whole.targets, unit)

    best: Supply | None = None
    for trees in range(1, most + 1):
        highest = rate / trees
        low = highest / 2
        while not rounded(low, trees).suffices():
            low /= 2
        while True:
            low = min(c / (c // low) for c in link.values() if c >= low)  # all floors as before
            further = [c / (-(-c // low) - 1) for c in link.values() if c > low]
            beyond = min(further, default=2 * highest)
            if beyond > highest or not rounded(beyond, trees).suffices():
                break
            low, high = beyond, highest
            for _ in range(16):
                middle = (low + high) / 2
                if rounded(middle, trees).suffices():
                    low = middle
                else:
                    high = middle
        if best is None or low * trees > best.unit * best.weight[network.participants[0]]:
            best = rounded(low, trees)
    return best


def optimum(problem: SynchronisationProblem) -> Fraction:
    """Bytes/s of the whole vector where each rank owns one n-th of it; 0: someone is out of reach.

    Sums inside the network are not counted on. All-reduce is reduce-scatter followed by all-gather,
    as published figures have it; where links or ranks are uneven, an all-reduce whose ranks own
    unequal parts may be faster: see `agents.synchronisation.division`.
    """
    network, primitive = problem.network, problem.primitive
    sides = [reverse(network)] * primitive.reduces + [network] * primitive.broadcasts
    supplies = [even_supply(side) for side in sides]
    return (
        1 / sum((1 / x.rate for x in supplies if x), Fraction(0)) if all(supplies) else Fraction(0)
    )


def _scaled(supply: Supply, rate: Fraction) -> Supply:
    """The supply in the largest unit that divides all capacities and the roots' new weight."""
    common = Fraction(1, rate.denominator)
    common *= gcd(rate.numerator, *(c * rate.denominator for c in supply.link.values()))
    return replace(
        supply,
        link={pair: int(c / common) for pair, c in supply.link.items()},
        weight=dict.fromkeys(supply.weight, int(rate / common)),
        unit=supply.unit * common,
    )


def common_unit(values: Iterable[Fraction]) -> Fraction:
    """The largest number of which all values are multiples."""
    found = list(values)
    below = lcm(*(value.denominator for value in found))
    return Fraction(gcd(*(int(value * below) for value in found)), below)
