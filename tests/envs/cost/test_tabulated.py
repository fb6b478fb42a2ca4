"""`TabulatedCost`: the graph's own table, for the topology's devices and links."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from envs.cost.tabulated import TabulatedCost
from envs.errors import InputError
from envs.graphs.builder import GraphBuilder
from envs.graphs.op_graph import OpGraph
from envs.hardware.devices import Device, DeviceSpec
from envs.hardware.topology import Topology
from envs.step.problem import StepProblem


def device(name: str, kind: str) -> Device:
    return Device(name, DeviceSpec(kind, {}, 0.0, 1e9, 0.0, 1.0, 1.0, "test"), server=0)


def topology(*kinds: str, classes: tuple[str, ...] = ("same", "far")) -> Topology:
    d = len(kinds)
    return Topology(
        name="pair",
        devices=tuple(device(f"d{i}", kind) for i, kind in enumerate(kinds)),
        link_class=(1 - np.eye(d)).astype(np.int64),
        class_names=classes,
        class_latency=np.array([0.0, 0.5]),
        class_bandwidth=np.array([np.inf, 4.0]),
        send_port=np.zeros((d, d), dtype=np.int64),
        receive_port=np.ones((d, d), dtype=np.int64),
        port_names=("send", "receive"),
    )


def graph() -> OpGraph:
    builder = GraphBuilder("g", profile_classes=("cpu", "gpu"), link_classes=("far", "same"))
    a = builder.add_operator("a", profile=(10.0, 1.0))
    b = builder.add_operator("b", profile=(20.0, np.inf))
    builder.add_use(builder.add_tensor(a, 8.0, link=(3.0, 0.0)), b)
    return builder.build()


def test_devices_take_the_column_of_their_class() -> None:
    seconds = TabulatedCost().operator_seconds(graph(), topology("gpu", "cpu", "gpu"))
    assert seconds.tolist() == [[1.0, 10.0, 1.0], [np.inf, 20.0, np.inf]]


def test_link_classes_are_matched_by_name() -> None:
    assert TabulatedCost().transfer_seconds(graph(), topology("gpu", "cpu")).tolist() == [
        [0.0, 3.0]
    ]


def test_without_a_link_table_bytes_over_bandwidth_count() -> None:
    bare = replace(graph(), link_classes=(), link_seconds=np.zeros((0, 0)))
    assert TabulatedCost().transfer_seconds(bare, topology("gpu", "cpu")).tolist() == [[0.0, 2.5]]


def test_it_makes_a_problem() -> None:
    problem = StepProblem.build(graph(), topology("gpu", "cpu"), TabulatedCost())
    assert problem.op_seconds.shape == (2, 2)
    assert problem.op_seconds.flags.c_contiguous
    assert problem.transfer_seconds.flags.c_contiguous


def test_a_device_that_was_not_measured_is_named() -> None:
    with pytest.raises(InputError, match=r"record d1: field 'spec': 'tpu' is not among.*cpu, gpu"):
        TabulatedCost().operator_seconds(graph(), topology("cpu", "tpu"))


def test_a_graph_without_a_profile_is_named() -> None:
    bare = replace(graph(), profile_classes=(), profile_seconds=np.zeros((0, 0)))
    with pytest.raises(InputError, match="graph g: has no measured operator times"):
        TabulatedCost().operator_seconds(bare, topology("cpu"))


def test_a_link_class_that_was_not_measured_is_named() -> None:
    with pytest.raises(InputError, match=r"field 'class_names': link class 'near'.*far, same"):
        TabulatedCost().transfer_seconds(graph(), topology("cpu", classes=("same", "near")))
