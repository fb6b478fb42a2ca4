"""A captured graph as PyTorch Geometric's data."""

from __future__ import annotations

from models.step.pyg import to_pyg
from tests.envs.graphs.test_op_graph import diamond_graph


def test_nodes_and_edges_are_those_of_the_graph() -> None:
    graph = diamond_graph()
    data = to_pyg(graph)
    assert data.validate()
    assert data.edge_index.T.tolist() == graph.edges[:, :2].tolist()
    assert data.edge_attr.ravel().tolist() == [8.0, 8.0, 4.0, 4.0]
    assert data.x.shape == (4, len(data.feature_names))
    state = data.x[:, data.feature_names.index("state_bytes")]
    assert state.tolist() == graph.state_bytes.tolist()
    assert data.x[:, data.feature_names.index("phase_forward")].tolist() == [1.0] * 4
