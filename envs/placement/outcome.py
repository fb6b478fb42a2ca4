"""What decided groups come to: the step time in the best order of a class, and the memory."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envs.graphs.contraction import Fusion
from envs.step.order import Rule
from envs.step.price import Price, Pricer
from envs.step.problem import StepProblem

IntArray = NDArray[np.int64]

ORDER_CLASSES: dict[str, tuple[Rule, ...]] = {
    "one_f_one_b": (Rule.ONE_F_ONE_B, Rule.GPIPE, Rule.INTERLEAVED),
    "zero_bubble": (Rule.WINDOW_S, Rule.WINDOW_2S, Rule.WINDOW_MORE),
    "free": (Rule.READY, Rule.DEFERRED, Rule.CRITICAL, Rule.WINDOW_HALF, Rule.WINDOW_ONE),
}


class GroupPricer:
    """Prices devices of the groups of `fusion`, on its pieces `fused`. One per thread."""

    def __init__(self, fused: StepProblem, fusion: Fusion) -> None:
        self.fusion, self.pricer = fusion, Pricer(fused)
        allowed = self.pricer.rules
        found = (tuple(r for r in rules if r in allowed) for rules in ORDER_CLASSES.values())
        self.rules: tuple[tuple[Rule, ...], ...] = tuple(rules or allowed for rules in found)
        capacity = fused.capacity[np.isfinite(fused.capacity)]
        self.room = float(capacity.sum()) if len(capacity) else np.inf  # bytes

    def price(self, device: IntArray, order: int | None = None) -> Price:
        """Of (G,) devices in the best order of class `order`, or of all that are allowed."""
        rules = () if order is None else self.rules[order]
        return self.pricer.price(self.fusion.expand_pieces(device), rules)

    def excess(self, price: Price) -> float:
        """The bytes that do not fit, as a share of all memory."""
        return price.excess / self.room
