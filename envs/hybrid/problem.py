"""The problem of hybrid plans: stages, replicas and shards of a row of layers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import numpy as np

from envs.hybrid.plan import HybridPlan, LayerRow
from envs.hybrid.simulation import simulate


@dataclass(frozen=True, eq=False)
class HybridProblem(LayerRow):
    """Divide L layers in a row into stages on groups of the D devices of `topology`.

    Knows:
        Every layer's seconds on every device, what passes between layers, what replicas sum, the
        memory, and the links between devices. It decides stages, devices, shares and the order.
    """

    objective: ClassVar[str] = "step_time_s"
    sense: ClassVar[Literal["min"]] = "min"

    def price(self, plan: HybridPlan) -> dict[str, float]:
        """What the simulator says of a plan."""
        step = simulate(self, plan)
        peak = float(step.peak_memory.max())
        return {self.objective: step.step_time, "peak_memory_bytes": peak}

    def violations(self, plan: HybridPlan) -> list[str]:
        """What is wrong with a plan, a sentence each."""
        return plan.violations(self)

    def bound(self) -> float:
        """Seconds no plan can beat: all work spread over all devices, each layer where it is fast.

        Shards save no work in sum: `Shard.compute` is at least 1 / degree.
        """
        fastest = self.work().min(axis=1).sum()
        speed = fastest / self.work().sum(axis=0)  # (D,) of the fastest device's
        return float(fastest / speed.sum()) if np.isfinite(speed).all() else 0.0
