"""The roofline, against numbers worked out by hand."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from envs.cost import RooflineCost, TabulatedCost
from envs.graphs.builder import GraphBuilder
from envs.graphs.op_graph import OpGraph
from envs.hardware.builders import single_server
from envs.hardware.devices import CATALOGUE, Device, DeviceSpec
from envs.hardware.servers import PcieServer
from envs.hardware.topology import Topology
from envs.step.problem import StepProblem
from tests.refusal import refusal

ROUND = DeviceSpec(
    name="round",
    peak_flops={"float32": 10e12, "float16": 80e12},
    memory_bandwidth=1e12,
    memory_bytes=16e9,
    launch_overhead_s=5e-6,
    compute_efficiency=0.5,
    memory_efficiency=0.8,
    source="made up",
)
SLOW = DeviceSpec("slow", {"float32": 1e12, "tfloat32": 2e12}, 1e11, 8e9, 1e-6, 1.0, 1.0, "made up")


def pair() -> Topology:
    """The two devices with one link class: 10 us, 2 GB/s."""
    return Topology(
        name="pair",
        devices=(Device("a", ROUND, 0), Device("b", SLOW, 0)),
        link_class=np.array([[0, 1], [1, 0]]),
        class_names=("same device", "wire"),
        class_latency=np.array([0.0, 10e-6]),
        class_bandwidth=np.array([np.inf, 2e9]),
        send_port=np.array([[-1, 0], [2, -1]]),
        receive_port=np.array([[-1, 3], [1, -1]]),
        port_names=("a send", "a receive", "b send", "b receive"),
    )


def one(
    flop: float = 0.0, read: float = 0.0, written: float = 0.0, dtype: str = "float32"
) -> OpGraph:
    builder = GraphBuilder("one")
    builder.add_operator("op", flop=flop, bytes_read=read, bytes_written=written, dtype=dtype)
    return builder.build()


def seconds(graph: OpGraph) -> list[float]:
    values: list[float] = RooflineCost().operator_seconds(graph, pair())[0].tolist()
    return values


def test_a_compute_bound_operator_takes_its_flop() -> None:
    # 5e9 / (10e12 x 0.5) = 1 ms, and 5 ms on the slow one; memory would take microseconds
    assert seconds(one(flop=5e9, read=1e6)) == pytest.approx([1e-3 + 5e-6, 5e-3 + 1e-6])


def test_a_memory_bound_operator_takes_its_bytes_read_and_written() -> None:
    # 8e8 / (1e12 x 0.8) = 1 ms; 8e8 / 1e11 = 8 ms
    assert seconds(one(flop=1e6, read=5e8, written=3e8)) == pytest.approx(
        [1e-3 + 5e-6, 8e-3 + 1e-6]
    )


def test_one_operator_may_be_bound_differently_on_two_devices() -> None:
    # round: 2e9 / 5e12 = 0.4 ms of FLOP, 4e8 / 8e11 = 0.5 ms of bytes
    # slow:  2e9 / 1e12 = 2 ms of FLOP,   4e8 / 1e11 = 4 ms of bytes
    assert seconds(one(flop=2e9, read=4e8)) == pytest.approx([5e-4 + 5e-6, 4e-3 + 1e-6])


def test_an_operator_that_does_nothing_costs_nothing() -> None:
    assert seconds(one()) == [0.0, 0.0]


def test_half_precision_has_its_own_peak() -> None:
    wire = {"medium": "wire", "bandwidth": "1GB/s", "latency": "1us"}
    topology = single_server("s", PcieServer("V100-16GB", 1, wire))
    cost = RooflineCost()
    single = cost.operator_seconds(one(flop=1e12), topology)[0, 0]
    half = cost.operator_seconds(one(flop=1e12, dtype="float16"), topology)[0, 0]
    spec = CATALOGUE["V100-16GB"]
    assert single == pytest.approx(1 / (15.7 * spec.compute_efficiency) + spec.launch_overhead_s)
    assert half == pytest.approx(1 / (125 * spec.compute_efficiency) + spec.launch_overhead_s)


@pytest.mark.parametrize("dtype", ["int64", "int32", "bool", "uint8"])
def test_integers_and_booleans_are_bound_by_memory_alone(dtype: str) -> None:
    assert seconds(one(flop=1e15, read=8e8, dtype=dtype)) == pytest.approx(
        [1e-3 + 5e-6, 8e-3 + 1e-6]
    )


def test_a_type_without_a_rate_is_refused_by_device_and_dtype() -> None:
    with refusal(r"record op.*device slow has no float16 rate \(it has: float32\)"):
        seconds(one(flop=1.0, dtype="float16"))


def test_moving_a_type_without_a_rate_is_allowed() -> None:
    assert seconds(one(read=8e8, dtype="bfloat16")) == pytest.approx([1e-3 + 5e-6, 8e-3 + 1e-6])


def chain(*sizes: float) -> OpGraph:
    builder = GraphBuilder("chain")
    for number, size in enumerate(sizes):
        source = builder.add_operator(f"out{number}", flop=1.0)
        builder.add_use(builder.add_tensor(source, size), builder.add_operator(f"in{number}"))
    return builder.build()


def test_a_transfer_takes_latency_and_its_bytes() -> None:
    transfer = RooflineCost().transfer_seconds(chain(2e6, 4.0), pair())
    assert transfer.shape == (2, 2)
    assert transfer[:, 1] == pytest.approx([10e-6 + 1e-3, 10e-6 + 2e-9])
    assert (transfer[:, 0] == 0).all()


def test_a_tensor_without_bytes_travels_for_free() -> None:
    assert (RooflineCost().transfer_seconds(chain(0.0), pair()) == 0).all()


def test_a_problem_is_built_from_it() -> None:
    problem = StepProblem.build(chain(8.0), pair(), RooflineCost())
    assert problem.op_seconds.shape == (2, 2)
    assert problem.op_seconds.flags.c_contiguous
    assert problem.capacity.tolist() == [16e9, 8e9]


@given(
    flop=st.floats(0, 1e15), read=st.floats(0, 1e12), written=st.floats(0, 1e12),
    dtype=st.sampled_from(["float32", "float64"]), kind=st.sampled_from(sorted(CATALOGUE)),
)  # fmt: skip
def test_more_work_never_takes_less_time(
    flop: float, read: float, written: float, dtype: str, kind: str
) -> None:
    spec = CATALOGUE[kind]
    alone = Topology(
        "alone", (Device("d", spec, 0),), np.zeros((1, 1), dtype=np.int64), ("same device",),
        np.zeros(1), np.array([np.inf]), -np.ones((1, 1), dtype=np.int64),
        -np.ones((1, 1), dtype=np.int64), (),
    )  # fmt: skip

    def time(work: float) -> float:
        graph = one(flop * work, read * work, written * work, dtype)
        return float(RooflineCost().operator_seconds(graph, alone)[0, 0])

    assert 0 <= time(1.0) <= time(2.0)
    peak = spec.peak_flops[dtype]
    assert time(1.0) >= max(flop / peak, (read + written) / spec.memory_bandwidth)


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
    with refusal(r"record d1: field 'spec': 'tpu' is not among.*cpu, gpu"):
        TabulatedCost().operator_seconds(graph(), topology("cpu", "tpu"))


def test_a_graph_without_a_profile_is_named() -> None:
    bare = replace(graph(), profile_classes=(), profile_seconds=np.zeros((0, 0)))
    with refusal("graph g: has no measured operator times"):
        TabulatedCost().operator_seconds(bare, topology("cpu"))


def test_a_link_class_that_was_not_measured_is_named() -> None:
    with refusal(r"field 'class_names': link class 'near'.*far, same"):
        TabulatedCost().transfer_seconds(graph(), topology("cpu", classes=("same", "near")))
