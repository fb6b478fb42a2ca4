"""The reward of scheduling: named terms and their weights."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

from envs.parallel_env import Terms
from envs.reward import WeightedTerms

# Every term and its weight.
TERMS: Mapping[str, float] = MappingProxyType({
    "jct": 1.0, "gpu_jct": 0.0, "slowdown": 0.0, "queueing": 0.0, "utilisation": 0.0,
    "preemptions": 0.0, "forwards": 0.0, "not_allowed": 1.0,
})  # fmt: skip


class ClusterReward(WeightedTerms):
    """A weighted sum of named terms.

    | term        | value | sum over an episode |
    |-------------|-------|---------------------|
    | jct         | -integral of the number of unfinished jobs | -sum of the JCTs in seconds |
    | gpu_jct     | -integral of the GPUs that these ask for | -sum of JCT x GPUs |
    | slowdown    | -integral of the sum of 1 / work over these | -sum of JCT / work |
    | queueing    | -integral of the number of waiting jobs | -sum of the seconds in the queue |
    | utilisation | integral of the GPUs held / GPUs | seconds times mean utilisation |
    | preemptions | -preemptions by an action | |
    | forwards    | -jobs forwarded | |
    | not_allowed | -actions outside the mask | |

    A job's completion time (JCT) counts from its submission to its completion, so that the sum of
    all is the integral of the number of unfinished jobs over time.

    Args:
        weights: weight of each term; terms left out have weight 0.

    Raises:
        InputError: a weight for a term that does not exist.
    """

    def __init__(self, weights: Mapping[str, float] = TERMS) -> None:
        super().__init__(weights, TERMS)


class Credit(Protocol):
    """Shares the reward of a step out."""

    def __call__(self, own: Sequence[Terms]) -> Sequence[Terms]:
        """The terms each scheduler gets, from those of each one's own jobs, weighted."""


class TeamCredit:
    """Everybody gets the sum of all."""

    def __call__(self, own: Sequence[Terms]) -> Sequence[Terms]:
        """The terms of every scheduler."""
        total = {name: sum(terms[name] for terms in own) for name in own[0]}
        return [total] * len(own)


class OwnCredit:
    """Everybody gets that of the jobs in its own queue, on their way to it and on its servers."""

    def __call__(self, own: Sequence[Terms]) -> Sequence[Terms]:
        """The terms of every scheduler."""
        return own
