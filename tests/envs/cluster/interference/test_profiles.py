"""Profiles: their file, and where its numbers come from."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from zoo_profiles import GPUS, input_bytes, zoo_profile

from envs.cluster.interference.profiles import Profiles
from envs.graphs.zoo_models import zoo_model
from envs.hardware.devices import CATALOGUE
from tests.paths import CONF
from tests.refusal import refusal

FILE = CONF / "interference/profiles/zoo.yaml"


def shipped() -> Profiles:
    return Profiles(yaml.safe_load(FILE.read_text())["jobs"])


def section(**changes: Any) -> dict[str, Any]:
    good = {
        "gradients": "1MB", "input": "10kB", "busy": 0.5, "least_gpus": 1, "most_gpus": 8,
        "step": {"T4": "2ms"},
    }  # fmt: skip
    return {"net": {k: v for k, v in {**good, **changes}.items() if v is not None}}


# The profile of resnet50 has both gradients of a convolution in one call, which reads the gradient
# of its output once; captured graphs have two operators. Devices short of bandwidth differ most.
@pytest.mark.parametrize(
    ("name", "busy", "step"), [("resnet50", 3e-3, 0.08), ("t5_small", 1e-4, 1e-3)]
)
def test_the_shipped_profiles_are_derived(name: str, busy: float, step: float) -> None:
    profile = next(p for p in shipped().all if p.name == name)
    derived = zoo_profile(name, "V100-16GB", profile.least_gpus, profile.most_gpus)
    assert profile.gradients == derived.gradients
    assert profile.input == derived.input
    assert profile.busy == pytest.approx(derived.busy, abs=busy)
    assert profile.step == pytest.approx(derived.step, rel=step)


def test_resnet50_has_its_parameters_and_its_images() -> None:
    profile = shipped().all[0]
    assert profile.gradients == 25_557_032 * 4  # He et al. 2016, as in every framework
    assert profile.input == 128 * (3 * 224 * 224 * 4 + 8)
    assert input_bytes(zoo_model("gpt2")) == 16 * 512 * 16


def test_every_profile_runs_on_every_gpu_of_the_catalogue() -> None:
    for profile in shipped().all:
        assert set(profile.step) == set(GPUS) == set(CATALOGUE) - {"CPU"}
        assert profile.seconds_on("H100") < profile.seconds_on("V100-16GB")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"busy": 0.0}, "profiles.net.busy': 0.0 is not in"),
        ({"busy": 1.5}, "profiles.net.busy': 1.5 is not in"),
        ({"busy": "much"}, "profiles.net.busy': 'much' is not a number"),
        ({"input": None}, "profiles.net.input': is missing"),
        ({"speed": 3}, "profiles.net.speed': unknown key"),
        ({"gradients": "3 Gbps"}, "profiles.net.gradients'"),
        ({"least_gpus": 9}, "profiles.net.least_gpus': 9 to 8 is no range"),
        ({"least_gpus": 0.5}, "profiles.net.least_gpus': 0.5 is not a whole number"),
        ({"step": {}}, "profiles.net.step'"),
        ({"step": {"T4": 0}}, "profiles.net.step.T4': 0.0 is not above 0"),
    ],
)
def test_a_wrong_profile_names_its_key(changes: dict[str, Any], message: str) -> None:
    with refusal(message):
        Profiles(section(**changes))


def test_a_device_without_seconds_is_named() -> None:
    with refusal(r"profiles.net.step.H100': is missing \(known: T4\)"):
        Profiles(section()).all[0].seconds_on("H100")
