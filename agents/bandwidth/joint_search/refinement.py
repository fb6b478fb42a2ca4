"""Iterative fusion whose placements are priced at the rates that they ask for."""

from __future__ import annotations

from agents.bandwidth.joint_search.incumbent import JointIncumbent
from agents.bandwidth.joint_search.pipes import IntArray
from agents.bandwidth.joint_search.response import ResponsiveSimulator
from agents.placement.grouping import GroupedProblem
from agents.placement.integer_program.moves import MovePricing
from agents.placement.integer_program.refinement import Refinement
from agents.placement.integer_program.rounds import Formulation
from envs.step.allocated import allocated_problem
from envs.step.ready import ReadySimulator
from envs.step.step import Simulator


class JointRefinement(Refinement):
    """`Refinement` with the rates decided anew for every placement it prices.

    A move changes the traffic, and with it the rates: a `ResponsiveSimulator` plays the fused graph
    in `descend` and the whole one when a placement is offered. The neighbourhood MILPs of `kick`
    decide rates as `formulation` says.
    """

    def __init__(
        self,
        incumbent: JointIncumbent,
        *,
        levels: tuple[int, ...],
        kick_groups: int,
        formulation: Formulation,
        seed: int,
    ) -> None:
        super().__init__(
            incumbent, levels=levels, kick_groups=kick_groups, formulation=formulation, seed=seed
        )
        self.joint = incumbent

    def moves(self, grouped: GroupedProblem) -> MovePricing:
        """Moves on `grouped`, priced at the rates they lead to."""
        simulator = ResponsiveSimulator(grouped.problem, self.joint.pipes.grouped(grouped))
        return MovePricing(grouped, self.room, self.random, simulator)

    def ready_simulator(self, device: IntArray) -> Simulator:
        """What a dynamic runtime does at the rates that `device` (N,) asks for."""
        allocation = self.joint.simulator.allocation(device)
        return ReadySimulator(allocated_problem(self.joint.whole, allocation))
