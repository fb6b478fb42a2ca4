"""The study of malleable jobs finds what is wrong with planners."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from agents.solver import Budget, Result
from experiments.papers.malleable_jobs.command import BrokenGuaranteeError, beside_optima
from experiments.papers.malleable_jobs.gadget import Gadget
from experiments.papers.malleable_jobs.problem import AllocationPlan, AllocationProblem
from experiments.papers.malleable_jobs.sizes import AllocationSolver

pytestmark = pytest.mark.slow


@dataclass(frozen=True)
class Wrong(AllocationSolver):
    """GADGET, with something in its result that is not true."""

    fault: str

    def _solve(self, problem: AllocationProblem, budget: Budget) -> Result[AllocationPlan]:
        found = Gadget().solve(problem, budget)
        assert found.solution is not None
        if self.fault == "workers":
            found.solution.workers[0] += 100
        elif self.fault == "bound":
            return replace(found, bound=found.value * 0.5)
        elif self.fault == "guarantee":
            return replace(found, figures={"guarantee": 1.01})
        return found


def test_ratios_to_proved_optima() -> None:
    (row,) = beside_optima(1, 0, {"gadget": Wrong("nothing")})
    assert row["instances"] == 1
    assert 0.0 < float(str(row["worst"])) <= 1.0


@pytest.mark.parametrize("fault", ["workers", "bound", "guarantee"])
def test_what_is_not_true_is_an_error(fault: str) -> None:
    with pytest.raises(BrokenGuaranteeError, match="gadget"):
        beside_optima(1, 0, {"gadget": Wrong(fault)})
