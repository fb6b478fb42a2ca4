"""Four servers whose shares can be worked out by hand, and a step played by the rule."""

import numpy as np

from envs.hardware.builders import planes
from envs.hardware.servers import PcieServer
from envs.joint.generator import toy_stages
from envs.step.allocated import Allocated
from examples.extend.rate_rule.neighbours_first import neighbours_first

LINK = {"medium": "Ethernet", "bandwidth": "25Gbps", "latency": "5us"}
PCIE = {"medium": "PCIe", "bandwidth": "16GB/s", "latency": "2us"}


def test_the_next_server_gets_three_times_the_rate_of_the_one_after_it() -> None:
    network = planes("four", PcieServer("V100-16GB", 1, PCIE), 4, LINK).network
    allocation = neighbours_first(network)
    assert allocation.violations(network) == []
    pipes = allocation.pipes(network)  # (S, S) bytes/s
    np.testing.assert_allclose(pipes[0, 1], 3 * pipes[0, 2])


def test_a_step_is_played_by_the_rule() -> None:
    problem = toy_stages()
    simulator = Allocated(allocation=neighbours_first).simulator(problem)
    device = np.zeros(problem.graph.num_operators, np.int64)
    assert simulator.step_time(device) > 0.0
