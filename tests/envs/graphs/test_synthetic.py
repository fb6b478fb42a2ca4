"""Random training graphs: their seed and their structure."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng

from envs.graphs.op_graph import NONE, Phase
from envs.graphs.storage import graph_hash
from envs.graphs.synthetic import synthetic_training_graph
from tests.strength import SEEDS, examples


def test_a_seed_gives_one_graph_and_another_another() -> None:
    hashes = [graph_hash(synthetic_training_graph(default_rng(n // 2))) for n in range(10)]
    assert hashes[::2] == hashes[1::2]
    assert len(set(hashes)) == 5


@examples(20)
@given(
    seed=SEEDS, layers=st.integers(1, 4), width=st.integers(1, 3), micro_batches=st.integers(1, 3)
)
def test_a_training_graph_is_a_whole_step(
    seed: int, layers: int, width: int, micro_batches: int
) -> None:
    graph = synthetic_training_graph(default_rng(seed), layers, width, micro_batches)
    blocks = layers * width
    assert graph.num_operators == blocks * (2 * micro_batches + 1)
    assert graph.num_micro_batches == micro_batches
    assert graph.num_groups == graph.num_parameters == blocks
    assert graph.backward_flop() == pytest.approx(2 * graph.forward_flop())
    for op in range(graph.num_operators):
        mirror = graph.mirror[op]
        if graph.phase[op] != Phase.BACKWARD:
            assert mirror == NONE
            continue
        assert graph.phase[mirror] == Phase.FORWARD
        assert graph.micro_batch[mirror] == graph.micro_batch[op]
        assert graph.colocation[mirror] == graph.colocation[op]
    assert (graph.micro_batch[graph.phase == Phase.OPTIMIZER] == NONE).all()
    assert sorted(graph.colocation[graph.parameter_owner]) == list(range(blocks))
    assert (graph.optimizer_bytes == 2 * graph.parameter_bytes).all()


@examples(20)
@given(seed=SEEDS)
def test_every_forward_edge_has_a_gradient_going_back(seed: int) -> None:
    graph = synthetic_training_graph(default_rng(seed), 3, 2, 2)
    backward = {int(graph.mirror[op]): op for op in np.flatnonzero(graph.mirror != NONE)}
    edges = {(int(u), int(v)) for u, v, _ in graph.edges}
    forward = graph.phase == Phase.FORWARD
    for u, v in edges:
        if forward[u] and forward[v]:
            assert (backward[v], backward[u]) in edges
            assert (u, backward[v]) in edges
