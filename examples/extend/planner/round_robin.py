"""A step planner: groups of operators on devices in turn.

python -m experiments.plan agent=examples.extend.planner.round_robin.RoundRobin agent.groups=8 \
    graph=bert_base topology=mixed_v100_p100 budget_s=3

In the project: `agents/placement/round_robin.py`, and a row of the group `agent` in
`experiments/config/registry.py`.
"""

from dataclasses import dataclass

import numpy as np

from agents.solver import Budget
from agents.step.incumbent import StepIncumbent, StepSolver
from envs.bounds import Count, bounded


@bounded
@dataclass(frozen=True, eq=False, kw_only=True)
class RoundRobin(StepSolver):
    """Groups of the fused graph in topological order, on one device, on two in turn, and so on.

    Guarantees:
        Not worse than the fastest device alone, where the step fits it.

    Source:
        An example.

    Args:
        groups: of the fused graph.
    """

    groups: Count = 32

    def _plan(self, incumbent: StepIncumbent, budget: Budget) -> str:
        grouped = incumbent.group(self.groups)
        if grouped is None:  # no plan exists, and the incumbent knows why
            return ""
        devices, turn = grouped.device_order(), np.arange(grouped.num_groups)
        for used in range(1, len(devices) + 1):
            incumbent.offer(grouped.fusion.expand(devices[turn % used]))
        return "" if incumbent.plan else "no number of devices fits"
