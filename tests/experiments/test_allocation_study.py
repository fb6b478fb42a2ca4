"""The study of malleable jobs finds what is wrong with planners."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest

from agents.base import AllocationResult
from agents.cluster.allocation.gadget import Gadget
from envs.cluster.allocation.problem import AllocationProblem
from experiments.cluster.allocation_study import BrokenGuaranteeError, beside_optima


@dataclass(frozen=True)
class Wrong:
    """GADGET, with something in its result that is not true."""

    fault: str
    online = True

    def give(self, problem: AllocationProblem, seed: int = 0) -> AllocationResult:
        found = Gadget().give(problem, seed)
        assert found.plan is not None
        if self.fault == "workers":
            found.plan.workers[0] += 100
        elif self.fault == "bound":
            return replace(found, upper_bound=found.utility * 0.5)
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
