"""`OpGraph` and `GraphBuilder`: what they accept, and how they name what they do not."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest

from envs.graphs.builder import GraphBuilder
from envs.graphs.op_graph import NONE, OpGraph
from tests.refusal import refusal


def diamond_graph() -> OpGraph:
    """a -> b, c -> d: a's one tensor is read twice; b and c share a group."""
    builder = GraphBuilder("diamond")
    groups = {"b": 5, "c": 5}
    a, b, c, d = (
        builder.add_operator(name, flop=1.0, colocation=groups.get(name, NONE)) for name in "abcd"
    )
    shared = builder.add_tensor(a, 8.0)
    builder.add_use(shared, b)
    builder.add_use(shared, c)
    for producer in (b, c):
        builder.add_use(builder.add_tensor(producer, 4.0), d)
    builder.add_parameter("w", b, parameter=1.0, gradient=2.0, optimizer=3.0)
    builder.add_parameter("v", b, parameter=10.0, gradient=0.0, optimizer=0.0)
    return builder.build()


def test_a_tensor_read_twice_is_one_tensor() -> None:
    graph = diamond_graph()
    assert graph.num_tensors == 3
    assert graph.consumers(0).tolist() == [1, 2]
    assert graph.edges.tolist() == [[0, 1, 0], [0, 2, 0], [1, 3, 1], [2, 3, 2]]


def test_networkx_gets_every_use_with_its_bytes() -> None:
    made = diamond_graph().to_networkx()
    assert list(made.nodes) == ["a", "b", "c", "d"]
    assert [(u, v, d["tensor"], d["bytes"]) for u, v, d in made.edges(data=True)] == [
        ("a", "b", 0, 8.0),
        ("a", "c", 0, 8.0),
        ("b", "d", 1, 4.0),
        ("c", "d", 2, 4.0),
    ]
    b = made.nodes["b"]
    assert (b["flop"], b["state_bytes"], b["colocation"], b["phase"]) == (1.0, 16.0, 0, "forward")


def test_state_is_summed_over_the_parameters_of_an_operator() -> None:
    assert diamond_graph().state_bytes.tolist() == [0.0, 16.0, 0.0, 0.0]


def test_colocation_groups_are_renumbered_from_zero() -> None:
    assert diamond_graph().colocation.tolist() == [NONE, 0, 0, NONE]


def test_output_rows_list_the_tensors_of_each_operator() -> None:
    graph = diamond_graph()
    rows = [graph.output[i:j].tolist() for i, j in pairwise(graph.output_ptr)]
    assert rows == [[0], [1], [2], []]


def test_the_builder_sorts_operators_given_backwards() -> None:
    builder = GraphBuilder("reverse")
    last, first = builder.add_operator("last", mirror=1), builder.add_operator("first")
    builder.add_use(builder.add_tensor(first, 1.0), last)
    graph = builder.build()
    assert graph.op_names == ("first", "last")
    assert graph.mirror.tolist() == [NONE, 0]


def test_a_cycle_is_refused_by_name() -> None:
    builder = GraphBuilder("loop")
    a, b = builder.add_operator("a"), builder.add_operator("b")
    builder.add_use(builder.add_tensor(a, 1.0), b)
    builder.add_use(builder.add_tensor(b, 1.0), a)
    with refusal(r"graph loop: record a: field 'edges'.*cycle"):
        builder.build()


def test_an_operator_that_reads_its_own_output_is_a_cycle() -> None:
    builder = GraphBuilder("loop")
    a = builder.add_operator("a")
    builder.add_use(builder.add_tensor(a, 1.0), a)
    with refusal("cycle"):
        builder.build()


