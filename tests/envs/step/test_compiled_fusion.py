"""Compiled fusion gives what its definition gives, bit for bit."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise

import numpy as np
import pytest
from numpy.random import default_rng
from numpy.testing import assert_array_equal

from envs.graphs.contraction import _fused_tensors, _levels, row_codes, row_ranks, sum_rows
from envs.graphs.op_graph import NONE
from envs.graphs.synthetic import synthetic_training_graph
from envs.step.fusion import _arcs, _atoms, _traffic, fuse
from envs.step.merging import linear_order, merge
from envs.step.problem import StepProblem
from tests.envs.step import reference_fusion as plain
from tests.envs.step.test_fusion import problem_of, training_graph
from tests.strength import trials


def some_problems() -> Iterator[StepProblem]:
    rng = default_rng(7)
    for layers, width, micro_batches in ((1, 1, 1), (2, 3, 2), (9, 4, 2), (6, 6, 1)):
        yield problem_of(synthetic_training_graph(rng, layers, width, micro_batches), 3)
    for tied in (False, True):
        yield problem_of(training_graph(7, 5, 2, tied=tied))


PROBLEMS = list(some_problems())


@pytest.mark.parametrize("problem", PROBLEMS)
def test_atoms_and_what_is_between_them(problem: StepProblem) -> None:
    graph = problem.graph
    atom = _atoms(graph)
    assert_array_equal(atom, plain.atoms(graph))
    arcs = _arcs(graph, atom, int(atom.max()) + 1)
    assert set(map(tuple, arcs.tolist())) == plain.arcs_of(graph, atom)
    pairs, seconds = _traffic(problem, atom)
    found = dict(zip(map(tuple, pairs.tolist()), seconds.tolist(), strict=True))
    assert found == plain.traffic_of(problem, atom)


@pytest.mark.parametrize("problem", PROBLEMS)
@pytest.mark.parametrize("max_groups", [2, 9])
def test_pieces_and_tensors(problem: StepProblem, max_groups: int) -> None:
    graph = problem.graph
    rng = default_rng(max_groups)
    assert_array_equal(graph.weight_gradient, plain.weight_gradient(graph))
    rank = rng.integers(0, 20, graph.num_operators)
    assert_array_equal(_levels(graph, rank), plain.levels(graph, rank))
    for piece in (fuse(problem, max_groups).piece, rng.integers(0, 12, graph.num_operators)):
        fused, producer, pointer, consumer = _fused_tensors(graph, piece)
        expected, known = plain.fused_tensors(graph, piece)
        assert fused.tolist() == expected
        assert producer.tolist() == [maker for maker, _ in known]
        rows = [tuple(consumer[a:b]) for a, b in pairwise(pointer)]
        assert rows == [readers for _, readers in known]


@pytest.mark.parametrize("seed", range(trials(40)))
def test_merging(seed: int) -> None:
    rng = default_rng(seed)
    count = int(rng.integers(1, 70))
    ends = rng.integers(0, count, (int(rng.integers(0, 3 * count)), 2))
    if seed % 3:
        ends = np.sort(ends, axis=1)  # acyclic, but for its numbering
        ends = rng.permutation(count)[ends]
    arcs = np.unique(ends[ends[:, 0] != ends[:, 1]], axis=0)
    pairs = np.unique(np.sort(arcs[rng.random(len(arcs)) < 0.8], axis=1), axis=0)
    seconds = rng.choice([0.1, 0.2, 0.3, rng.random()], len(pairs))
    size = rng.choice([0.0, 0.1, 0.2, 1.0 + rng.random()], (count, 2))
    first = rng.permutation(3 * count)[:count]
    as_set = set(map(tuple, arcs.tolist()))
    traffic = dict(zip(map(tuple, pairs.tolist()), seconds.tolist(), strict=True))
    assert linear_order(arcs, first).tolist() == plain.linear_order(count, as_set, first)
    for max_groups in (1, 3, 12):
        assert_array_equal(
            merge(size, pairs, seconds, arcs, first, max_groups),
            plain.merge(size, traffic, as_set, first, max_groups),
        )


def test_rows_are_coded_and_ranked_as_they_sort() -> None:
    rng = default_rng(0)
    for high in (2, 10**6, 2**40):
        table = rng.integers(-high, high, (300, 6)) * (rng.random((300, 6)) < 0.3)
        expected = np.unique(table, axis=0, return_inverse=True)[1].reshape(-1)
        assert_array_equal(row_ranks(table.T), expected)
        codes = row_codes(table.T)
        assert_array_equal(np.unique(codes, return_inverse=True)[1], expected)


def test_rows_add_up_in_their_order() -> None:
    rng = default_rng(0)
    values, target = rng.random((200, 3)), rng.integers(NONE, 5, 200)
    expected = np.zeros((6, 3))
    np.add.at(expected, target[target != NONE], values[target != NONE])
    assert_array_equal(sum_rows(values, target, 6), expected)
    assert_array_equal(sum_rows(values[:, 1], target, 6), expected[:, 1])
