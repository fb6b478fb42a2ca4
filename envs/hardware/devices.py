"""Kinds of devices: what one can do, and the catalogue of those with published figures."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Annotated, Any

from annotated_types import Gt, Le

from envs.bounds import bounded
from envs.errors import InputError, meant
from envs.units import (
    DTYPES,
    GIBI,
    GIGA,
    MEGA,
    MICROSECOND,
    TERA,
    parse_bandwidth,
    parse_bytes,
    parse_flops,
    parse_seconds,
    read_quantity,
)


@dataclass(frozen=True)
class DeviceSpec:
    """A kind of device: its datasheet.

    `peak_flops` maps a dtype name (`envs.units.DTYPES`) to FLOP/s. `compute_efficiency`
    and `memory_efficiency` are the fractions of the two peaks that real kernels reach.
    """

    name: str  # as the profile calls it
    peak_flops: Mapping[str, float]  # FLOP/s by dtype
    memory_bandwidth: float  # bytes/s
    memory_bytes: float  # bytes
    launch_overhead_s: float  # seconds per operator
    compute_efficiency: float  # 0..1
    memory_efficiency: float  # 0..1
    source: str  # where the figures stand


@dataclass(frozen=True)
class Device:
    """One device of a topology."""

    name: str
    spec: DeviceSpec
    server: int


# Fractions of the two peaks that real kernels reach. One pair for every device, so that relative
# speeds are those of the datasheets: matrix multiplications of training size in vendor libraries
# run at 0.7 to 0.95 of the peak, STREAM-like kernels at 0.7 to 0.9 of the memory bandwidth.
COMPUTE_EFFICIENCY = 0.8
MEMORY_EFFICIENCY = 0.8

# What an operator costs however small it is: a kernel launch on a GPU, a function call on a CPU.
GPU_LAUNCH_OVERHEAD = 5 * MICROSECOND
CPU_LAUNCH_OVERHEAD = 1 * MICROSECOND


def _device(
    name: str,
    tera_flops: Mapping[str, float],
    gigabytes_per_second: float,
    memory_bytes: float,
    source: str,
    launch_overhead_s: float = GPU_LAUNCH_OVERHEAD,
) -> DeviceSpec:
    return DeviceSpec(
        name=name,
        peak_flops={dtype: rate * TERA for dtype, rate in tera_flops.items()},
        memory_bandwidth=gigabytes_per_second * GIGA,
        memory_bytes=memory_bytes,
        launch_overhead_s=launch_overhead_s,
        compute_efficiency=COMPUTE_EFFICIENCY,
        memory_efficiency=MEMORY_EFFICIENCY,
        source=source,
    )


_P100_SXM2 = {"float64": 5.3, "float32": 10.6, "float16": 21.2}
_P100_PCIE = {"float64": 4.7, "float32": 9.3, "float16": 18.7}
_V100_SXM2 = {"float64": 7.8, "float32": 15.7, "float16": 125.0}
_T4 = {"float64": 8.1 / 32, "float32": 8.1, "float16": 65.0}
_A10 = {"float64": 31.2 / 64, "float32": 31.2, "float16": 125.0, "bfloat16": 125.0}
_A100 = {"float64": 9.7, "float32": 19.5, "float16": 312.0, "bfloat16": 312.0}
_HOPPER = {"float64": 34.0, "float32": 67.0, "float16": 989.5, "bfloat16": 989.5, "float8": 1979.0}
_B200 = {"float64": 37.0, "float32": 75.0, "float16": 2250.0, "bfloat16": 2250.0, "float8": 4500.0}
_L4 = {
    "float64": 30.3 / 64, "float32": 30.3, "float16": 121.0, "bfloat16": 121.0, "float8": 242.5,
}  # fmt: skip
_L40S = {
    "float64": 91.6 / 64, "float32": 91.6, "float16": 362.05, "bfloat16": 362.05, "float8": 733.0,
}  # fmt: skip
_MI300X = {
    "float64": 81.7, "float32": 163.4, "float16": 1307.4, "bfloat16": 1307.4, "float8": 2614.9,
}  # fmt: skip

# 64 cores x 2.45 GHz x 2 FMA units x 8 lanes x 2 FLOP; half of it in double precision.
_EPYC_7763 = {"float64": 64 * 2.45e-3 * 16, "float32": 64 * 2.45e-3 * 32}

# Peaks are dense (no structured sparsity) at the rated boost clock. `float32` is the plain FP32
# rate of the vector units, because that is what PyTorch's matrix multiplications use by default;
# a run with TF32 tensor cores states it by a device of its own, `custom_device(base="A100-80GB",
# name="A100-80GB-TF32", peak_flops={"float32": "156TFLOP/s"})`. `float16`, `bfloat16` and
# `float8` are the rates of the tensor cores (AMD's matrix cores) with FP32 accumulation where the
# device has them. `float64` is the rate of the vector units. A dtype the maker gives no rate for is
# absent, and computing in it is an error (`envs.cost`). The capacity is the marketed number read as
# GiB: a 16 GB card carries 16 GiB of memory cells. The H200 alone is marketed in decimal units
# (141 GB).
CATALOGUE: dict[str, DeviceSpec] = {
    spec.name: spec
    for spec in (
        _device(
            "V100-16GB", _V100_SXM2, 900, 16 * GIBI,
            "NVIDIA Tesla V100 GPU Accelerator, data sheet, SXM2 column",
        ),
        _device(
            "V100-32GB", _V100_SXM2, 900, 32 * GIBI,
            "NVIDIA Tesla V100 GPU Accelerator, data sheet, SXM2 column",
        ),
        _device(
            "P100-16GB", _P100_SXM2, 732, 16 * GIBI,
            "NVIDIA Tesla P100 (NVLink-optimized servers), data sheet",
        ),
        _device(
            "P100-PCIe-16GB", _P100_PCIE, 732, 16 * GIBI,
            "NVIDIA Tesla P100 (PCIe-based servers), data sheet, 16 GB column",
        ),
        _device(
            "T4", _T4, 320, 16 * GIBI,
            "NVIDIA T4 Tensor Core GPU, product brief; float64: 1/32 of float32 (Turing "
            "architecture white paper)",
        ),
        _device(
            "A10", _A10, 600, 24 * GIBI,
            "NVIDIA A10 Tensor Core GPU, data sheet; float64: 1/64 of float32 (Ampere GA102 "
            "architecture white paper)",
        ),
        _device(
            "A100-40GB", _A100, 1555, 40 * GIBI,
            "NVIDIA A100 Tensor Core GPU, data sheet, 40GB SXM column",
        ),
        _device(
            "A100-80GB", _A100, 2039, 80 * GIBI,
            "NVIDIA A100 Tensor Core GPU, data sheet, 80GB SXM column",
        ),
        _device(
            "H100", _HOPPER, 3350, 80 * GIBI,
            "NVIDIA H100 Tensor Core GPU, data sheet, SXM column, tensor rates halved to dense",
        ),
        _device(
            "H200", _HOPPER, 4800, 141 * GIGA,
            "NVIDIA H200 Tensor Core GPU, data sheet, SXM column, tensor rates halved to dense",
        ),
        _device(
            "B200", _B200, 8000, 180 * GIBI,
            "NVIDIA DGX B200, data sheet (memory, tensor rates) and HGX B200, specifications "
            "(float32, float64), an eighth of each; tensor rates halved to dense",
        ),
        _device(
            "L4", _L4, 300, 24 * GIBI,
            "NVIDIA L4 Tensor Core GPU, data sheet, tensor rates halved to dense; float64: 1/64 of "
            "float32 (Ada GPU architecture white paper)",
        ),
        _device(
            "L40S", _L40S, 864, 48 * GIBI,
            "NVIDIA L40S GPU, data sheet, the dense one of two tensor rates; float64: 1/64 of "
            "float32 (Ada GPU architecture white paper)",
        ),
        _device(
            "MI300X", _MI300X, 5300, 192 * GIBI,
            "AMD Instinct MI300X Accelerator, data sheet: vector rates of float32 and float64, "
            "matrix rates of the others, without sparsity",
        ),
        _device(
            "CPU", _EPYC_7763, 204.8, 256 * GIBI,
            "AMD EPYC 7763, product page: 64 cores, 2.45 GHz base clock, AVX2, 8 channels of "
            "DDR4-3200; 256 GiB fitted",
            CPU_LAUNCH_OVERHEAD,
        ),
    )
}  # fmt: skip


def device_spec(kind: str | DeviceSpec) -> DeviceSpec:
    """The catalogue's entry for `kind`; a `DeviceSpec` stands for itself.

    Raises:
        InputError: the catalogue has no such kind.
    """
    if isinstance(kind, DeviceSpec):
        return kind
    if kind not in CATALOGUE:
        raise InputError(
            f"unknown device kind {kind!r} ({meant(kind, CATALOGUE)}known: {', '.join(CATALOGUE)})",
            field="device",
        )
    return CATALOGUE[kind]


Efficiency = Annotated[float, Gt(0.0), Le(1.0)]


@bounded
def custom_device(
    base: str,
    name: str,
    peak_flops: Mapping[str, str | float] | None = None,
    memory_bandwidth: str | float | None = None,
    memory: str | float | None = None,
    launch_overhead: str | float | None = None,
    compute_efficiency: Efficiency | None = None,
    memory_efficiency: Efficiency | None = None,
    source: str | None = None,
) -> DeviceSpec:
    """A device like the catalogue's `base`, called `name`, with the figures given here.

    Rates in `peak_flops` replace those of the same dtype and leave the others.

    Raises:
        InputError: naming the key, on an unknown base or dtype, a wrong unit, or a rate or memory
            below a million: a number without unit is FLOP/s, bytes/s or bytes.
    """
    spec = device_spec(base)
    rates = dict(spec.peak_flops)
    for dtype, rate in (peak_flops or {}).items():
        key = f"peak_flops.{dtype}"
        if dtype not in DTYPES:
            raise InputError(f"unknown dtype (known: {', '.join(DTYPES)})", field=key)
        rates[dtype] = read_quantity(parse_flops, rate, key=key, at_least=MEGA)
    figures: dict[str, Any] = {}
    for figure, key, parse, value, at_least in (
        ("memory_bandwidth", "memory_bandwidth", parse_bandwidth, memory_bandwidth, MEGA),
        ("memory_bytes", "memory", parse_bytes, memory, MEGA),
        ("launch_overhead_s", "launch_overhead", parse_seconds, launch_overhead, 0.0),
    ):
        if value is not None:
            figures[figure] = read_quantity(parse, value, key=key, at_least=at_least)
    return replace(
        spec,
        name=name,
        peak_flops=rates,
        source=source or f"{name}, after {base}",
        **figures,
        compute_efficiency=compute_efficiency or spec.compute_efficiency,
        memory_efficiency=memory_efficiency or spec.memory_efficiency,
    )
