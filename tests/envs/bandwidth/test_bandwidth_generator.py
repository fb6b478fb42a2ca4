"""Random placed steps are feasible pipelines."""

from __future__ import annotations

import numpy as np
import pytest

from envs.bandwidth.generator import (
    SERIAL,
    TOGETHER,
    FixedCut,
    SyntheticSteps,
    default_generator,
    toy_sends,
)
from envs.bandwidth.types import phase_traffic
from envs.cost import RooflineCost
from envs.hardware.builders import single_server
from envs.hardware.servers import PcieServer
from envs.step.phased import PhasedSimulator
from tests.refusal import refusal

PCIE = {"medium": "PCIe", "bandwidth": "16GB/s", "latency": "2us"}


def test_plans_are_feasible_and_use_all_devices() -> None:
    generator, seen = default_generator(), set()
    for seed in range(6):
        instance = generator(np.random.default_rng(seed))
        assert instance.plan.violations(instance.problem) == []
        device = instance.plan.placement.device
        assert set(device) == set(range(4))
        assert instance.num_phases <= generator.bounds.phases
        assert (np.diff(instance.begins) > 0).all()
        assert instance.uniform_phase_s.sum() == pytest.approx(instance.uniform.step_time)
        seen.add((len(device), *device[:8]))
    assert len(seen) > 1


def test_what_cannot_be_shared_is_refused() -> None:
    lonely = single_server("one", PcieServer("V100-16GB", 2, PCIE))
    with refusal("no network to share"):
        SyntheticSteps(lonely, RooflineCost(), FixedCut((0,)))
    with refusal("max_groups"):
        SyntheticSteps(default_generator().topology, RooflineCost(), FixedCut((0,)), max_groups=3)


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
