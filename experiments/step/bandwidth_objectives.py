"""Objectives in which bandwidth is decided: for a given plan, or together with the plan."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from agents.base import Planner
from agents.placement.contiguous import ContiguousSplit, EqualShares
from envs.errors import InputError
from envs.placement.toy import toy_pipeline
from envs.step.allocated import Allocated
from envs.step.order import OrderRule
from envs.step.plans import BandwidthAllocation, Plan
from envs.step.problem import StepProblem
from experiments.run.provenance import Provenance, file_hash
from experiments.step.objectives import FromStep, Search, StepTask, Task, Verdict
from experiments.step.plan_communication import ALLOCATED
from experiments.step.plan_file import read_plan, write_plan


@dataclass(frozen=True)
class Bandwidth:
    """The time of one step under an allocation of bandwidth to a placement and order.

    Args:
        plan: a plan file; null lets the placer plan. Bandwidth in the file is decided anew.
        placer: plans under `single_port`.
        placer_budget_s: wall time of the placer in seconds.
        order: the order of a plan file that gives none.

    Raises:
        InputError: the budget is not positive and finite.
    """

    name: ClassVar[str] = "bandwidth"
    plan: str | None
    placer: Planner
    placer_budget_s: float
    order: OrderRule

    def __post_init__(self) -> None:
        if not 0 < self.placer_budget_s < float("inf"):
            raise InputError(
                f"{self.placer_budget_s} is not positive and finite", field="placer_budget_s"
            )

    def of(self, step: StepProblem) -> Task:
        """The step with its plan, read or made now.

        Raises:
            InputError: the plan file is at fault, or the placer finds no plan.
        """
        if self.plan is not None:
            return BandwidthTask(step, read_plan(self.plan, step, self.order))
        return BandwidthTask(step, _placed(step, self.placer, self.placer_budget_s))

    def inputs(self) -> dict[str, str]:
        """The plan file."""
        return {} if self.plan is None else {"plan": file_hash(self.plan)}

    def rehearsal(self) -> Task:
        """A toy with two servers."""
        step = _toy_step()
        split = ContiguousSplit(groups=step.graph.num_operators, shares=EqualShares())
        return BandwidthTask(step, _placed(step, split, self.placer_budget_s))


@dataclass(frozen=True)
class Joint(FromStep):
    """The time of one step whose placement, order and bandwidth are all decided."""

    name: ClassVar[str] = "joint"

    def of(self, step: StepProblem) -> Task:
        """The step."""
        return JointTask(step)

    def rehearsal(self) -> Task:
        """A toy with two servers."""
        return JointTask(_toy_step())


@dataclass(frozen=True, eq=False)
class JointTask(StepTask):
    """A placement, an order and an allocation for `problem`."""

    def search(self, agent: Any) -> Search | None:
        """`agent.plan_jointly` on the problem."""
        if not hasattr(agent, "plan_jointly"):
            return None
        return lambda budget_s, limit: agent.plan_jointly(self.problem, budget_s, limit)

    def judge(self, plan: Plan, allocation: BandwidthAllocation | None) -> Verdict:
        """The plan as the simulator plays it through pipes of the allocated rates."""
        if allocation is None:
            return _nothing("no bandwidth is allocated")
        violations = allocation.violations(self.problem.topology.network)
        if violations:
            return _nothing(*violations)
        return self.played(plan, Allocated(ALLOCATED, allocation))

    def write(
        self,
        folder: Path,
        plan: Plan,
        allocation: BandwidthAllocation | None,
        provenance: Provenance,
    ) -> Path:
        """Write `plan.json`, a plan file with its bandwidth."""
        path = folder / "plan.json"
        write_plan(path, plan, self.problem, provenance, allocation)
        return path


@dataclass(frozen=True, eq=False)
class BandwidthTask(JointTask):
    """An allocation for `plan` of `problem`."""

    plan: Plan

    def search(self, agent: Any) -> Search | None:
        """`agent.allocate` on the problem and the plan."""
        if not hasattr(agent, "allocate"):
            return None
        return lambda budget_s, limit: agent.allocate(self.problem, self.plan, budget_s, limit)

    def judge(self, plan: Plan, allocation: BandwidthAllocation | None) -> Verdict:
        """As `JointTask.judge`; a plan other than the given one is a violation."""
        verdict = super().judge(plan, allocation)
        same_place = np.array_equal(plan.placement.device, self.plan.placement.device)
        if same_place and np.array_equal(plan.order, self.plan.order):
            return verdict
        fault = "the placement and the order are not those that were given"
        return replace(verdict, violations=(fault, *verdict.violations))


def _nothing(*violations: str) -> Verdict:
    return Verdict(float("inf"), violations, float("nan"))


def _placed(step: StepProblem, placer: Planner, budget_s: float) -> Plan:
    found = placer.plan(step, budget_s)
    if found.plan is None:
        place = f"graph {step.graph.name!r} on topology {step.topology.name!r}"
        raise InputError(f"{place}: the placer has no plan ({found.reason})")
    return found.plan


def _toy_step() -> StepProblem:
    """`toy_pipeline` with links of one byte/s, whose messages have no latency but bytes."""
    toy = toy_pipeline()
    topology = replace(
        toy.topology,
        class_latency=np.zeros(len(toy.topology.class_names)),
        class_bandwidth=np.array([np.inf, 1.0, 1.0]),
    )
    return replace(toy, topology=topology)
