"""Sums inside the network: SwitchML's switches, and OmniReduce's aggregators of sparse vectors."""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise

import numpy as np

from agents.base import SynchronisationResult
from agents.synchronisation.ways import Edges, Ways, blended, load_of, realised
from envs.compilation import clock
from envs.synchronisation.link_graph import LinkGraph
from envs.synchronisation.plan import SynchronisationPlan, Tree, Way
from envs.synchronisation.problem import SynchronisationProblem
from envs.synchronisation.sparse_aggregation import StreamedPlan, Streaming
from envs.synchronisation.switch_aggregation import SlotPool

_MESSAGES = 20_000  # of a plan, at most, where packets are more


@dataclass(frozen=True)
class SwitchMl:
    """Trees of switches that add, a switch of the network at the root of each.

    From every participant the shortest way leads to the root; each vertex on it that can add does,
    so that a link carries a share once. Trees around several switches are blended by a linear
    program over the loads of links. A packet is a chunk; where that makes too many messages to
    play, several packets are.

    Args:
        pool: slots and packets.

    Guarantees:
        The shares are the best for these trees.

    Source:
        Sapio et al., Scaling distributed machine learning with in-network aggregation, NSDI 2021.
    """

    pool: SlotPool = field(default_factory=SlotPool)

    def synchronise(self, problem: SynchronisationProblem) -> SynchronisationResult:
        """As `SynchronisationPlanner.synchronise`."""
        start, network = clock(), problem.network
        switches = np.flatnonzero(network.sums & ~network.participant & network.forwards).tolist()
        reason = ""
        if not switches:
            reason = "no switch of the network can add: aggregation=true"
        elif not (problem.primitive.reduces and problem.primitive.broadcasts):
            reason = f"SwitchML does not {problem.primitive.value}"
        trees = [] if reason else list(self._trees(problem, switches))
        if not trees and not reason:
            reason = "no switch that adds is joined with all participants"
        if reason:
            return SynchronisationResult(None, "infeasible", clock() - start, reason=reason)
        chosen, used = blended(problem, [(tree,) for tree in trees])
        payload = float(4 * self.pool.elements)
        ways = sum(len(tree.reduce) + len(tree.broadcast) for tree in chosen)
        plan = SynchronisationPlan(
            "SwitchML", chosen, max(payload, problem.size * ways / _MESSAGES)
        )
        figures = {
            "switches": float(used),
            "packets": float(self.pool.packets(problem.size)),
            "wire_bytes_per_byte": self.pool.packet / payload,
            "switch_memory_bytes": float(self.pool.memory),
        }
        return SynchronisationResult(plan, "feasible", clock() - start, figures=figures)

    def _trees(self, problem: SynchronisationProblem, switches: list[int]) -> Iterator[Tree]:
        network = problem.network
        for root in switches:
            towards = _next_hops(network, root, self.pool.packet)
            if all(vertex in towards for vertex in network.participants):
                up = _adding(network, root, towards)
                down = tuple(way[::-1] for way in up)
                if all(pair in network.link for way in down for pair in pairwise(way)):
                    yield Tree(root, Fraction(1), up, down)


def _next_hops(network: LinkGraph, root: int, packet: float) -> dict[int, int]:
    """From every vertex that can reach `root` the next on its shortest way for a packet."""
    arriving: dict[int, list[tuple[int, float]]] = {v: [] for v in range(network.num_vertices)}
    for (a, b), link in network.link.items():
        seconds = float(network.latency[link] + packet / network.capacity[link])
        arriving[b].append((a, seconds))
    found: dict[int, int] = {}
    queue = [(0.0, root, root)]
    while queue:
        far, vertex, towards = heapq.heappop(queue)
        if vertex in found:
            continue
        found[vertex] = towards
        if vertex != root and not network.forwards[vertex]:
            continue
        for before, seconds in arriving[vertex]:
            if before not in found:
                heapq.heappush(queue, (far + seconds, before, vertex))
    return found


def _adding(network: LinkGraph, root: int, towards: dict[int, int]) -> tuple[Way, ...]:
    """Ways from every participant to the next vertex that adds, and so on to the root."""
    ways, waiting, seen = list[Way](), list(network.participants), set[int]()
    while waiting:
        vertex = waiting.pop()
        if vertex in seen or vertex == root:
            continue
        seen.add(vertex)
        way = [vertex, towards[vertex]]
        while not network.sums[way[-1]]:
            way.append(towards[way[-1]])
        ways.append(tuple(way))
        waiting.append(way[-1])
    return tuple(ways)


@dataclass(frozen=True)
class OmniReduce:
    """Aggregators sum the blocks that are not all zero, each a stripe of the vector.

    Args:
        dedicated: whether aggregators are vertices that sum and neither take part nor forward;
            else every participant is one.
        streaming: blocks, columns, streams, and what a collective costs besides its links.

    Guarantees:
        None.

    Source:
        Fei et al., Efficient sparse collective communication and its application to accelerate
        distributed deep learning, SIGCOMM 2021.
    """

    dedicated: bool
    streaming: Streaming = field(default_factory=Streaming)

    def synchronise(self, problem: SynchronisationProblem) -> SynchronisationResult:
        """As `SynchronisationPlanner.synchronise`."""
        start, network = clock(), problem.network
        apart = np.flatnonzero(network.sums & ~network.participant & ~network.forwards).tolist()
        servers = tuple(apart) if self.dedicated else network.participants
        reason = ""
        if not servers:
            reason = "no vertex sums that neither takes part nor forwards"
        elif not (problem.primitive.reduces and problem.primitive.broadcasts):
            reason = f"OmniReduce does not {problem.primitive.value}"
        if reason:
            return SynchronisationResult(None, "infeasible", clock() - start, reason=reason)
        ways = Ways(network, tuple({*network.participants, *servers}))
        stars = []
        for server in servers:
            up = [(v, server) for v in network.participants if v != server]
            stars.append(Edges(server, Fraction(1, len(servers)), up, [pair[::-1] for pair in up]))
        found = [trees for table in ways.tables if (trees := realised(stars, table)) is not None]
        if not found:
            reason = ways.missing()
            return SynchronisationResult(None, "infeasible", clock() - start, reason=reason)
        trees = min(found, key=lambda trees: float(load_of(problem, trees).max()))
        plan = StreamedPlan("OmniReduce", trees, streaming=self.streaming)
        moved = plan.traffic(problem)
        figures = {
            "sent_bytes": float(moved.sent.sum()),
            "received_bytes": float(moved.received.sum()) * len(network.participants),
            "packets": float(moved.packets.sum()),
            "rounds": float(moved.answers.max()),
        }
        return SynchronisationResult(plan, "feasible", clock() - start, figures=figures)
