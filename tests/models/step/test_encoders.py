from __future__ import annotations

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from models.step.encoders import scatter_edges, standing_on, sum_edge_features
from models.step.graph_batch import GraphBatch
from tests.models.random_observations import padded, random_observation
from tests.strength import examples

seeds = st.integers(0, 2**32 - 1)


@examples(25)
@given(seeds, st.integers(1, 7), st.integers(1, 12))
def test_adjacency_is_the_mean_over_a_nodes_edges(seed: int, nodes: int, edges: int) -> None:
    rng = np.random.default_rng(seed)
    observation = padded(random_observation(rng, nodes, edges, 2), nodes + 2, edges + 3)
    weight = torch.from_numpy(rng.uniform(size=(1, edges + 3, 2)).astype(np.float32))
    into, back = (a[0].numpy() for a in scatter_edges(GraphBatch.stack([observation]), weight))
    expected_into, expected_back = np.zeros((2, nodes + 2, nodes + 2))
    pairs = [(int(u), int(v)) for u, v in observation["edge_index"].T[:edges]]
    for e, (u, v) in enumerate(pairs):
        expected_into[v, u] += float(weight[0, e, 0]) / sum(v == other for _, other in pairs)
        expected_back[u, v] += float(weight[0, e, 1]) / sum(u == other for other, _ in pairs)
    np.testing.assert_allclose(into, expected_into, atol=1e-6)
    np.testing.assert_allclose(back, expected_back, atol=1e-6)


def test_edge_features_are_summed_at_both_ends() -> None:
    observation = random_observation(np.random.default_rng(0), 3, 2, 2)
    observation["edge_index"] = np.array([[0, 1], [2, 2]])
    observation["edge_features"] = np.array([[1.0, 2.0], [3.0, 0.5]], np.float32)
    sums = sum_edge_features(GraphBatch.stack([observation]))[0]
    np.testing.assert_allclose(np.expm1(sums[2].numpy()), [4.0, 2.5, 2.0, 0, 0, 0], rtol=1e-6)
    np.testing.assert_allclose(np.expm1(sums[0].numpy()), [0, 0, 0, 1.0, 2.0, 1.0], rtol=1e-6)


def test_padded_nodes_stand_nowhere() -> None:
    observation = padded(random_observation(np.random.default_rng(0), 3, 2, 2), 5, 2)
    on = standing_on(GraphBatch.stack([observation]))[0]
    assert on.sum(dim=1).tolist() == [1.0, 1.0, 1.0, 0.0, 0.0]
    assert on[:3].argmax(dim=1).tolist() == observation["placement"][:3].tolist()
