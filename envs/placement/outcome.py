"""What decided groups come to: the step time in an order, and the memory."""

from __future__ import annotations

import numpy as np

from envs.arrays import IntArray
from envs.graphs.contraction import Fusion
from envs.step.order import Rule
from envs.step.price import Price, Pricer
from envs.step.problem import StepProblem

ORDER_CLASSES: dict[str, Rule] = {  # that a policy chooses from
    "one_f_one_b": Rule.ONE_F_ONE_B,
    "interleaved": Rule.INTERLEAVED,
    "zb_h1": Rule.WINDOW_S,
    "zb_h2": Rule.WINDOW_2S,
    "deferred": Rule.DEFERRED,
    "critical": Rule.CRITICAL,
}


def order_class(rule: Rule) -> int:
    """The number of the class that comes closest to `rule`."""
    near = {
        Rule.GPIPE: Rule.INTERLEAVED, Rule.WINDOW_MORE: Rule.WINDOW_S, Rule.READY: Rule.DEFERRED,
        Rule.WINDOW_HALF: Rule.WINDOW_S, Rule.WINDOW_ONE: Rule.ONE_F_ONE_B,
    }  # fmt: skip
    return list(ORDER_CLASSES.values()).index(near.get(rule, rule))


class GroupPricer:
    """Prices devices of the groups of `fusion`, on its pieces `fused`. One per thread."""

    def __init__(self, fused: StepProblem, fusion: Fusion) -> None:
        self.fusion, self.pricer = fusion, Pricer(fused)
        allowed = self.pricer.rules
        self.rules: tuple[tuple[Rule, ...], ...] = tuple(
            (rule,) if rule in allowed else allowed for rule in ORDER_CLASSES.values()
        )
        capacity = fused.capacity[np.isfinite(fused.capacity)]
        self.room = float(capacity.sum()) if len(capacity) else np.inf  # bytes

    def price(self, device: IntArray, order: int | None = None) -> Price:
        """Of (G,) devices in the order of class `order`; by default the best that is allowed.

        That is also what counts where the class is not allowed.
        """
        return self.under(device, () if order is None else self.rules[order])

    def under(self, device: IntArray, rules: tuple[Rule, ...]) -> Price:
        """Of (G,) devices in the best of the orders of `rules`."""
        return self.pricer.price(self.fusion.expand_pieces(device), rules)

    def excess(self, price: Price) -> float:
        """The bytes that do not fit, as a share of all memory."""
        return price.excess / self.room
