"""Placements that need no search, as a start for one."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from agents.base import PlannerResult
from agents.placement.partitioning.incumbent import PartitionIncumbent
from agents.placement.symmetry import atoms
from envs.graphs.op_graph import NONE
from envs.partition.problem import PartitionProblem

IntArray = NDArray[np.int64]

_FILLINGS = np.linspace(0.2, 1.0, 17)  # fractions of an accelerator's memory that a split fills


class FirstSplits:
    """The best of a few placements: all on one device, and splits of the graph's order.

    A split puts the atoms (co-location groups, free operators) in the graph's order on one
    accelerator after the other, each filled to a fraction of its memory, the rest on the host.
    """

    def partition(
        self, problem: PartitionProblem, budget_s: float, deterministic_limit: int | None = None
    ) -> PlannerResult:
        """As `PartitionPlanner.partition`; the number of placements is fixed."""
        incumbent = PartitionIncumbent(problem)
        for device in _splits(problem):
            incumbent.offer(device)
            if deterministic_limit is None and incumbent.seconds > budget_s:
                break
        return incumbent.result()


def _splits(problem: PartitionProblem) -> Iterator[IntArray]:
    count, host = problem.step.topology.num_devices, problem.host
    atom = atoms(problem.step)
    for device in range(count):
        yield np.full(len(atom), device)
    state = np.bincount(atom, weights=problem.step.graph.state_bytes)
    accelerators = [d for d in range(count) if d != host]
    for filling in _FILLINGS:
        for used in range(1, len(accelerators) + 1):
            home, number = np.full(len(state), host), 0
            room = filling * problem.step.capacity[accelerators]
            for a in range(len(state)):
                while number < used and state[a] > room[number]:
                    number += 1
                if number == used:
                    break
                home[a] = accelerators[number]
                room[number] -= state[a]
            if (home != NONE).all():
                yield home[atom]
