"""The reward of placement: named terms and their weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from envs.reward import WeightedTerms, memory_violation


@dataclass(frozen=True)
class Outcome:
    """What one decision did."""

    before_s: float  # step time before the decision, seconds
    after_s: float  # step time after it, seconds
    reference_s: float  # step time at the start of the episode, seconds
    overflow: float | None  # sum over devices of bytes above capacity / capacity; None: all fits
    unsupported: bool  # the device cannot run the group


# Every term and its weight.
TERMS: Mapping[str, float] = MappingProxyType(
    {"step_time_improvement": 1.0, "memory_violation": 1.0, "unsupported_device": 1.0}
)


class PlacementReward(WeightedTerms):
    """A weighted sum of named terms.

    | term                  | value |
    |-----------------------|-------|
    | step_time_improvement | (before - after) / reference; adds up to (start - end) / start |
    | memory_violation      | -(1 + overflow) when the episode ends above a capacity, else 0 |
    | unsupported_device    | -1 when the chosen device cannot run the group, else 0 |

    The 1 in `memory_violation` puts every plan that does not fit below every plan that does and is
    no worse than the start, since improvements stay below 1.

    Args:
        weights: weight of each term; terms left out have weight 0.

    Raises:
        InputError: a weight for a term that does not exist.
    """

    def __init__(self, weights: Mapping[str, float] = TERMS) -> None:
        super().__init__(weights, TERMS)

    def terms(self, outcome: Outcome) -> dict[str, float]:
        """The weighted terms; the reward is their sum."""
        return self.weighted(
            {
                "step_time_improvement": (outcome.before_s - outcome.after_s) / outcome.reference_s,
                "memory_violation": memory_violation(outcome.overflow),
                "unsupported_device": -1.0 if outcome.unsupported else 0.0,
            }
        )
