"""The communication model `allocated`: static pipes between the servers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from envs.errors import InputError
from envs.hardware.network import Network
from envs.step.allocated_problem import allocated_problem
from envs.step.order import OrderRule
from envs.step.plans import BandwidthAllocation
from envs.step.problem import StepProblem
from envs.step.step import StepSimulator


@dataclass(frozen=True)
class Allocated:
    """Transfers between servers pass one after another through pipes of allocated rates.

    The simulator is the one of `single_port` on `envs.step.allocated_problem.allocated_problem`.

    Args:
        name: what tables and files call it.
        allocation: the rates, or the rule that gives them to the problem's network.

    Raises:
        InputError: `allocation` is neither.
    """

    name: str
    allocation: BandwidthAllocation | Callable[[Network], BandwidthAllocation]

    def __post_init__(self) -> None:
        given: object = self.allocation
        if not isinstance(given, BandwidthAllocation) and not callable(given):
            fault = f"{given!r} is neither an allocation nor a rule that gives one"
            raise InputError(fault, field="allocation")

    def simulator(self, problem: StepProblem, order_rule: OrderRule | None = None) -> StepSimulator:
        """The simulator of `problem` with the allocated rates.

        Raises:
            InputError: as from `allocated_problem`.
        """
        given = self.allocation
        if not isinstance(given, BandwidthAllocation):
            given = given(problem.topology.network)
        return StepSimulator(allocated_problem(problem, given), order_rule=order_rule)
