"""Random placements: the floor every other agent has to beat."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from agents.base import PlannerResult
from agents.placement.grouping import GroupedProblem
from agents.placement.incumbent import Incumbent
from envs.errors import InputError
from envs.step.problem import StepProblem


class RandomPlacement:
    """The best of `samples` random placements of the groups of the fused graph.

    Groups are placed in random order, each uniformly on one of the devices that can run it and
    still have room for its parameters and state. A sample in which a group finds no room counts
    as a sample.

    Args:
        groups: groups of the fused graph.
        samples: placements drawn; `deterministic_limit` lowers it.
        seed: of the generator.

    Raises:
        InputError: `samples` is below 1.
    """

    def __init__(self, *, groups: int, samples: int, seed: int) -> None:
        if samples < 1:
            raise InputError(f"{samples} is below 1", field="samples")
        self.groups = groups
        self.samples = samples
        self.seed = seed

    def plan(
        self, problem: StepProblem, budget_s: float, deterministic_limit: int | None = None
    ) -> PlannerResult:
        """As `Planner.plan`; the deterministic limit counts samples."""
        incumbent = Incumbent(problem)
        grouped = incumbent.group(self.groups)
        if grouped is None:
            return incumbent.result()
        random = np.random.default_rng(self.seed)
        for sample in range(min(self.samples, deterministic_limit or self.samples)):
            if sample > 0 and incumbent.seconds > budget_s:
                break
            device = _sample(grouped, random)
            if device is not None:
                incumbent.offer(grouped.fusion.expand(device))
        return incumbent.result(reason="no sample was feasible" if incumbent.plan is None else "")


def _sample(grouped: GroupedProblem, random: np.random.Generator) -> NDArray[np.int64] | None:
    """(G,) devices, or None when a group finds no room."""
    free = grouped.problem.capacity.copy()
    device = np.zeros(grouped.num_groups, dtype=np.int64)
    for group in random.permutation(grouped.num_groups):
        fits = np.flatnonzero(grouped.allowed[group] & (grouped.state[group] <= free))
        if not len(fits):
            return None
        device[group] = random.choice(fits)
        free[device[group]] -= grouped.state[group]
    return device
