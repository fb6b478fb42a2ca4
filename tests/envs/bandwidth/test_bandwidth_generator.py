"""Random placed steps are feasible pipelines."""

from __future__ import annotations

import numpy as np
import pytest

from envs.bandwidth.generator import SyntheticSteps, default_generator
from envs.bandwidth.phases import WholeStep
from envs.cost.roofline import RooflineCost
from envs.errors import InputError
from envs.hardware.builders import single_server
from envs.hardware.servers import PcieServer

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
    with pytest.raises(InputError, match="no network to share"):
        SyntheticSteps(lonely, RooflineCost(), WholeStep())
    with pytest.raises(InputError, match="max_groups"):
        SyntheticSteps(default_generator().topology, RooflineCost(), WholeStep(), max_groups=3)
