"""The padded graph keeps its shapes."""

from __future__ import annotations

import numpy as np
import pytest

from envs.spaces import FeatureWidths, PaddedGraphLayout
from tests.refusal import refusal

WIDTHS = FeatureWidths(node=3, node_device=2, edge=2, device=4, link=1, candidate=5)


def test_an_empty_graph_lies_in_the_space_and_its_edges_point_at_the_sink() -> None:
    layout = PaddedGraphLayout(max_nodes=5, max_edges=7, num_devices=2, widths=WIDTHS)
    graph = layout.empty()
    assert layout.space().contains(graph)
    assert (graph["edge_index"] == 5).all()
    assert graph["node_device_features"].shape == (5, 2, 2)
    assert graph["link_features"].shape == (2, 2, 1)


def test_features_are_clipped_and_what_is_not_finite_is_high() -> None:
    layout = PaddedGraphLayout(max_nodes=1, max_edges=1, num_devices=1, widths=WIDTHS)
    clipped = layout.clip(np.array([-9.0, 0.5, 99.0, np.inf, np.nan]))
    assert clipped.tolist() == [-1.0, 0.5, 4.0, 4.0, 4.0]
    assert clipped.dtype == np.float32


@pytest.mark.parametrize(
    ("nodes", "edges", "devices", "field"),
    [(3, 1, 2, "max_nodes"), (1, 3, 2, "max_edges"), (1, 1, 3, "num_devices")],
)
def test_what_does_not_fit_is_named(nodes: int, edges: int, devices: int, field: str) -> None:
    layout = PaddedGraphLayout(max_nodes=2, max_edges=2, num_devices=2, widths=WIDTHS)
    layout.check_fits("g", 2, 2, 2)
    with refusal(field):
        layout.check_fits("g", nodes, edges, devices)
