"""The catalogue holds datasheet figures; devices of one's own start from it."""

from __future__ import annotations

from typing import Any

import pytest

from envs.hardware.devices import CATALOGUE, custom_device, device_spec
from envs.units import DTYPES
from tests.refusal import refusal

GIB = 2.0**30


@pytest.mark.parametrize(
    ("kind", "float32", "float16", "bandwidth", "memory"),
    [
        ("V100-16GB", 15.7e12, 125e12, 900e9, 16 * GIB),
        ("V100-32GB", 15.7e12, 125e12, 900e9, 32 * GIB),
        ("P100-16GB", 10.6e12, 21.2e12, 732e9, 16 * GIB),
        ("T4", 8.1e12, 65e12, 320e9, 16 * GIB),
        ("A10", 31.2e12, 125e12, 600e9, 24 * GIB),
        ("A100-40GB", 19.5e12, 312e12, 1555e9, 40 * GIB),
        ("A100-80GB", 19.5e12, 312e12, 2039e9, 80 * GIB),
        ("H100", 67e12, 989.5e12, 3.35e12, 80 * GIB),
        ("H200", 67e12, 989.5e12, 4.8e12, 141e9),
        ("B200", 75e12, 2250e12, 8e12, 180 * GIB),
        ("L4", 30.3e12, 121e12, 300e9, 24 * GIB),
        ("L40S", 91.6e12, 362.05e12, 864e9, 48 * GIB),
        ("MI300X", 163.4e12, 1307.4e12, 5.3e12, 192 * GIB),
    ],
)
def test_figures_are_those_of_the_datasheet(
    kind: str, float32: float, float16: float, bandwidth: float, memory: float
) -> None:
    spec = device_spec(kind)
    assert spec.peak_flops["float32"] == pytest.approx(float32)
    assert spec.peak_flops["float16"] == pytest.approx(float16)
    assert spec.memory_bandwidth == pytest.approx(bandwidth)
    assert spec.memory_bytes == memory


def test_every_entry_is_usable_and_names_its_source() -> None:
    assert "CPU" in CATALOGUE
    for kind, spec in CATALOGUE.items():
        assert spec.name == kind
        assert spec.source
        assert set(spec.peak_flops) <= set(DTYPES)
        assert {"float32", "float64"} <= set(spec.peak_flops)
        assert all(rate > 0 for rate in spec.peak_flops.values())
        assert 0 < spec.compute_efficiency <= 1
        assert 0 < spec.memory_efficiency <= 1
        assert 0 < spec.launch_overhead_s < 1e-4


@pytest.mark.parametrize(
    ("kind", "flop_per_clock", "clock"),
    [
        # units x FLOP per clock of each: 148 and 58 and 142 multiprocessors, 304 compute units
        ("B200", {"float32": 148 * 256, "float64": 148 * 128}, 1.98e9),
        ("L4", {"float32": 58 * 256}, 2.04e9),
        ("L40S", {"float32": 142 * 256, "float16": 142 * 1024, "float8": 142 * 2048}, 2.52e9),
        (
            "MI300X",
            {"float64": 304 * 128, "float32": 304 * 256, "float16": 304 * 2048,
             "float8": 304 * 4096},
            2.1e9,
        ),
    ],
)  # fmt: skip
def test_peaks_are_those_of_the_units_at_the_boost_clock(
    kind: str, flop_per_clock: dict[str, int], clock: float
) -> None:
    """The dense rates, not those with sparsity, which are twice as high."""
    for dtype, units in flop_per_clock.items():
        assert device_spec(kind).peak_flops[dtype] == pytest.approx(units * clock, rel=0.02)


def test_float8_is_twice_float16_where_there_is_one() -> None:
    for spec in CATALOGUE.values():
        if "float8" in spec.peak_flops:
            ratio = spec.peak_flops["float8"] / spec.peak_flops["float16"]
            assert ratio == pytest.approx(2.0, rel=0.02), spec.name


def test_rates_that_the_hardware_lacks_are_absent() -> None:
    assert "bfloat16" not in device_spec("V100-16GB").peak_flops
    assert "bfloat16" not in device_spec("P100-16GB").peak_flops
    assert "float8" not in device_spec("A100-80GB").peak_flops
    assert "float8" in device_spec("H100").peak_flops


def test_unknown_kind_lists_the_catalogue() -> None:
    with refusal(r"unknown device kind 'V10O'.*V100-16GB.*MI300X.*CPU"):
        device_spec("V10O")


def test_custom_device_replaces_only_what_is_given() -> None:
    spec = custom_device(
        "A100-80GB",
        "A100-80GB-TF32",
        peak_flops={"float32": "156TFLOP/s"},
        memory="79GiB",
        compute_efficiency=0.5,
    )
    base = CATALOGUE["A100-80GB"]
    assert spec.name == "A100-80GB-TF32"
    assert spec.peak_flops["float32"] == 156e12
    assert spec.peak_flops["float16"] == base.peak_flops["float16"]
    assert spec.memory_bytes == 79 * GIB
    assert spec.memory_bandwidth == base.memory_bandwidth
    assert spec.compute_efficiency == 0.5
    assert base.peak_flops["float32"] == 19.5e12  # the catalogue is as it was


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ({"peak_flops": {"float32": "156GB"}}, "field 'peak_flops.float32'"),
        ({"peak_flops": {"float31": "156TFLOP/s"}}, "field 'peak_flops.float31': unknown dtype"),
        ({"memory": "80Gbps"}, "field 'memory'"),
        ({"memory_bandwidth": "2039GiB"}, "field 'memory_bandwidth'"),
        ({"memory_bandwidth": 900}, "field 'memory_bandwidth': 900 is too small"),
        ({"launch_overhead": "5GB"}, "field 'launch_overhead'"),
        ({"compute_efficiency": 0.0}, "field 'compute_efficiency'"),
        ({"memory_efficiency": 1.5}, "field 'memory_efficiency'"),
    ],
)
def test_a_bad_figure_is_refused_by_its_key(figures: dict[str, Any], message: str) -> None:
    with refusal(message):
        custom_device("A100-80GB", "mine", **figures)
