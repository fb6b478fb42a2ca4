"""The traffic of a step is what its simulation moves."""

from __future__ import annotations

import numpy as np
import pytest

from envs.bandwidth.generator import default_generator
from envs.bandwidth.toy import SERIAL, TOGETHER, toy_sends
from envs.bandwidth.traffic import phase_traffic
from envs.step.phased import PhasedSimulator


def test_the_toys_traffic_is_its_sends() -> None:
    problem, plan, cut = toy_sends()
    traffic = phase_traffic(problem, plan, cut(problem, plan))
    assert traffic.volume[:, 1:4].tolist() == [list(SERIAL), list(TOGETHER)]
    assert traffic.count[:, 1:4].tolist() == [[1, 1, 1], [1, 1, 1]]
    assert not traffic.volume[:, 4:].any()
    assert not traffic.volume[:, 0].any()


@pytest.mark.parametrize("seed", range(4))
def test_the_traffic_is_what_the_simulators_move(seed: int) -> None:
    instance = default_generator()(np.random.default_rng(seed))
    timeline, topology = instance.uniform, instance.problem.topology
    servers, server = topology.num_servers, topology.server
    source, target = timeline.transfer_source, timeline.transfer_destination
    pipe = (server[source] * servers + server[target])[timeline.transfer_finish > 0]
    moved = np.bincount(pipe, minlength=servers * servers)
    moved[:: servers + 1] = 0  # inside a server
    np.testing.assert_array_equal(instance.traffic.count.sum(axis=0), moved)
    plan = instance.plan
    step = PhasedSimulator(instance.problem).begin(
        plan.placement.device, plan.order, instance.begins
    )
    np.testing.assert_allclose(
        instance.traffic.volume, step.traffic.reshape(instance.num_phases, -1), rtol=1e-9
    )
