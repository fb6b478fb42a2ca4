"""Solvers asked in one line."""

from __future__ import annotations

from typing import Any

from agents.solver import Budget, Result, Solver
from agents.step.problems import BandwidthPlanning, JointPlanning, Partition, StepPlanning
from envs.partition.problem import PartitionProblem
from envs.step.plans import Plan
from envs.step.problem import StepProblem

Asked = Solver[Any, Plan]


def planned(
    solver: Asked, step: StepProblem, seconds: float, evaluations: int | None = None
) -> Result[Plan]:
    """The placement and the order of a step."""
    return solver.solve(StepPlanning(step), Budget(seconds, evaluations))


def jointly(
    solver: Asked, step: StepProblem, seconds: float, evaluations: int | None = None
) -> Result[Plan]:
    """The bandwidth, too."""
    return solver.solve(JointPlanning(step), Budget(seconds, evaluations))


def allocated(
    solver: Asked, step: StepProblem, plan: Plan, seconds: float, evaluations: int | None = None
) -> Result[Plan]:
    """The bandwidth of a plan."""
    return solver.solve(BandwidthPlanning(step, plan), Budget(seconds, evaluations))


def partitioned(
    solver: Asked, problem: PartitionProblem, seconds: float, evaluations: int | None = None
) -> Result[Plan]:
    """The placement for max-load or latency."""
    return solver.solve(Partition(problem), Budget(seconds, evaluations))
