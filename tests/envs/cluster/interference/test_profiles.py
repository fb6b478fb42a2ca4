"""Profiles: their file, where its numbers come from, and which profile a job has."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import yaml
from zoo_profiles import input_bytes, zoo_profile

from envs.cluster.interference.cases import assign
from envs.cluster.interference.profiles import Profiles
from envs.cluster.workload.trace import Labels, Trace
from envs.graphs.zoo_models import zoo_model
from envs.hardware.builders import DEVICES
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
    ("name", "busy", "step"),
    [
        ("resnet50", 3e-3, 0.08),
        pytest.param("t5_small", 1e-4, 1e-3, marks=pytest.mark.slow),  # loads transformers
    ],
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


def test_every_profile_runs_on_every_gpu_of_the_random_topologies() -> None:
    for profile in shipped().all:
        assert set(profile.step) == set(DEVICES)
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


NAMES = ("small", "any", "large")


def suits(gangs: np.ndarray) -> np.ndarray:
    return np.stack([gangs <= 2, gangs <= 64, (gangs >= 2) & (gangs <= 64)], axis=1)


def trace(gangs: list[int], models: list[str | None] | None = None) -> Trace:
    jobs = Trace.of("t", list(range(len(gangs))), [1] * len(gangs), gangs)
    return jobs if models is None else replace(jobs, model=Labels.of(models))


def drawn(jobs: Trace, seed: int = 0) -> np.ndarray:
    return assign(jobs, NAMES, suits, seed)


def test_a_label_decides() -> None:
    chosen = drawn(trace([1, 8, 1], ["large", "small", "any"]))
    assert chosen.tolist() == [2, 0, 1]


def test_draws_suit_the_gang_and_have_equal_chances() -> None:
    gangs = [1] * 4000 + [2] * 4000 + [8] * 4000 + [0]
    chosen = drawn(trace(gangs), 3)
    assert chosen[-1] == 0
    for first, allowed in ((0, {0, 1}), (4000, {0, 1, 2}), (8000, {1, 2})):
        values, counts = np.unique(chosen[first : first + 4000], return_counts=True)
        assert set(values.tolist()) == allowed
        expected = 4000 / len(allowed)
        assert (np.abs(counts - expected) < 4 * np.sqrt(expected)).all()


def test_a_draw_depends_on_seed_and_id_alone() -> None:
    jobs = trace([2] * 500)
    whole = drawn(jobs, 7)
    part = np.arange(100, 500, 3)
    assert (drawn(jobs.take(part), 7) == whole[part]).all()
    assert (drawn(jobs, 7) == whole).all()
    other = drawn(jobs, 8)
    assert 0.2 < (other == whole).mean() < 0.5
    wider = replace(jobs, job_id=jobs.job_id.astype("<U40"))
    assert (drawn(wider, 7) == whole).all()


def test_what_no_profile_knows_is_refused() -> None:
    with refusal(r"record 1: field 'model': 'huge' is not one of small"):
        drawn(trace([1, 1], ["any", "huge"]))
    with refusal(r"no profile suits a job of 128 GPUs"):
        drawn(trace([1, 128]))
    unused = replace(trace([1]), model=Labels(np.zeros(1, np.int32), ("any", "huge")))
    assert drawn(unused).tolist() == [1]


def test_an_empty_trace() -> None:
    assert len(drawn(trace([]))) == 0
