"""Layers out of operators: what they take adds up, and what passes between them is counted."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.cost import RooflineCost
from envs.graphs.motifs import draw_network, step_graph
from envs.graphs.op_graph import NONE, Phase
from envs.hardware.builders import single_server
from envs.hardware.servers import PcieServer
from envs.hybrid.layers import hybrid_problem, layers_of
from envs.hybrid.plan import unshared
from envs.hybrid.problem import HybridProblem
from envs.step.problem import StepProblem
from tests.refusal import refusal
from tests.strength import SEEDS

LINK = {"medium": "PCIe", "bandwidth": "16GB/s", "latency": "2us"}


def drawn(seed: int) -> StepProblem:
    """A training step with skips and branches, on three devices."""
    rng = np.random.default_rng(seed)
    graph = step_graph(draw_network(rng, 12), "drawn", int(rng.integers(1, 3)), 2.0)
    return StepProblem.build(
        graph, single_server("three", PcieServer("V100-16GB", 3, LINK)), RooflineCost()
    )


def row(step: StepProblem, most: int) -> HybridProblem:
    layer = layers_of(step, most)
    return hybrid_problem(step, layer, 3, unshared(int(layer.max()) + 1))


@given(SEEDS, st.integers(1, 9))
def test_everything_of_a_micro_batch_is_in_one_layer(seed: int, most: int) -> None:
    step = drawn(seed)
    graph, layer, problem = step.graph, layers_of(step, most), row(step, most)
    one = (graph.micro_batch == 0) & (graph.phase != Phase.OPTIMIZER)
    assert problem.num_layers <= most
    assert (layer[one] != NONE).all()
    passes = problem.forward + problem.input_gradient + problem.weight_gradient
    np.testing.assert_allclose(passes.sum(axis=0), step.op_seconds[one].sum(axis=0))
    updates = graph.phase == Phase.OPTIMIZER
    np.testing.assert_allclose(problem.update.sum(axis=0), step.op_seconds[updates].sum(axis=0))
    assert problem.state_bytes.sum() == pytest.approx(graph.state_bytes.sum())
    assert problem.micro_batches == 3
    forward = np.flatnonzero(one & (graph.phase == Phase.FORWARD))
    assert (np.diff(layer[forward]) >= 0).all()
    for backward in np.flatnonzero(one & (graph.phase == Phase.BACKWARD)):
        if graph.mirror[backward] != NONE:
            assert layer[backward] == layer[graph.mirror[backward]]


@given(SEEDS)
def test_a_cut_is_passed_by_what_is_read_behind_it(seed: int) -> None:
    step = drawn(seed)
    graph, layer, problem = step.graph, layers_of(step, 6), row(step, 6)
    forward = (graph.phase == Phase.FORWARD) & (graph.micro_batch == 0)
    for cut in range(problem.num_layers + 1):
        passing = 0.0
        for tensor in range(graph.num_tensors):
            source, readers = graph.producer[tensor], graph.consumers(tensor)
            readers = readers[forward[readers]]
            if forward[source] and layer[source] < cut and (layer[readers] >= cut).any():
                passing += graph.tensor_bytes[tensor]
        assert problem.cut_bytes[cut] == pytest.approx(passing)


def test_a_graph_without_forward_pass_is_refused() -> None:
    step = drawn(0)
    graph = replace(step.graph, phase=np.full(step.graph.num_operators, Phase.BACKWARD))
    with refusal("has no forward pass"):
        layers_of(StepProblem.build(graph, step.topology, RooflineCost()), 4)
