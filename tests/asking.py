"""Solvers asked in one line; a budget is seconds, and maybe evaluations."""

from __future__ import annotations

from typing import Any

from agents.solver import Budget, Result
from agents.step.problems import BandwidthPlanning, JointPlanning, Partition, StepPlanning


def planned(solver: Any, step: Any, *budget: Any) -> Result[Any]:
    """The placement and the order of a step."""
    return _asked(solver, StepPlanning(step), budget)


def jointly(solver: Any, step: Any, *budget: Any) -> Result[Any]:
    """The bandwidth, too."""
    return _asked(solver, JointPlanning(step), budget)


def allocated(solver: Any, step: Any, plan: Any, *budget: Any) -> Result[Any]:
    """The bandwidth of a plan."""
    return _asked(solver, BandwidthPlanning(step, plan), budget)


def partitioned(solver: Any, problem: Any, *budget: Any) -> Result[Any]:
    """The placement for max-load or latency."""
    return _asked(solver, Partition(problem), budget)


def _asked(solver: Any, problem: Any, budget: Any) -> Result[Any]:
    return solver.solve(problem, Budget(*budget))  # type: ignore[no-any-return]
