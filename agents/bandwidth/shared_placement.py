"""Placement for links that transfers share as they come, with no bandwidth allocated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

from annotated_types import MinLen

from agents.placement.integer_program.order import OrderFormulation
from agents.placement.integer_program.refinement import SimulatedRefinement
from agents.solver import Budget, Result
from agents.step.grouping import GroupedProblem
from agents.step.incumbent import StepIncumbent
from agents.step.problems import SharedPlanning
from envs.arrays import IntArray
from envs.bounds import bounded
from envs.step.plans import Plan
from envs.step.problem import StepProblem
from envs.step.step import Communication, Simulator

_VAIN = 200  # kicks in a row that bring nothing, after which the search ends
_KICK_NODES = 1000  # branch-and-bound nodes of one neighbourhood MILP, at most


@bounded
@dataclass(frozen=True, eq=False, kw_only=True)
class SharedPlacement:
    """Improves given plans under any communication model, by that model's own simulator.

    Every plan is offered in its own order and in 1F1B, then `Refinement` descends from each through
    `levels`, and from the best one after kicks, until the budget ends: moves of blocks of groups,
    priced by the simulator of the model on the fused graph, and neighbourhood MILPs, which know
    ports and propose only. A slow simulator makes this slower than a search under `single_port`;
    that is why it starts from plans made elsewhere.

    Guarantees:
        Never slower than the best of the plans it starts from.

    Source:
        Own work.

    Args:
        levels: groups at which placements are refined.
        kick_groups: groups of the neighbourhood MILPs.
        gap: relative, at which HiGHS ends.
        at_once: disjunctions of each kind that one solution adds to a MILP, at most.
        seed: of HiGHS and of what is drawn at random.
    """

    solves: ClassVar = (SharedPlanning,)

    levels: Annotated[Sequence[int], MinLen(1)] = (16, 32, 64, 128)
    kick_groups: int = 12
    gap: float = 0.02
    at_once: int = 8
    seed: int = 0

    def solve(
        self, problem: SharedPlanning, budget: Budget, start: Sequence[Plan] = ()
    ) -> Result[Plan]:
        """As `agents.solver.Solver.solve`, from the plans in `start` alone.

        `Budget.evaluations` counts kicks. The bound holds under any communication.
        """
        budget_s = budget.seconds
        incumbent = SharedIncumbent(problem.step, problem.communication)
        if incumbent.impossible:
            return incumbent.result()
        refinement = _SharedRefinement(
            incumbent,
            levels=tuple(self.levels),
            kick_groups=self.kick_groups,
            formulation=OrderFormulation(self.gap, self.at_once),
            seed=self.seed,
        )
        for plan in start:
            incumbent.offer(plan.placement.device, plan.order)
            incumbent.offer(plan.placement.device)
        seconds = [incumbent.simulator.step_time(plan.placement.device) for plan in start]
        for _, plan in sorted(zip(seconds, start, strict=True), key=lambda found: found[0]):
            refinement.descend(plan.placement.device, budget_s)
        kicks, vain = 0, 0
        while incumbent.seconds < budget_s and not incumbent.optimal and vain < _VAIN:
            if incumbent.plan is None or kicks == budget.evaluations:
                break
            before = incumbent.step_time
            refinement.kick(budget_s, _KICK_NODES)
            kicks += 1
            vain = vain + 1 if incumbent.step_time == before else 0
        incumbent.evaluations += refinement.simulations
        return incumbent.result()


class SharedIncumbent(StepIncumbent):
    """A `StepIncumbent` whose plans are played under `communication`."""

    def __init__(self, problem: StepProblem, communication: Communication) -> None:
        super().__init__(problem)
        self.communication = communication
        self.simulator = communication.simulator(problem)


class _SharedRefinement(SimulatedRefinement):
    """`SimulatedRefinement` with the simulator of a communication model."""

    incumbent: SharedIncumbent

    def simulator(self, grouped: GroupedProblem) -> Simulator:
        """Plays `grouped` under the model."""
        return self.incumbent.communication.simulator(grouped.problem)

    def ready_simulator(self, device: IntArray) -> Simulator:
        """The model's own: operators in the order in which they start there."""
        return self.incumbent.simulator
