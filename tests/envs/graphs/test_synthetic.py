"""Random graphs: their shape, their seed, and the structure of a training step."""

from __future__ import annotations

from collections.abc import Callable

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.graphs.convert import to_networkx
from envs.graphs.op_graph import NONE, OpGraph, Phase
from envs.graphs.storage import graph_hash
from envs.graphs.synthetic import (
    chain,
    diamond,
    fork_join,
    layered,
    random_topology,
    series_parallel,
    synthetic_training_graph,
)
from envs.step.step import StepSimulator
from envs.step.synthetic import random_problem
from tests.strength import examples

SEEDS = st.integers(0, 10**6)


@pytest.mark.parametrize("generator", [chain, layered, series_parallel])
@examples(20)
@given(seed=SEEDS, operators=st.integers(1, 40))
def test_a_seed_gives_one_graph_of_the_asked_size(
    generator: Callable[[np.random.Generator, int], OpGraph], seed: int, operators: int
) -> None:
    graph = generator(np.random.default_rng(seed), operators)
    assert graph.num_operators == operators
    assert graph_hash(graph) == graph_hash(generator(np.random.default_rng(seed), operators))


def test_another_seed_gives_another_graph() -> None:
    hashes = {graph_hash(layered(np.random.default_rng(seed), 20)) for seed in range(10)}
    assert len(hashes) == 10


def test_a_chain_is_a_path() -> None:
    graph = chain(np.random.default_rng(0), 5)
    assert graph.edges[:, :2].tolist() == [[0, 1], [1, 2], [2, 3], [3, 4]]


def test_a_diamond_reads_one_tensor_twice() -> None:
    graph = diamond(np.random.default_rng(0))
    assert graph.num_tensors == 3
    assert sorted(graph.edges[:, :2].tolist()) == [[0, 1], [0, 2], [1, 3], [2, 3]]


def test_fork_join_has_branches_of_the_asked_length() -> None:
    graph = to_networkx(fork_join(np.random.default_rng(0), branches=3, length=2))
    assert graph.number_of_nodes() == 8
    paths = list(nx.all_simple_paths(nx.DiGraph(graph), "op0", "op7"))
    assert sorted(len(path) for path in paths) == [4, 4, 4]


@examples(20)
@given(seed=SEEDS, operators=st.integers(2, 40))
def test_layered_operators_read_from_the_layer_before(seed: int, operators: int) -> None:
    graph = layered(np.random.default_rng(seed), operators)
    level = np.zeros(operators, dtype=int)
    for u, v, _ in graph.edges:
        level[v] = max(level[v], level[u] + 1)
    assert all(level[v] == level[u] + 1 for u, v, _ in graph.edges)


@examples(30)
@given(seed=SEEDS, operators=st.integers(2, 30))
def test_series_parallel_graphs_reduce_to_one_edge(seed: int, operators: int) -> None:
    graph = nx.MultiDiGraph(
        (int(u), int(v))
        for u, v, _ in series_parallel(np.random.default_rng(seed), operators).edges
    )
    reduced = True
    while reduced:
        reduced = False
        simple = nx.MultiDiGraph(nx.DiGraph(graph))  # parallel edges become one
        reduced, graph = simple.number_of_edges() < graph.number_of_edges(), simple
        for node in list(graph):
            if graph.in_degree(node) == graph.out_degree(node) == 1:
                (source,), (target,) = graph.predecessors(node), graph.successors(node)
                graph.remove_node(node)
                graph.add_edge(source, target)
                reduced = True
    assert graph.number_of_edges() == 1


@examples(20)
@given(
    seed=SEEDS, layers=st.integers(1, 4), width=st.integers(1, 3), micro_batches=st.integers(1, 3)
)
def test_a_training_graph_is_a_whole_step(
    seed: int, layers: int, width: int, micro_batches: int
) -> None:
    graph = synthetic_training_graph(np.random.default_rng(seed), layers, width, micro_batches)
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
    graph = synthetic_training_graph(np.random.default_rng(seed), 3, 2, 2)
    backward = {int(graph.mirror[op]): op for op in np.flatnonzero(graph.mirror != NONE)}
    edges = {(int(u), int(v)) for u, v, _ in graph.edges}
    forward = graph.phase == Phase.FORWARD
    for u, v in edges:
        if forward[u] and forward[v]:
            assert (backward[v], backward[u]) in edges
            assert (u, backward[v]) in edges


@examples(30)
@given(seed=SEEDS, devices=st.integers(1, 6))
def test_random_topologies_share_nics_between_servers_alone(seed: int, devices: int) -> None:
    topology = random_topology(np.random.default_rng(seed), devices)
    for i in range(devices):
        for j in range(devices):
            sends = topology.send_port[i, j]
            if i == j:
                assert topology.link_class[i, j] == 0
                assert sends == topology.receive_port[i, j] == -1
                continue
            between = topology.server[i] != topology.server[j]
            assert topology.class_names[topology.link_class[i, j]] == (
                "between" if between else "inside"
            )
            owner = f"nic{topology.server[i]}" if between else f"device{i}"
            assert topology.port_names[sends] == f"{owner}.send"
            owner = f"nic{topology.server[j]}" if between else f"device{j}"
            assert topology.port_names[topology.receive_port[i, j]] == f"{owner}.receive"


@examples(30)
@given(seed=SEEDS, operators=st.integers(1, 30), devices=st.integers(1, 5))
def test_a_random_problem_can_be_simulated(seed: int, operators: int, devices: int) -> None:
    problem = random_problem(np.random.default_rng(seed), operators, devices)
    n, d = problem.op_seconds.shape
    assert (n, d) == (problem.graph.num_operators, devices)
    assert np.isfinite(problem.op_seconds).all()
    assert (problem.transfer_seconds[:, 0] == 0).all()
    assert problem.graph.state_bytes.sum() <= problem.capacity.min()
    device = np.random.default_rng(seed).integers(0, d, n)
    step_time = StepSimulator(problem).step_time(device)
    load = np.bincount(device, weights=problem.op_seconds[np.arange(n), device], minlength=d)
    assert step_time >= load.max() - 1e-12
