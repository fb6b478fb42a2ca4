"""Replays of random parts with the weights of a priority, in this process or in several."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from agents.cluster.migrating.priority_features import NAMES
from experiments.cluster.problem import built_policy
from experiments.cluster.sampled_windows import SampledWindows, Source, sampled_window, sources
from experiments.cluster.split_windows import Split, SplitConfig
from experiments.step.search import one_thread_each

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Request:
    """A part, and the weights to replay it with.

    Attributes:
        window: of the splits.
        seed: draws the part.
        weights: (R, D) by `priority_features.NAMES`.
    """

    window: str
    seed: tuple[int, ...]
    weights: FloatArray


class Replays(Protocol):
    """Whoever replays."""

    def __call__(self, requests: Sequence[Request]) -> list[FloatArray]:
        """For each request (R,) mean JCTs, in seconds."""


class Replayer:
    """Replays one request after the other.

    Args:
        agent: config node of a migrating policy with a learned priority.
        splits: whose windows parts are drawn of.
        windows: of the splits that there are requests for.
        parts: how they are drawn.

    Raises:
        InputError: a split or a window is bad, or none has enough jobs.
    """

    def __init__(
        self,
        agent: Mapping[str, Any],
        splits: Sequence[SplitConfig],
        windows: Sequence[str],
        parts: SampledWindows,
    ) -> None:
        made = [Split(config) for config in splits]
        self.agent, self.parts = agent, parts
        self.found: dict[str, list[Source]] = {
            window: sources(made, window, parts) for window in windows
        }

    def __call__(self, requests: Sequence[Request]) -> list[FloatArray]:
        """For each request (R,) mean JCTs, in seconds."""
        return [self.replay(request) for request in requests]

    def replay(self, request: Request) -> FloatArray:
        """(R,) mean JCTs, in seconds."""
        rng = np.random.default_rng(request.seed)
        _, problem = sampled_window(self.found[request.window], self.parts, rng)
        policies = [built_policy(weighted(self.agent, row), "agent") for row in request.weights]
        return np.array([problem.replay(policy).jct.mean() for policy in policies])


def weighted(agent: Mapping[str, Any], weights: FloatArray) -> dict[str, Any]:
    """The config node of a policy with other weights."""
    named = dict(zip(NAMES, weights.tolist(), strict=True))
    return {**agent, "priority": {**agent["priority"], "weights": named}}


@contextmanager
def replays(replayer: Replayer, workers: int) -> Iterator[Replays]:
    """`replayer`, or so many processes that each have a copy of it."""
    if workers == 1:
        yield replayer
        return
    context = multiprocessing.get_context("spawn")
    with (
        one_thread_each(),
        ProcessPoolExecutor(workers, context, initializer=_take, initargs=(replayer,)) as pool,
    ):
        yield lambda requests: list(pool.map(_replay, requests))


_mine: list[Replayer] = []  # of a process of the pool


def _take(replayer: Replayer) -> None:
    _mine[:] = [replayer]


def _replay(request: Request) -> FloatArray:
    return _mine[0].replay(request)
