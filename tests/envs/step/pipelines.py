"""Pipelines of few words."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from envs.step.pipeline import Pipeline

Times = Sequence[float | Sequence[float]]  # forward, gradients of inputs and of weights


def pipeline(
    rank: Iterable[int], micro_batches: int, times: Times, communication: float = 0, chains: int = 1
) -> Pipeline:
    """Stages on ranks, in equal chains; times are those of every stage, or one for all."""
    ranks = tuple(rank)
    count = len(ranks) // chains
    own = (tuple(x) if isinstance(x, Sequence) else (x,) * len(ranks) for x in times)
    forward, inputs, weights = own
    rows = tuple(tuple(range(k * count, (k + 1) * count)) for k in range(chains))
    return Pipeline(ranks, micro_batches, forward, inputs, weights, communication, rows)
