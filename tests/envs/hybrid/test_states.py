"""Antichain states of layer graphs, and layers in a row."""

from __future__ import annotations

from itertools import chain, combinations
from pathlib import Path

import numpy as np
import pytest
from numpy.testing import assert_allclose

from envs.graphs.op_graph import OpGraph
from envs.graphs.readers.pipedream import PipeDreamReader
from envs.hybrid.states import LayerGraph, antichain_states, layers_in_a_row
from tests.refusal import refusal


def graph_of(
    folder: Path, edges: list[tuple[int, int]], layers: int, training: bool = True
) -> OpGraph:
    """Layer k takes k and 2 k milliseconds, writes 10 k bytes and has k bytes of parameters."""
    nodes = [(7, 0, 70, 0), *((k, 2 * k, 10 * k, k) for k in range(1, layers + 1))]
    lines = [
        f"node{k} -- {'Conv2d' if k else 'Input'} -- forward_compute_time={forward}, "
        f"backward_compute_time={back}, activation_size={written}, parameter_size={parameters}"
        for k, (forward, back, written, parameters) in enumerate(nodes)
    ]
    lines += [f"\tnode{a} -- node{b}" for a, b in [(0, 1), *edges]]
    path = folder / "layers.txt"
    path.write_text("\n".join(lines))
    return PipeDreamReader(training=training).read(path).graph


def test_a_diamond_has_a_state_for_each_set_of_branches(tmp_path: Path) -> None:
    graph = graph_of(tmp_path, [(1, 2), (1, 3), (2, 4), (3, 4)], 4)
    states = antichain_states(LayerGraph.of(graph))
    assert states.members == (0b1, 0b11, 0b101, 0b111, 0b1111)
    assert_allclose(states.total(states.layers.forward) * 1e3, [0, 1, 3, 4, 6, 10])
    assert_allclose(states.total(states.layers.backward) * 1e3, [0, 2, 6, 8, 12, 20])
    assert_allclose(states.total(states.layers.parameters), [0, 1, 3, 4, 6, 10])
    # Behind node2, node3 still needs node1; the optimizer counts node1 behind both branches too.
    assert_allclose(states.cut_bytes, [10, 10 + 20, 10 + 30, 10 + 20 + 30, 40])
    assert not states.contains[2, 3]
    assert states.contains[0, 1:].all()
    assert states.contains[:-1, -1].all()


def test_the_row_of_layers_leaves_little_to_be_sent(tmp_path: Path) -> None:
    """Nobody reads node3, an output of the model: done first, it leaves node1's tensor alone."""
    graph = graph_of(tmp_path, [(1, 2), (1, 3), (2, 4)], 4)
    row = [graph.op_names[operator] for operator in layers_in_a_row(graph)]
    assert row == ["node1", "node3", "node2", "node4"]


@pytest.mark.parametrize("seed", range(8))
def test_states_are_the_sets_closed_under_what_they_need(tmp_path: Path, seed: int) -> None:
    rng = np.random.default_rng(seed)
    count = 8
    edges = {(int(rng.integers(1, k)), k) for k in range(2, count + 1)}
    edges |= {(a, b) for a, b in combinations(range(1, count + 1), 2) if rng.random() < 0.15}
    graph = graph_of(tmp_path, sorted(edges), count)
    layers = LayerGraph.of(graph)
    states = antichain_states(layers)
    needs = {k: {a for a, b in edges if b == k} for k in range(1, count + 1)}
    every = chain.from_iterable(combinations(needs, k) for k in range(1, count + 1))
    closed = [set(some) for some in every if all(needs[layer] <= set(some) for layer in some)]
    number = {op: int(graph.op_names[op].removeprefix("node")) for op in layers.operators}
    found = [
        {number[op] for place, op in enumerate(layers.operators) if members >> place & 1}
        for members in states.members
    ]
    assert sorted(map(sorted, found)) == sorted(map(sorted, closed))
    row = [number[op] for op in layers_in_a_row(graph)]
    assert len(row) == count
    assert all(set(row[:k]) in closed for k in range(1, count + 1))


def test_a_forward_graph_has_no_states(tmp_path: Path) -> None:
    with refusal("one micro-batch of training"):
        LayerGraph.of(graph_of(tmp_path, [(1, 2)], 2, training=False))
