"""The reward of bandwidth allocation: named terms and their weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from envs.reward import WeightedTerms, memory_violation


@dataclass(frozen=True)
class PhaseOutcome:
    """What the rates of one phase did."""

    phase_s: float  # seconds the phase took
    uniform_phase_s: float  # seconds it takes where all phases have uniform static shares
    reference_s: float  # step time with uniform static shares
    overflow: float | None  # sum over devices of bytes above capacity / capacity; None: all fits


# Every term and its weight.
TERMS: Mapping[str, float] = MappingProxyType({"time_saved": 1.0, "memory_violation": 1.0})


class BandwidthReward(WeightedTerms):
    """A weighted sum of named terms.

    | term             | value |
    |------------------|-------|
    | time_saved       | (uniform seconds of the phase - its seconds) / reference |
    | memory_violation | -(1 + overflow) when the step ends above a capacity, else 0 |

    `time_saved` adds up to (reference - step time) / reference over the phases of a step.

    Args:
        weights: weight of each term; terms left out have weight 0.

    Raises:
        InputError: a weight for a term that does not exist.
    """

    def __init__(self, weights: Mapping[str, float] = TERMS) -> None:
        super().__init__(weights, TERMS)

    def terms(self, outcome: PhaseOutcome) -> dict[str, float]:
        """The weighted terms; the reward is their sum."""
        saved = outcome.uniform_phase_s - outcome.phase_s
        return self.weighted(
            {
                "time_saved": saved / outcome.reference_s,
                "memory_violation": memory_violation(outcome.overflow),
            }
        )
