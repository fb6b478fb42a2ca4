"""Fusion keeps every cost, never makes a cycle, and finds its way back."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.random import default_rng
from numpy.testing import assert_allclose, assert_array_equal

from envs.cost import TabulatedCost
from envs.graphs.builder import GraphBuilder
from envs.graphs.contraction import contract
from envs.graphs.op_graph import NONE, Kind, OpGraph, Phase
from envs.graphs.readers import read_graph_file
from envs.hardware.devices import Device
from envs.hardware.topology import Topology, port_topology
from envs.step.fusion import fuse, fuse_chains, fused_problem
from envs.step.order import TopologicalOrder
from envs.step.problem import StepProblem, toy_device
from envs.step.step import StepSimulator
from tests.refusal import refusal
from tests.strength import SEEDS, examples


def line_topology(devices: int) -> Topology:
    """`devices` unit devices, all pairs on one link class, one port pair per device."""
    held = [Device(f"d{i}", toy_device("unit", 1.0, 1e12), 0) for i in range(devices)]
    apart = 1 - np.eye(devices, dtype=np.int64)
    return port_topology("unit", held, apart, ("self", "link"), np.array([np.inf, 1.0]))


def problem_of(graph: OpGraph, devices: int = 2) -> StepProblem:
    """Compute seconds = FLOP / (device + 1), transfer seconds = bytes."""
    seconds = graph.flop[:, None] / np.arange(1, devices + 1)[None, :]
    transfer = np.stack([np.zeros(graph.num_tensors), graph.tensor_bytes], axis=1)
    topology = line_topology(devices)
    return StepProblem(graph, topology, seconds, transfer, topology.memory_bytes)


def training_graph(layers: int, width: int, micro_batches: int, *, tied: bool) -> OpGraph:
    """`layers` layers of `width` operators each with a residual connection, one parameter a layer,
    forward, backward, accumulation and update; `tied`: first and last layer share the parameter."""
    builder = GraphBuilder("steps")
    gradient: dict[int, int] = {}  # parameter -> tensor

    def owner_of(layer: int) -> int:
        return 0 if tied and layer == layers - 1 else layer

    for m in range(micro_batches):
        forward: list[int] = []
        outputs: list[int] = []
        for layer in range(layers):
            skip = outputs[-1] if outputs else None
            for i in range(width):
                op = builder.add_operator(
                    f"f{m}.{layer}.{i}",
                    kind=Kind.MATMUL if i == 0 else Kind.ELEMENTWISE,
                    flop=100.0 if i == 0 else 1.0 + i,
                    bytes_read=3.0,
                    bytes_written=2.0,
                    micro_batch=m,
                    colocation=owner_of(layer) if i == 0 else NONE,
                )
                if m == 0 and i == 0 and owner_of(layer) == layer:
                    builder.add_parameter(
                        f"w{layer}", op, parameter=8.0, gradient=8.0, optimizer=16.0
                    )
                if outputs:
                    builder.add_use(outputs[-1], op)
                if i == width - 1 and skip is not None:
                    builder.add_use(skip, op)
                forward.append(op)
                outputs.append(builder.add_tensor(op, 5.0))
        previous = outputs[-1]
        for layer in reversed(range(layers)):
            for i in reversed(range(width)):
                mirror = forward[layer * width + i]
                op = builder.add_operator(
                    f"b{m}.{layer}.{i}",
                    kind=Kind.ELEMENTWISE,
                    phase=Phase.BACKWARD,
                    flop=2.0,
                    micro_batch=m,
                    mirror=mirror if i % 2 == 0 else NONE,
                    colocation=owner_of(layer) if i == 0 else NONE,
                )
                builder.add_use(previous, op)
                builder.add_use(outputs[layer * width + i], op)
                previous = builder.add_tensor(op, 5.0)
                if i == 0:
                    made = builder.add_tensor(op, 8.0)
                    parameter = owner_of(layer)
                    if parameter in gradient:
                        add = builder.add_operator(
                            f"a{m}.{layer}",
                            phase=Phase.BACKWARD,
                            micro_batch=m,
                            flop=1.0,
                            colocation=parameter,
                        )
                        builder.add_use(made, add)
                        builder.add_use(gradient[parameter], add)
                        made = builder.add_tensor(add, 8.0)
                    gradient[parameter] = made
    for parameter, tensor in gradient.items():
        update = builder.add_operator(
            f"u{parameter}",
            kind=Kind.UPDATE,
            phase=Phase.OPTIMIZER,
            micro_batch=NONE,
            flop=4.0,
            colocation=parameter,
        )
        builder.add_use(tensor, update)
    return builder.build()


@st.composite
def any_graph(draw: st.DrawFn) -> OpGraph:
    """Arbitrary phases, micro-batches, co-location, mirrors and dependencies."""
    n = draw(st.integers(1, 24))
    rng = default_rng(draw(SEEDS))
    builder = GraphBuilder("any")
    for i in range(n):
        phase = Phase(int(rng.integers(0, 3)))
        builder.add_operator(
            f"op{i}",
            phase=phase,
            micro_batch=NONE if phase == Phase.OPTIMIZER else int(rng.integers(0, 3)),
            replica=int(rng.integers(0, 2)),
            flop=float(rng.integers(0, 5)),
            bytes_read=float(rng.integers(0, 5)),
            bytes_written=float(rng.integers(0, 5)),
            colocation=int(rng.integers(0, 4)) if rng.random() < 0.4 else NONE,
            mirror=int(rng.integers(0, i)) if i and rng.random() < 0.3 else NONE,
        )
        if rng.random() < 0.4:
            builder.add_parameter(f"w{i}", i, parameter=1.0 + i, gradient=2.0, optimizer=3.0)
    for i in range(n - 1):
        for _ in range(int(rng.integers(0, 3))):
            tensor = builder.add_tensor(i, float(rng.integers(0, 9)))
            for consumer in rng.integers(i + 1, n, size=int(rng.integers(0, 3))):
                builder.add_use(tensor, int(consumer))
    return builder.build()


def assert_conserved(problem: StepProblem, fusion_graph: OpGraph, fused: StepProblem) -> None:
    graph = problem.graph
    assert fused.graph is fusion_graph
    for column in ("flop", "bytes_read", "bytes_written", "state_bytes"):
        before, after = getattr(graph, column).sum(), getattr(fusion_graph, column).sum()
        assert after == pytest.approx(before, rel=1e-12), column
    assert_allclose(fused.op_seconds.sum(0), problem.op_seconds.sum(0), rtol=1e-12)
    assert fusion_graph.parameter_names == graph.parameter_names


@examples(150)
@given(graph=any_graph(), data=st.data())
def test_any_grouping_contracts_to_an_acyclic_graph_that_keeps_every_cost(
    graph: OpGraph, data: st.DataObject
) -> None:
    labels = data.draw(
        st.lists(st.integers(0, 4), min_size=graph.num_operators, max_size=graph.num_operators)
    )
    group = np.unique(labels, return_inverse=True)[1].reshape(-1)
    problem = problem_of(graph)
    fusion = contract(graph, group)  # the constructor of OpGraph proves it topological
    assert_conserved(problem, fusion.graph, fused_problem(problem, fusion))
    assert_array_equal(fusion.piece_group[fusion.piece], group)
    for column in ("phase", "replica"):
        assert_array_equal(getattr(fusion.graph, column)[fusion.piece], getattr(graph, column))


@examples(100)
@given(graph=any_graph(), max_groups=st.integers(1, 6))
def test_fuse_reaches_every_size_and_never_splits_a_colocation_group(
    graph: OpGraph, max_groups: int
) -> None:
    problem = problem_of(graph)
    fusion = fuse(problem, max_groups)
    assert 1 <= fusion.num_groups <= max_groups
    assert set(fusion.group.tolist()) == set(range(fusion.num_groups))
    for colocation in range(graph.num_groups):
        assert len(set(fusion.group[graph.colocation == colocation].tolist())) == 1
    again = fuse(problem, max_groups)
    assert_array_equal(fusion.piece, again.piece)
    assert_array_equal(fusion.tensor, again.tensor)


@examples(60)
@given(graph=any_graph(), max_groups=st.integers(1, 6))
def test_bytes_between_devices_are_those_of_the_original_graph(
    graph: OpGraph, max_groups: int
) -> None:
    problem = problem_of(graph)
    fusion = fuse(problem, max_groups)
    fused = fused_problem(problem, fusion)
    device = np.arange(fusion.num_groups) % 2

    def sent(one: StepProblem, placed: np.ndarray) -> float:
        edges = one.graph.edges
        across = placed[edges[:, 0]] != placed[edges[:, 1]]
        deliveries = np.stack([edges[across, 2], placed[edges[across, 1]]], axis=1)
        return float(one.transfer_seconds[np.unique(deliveries, axis=0)[:, 0], 1].sum())

    assert sent(fused, fusion.expand_pieces(device)) == pytest.approx(
        sent(problem, fusion.expand(device))
    )


@examples(60)
@given(seed=SEEDS, devices=st.integers(1, 3))
def test_fusing_chains_changes_no_step_time(seed: int, devices: int) -> None:
    rng = default_rng(seed)
    builder = GraphBuilder("chains")
    group: list[int] = []
    outputs: list[int] = []  # of each chain's last operator
    tensor = NONE
    for number in range(int(rng.integers(1, 12))):
        inputs = {
            int(rng.integers(0, number)) for _ in range(int(rng.integers(0, 3)) if number else 0)
        }
        for link in range(int(rng.integers(1, 4))):
            op = builder.add_operator(f"{number}.{link}", flop=float(rng.integers(0, 9)))
            group.append(number)
            if link:
                builder.add_use(tensor, op)
            else:
                for chain in inputs:
                    builder.add_use(outputs[chain], op)
            tensor = builder.add_tensor(op, float(rng.integers(0, 9)))
        outputs.append(tensor)
    problem = problem_of(builder.build(), devices)
    fusion = contract(problem.graph, np.array(group))
    pieces = fused_problem(problem, fusion)
    for _ in range(5):
        device = rng.integers(0, devices, size=fusion.num_groups)
        order = np.argsort(fusion.piece, kind="stable")
        assert StepSimulator(problem).step_time(fusion.expand(device), order) == pytest.approx(
            StepSimulator(pieces, order_rule=TopologicalOrder()).step_time(
                fusion.expand_pieces(device)
            ),
            rel=1e-12,
        )


@examples(60)
@given(seed=SEEDS)
def test_chains_alone_are_merged(seed: int) -> None:
    rng = default_rng(seed)
    builder = GraphBuilder("forward")
    count = int(rng.integers(1, 14))
    for op in range(count):
        builder.add_operator(f"o{op}", flop=1.0)
        tensor = builder.add_tensor(op, 1.0)
        for later in range(op + 1, count):
            if rng.random() < 0.15:
                builder.add_use(tensor, later)
    problem = problem_of(builder.build())
    arcs = {(u, v) for u, v, _ in problem.graph.edges.tolist()}
    group = list(range(count))
    for u, v in arcs:
        if sum(a == u for a, _ in arcs) == 1 and sum(b == v for _, b in arcs) == 1:
            group = [group[u] if g == group[v] else g for g in group]
    fusion = fuse_chains(problem)
    pairs = np.equal.outer(group, group)
    assert_array_equal(np.equal.outer(fusion.group, fusion.group), pairs)
    assert fusion.num_groups == len(set(group))


def test_all_micro_batches_and_both_passes_follow_a_chain() -> None:
    graph = training_graph(layers=3, width=2, micro_batches=2, tied=False)
    fusion = fuse_chains(problem_of(graph))
    group = dict(zip(graph.op_names, fusion.group.tolist(), strict=True))
    for layer in range(3):
        names = (f"f0.{layer}.0", f"f1.{layer}.0", f"b0.{layer}.0", f"b1.{layer}.0", f"u{layer}")
        assert len({group[name] for name in names}) == 1


def test_backward_update_and_other_micro_batches_follow_the_forward_template() -> None:
    graph = training_graph(layers=6, width=4, micro_batches=3, tied=False)
    fusion = fuse(problem_of(graph), 3)
    group = dict(zip(graph.op_names, fusion.group.tolist(), strict=True))
    assert fusion.num_groups == 3
    for layer in range(6):
        for i in range(4):
            places = {group[f"{way}{m}.{layer}.{i}"] for way in "fb" for m in range(3)}
            assert len(places) == 1 or i % 2 == 1  # every other backward operator has no mirror
            assert len({group[f"f{m}.{layer}.{i}"] for m in range(3)}) == 1
            assert len({group[f"b{m}.{layer}.{i}"] for m in range(3)}) == 1
        assert group[f"u{layer}"] == group[f"f0.{layer}.0"]


def test_a_chain_fuses_into_balanced_stages_with_one_piece_per_phase_and_micro_batch() -> None:
    graph = training_graph(layers=8, width=3, micro_batches=2, tied=False)
    problem = replace(problem_of(graph), orders=("one_f_one_b",))
    fusion = fuse(problem, 4)
    assert fusion.graph.num_operators == 4 * (2 + 2 + 1)
    compute = np.bincount(fusion.group, weights=graph.flop)
    assert compute.max() <= 2 * graph.flop.sum() / 4
    assert fusion.graph.phase[fusion.graph.mirror[fusion.graph.mirror != NONE]].max() == 0
    assert_array_equal(np.unique(fusion.graph.micro_batch), [NONE, 0, 1])


def test_tied_weights_stay_one_group_and_do_not_swallow_the_graph() -> None:
    graph = training_graph(layers=12, width=4, micro_batches=2, tied=True)
    fusion = fuse(problem_of(graph), 6)
    assert fusion.num_groups == 6
    tied = fusion.group[graph.op_names.index("f0.0.0")]
    assert tied == fusion.group[graph.op_names.index("f0.11.0")]
    assert (fusion.group == tied).sum() < graph.num_operators / 2
    updates = fusion.graph.phase == Phase.OPTIMIZER
    assert np.bincount(fusion.piece_group[updates]).max() == 1


def test_tensors_inside_a_piece_vanish_and_parallel_ones_add_up() -> None:
    builder = GraphBuilder("two")
    a, b, c = (builder.add_operator(name, flop=1.0) for name in "abc")
    for nbytes, consumer in ((1.0, b), (2.0, c), (4.0, c)):
        builder.add_use(builder.add_tensor(a, nbytes), consumer)
    fusion = contract(builder.build(), np.array([0, 0, 1]))
    assert fusion.graph.tensor_bytes.tolist() == [6.0]
    assert fusion.tensor.tolist() == [NONE, 0, 0]
    assert fusion.graph.kind.tolist() == [Kind.FUSED, Kind.OTHER]


def test_a_device_that_cannot_run_a_member_cannot_run_the_piece() -> None:
    graph = training_graph(layers=2, width=2, micro_batches=1, tied=False)
    problem = problem_of(graph)
    problem.op_seconds[0, 1] = np.inf
    fusion = fuse(problem, 2)
    blocked = np.isinf(fused_problem(problem, fusion).op_seconds)
    assert blocked.sum() == 1
    assert blocked[fusion.piece[0], 1]


@pytest.mark.parametrize("max_groups", [1, 16, 64])
def test_colour_classes_across_forward_and_backward_do_not_collapse_a_published_graph(
    data: Path, max_groups: int
) -> None:
    folder = data / "graphs" / "dnn-partitioning" / "throughput-inputs" / "OperatorGraphs"
    stored = read_graph_file(folder / "bert_l-6_training.json.gz")
    assert stored.topology is not None
    problem = StepProblem.build(stored.graph, stored.topology, TabulatedCost())
    fusion = fuse(problem, max_groups)
    assert fusion.num_groups == max_groups
    assert np.bincount(fusion.group).max() < stored.graph.num_operators / 4 or max_groups == 1
    assert fusion.graph.num_operators < 4 * max_groups
    assert_conserved(problem, fusion.graph, fused_problem(problem, fusion))


def test_fewer_than_one_group_is_an_input_error() -> None:
    problem = problem_of(training_graph(layers=2, width=2, micro_batches=1, tied=False))
    with refusal("max_groups"):
        fuse(problem, 0)


@pytest.mark.slow
def test_a_step_of_twenty_thousand_operators_contracts_to_the_groups_asked_for() -> None:
    graph = training_graph(layers=24, width=52, micro_batches=8, tied=True)
    assert graph.num_operators > 19_000
    problem = problem_of(graph)
    fusion = fuse(problem, 64)
    assert fusion.num_groups == 64
    assert fusion.graph.num_operators < 2_500
    contracted = contract(graph, fusion.group).graph
    assert contracted.flop.sum() == pytest.approx(graph.flop.sum(), rel=1e-12)
