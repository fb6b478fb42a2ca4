"""The kernel starts operators when `ReadySimulator` does."""

from __future__ import annotations

import numpy as np
import pytest

from envs.cost.roofline import RooflineCost
from envs.graphs.synthetic import synthetic_training_graph
from envs.hardware.topology import Topology
from envs.joint.generator import default_generator as two_planes
from envs.placement.generator import default_generator as mixed
from envs.step.problem import StepProblem
from envs.step.ready import ReadySimulator
from envs.step.runtime_starts import runtime_starts
from envs.step.step import NO_COMMUNICATION, SINGLE_PORT, Ports, StepSimulator, use_order


@pytest.mark.parametrize("topology", [two_planes().topology, mixed().topology])
@pytest.mark.parametrize("ports", [SINGLE_PORT, NO_COMMUNICATION])
def test_operators_start_when_the_event_queue_starts_them(topology: Topology, ports: Ports) -> None:
    rng = np.random.default_rng(0)
    for _ in range(12):
        layers, width, batches = (int(rng.integers(1, top)) for top in (8, 4, 5))
        graph = synthetic_training_graph(rng, layers, width, batches)
        problem = StepProblem.build(graph, topology, RooflineCost())
        simulator = StepSimulator(problem, communication=ports)
        ready = ReadySimulator(problem, communication=ports)
        for _ in range(4):
            device = rng.integers(0, topology.num_devices, graph.num_operators)
            order = simulator.order(device)
            work = simulator.scratch
            work.order[:] = order
            use_order(simulator.arrays, work)
            start = np.full(len(order), np.nan)
            num_ports = topology.num_ports if ports.uses_ports else 0
            runtime_starts(simulator.arrays, work, num_ports, device, start)
            np.testing.assert_array_equal(start, ready.run(device, order).op_start[order])
