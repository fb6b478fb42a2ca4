"""The catalogue holds datasheet figures; devices of one's own start from it."""

from __future__ import annotations

from typing import Any

import pytest

from envs.hardware.devices import CATALOGUE, MATRIX_RATES, DeviceSpec, custom_device, device_spec
from envs.units import DTYPES
from tests.refusal import refusal

KIB, MIB, GIB = 2.0**10, 2.0**20, 2.0**30


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
        ("V100-PCIe-16GB", 14e12, 112e12, 900e9, 16 * GIB),
        ("V100-PCIe-32GB", 14e12, 112e12, 900e9, 32 * GIB),
        ("RTX-2080", 10.1e12, 40.3e12, 448e9, 8 * GIB),
        ("RTX-2080Ti", 13.4e12, 53.8e12, 616e9, 11 * GIB),
        ("Titan-RTX", 16.3e12, 130.5e12, 672e9, 24 * GIB),
        ("RTX-3090", 35.6e12, 71e12, 936e9, 24 * GIB),
        ("A10G", 35e12, 70e12, 600e9, 24 * GIB),
        ("A100-PCIe-40GB", 19.5e12, 312e12, 1555e9, 40 * GIB),
        ("A100-PCIe-80GB", 19.5e12, 312e12, 1935e9, 80 * GIB),
        ("H100-PCIe", 51e12, 756.5e12, 2e12, 80 * GIB),
        ("GH200", 67e12, 989.5e12, 4e12, 96 * GIB),
        ("MI100", 23.1e12, 184.6e12, 1228.8e9, 32 * GIB),
        ("MI210", 22.6e12, 181e12, 1638.4e9, 64 * GIB),
        ("MI250", 22.6e12, 181e12, 1638.4e9, 64 * GIB),
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
        assert set(spec.peak_flops) <= {*DTYPES, *MATRIX_RATES}
        assert {"float32", "float64"} <= set(spec.peak_flops)
        assert all(rate > 0 for rate in spec.peak_flops.values())
        assert 0 < spec.compute_efficiency <= 1
        assert 0 < spec.memory_efficiency <= 1
        assert 0 < spec.launch_overhead_s < 1e-4
        assert spec.known == (kind != "CPU")


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


# Lanes in float32 of one processor, where they are not 128.
LANES = {
    kind: 64
    for kind in CATALOGUE
    if kind.startswith(("P100", "V100", "T4", "RTX-2080", "Titan", "A100", "MI1", "MI2"))
}


@pytest.mark.parametrize("spec", [spec for spec in CATALOGUE.values() if spec.known])
def test_processors_and_clock_give_the_peak(spec: DeviceSpec) -> None:
    flop_per_clock = spec.processors * LANES.get(spec.name, 128) * 2
    assert spec.peak_flops["float32"] == pytest.approx(flop_per_clock * spec.clock_hz, rel=0.05)


@pytest.mark.parametrize("spec", [spec for spec in CATALOGUE.values() if spec.known])
def test_caches_and_power_are_of_their_order(spec: DeviceSpec) -> None:
    """A unit forgotten, or two figures in the wrong order, are a thousand times off."""
    assert 80 * KIB <= spec.shared_bytes <= 256 * KIB
    assert 2 * MIB <= spec.l2_bytes <= 256 * MIB
    assert spec.shared_bytes * spec.processors < 60 * MIB
    assert 1e9 < spec.clock_hz < 3e9
    assert 70 <= spec.power_w <= 1000
    assert 2e10 < spec.peak_flops["float32"] / spec.power_w < 5e11


def test_rates_of_matrix_cores_lie_between_those_of_vectors_and_of_half_as_many_bits() -> None:
    for spec in CATALOGUE.values():
        for rate in MATRIX_RATES:
            if rate in spec.peak_flops:
                half = spec.peak_flops["float16"]
                assert spec.peak_flops["float32"] <= spec.peak_flops[rate] <= 0.51 * half
    assert "tfloat32" not in device_spec("V100-16GB").peak_flops
    assert "tfloat32" not in device_spec("T4").peak_flops
    assert device_spec("A100-80GB").peak_flops["tfloat32"] == 156e12
    assert device_spec("MI100").peak_flops["float32_matrix"] == 46.1e12


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


