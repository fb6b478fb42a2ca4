"""Orders, partitions and resources: conservation, the bounds that are proved, and the isolation."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng

from experiments.papers.bgl.locality import (
    block_partition,
    enumerated,
    grow,
    hash_partition,
    label_bound,
    label_distance,
    metis_partition,
    near_sequences,
    shifted,
)
from experiments.papers.bgl.pipeline import Demand, GeneratedGraph, Graph
from tests.strength import SEEDS, examples


def drawn(seed: int, nodes: int = 300, classes: int = 4) -> Graph:
    rng = default_rng(seed)
    return GeneratedGraph(nodes, 3 * nodes, 2.3, 6, 0.1, classes).draw(rng)


@examples(40)
@given(st.integers(0, 20), st.integers(1, 60), st.sampled_from([1, 2, 5]))
def test_every_node_is_in_one_block_and_every_training_node_comes_once(
    seed: int, most: int, sequences: int
) -> None:
    graph, rng = drawn(seed), default_rng(seed)
    block, step = grow(graph, most, rng)
    assert np.bincount(block).max() <= most
    for v in np.flatnonzero(step):  # reached from a node of its block
        near = graph.neighbour[graph.start[v] : graph.start[v + 1]]
        assert (step[near][block[near] == block[v]] < step[v]).any()
    training = rng.permutation(300)[:100].astype(np.int32)
    near = near_sequences(graph, training, sequences, most, rng)
    order = shifted(near, rng.integers(0, 100 // sequences, sequences))
    assert sorted(order) == sorted(training)


@examples(40)
@given(st.integers(0, 20), st.integers(1, 5), st.integers(1, 80), st.sampled_from([0.0, 0.1, 1.0]))
def test_stores_are_as_balanced_as_promised(
    seed: int, stores: int, most: int, slack: float
) -> None:
    graph, rng = drawn(seed), default_rng(seed)
    training = rng.permutation(300)[:90].astype(np.int32)
    part = block_partition(graph, training, stores, most, slack, default_rng(5))
    block, _ = grow(graph, most, default_rng(5))
    assert len(part) == 300
    assert all(len(set(part[block == b])) == 1 for b in range(block.max() + 1))
    share = np.bincount(block) / 300
    largest = (share + np.bincount(block[training], minlength=len(share)) / 90).max()
    promised = max((1.0 + slack) / stores, 2.0 / stores + largest) + 1e-9
    for own, whole in ((part, 300), (part[training], 90)):
        assert np.bincount(own, minlength=stores).max() <= promised * whole
    assert set(hash_partition(graph, stores)) <= set(range(stores))


def test_partitions_cut_less_than_a_hash() -> None:
    graph, rng = drawn(0, 2000), default_rng(0)
    block = block_partition(graph, np.arange(500, dtype=np.int32), 4, 16, 0.05, rng)
    ends, cut = np.repeat(np.arange(graph.nodes), graph.degree), []
    for own in (metis_partition(graph, 4), block, hash_partition(graph, 4)):
        cut.append((own[ends] != own[graph.neighbour]).mean())
        assert np.bincount(own).max() <= 1.1 * 2000 / 4
    assert cut[0] < cut[1] < 0.7 * cut[2]


def test_no_batch_is_expected_further_from_the_labels_than_the_bound() -> None:
    """All 6^3 shifts of three sequences: the mean is exact, and unbiased."""
    graph, rng = drawn(3), default_rng(3)
    training = rng.permutation(300)[:18].astype(np.int32)
    near = near_sequences(graph, training, 3, 40, rng)
    every = [shifted(near, np.array(shift)) for shift in product(range(6), repeat=3)]
    expected = np.mean([label_distance(graph, order, 6) for order in every], axis=0)
    own, any_graph = label_bound(graph, near, 6)
    assert expected == pytest.approx(np.full(3, expected[0]))  # of every batch alike
    assert expected[0] <= own + 1e-12
    assert own <= any_graph + 1e-12
    counts = np.mean([np.bincount(graph.label[x[:6]], minlength=4) for x in every], axis=0)
    assert counts / 6 == pytest.approx(np.bincount(graph.label[training], minlength=4) / 18)


@examples(25, 4)
@given(SEEDS)
def test_isolation_is_the_best_of_all_divisions(seed: int) -> None:
    rng = default_rng(seed)
    units = tuple(int(x) for x in rng.integers(2, 7, 3))
    demands = {}
    for name in "abc"[: rng.integers(1, 4)]:
        divided = rng.integers(0, 9, 8) * np.array([1.0, 1, 0, 1, 1, 1, 1, 0])
        demands[name] = Demand(divided, rng.integers(0, 3, 8) / 2.0, {})
    best = enumerated(demands, units)
    least = min(  # of all there is, without using that resources are independent
        own.seconds(np.array([a, units[0] - a, 1, b, c, units[1] - b, units[2] - c, 1.0])).max()
        for own in demands.values()
        for a, b, c in product(*(range(1, most) for most in units))
    )
    assert best.seconds == pytest.approx(least)
    assert demands[best.cache].seconds(best.units).max() == best.seconds
    assert (best.units[[0, 3, 4]] + best.units[[1, 5, 6]] <= units).all()
