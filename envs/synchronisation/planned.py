"""What sums cost inside a step or a job, by the plans that somebody makes for them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple, Protocol

from envs.arrays import FloatArray
from envs.errors import InputError
from envs.hardware.topology import Topology
from envs.synchronisation.link_graph import LinkGraph, links_of_topology
from envs.synchronisation.plan import SynchronisationPlan
from envs.synchronisation.playing import seconds_of
from envs.synchronisation.problem import SynchronisationProblem
from envs.units import MEBI

SIZES = MEBI, 64 * MEBI  # bytes of the two all-reduces that are played


class Found(Protocol):
    """A plan, or why there is none."""

    @property
    def solution(self) -> SynchronisationPlan | None: ...

    @property
    def reason(self) -> str: ...


class Synchroniser(Protocol):
    """Makes plans, as an `agents.solver.Solver` does."""

    def solve(self, problem: SynchronisationProblem) -> Found:
        """A plan; without one, why there is none."""


class Cost(NamedTuple):
    """Of an all-reduce of S bytes: `latency + S per_byte` seconds, `S sent` bytes on the links.

    The line through what is played at both `SIZES`; a plan in chunks is above it between them and
    below it beyond.
    """

    latency: float  # seconds
    per_byte: float  # seconds
    sent: FloatArray  # (K,) bytes on each link for a byte of the vector

    def seconds(self, size: float) -> float:
        """Of vectors of `size` bytes."""
        return self.latency + size * self.per_byte


@dataclass(frozen=True, eq=False)
class PlannedSums:
    """All-reduces of any participants by the plans of one planner, each planned and played once.

    Args:
        planner: makes the plans; an `agents.solver.Solver`.
        aggregation: whether switches between servers add.
        relay: whether devices forward what is not theirs.
    """

    planner: Synchroniser
    aggregation: bool = False
    relay: bool = False
    _known: dict[object, Cost] = field(default_factory=dict, repr=False)

    def among(self, topology: Topology, groups: Sequence[Sequence[int]]) -> Cost:
        """Of groups of devices that sum beside each other, vectors of S bytes in each.

        Raises:
            InputError: the planner has no plan for one of them.
        """
        key = (topology, tuple(tuple(sorted(group)) for group in groups))
        if key not in self._known:
            networks = [
                links_of_topology(topology, group, aggregation=self.aggregation, relay=self.relay)
                for group in groups
            ]
            self._known[key] = self.over(networks)
        return self._known[key]

    def over(self, networks: Sequence[LinkGraph]) -> Cost:
        """Of the participants of every network, which are the same links.

        Raises:
            InputError: as `among`.
        """
        played = []
        for size in SIZES:
            plans = [self._plan(SynchronisationProblem(network, size)) for network in networks]
            count = len(plans)
            beside = tuple(
                replace(tree, share=tree.share / count) for plan in plans for tree in plan.trees
            )
            together = SynchronisationPlan("together", beside, min(plan.chunk for plan in plans))
            problem = SynchronisationProblem(networks[0], size * count)
            played.append(seconds_of(problem, plans[0] if count == 1 else together))
            sent = together.link_bytes(problem) / size
        per_byte = (played[1] - played[0]) / (SIZES[1] - SIZES[0])
        return Cost(max(0.0, played[0] - SIZES[0] * per_byte), per_byte, sent)

    def _plan(self, problem: SynchronisationProblem) -> SynchronisationPlan:
        found = self.planner.solve(problem)
        if found.solution is None:
            fault = f"the planner of synchronisation has no plan: {found.reason}"
            raise InputError(fault, file=f"links of {problem.network.name}")
        return found.solution