@pytest.mark.parametrize("what", ["operator", "parameter"])
def test_a_duplicate_identifier_is_refused_by_name(what: str) -> None:
    builder = GraphBuilder("twice")
    for index in range(2):
        builder.add_operator("x" if what == "operator" else f"x{index}")
        name = "w" if what == "parameter" else f"w{index}"
        builder.add_parameter(name, index, parameter=1.0, gradient=0.0, optimizer=0.0)
    record = "x" if what == "operator" else "w"
    with refusal(f"record {record}: field 'id': {what}.*stands twice"):
        builder.build()


@pytest.mark.parametrize("column", ["flop", "bytes_read", "bytes_written"])
@pytest.mark.parametrize("value", [-1.0, np.nan, np.inf])
def test_a_bad_operator_cost_is_refused_by_name(column: str, value: float) -> None:
    with refusal(f"record c: field '{column}'.*negative or not finite"):
        replace(diamond_graph(), **{column: np.array([0.0, 0.0, value, 0.0])})


@pytest.mark.parametrize("column", ["parameter_bytes", "gradient_bytes", "optimizer_bytes"])
def test_a_negative_parameter_size_is_refused_by_name(column: str) -> None:
    with refusal(f"graph diamond: record v: field '{column}'"):
        replace(diamond_graph(), **{column: np.array([0.0, -1.0])})


@pytest.mark.parametrize(
    ("column", "values", "record"),
    [
        ("kind", [0, 99, 0, 0], "1"),
        ("phase", [0, 0, 0, 3], "3"),
        ("micro_batch", [0, -2, 0, 0], "1"),
        ("op_dtype", [-1, 0, 0, 0], "0"),
        ("mirror", [0, 0, 4, 0], "2"),
        ("colocation", [0, 0, 0, -2], "3"),
        ("producer", [0, 7, 2], "1"),
        ("consumer", [1, 2, 3, 9], "3"),
        ("parameter_owner", [0, 4], "1"),
    ],
)
def test_an_index_out_of_range_is_refused_by_name(
    column: str, values: list[int], record: str
) -> None:
    with refusal(f"record {record}: field '{column}'.*out of range"):
        replace(diamond_graph(), **{column: np.array(values)})


@pytest.mark.parametrize("column", ["kind", "flop", "tensor_bytes", "consumer_ptr", "mirror"])
def test_a_column_of_the_wrong_length_is_refused_by_name(column: str) -> None:
    graph = diamond_graph()
    with refusal(f"field '{column}': has .* entries, not"):
        replace(graph, **{column: getattr(graph, column)[:-1]})


def test_a_consumer_before_its_producer_is_refused_by_name() -> None:
    with refusal(r"'a' reads from 'b'.*topological order"):
        replace(diamond_graph(), consumer=np.array([1, 2, 0, 3]))


def test_consumers_that_repeat_are_refused() -> None:
    with refusal("ascend without repetition"):
        replace(diamond_graph(), consumer=np.array([2, 2, 3, 3]))


def test_a_broken_row_pointer_is_refused() -> None:
    with refusal("field 'consumer_ptr': is not a row pointer"):
        replace(diamond_graph(), consumer_ptr=np.array([0, 3, 2, 4]))


@pytest.mark.parametrize("value", [-1.0, np.nan])
def test_a_missing_time_in_a_table_is_refused_by_row(value: float) -> None:
    table = np.ones((4, 1))
    table[2] = value
    with refusal("record 2: field 'profile_seconds': is negative or missing"):
        replace(diamond_graph(), profile_classes=("gpu",), profile_seconds=table)


def test_a_table_of_the_wrong_shape_is_refused() -> None:
    with refusal(r"field 'link_seconds': has shape \(2, 1\), not \(3, 1\)"):
        replace(diamond_graph(), link_classes=("far",), link_seconds=np.ones((2, 1)))


def test_an_infinite_time_means_unsupported_and_is_accepted() -> None:
    graph = replace(
        diamond_graph(), profile_classes=("gpu",), profile_seconds=np.full((4, 1), np.inf)
    )
    assert np.isinf(graph.profile_seconds).all()
