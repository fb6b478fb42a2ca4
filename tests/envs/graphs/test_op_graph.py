"""`OpGraph` and `GraphBuilder`: what they accept, and how they name what they do not."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

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
    builder.add_parameter("v", b, parameter=10.0)
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


@pytest.mark.parametrize("ends", [[(0, 1), (1, 0)], [(0, 0)]])
def test_a_cycle_is_refused_by_name(ends: list[tuple[int, int]]) -> None:
    builder = GraphBuilder("loop")
    for name in "ab":
        builder.add_operator(name)
    for source, target in ends:
        builder.add_use(builder.add_tensor(source, 1.0), target)
    with refusal(r"graph loop: record a: field 'edges'.*cycle"):
        builder.build()


@pytest.mark.parametrize("what", ["operator", "parameter"])
def test_a_duplicate_identifier_is_refused_by_name(what: str) -> None:
    builder = GraphBuilder("twice")
    for index in range(2):
        builder.add_operator("x" if what == "operator" else f"x{index}")
        name = "w" if what == "parameter" else f"w{index}"
        builder.add_parameter(name, index, parameter=1.0)
    record = "x" if what == "operator" else "w"
    with refusal(f"record {record}: field 'id': {what}.*stands twice"):
        builder.build()


@pytest.mark.parametrize(
    ("column", "values", "fault"),
    [
        *((column, [0.0, 0.0, value, 0.0], f"record c: field '{column}'.*negative or not finite")
          for column in ("flop", "bytes_read", "bytes_written")
          for value in (-1.0, np.nan, np.inf)),
        *((column, [0.0, -1.0], f"graph diamond: record v: field '{column}'")
          for column in ("parameter_bytes", "gradient_bytes", "optimizer_bytes")),
        ("kind", [0, 99, 0, 0], "record 1: field 'kind'.*out of range"),
        ("phase", [0, 0, 0, 3], "record 3: field 'phase'.*out of range"),
        ("micro_batch", [0, -2, 0, 0], "record 1: field 'micro_batch'.*out of range"),
        ("op_dtype", [-1, 0, 0, 0], "record 0: field 'op_dtype'.*out of range"),
        ("mirror", [0, 0, 4, 0], "record 2: field 'mirror'.*out of range"),
        ("colocation", [0, 0, 0, -2], "record 3: field 'colocation'.*out of range"),
        ("producer", [0, 7, 2], "record 1: field 'producer'.*out of range"),
        ("consumer", [1, 2, 3, 9], "record 3: field 'consumer'.*out of range"),
        ("parameter_owner", [0, 4], "record 1: field 'parameter_owner'.*out of range"),
        ("kind", [0, 0, 0], "field 'kind': has .* entries, not"),
        ("flop", [1.0, 1.0, 1.0], "field 'flop': has .* entries, not"),
        ("tensor_bytes", [8.0, 4.0], "field 'tensor_bytes': has .* entries, not"),
        ("consumer_ptr", [0, 2, 3], "field 'consumer_ptr': has .* entries, not"),
        ("mirror", [-1, -1, -1], "field 'mirror': has .* entries, not"),
        ("consumer", [1, 2, 0, 3], "'a' reads from 'b'.*topological order"),
        ("consumer", [2, 2, 3, 3], "ascend without repetition"),
        ("consumer_ptr", [0, 3, 2, 4], "field 'consumer_ptr': is not a row pointer"),
        *(("profile_seconds", [[1.0], [1.0], [value], [1.0]],
           "record 2: field 'profile_seconds': is negative or missing")
          for value in (-1.0, np.nan)),
        ("link_seconds", [[1.0], [1.0]], r"'link_seconds': has shape \(2, 1\), not \(3, 1\)"),
    ],
)  # fmt: skip
def test_a_faulty_column_is_refused_by_name(column: str, values: list[Any], fault: str) -> None:
    one = ("one",)
    graph = replace(
        diamond_graph(), profile_classes=one, profile_seconds=np.ones((4, 1)), link_classes=one,
        link_seconds=np.ones((3, 1)),
    )  # fmt: skip
    with refusal(fault):
        replace(graph, **{column: np.array(values)})


def test_an_infinite_time_means_unsupported_and_is_accepted() -> None:
    graph = replace(
        diamond_graph(), profile_classes=("gpu",), profile_seconds=np.full((4, 1), np.inf)
    )
    assert np.isinf(graph.profile_seconds).all()
