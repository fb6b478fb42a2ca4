"""A placement model that also chooses the rate of every pipe, from a few levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from agents.bandwidth.joint_search.pipes import INSIDE, Pipes
from agents.placement.integer_program.model import Terms
from agents.placement.integer_program.order import OrderModel
from agents.step.grouping import GroupedProblem
from envs.arrays import BoolArray, FloatArray, IntArray
from envs.hardware.network import Network
from envs.step.problem import StepProblem


def servers_alike(network: Network, a: int, b: int) -> bool:
    """Whether swapping servers `a` and `b` maps the network onto itself.

    True only with a proof: a renaming of links and channels that swaps the two servers and keeps
    capacities and what runs over what. The renaming tried takes the k-th link (or channel) of a
    kind to the k-th of the swapped kind; a network alike under another renaming only is not seen.
    """
    if a == b:
        return True
    swap = np.arange(network.num_servers)
    swap[[a, b]] = b, a
    ends = list(
        zip(network.channel_source.tolist(), network.channel_destination.tolist(), strict=True)
    )
    channel = _renamed(ends, [(int(swap[s]), int(swap[d])) for s, d in ends])
    if channel is None:
        return False
    rows = [np.flatnonzero(row).tolist() for row in network.incidence]
    capacity = network.link_capacity.tolist()
    before = [(c, tuple(sorted(row))) for c, row in zip(capacity, rows, strict=True)]
    after = [
        (c, tuple(sorted(channel[row].tolist()))) for c, row in zip(capacity, rows, strict=True)
    ]
    return _renamed(before, after) is not None


def _renamed(
    names: Sequence[tuple[object, ...]], wanted: Sequence[tuple[object, ...]]
) -> IntArray | None:
    """(n,) which of `names` each of `wanted` is, the k-th of equal ones the k-th; or None."""
    places: dict[tuple[object, ...], list[int]] = {}
    for place, name in enumerate(names):
        places.setdefault(name, []).append(place)
    found = []
    for name in wanted:
        if not places.get(name):
            return None
        found.append(places[name].pop(0))
    return np.array(found, dtype=np.int64)


class RateModel(OrderModel):
    """`OrderModel` on a network whose rates are decided, too.

    A pipe p gets one of L levels, or none and is not used: y[p, l] = 1 (`level`), sum_l y[p, l] <=
    1. Its channels c share the rate; with B[p, l] bytes/s at level l, r[c] >= 0 (`rate`)

        sum_l B[p, l] y[p, l] <= sum of r[c] over the channels of p,
        sum of r[c] over the channels that run over a link <= its capacity.

    The seconds a tensor of group u for group v takes from s to d through p are latency + volume /
    B[p, l], a product of two decisions: z[u, v, s, d], which `PlacementModel` has, and y[p, l]. It
    is linearised by one copy of z per level (Balas's convex hull of the disjunction over levels):

        sum_l w[u, v, s, d, l] = z[u, v, s, d],      w[u, v, s, d, l] <= y[p, l],

    where for one receiving group the sum of w over the pairs of devices of a pipe is below y. Ports
    are those of the pipes: T >= the seconds of all transfers through each. And since what a server
    sends (or receives) in T seconds is bounded by its links, T >= all its bytes / the most it can
    send; that holds for every choice of rates and tightens the relaxation.

    What `OrderModel` says of its rows and its bound holds for every plan with every allocation to
    these levels, on the fused graph. Continuous rates may be faster.

    Args:
        grouped: the groups, with the transfers of an `allocated_problem`.
        pipes: of the problem that is fused.
        levels: shares of what a pipe alone could carry, ascending.
        gap: relative, at which a round ends.
        at_once: disjunctions of each kind that one solution adds, at most.
    """

    def __init__(
        self,
        grouped: GroupedProblem,
        pipes: Pipes,
        levels: Sequence[float],
        gap: float,
        at_once: int,
    ) -> None:
        self.pipes = pipes.grouped(grouped)
        self.full = pipes.full
        self.bytes_per_second = np.outer(self.full, np.asarray(levels))  # (P, L)
        self._split: dict[tuple[int, tuple[int, ...]], IntArray] = {}
        super().__init__(grouped, gap, at_once)

    def pipe_rates(self, solution: FloatArray) -> FloatArray:
        """(P,) bytes/s of a solution, 0 where a pipe is not used."""
        chosen = np.where(self.level >= 0, solution[self.level], 0.0) > 0.5
        rate: FloatArray = np.where(chosen, self.bytes_per_second, 0.0).max(axis=1)
        return rate

    def longest_moves(self) -> FloatArray:
        """(T,) as `OrderModel.longest_moves`, at the lowest level of all."""
        slowest = np.where(self.full > 0.0, self.bytes_per_second[:, 0], np.inf).min()
        slowest = min(float(slowest), float(self.pipes.inner.min()))
        at_most = self.pipes.latency + self.pipes.volume / slowest
        longest: FloatArray = np.maximum(super().longest_moves(), at_most.max(axis=1) / self.scale)
        return longest

    def played(self, solution: FloatArray) -> StepProblem:
        """The problem of the pieces at the rates of a solution; unused pipes at the lowest."""
        problem, pipes = self.grouped.problem, self.pipes
        topology = problem.topology
        rate = self.pipe_rates(solution)
        rate = np.where(rate > 0.0, rate, self.bytes_per_second[:, 0])
        apart, kinds = pipes.of_pair != INSIDE, topology.link_class
        number = 1 + np.arange(kinds.size).reshape(kinds.shape)  # every pair is a class
        np.fill_diagonal(number, 0)
        before = np.append(0, kinds)
        seconds, bandwidth = problem.transfer_seconds[:, before], topology.class_bandwidth[before]
        bandwidth[number[apart]] = np.minimum(rate[pipes.of_pair[apart]], pipes.inner[apart])
        moving = pipes.volume[:, kinds[apart]] / bandwidth[number[apart]]
        seconds[:, number[apart]] = pipes.latency[:, kinds[apart]] + moving
        through = replace(
            topology,
            link_class=number,
            class_names=tuple(topology.class_names[kind] for kind in before),
            class_latency=topology.class_latency[before],
            class_bandwidth=bandwidth,
            fabric=None,
        )
        return replace(problem, topology=through, transfer_seconds=np.ascontiguousarray(seconds))

    def moving(self, tensors: Sequence[int], targets: tuple[int, ...], pairs: BoolArray) -> Terms:
        """As `PlacementModel.moving`, through pipes at the level that is chosen."""
        pipes, problem = self.pipes, self.grouped.problem
        terms = super().moving(tensors, targets, pairs & (pipes.of_pair == INSIDE))
        home = int(self.grouped.fusion.piece_group[problem.graph.producer[tensors[0]]])
        split = self._by_level(home, targets)
        s, d = np.nonzero(pairs & (pipes.of_pair != INSIDE))
        kind, pipe = problem.topology.link_class[s, d], pipes.of_pair[s, d]
        latency = pipes.latency[list(tensors)].sum(axis=0)[kind]
        volume = pipes.volume[list(tensors)].sum(axis=0)[kind]
        through = np.minimum(self.bytes_per_second[pipe], pipes.inner[s, d][:, None])
        seconds = latency[:, None] + volume[:, None] / through
        return [*terms, (split[s, d], seconds / self.scale)]

    def _by_level(self, home: int, targets: tuple[int, ...]) -> IntArray:
        """(D, D, L) columns w; -1 inside a server."""
        if (home, targets) in self._split:
            return self._split[home, targets]
        sent, level, of_pair = self.sent(home, targets), self.level, self.pipes.of_pair
        levels = level.shape[1]
        split = np.full((*of_pair.shape, levels), INSIDE)
        s, d = np.nonzero(of_pair != INSIDE)
        columns = self.program.add_columns((len(s), levels), upper=1.0)
        split[s, d] = columns
        self.program.add_rows(len(s), [(columns, 1.0), (sent[s, d], -1.0)], lower=0.0, upper=0.0)
        pipe = of_pair[s, d]
        if len(targets) > 1:
            self.program.add_rows(
                columns.size, [(columns.ravel(), 1.0), (level[pipe].ravel(), -1.0)], upper=0.0
            )
        else:
            for one in np.unique(pipe):
                self.program.add_rows(
                    levels, [(columns[pipe == one].T, 1.0), (level[one], -1.0)], upper=0.0
                )
        self._split[home, targets] = split
        return split

    def _add_levels(self) -> None:
        network, program = self.pipes.network, self.program
        levels = self.bytes_per_second.shape[1]
        used = np.unique(self.pipes.of_pair[self.pipes.of_pair != INSIDE])
        # (P, L) columns y; -1 where no two devices of the model are joined by the pipe
        level = np.full((self.pipes.count, levels), INSIDE)
        level[used] = program.add_columns((len(used), levels), upper=1.0, integer=True)
        program.add_rows(len(used), [(level[used], 1.0)], upper=1.0)
        self.level: IntArray = level
        self._unit = float(self.full.max(initial=0.0)) or 1.0
        self.rate = program.add_columns(network.num_channels)
        for pipe in used.tolist():
            mine = self.rate[self.pipes.of_channel == pipe]
            rates = self.bytes_per_second[pipe] / self._unit
            program.add_row([(mine, 1.0), (level[pipe], -rates)], lower=0.0)
        for link in range(network.num_links):
            over = self.rate[network.incidence[link] > 0.0]
            if len(over):
                program.add_row([(over, 1.0)], upper=network.link_capacity[link] / self._unit)

    def _add_ports(self) -> None:
        self._add_levels()
        super()._add_ports()
        self._add_servers()

    def _add_servers(self) -> None:
        """T >= bytes that leave (enter) a server / the most its links carry out (in)."""
        problem, pipes = self.grouped.problem, self.pipes
        kinds = problem.topology.link_class
        ends = (
            (pipes.most_out, problem.topology.server[:, None] * np.ones_like(kinds)),
            (pipes.most_in, problem.topology.server[None, :] * np.ones_like(kinds)),
        )
        crossing = pipes.of_pair != INSIDE
        bundles = self._bundles()
        for most, of_pair in ends:
            for server in np.unique(of_pair[crossing]).tolist():
                pairs = crossing & (of_pair == server)
                terms: Terms = []
                for (home, targets), tensors in bundles.items():
                    volume = pipes.volume[tensors].sum(axis=0)[kinds[pairs]]
                    terms.append(
                        (self.sent(home, targets)[pairs], -volume / (most[server] * self.scale))
                    )
                self.program.add_row([(self.finish, 1.0), *terms], lower=0.0)

    def _alike(self, a: int, b: int) -> bool:
        swap = np.arange(len(self.pipes.inner))
        swap[[a, b]] = b, a
        server = self.grouped.problem.topology.server
        return (
            super()._alike(a, b)
            and np.array_equal(self.pipes.inner[np.ix_(swap, swap)], self.pipes.inner)
            and servers_alike(self.pipes.network, int(server[a]), int(server[b]))
        )
