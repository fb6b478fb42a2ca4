"""The objective of plans whose transfers share the network as they come."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from agents.placement.contiguous import ContiguousSplit, EqualShares
from envs.errors import InputError
from envs.placement.toy import toy_pipeline
from envs.step.communication import Communication
from envs.step.order import OrderRule
from envs.step.plans import BandwidthAllocation, Plan
from envs.step.problem import StepProblem
from experiments.run.provenance import file_hash
from experiments.step.objectives import Search, StepTask, Task, Verdict
from experiments.step.plan_file import read_plan

_TOY_SECONDS = 0.1  # the split it is for needs less


@dataclass(frozen=True)
class Shared:
    """The time of one step, placed and ordered, whose transfers share the network as they come.

    Args:
        plans: plan files to start from; bandwidth in them does not count.
        communication: how transfers share the network.
        order: the order of a plan file that gives none.

    Raises:
        InputError: there are no plans.
    """

    name: ClassVar[str] = "shared"
    plans: Sequence[str]
    communication: Communication
    order: OrderRule

    def __post_init__(self) -> None:
        if isinstance(self.plans, str) or not self.plans:
            raise InputError("at least one plan file is needed", field="plans")

    def of(self, step: StepProblem) -> Task:
        """The step with its plans.

        Raises:
            InputError: a plan file is at fault.
        """
        plans = tuple(read_plan(path, step, self.order) for path in self.plans)
        return SharedTask(step, self.communication, plans)

    def inputs(self) -> dict[str, str]:
        """The plan files."""
        return {f"plan_{number}": file_hash(path) for number, path in enumerate(self.plans)}

    def rehearsal(self) -> Task:
        """`toy_pipeline` with an even split."""
        step = toy_pipeline()
        split = ContiguousSplit(groups=step.graph.num_operators, shares=EqualShares())
        found = split.plan(step, _TOY_SECONDS).plan
        assert found is not None
        return SharedTask(step, self.communication, (found,))


@dataclass(frozen=True, eq=False)
class SharedTask(StepTask):
    """A placement and an order for `problem` under `communication`, starting from `plans`."""

    communication: Communication
    plans: tuple[Plan, ...]

    def search(self, agent: Any) -> Search | None:
        """`agent.improve` on the problem and the plans."""
        if not hasattr(agent, "improve"):
            return None
        return lambda budget_s, limit: agent.improve(
            self.problem, self.communication, self.plans, budget_s, limit
        )

    def judge(self, plan: Plan, allocation: BandwidthAllocation | None) -> Verdict:
        """The plan as the simulator of the model plays it."""
        return self.played(plan, self.communication)
