"""Upward ranks, and the favourite children of a linear program."""

from __future__ import annotations

from dataclasses import replace
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from agents.placement.list_scheduling.rank import (
    favourite_children,
    mean_transfer,
    upward_rank,
)
from envs.arrays import mean_able
from envs.graphs.op_graph import NONE, Phase
from envs.step.problem import StepProblem
from tests.agents.placement.random_problems import cluster, dag, pipeline
from tests.strength import examples


def test_upward_ranks_are_the_longest_mean_paths() -> None:
    problem = pipeline([1.0, 2.0], 1, cluster([0, 0]), [1, 2])
    rank = upward_rank(problem)
    # forward 1 and 2, backward 4 and 2, on average 3/4 of that; each of three tensors 0.01 s; an
    # update of 0.1 behind a gradient without bytes
    assert rank.max() == pytest.approx(0.75 * (1 + 2 + 4 + 2 + 0.1) + 3 * 0.01)
    assert rank.min() == pytest.approx(0.75 * 0.1)


def test_devices_and_links_that_cannot_serve_do_not_count() -> None:
    problem = pipeline([1.0], 1, cluster([0, 0, 1]), [1, 2, 4])
    seconds, transfers = problem.op_seconds.copy(), problem.transfer_seconds.copy()
    assert mean_transfer(problem)[0] == pytest.approx((2 * 0.01 + 4 * 0.05) / 6)
    seconds[:, 2], transfers[:, 2] = np.inf, np.inf
    problem = replace(problem, op_seconds=seconds, transfer_seconds=transfers)
    assert mean_able(problem.op_seconds)[0] == 0.75
    assert mean_transfer(problem)[0] == pytest.approx(0.01)


NO_LIMIT = 60.0


def length(problem: StepProblem, favourite: list[int]) -> float:
    """Seconds of the step on unlimited devices, favourite children next to their parents."""
    graph = problem.graph
    end = np.zeros(graph.num_operators)
    for v in range(graph.num_operators):
        ready = 0.0
        for u, _, tensor in graph.edges[graph.edges[:, 1] == v].tolist():
            near = favourite[u] == v
            ready = max(ready, end[u] + (0.0 if near else problem.transfer_seconds[tensor, 1]))
        end[v] = ready + problem.op_seconds[v, 0]
    return float(end.max())


def choices(problem: StepProblem) -> list[list[int]]:
    """Every choice of favourites: at most one child each, at most one parent each."""
    graph = problem.graph
    children = [
        [NONE, *graph.use_op[graph.use_ptr[u] : graph.use_ptr[u + 1]].tolist()]
        for u in range(graph.num_operators)
    ]
    return [
        list(choice)
        for choice in product(*children)
        if len({*choice} - {NONE}) == len(choice) - choice.count(NONE)
    ]


@examples(100)
@given(data=st.data(), n=st.integers(2, 7))
def test_favourites_are_within_a_third_of_the_best_where_transfers_are_small(
    data: st.DataObject, n: int
) -> None:
    # x < 1/2 becomes 0, the rest 1: p + c <= 4/3 (p + c / 2) where c <= p (Hanen, Munier 1995)
    compute = data.draw(st.lists(st.sampled_from([1.0, 1.5, 2.0, 3.0]), min_size=n, max_size=n))
    pairs = [(u, v) for u in range(1, n + 1) for v in range(u + 1, n + 1)]
    arcs = data.draw(st.lists(st.sampled_from(pairs), max_size=9, unique=True))
    moves = {arc: data.draw(st.sampled_from([0.25, 0.5, 1.0])) for arc in arcs}
    problem = dag([[p, p] for p in compute], moves, [0.0] * n)
    favourite = favourite_children(problem, NO_LIMIT)
    assert favourite.tolist() in choices(problem)
    best = min(length(problem, choice) for choice in choices(problem))
    assert length(problem, favourite.tolist()) <= best * 4 / 3 * 1.002


def test_where_time_does_not_matter_the_dearest_transfer_is_saved() -> None:
    # n4 ends last whatever happens to n2 and n3
    seconds = [[1.0] * 2, [1.0] * 2, [1.0] * 2, [20.0] * 2]
    problem = dag(seconds, {(1, 2): 0.5, (1, 3): 0.9}, [0.0] * 4)
    favourite = favourite_children(problem, NO_LIMIT)
    assert favourite.tolist() == [2, NONE, NONE, NONE]


def test_every_micro_batch_has_the_favourites_of_the_first() -> None:
    problem = pipeline([1.0, 2.0, 1.0], 3, cluster([0, 0]))
    graph = problem.graph
    favourite = favourite_children(problem, NO_LIMIT)
    children = np.flatnonzero(favourite != NONE)
    forward = [c for c in children.tolist() if graph.phase[favourite[c]] == Phase.FORWARD]
    assert len(forward) == 3 * 2  # a chain: every layer's next one, in every micro-batch
    for op in forward:
        assert graph.micro_batch[op] == graph.micro_batch[favourite[op]]
    chosen = favourite[children]
    assert len(np.unique(chosen)) == len(chosen)
