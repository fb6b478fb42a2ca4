"""Sums inside the network: SwitchML's switches, and OmniReduce's aggregators of sparse vectors."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from itertools import pairwise, product

import numpy as np

from agents.solver import Budget, Result
from agents.synchronisation.classical import ParameterServer
from agents.synchronisation.ways import Pattern, Synchroniser, Ways, blended, load_of
from envs.synchronisation.plan import Primitive, SynchronisationPlan, Tree, Way
from envs.synchronisation.problem import SynchronisationProblem
from experiments.papers.in_network_sums.omnireduce import StreamedPlan, Streaming
from experiments.papers.in_network_sums.switchml import SlotPool

_MESSAGES = 20_000  # of a plan, at most, where packets are more


@dataclass(frozen=True)
class SwitchMl(Synchroniser):
    """Trees of switches that add, a switch of the network at the root of each.

    From every participant the shortest way leads to the root; each vertex on it that can add does,
    so that a link carries a share once. Or the participants of a server are summed by one of them
    first, each in turn. Trees around all switches are blended by a linear program over the loads of
    links. A packet is a chunk; where that makes too many messages to play, several packets are.

    Args:
        pool: slots and packets.

    Guarantees:
        The shares are the best for these trees.

    Source:
        Sapio et al., Scaling distributed machine learning with in-network aggregation, NSDI 2021.
    """

    pool: SlotPool = field(default_factory=SlotPool)

    def _solve(
        self, problem: SynchronisationProblem, budget: Budget
    ) -> Result[SynchronisationPlan]:
        network, primitive = problem.network, problem.primitive
        switches = np.flatnonzero(network.sums & ~network.participant & network.forwards).tolist()
        trees: list[Tree] = []
        if not switches:
            reason = "no switch of the network can add: aggregation=true"
        elif primitive is not Primitive.ALL_REDUCE:
            reason = f"SwitchML does not {primitive.value}"
        else:
            reason = "no switch that adds is joined with all participants"
            trees += self._trees(problem, switches)
        if not trees:
            return Result(None, "infeasible", reason=reason)
        chosen, used = blended(problem, [(tree,) for tree in trees])
        ways = sum(len(tree.reduce) + len(tree.broadcast) for tree in chosen)
        chunk = max(self.pool.payload, problem.size * ways / _MESSAGES)
        figures = {
            "switches": float(used),
            "packets": float(self.pool.packets(problem.size)),
            "wire_bytes_per_byte": self.pool.packet / self.pool.payload,
            "switch_memory_bytes": float(self.pool.memory),
        }
        plan = SynchronisationPlan("SwitchML", chosen, chunk)
        return Result(plan, "feasible", figures=figures)

    def _trees(self, problem: SynchronisationProblem, switches: list[int]) -> Iterator[Tree]:
        network, participants = problem.network, problem.network.participants
        ways = Ways(network, (*participants, *switches))
        groups = ways.groups()
        leaders = [{v: v for group in groups for v in group}]
        if 1 < len(groups) < len(participants):
            for turn in range(max(map(len, groups))):
                leaders.append({v: group[turn % len(group)] for group in groups for v in group})
        for root, leader in product(switches, leaders):
            up: dict[int, Way] = {}
            for vertex, first in leader.items():
                # Shortest ways never part again.
                way = ways.tables[0].get((vertex, root if vertex == first else first), ())
                ends = [i for i, at in enumerate(way) if network.sums[at]]
                for i, j in pairwise(ends):
                    up.setdefault(way[i], way[i : j + 1])
            down = tuple(way[::-1] for way in up.values())
            tree = Tree(root, Fraction(1), tuple(up.values()), down)
            if not SynchronisationPlan("", (tree,)).violations(problem):
                yield tree


@dataclass(frozen=True)
class OmniReduce(ParameterServer):
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

    streaming: Streaming = field(default_factory=Streaming)

    def _refused(self, problem: SynchronisationProblem) -> str:
        if problem.primitive is not Primitive.ALL_REDUCE:
            return f"OmniReduce does not {problem.primitive.value}"
        return super()._refused(problem)

    def _planned(
        self, problem: SynchronisationProblem, ways: Ways, patterns: list[Pattern]
    ) -> Result[SynchronisationPlan]:
        trees = min(patterns, key=lambda trees: float(load_of(problem, trees).max()))
        plan = StreamedPlan("OmniReduce", trees, streaming=self.streaming)
        moved = plan.traffic(problem)
        figures = {
            "sent_bytes": float(moved.sent.sum()),
            "received_bytes": float(moved.received.sum()) * len(problem.network.participants),
            "packets": float(moved.packets.sum()),
            "rounds": float(moved.answers.max()),
        }
        return Result(plan, "feasible", figures=figures)
