"""Hosts, messages and cycles."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import networkx as nx
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from envs.graphs.op_graph import NONE
from envs.hardware.devices import device_spec
from envs.partition.problem import HostTraffic, cycle, host_of
from tests.agents.partition.dp_graphs import host_topology, published, small_problem, spec
from tests.refusal import refusal


@pytest.mark.parametrize(
    ("name", "host"),
    [("cpu", 1), ("CPU", 1), ("CPU-avx512", 1), ("cpu_2", 1), ("CPUlike", NONE), ("A100", NONE)],
)
def test_a_cpu_is_known_by_its_datasheet(name: str, host: int) -> None:
    topology = host_topology(2, 1.0, host=False)
    assert host_of(topology) == NONE
    devices = list(topology.devices)
    devices[1] = replace(devices[1], spec=spec(name, 1.0))
    assert host_of(replace(topology, devices=tuple(devices))) == host


def test_two_cpus_are_refused_by_name() -> None:
    topology = host_topology(3, 1.0)
    devices = [replace(d, spec=device_spec("CPU")) for d in topology.devices[1:3]]
    two = replace(topology, devices=(topology.devices[0], *devices, topology.devices[3]))
    with refusal(r"has 3 CPUs \(accelerator1, accelerator2, cpu\)"):
        host_of(two)


@given(
    st.integers(1, 7),
    st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=14),
)
def test_a_cycle_is_found_where_there_is_one(size: int, pairs: list[tuple[int, int]]) -> None:
    arcs = np.array([p for p in pairs if max(p) < size], dtype=np.int64).reshape(-1, 2)
    found = cycle(arcs)
    graph = nx.DiGraph([(u, v) for u, v in arcs.tolist() if u != v])
    assert bool(found) == (not nx.is_directed_acyclic_graph(graph))
    known = {(u, v) for u, v in arcs.tolist()}
    for u, v in zip(found, [*found[1:], *found[:1]], strict=True):
        assert (u, v) in known


def test_outputs_of_one_time_are_one_message_however_much_is_read(data: Path) -> None:
    step = published(data, "throughput", "LayerGraphs/bert24_training")
    traffic = HostTraffic.of(step, host_of(step.topology))
    assert step.graph.num_tensors == traffic.num_messages + 2  # two nodes with edges of two sizes
    assert len(set(traffic.producer.tolist())) == traffic.num_messages
    assert (traffic.seconds[:, host_of(step.topology)] == 0.0).all()
    edges = {(u, v) for u, v, _ in step.graph.edges.tolist()}
    uses = traffic.uses()
    assert {(int(traffic.producer[m]), v) for m, v in uses.tolist()} == edges


def test_tensors_of_a_measured_graph_are_never_merged() -> None:
    step = small_problem(5)
    graph = replace(step.graph, link_classes=(), link_seconds=np.zeros((0, 0)))
    step = replace(step, graph=graph)
    traffic = HostTraffic.of(step, NONE)
    assert traffic.num_messages == graph.num_tensors
    assert_array_equal(traffic.producer, graph.producer)
    assert_array_equal(traffic.consumer_ptr, graph.consumer_ptr)
    assert_array_equal(traffic.consumer, graph.consumer)
