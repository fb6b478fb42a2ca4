"""What the published planners of stages share: one plan, made by a formula."""

from __future__ import annotations

from agents.solver import DirectSolver, Result
from envs.hybrid.plan import HybridPlan, HybridProblem

PREDICTED = "predicted_s"  # the figure of a result: what the solver's own formula says of its plan


class HybridSolver(DirectSolver[HybridProblem, HybridPlan]):
    """Divides layers in a row into stages on groups of devices, replicated and sharded."""

    solves = (HybridProblem,)


def planned(
    plan: HybridPlan, predicted: float, evaluations: int = 0, **formula: float
) -> Result[HybridPlan]:
    """A plan with its predicted seconds of a step, and further figures of the formula."""
    figures = {PREDICTED: predicted, **formula}
    return Result(plan, "feasible", evaluations=evaluations, figures=figures)