@pytest.mark.parametrize(
    ("written", "kind"),
    [
        ("NVIDIA_A100-PCIE-40GB", "A100-PCIe-40GB"),
        ("NVIDIA A100 80GB PCIe", "A100-PCIe-80GB"),
        ("NVIDIA_A100-SXM4-80GB", "A100-80GB"),
        ("A100-80", "A100-80GB"),
        ("A100-40", "A100-40GB"),
        ("Tesla_P100-PCIE-16GB", "P100-PCIe-16GB"),
        ("P100", "P100-16GB"),
        ("Tesla_P4", "P4"),
        ("Tesla_T4", "T4"),
        ("Tesla_V100-PCIE-32GB", "V100-PCIe-32GB"),
        ("Tesla V100-SXM2-16GB", "V100-16GB"),
        ("V100-16", "V100-16GB"),
        ("V100-32", "V100-32GB"),
        ("NVIDIA_H100_80GB_HBM3", "H100"),
        ("NVIDIA H100 PCIe", "H100-PCIe"),
        ("GH-96", "GH200"),
        ("NVIDIA GH200 480GB", "GH200"),
        ("RTX 2080 Ti", "RTX-2080Ti"),
        ("NVIDIA GeForce RTX 3090", "RTX-3090"),
        ("NVIDIA TITAN RTX", "Titan-RTX"),
        ("AMD_Instinct_MI250", "MI250"),
        ("AMD Instinct MI300X", "MI300X"),
    ],
)
def test_devices_are_known_as_profilers_write_them(written: str, kind: str) -> None:
    assert device_spec(written) is CATALOGUE[kind]


@pytest.mark.parametrize("kind", CATALOGUE)
def test_a_name_of_the_catalogue_is_its_own_however_it_is_written(kind: str) -> None:
    assert device_spec(kind) is CATALOGUE[kind]
    assert device_spec(f"NVIDIA_{kind.upper().replace('-', ' ')}") is CATALOGUE[kind]


@pytest.mark.parametrize(
    ("written", "said"),
    [
        ("A100", "did you mean A100-.*A100-.*known"),
        ("RTX 3090 Ti", "V100-16GB.*MI300X.*CPU"),
        *dict.fromkeys(("V100", "NVIDIA H100 NVL", "GB200", ""), "known: ").items(),
    ],
)
def test_a_name_of_two_devices_or_of_none_is_refused(written: str, said: str) -> None:
    with refusal(rf"field 'device': unknown device kind '{written}' \(.*{said}"):
        device_spec(written)


@pytest.mark.parametrize("given", [["V100-16GB"], {"base": "T4"}, 16.0, True, None])
def test_what_is_no_name_is_refused(given: Any) -> None:
    with refusal("field 'device': .* is not the name of a device kind"):
        device_spec(given)


def test_custom_device_replaces_only_what_is_given() -> None:
    spec = custom_device(
        "A100-80GB",
        "A100-80GB-TF32",
        peak_flops={"float32": "156TFLOP/s", "tfloat32": "150TFLOP/s"},
        memory="79GiB",
        compute_efficiency=0.5,
    )
    base = CATALOGUE["A100-80GB"]
    assert spec.name == "A100-80GB-TF32"
    assert spec.peak_flops["float32"] == 156e12
    assert spec.peak_flops["tfloat32"] == 150e12
    assert spec.peak_flops["float16"] == base.peak_flops["float16"]
    assert spec.memory_bytes == 79 * GIB
    assert spec.memory_bandwidth == base.memory_bandwidth
    assert spec.compute_efficiency == 0.5
    assert spec.known
    assert base.peak_flops["float32"] == 19.5e12  # the catalogue is as it was


@pytest.mark.parametrize(
    ("figures", "message"),
    [
        ({"peak_flops": {"float32": "156GB"}}, "field 'peak_flops.float32'"),
        (
            {"peak_flops": {"float31": "156TFLOP/s"}},
            "field 'peak_flops.float31': unknown dtype.*tfloat32",
        ),
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
