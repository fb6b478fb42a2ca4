"""Kinds of devices: what one can do, and the catalogue of those with published figures."""

from __future__ import annotations

import re
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
    KIBI,
    MEBI,
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

    `peak_flops` maps a dtype name (`envs.units.DTYPES`) or one of `MATRIX_RATES` to FLOP/s.
    `compute_efficiency` and `memory_efficiency` are the fractions of the two peaks that real
    kernels reach. A figure of 0 from `processors` on is not known.
    """

    name: str  # as the profile calls it
    peak_flops: Mapping[str, float]  # FLOP/s by dtype
    memory_bandwidth: float  # bytes/s
    memory_bytes: float  # bytes
    launch_overhead_s: float  # seconds per operator
    compute_efficiency: float  # 0..1
    memory_efficiency: float  # 0..1
    source: str  # where the figures stand
    processors: int = 0  # streaming multiprocessors (AMD: compute units)
    clock_hz: float = 0.0  # boost clock, 1/s
    l2_bytes: float = 0.0  # last-level cache, bytes
    shared_bytes: float = 0.0  # L1 and shared memory (AMD: LDS) of one processor, bytes
    power_w: float = 0.0  # of the board, watts
    process_nm: float = 0.0  # in which it is made, as the maker names it

    @property
    def known(self) -> bool:
        """Whether all figures are given that a learned cost model reads."""
        figures = (self.processors, self.clock_hz, self.l2_bytes, self.shared_bytes)
        return all((*figures, self.power_w, self.process_nm))


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


# Processors, MHz, MiB of the last-level cache, KiB of L1 and shared memory of a processor, nm.
_Chip = tuple[int, float, float, float, float]


def _device(
    name: str,
    tera_flops: Mapping[str, float],
    gigabytes_per_second: float,
    memory_bytes: float,
    chip: _Chip,
    watts: float,
    source: str,
    launch_overhead_s: float = GPU_LAUNCH_OVERHEAD,
) -> DeviceSpec:
    processors, megahertz, cache, shared, process = chip
    return DeviceSpec(
        name=name,
        peak_flops={dtype: rate * TERA for dtype, rate in tera_flops.items()},
        memory_bandwidth=gigabytes_per_second * GIGA,
        memory_bytes=memory_bytes,
        launch_overhead_s=launch_overhead_s,
        compute_efficiency=COMPUTE_EFFICIENCY,
        memory_efficiency=MEMORY_EFFICIENCY,
        source=source,
        processors=processors,
        clock_hz=megahertz * MEGA,
        l2_bytes=cache * MEBI,
        shared_bytes=shared * KIBI,
        power_w=watts,
        process_nm=process,
    )


# Rates in `peak_flops` that are of no dtype of tensors; the roofline does not read them.
MATRIX_RATES: tuple[str, ...] = (
    "tfloat32",  # float32 products whose factors are rounded to TF32, on tensor (matrix) cores
    "float32_matrix",  # exact float32 products on AMD's matrix cores, where not that of `float32`
)

_P100_SXM2 = {"float64": 5.3, "float32": 10.6, "float16": 21.2}
_P100_PCIE = {"float64": 4.7, "float32": 9.3, "float16": 18.7}
_P4 = {"float64": 5.5 / 32, "float32": 5.5}
_V100_SXM2 = {"float64": 7.8, "float32": 15.7, "float16": 125.0}
_V100_PCIE = {"float64": 7.0, "float32": 14.0, "float16": 112.0}
_T4 = {"float64": 8.1 / 32, "float32": 8.1, "float16": 65.0}
_RTX_2080 = {"float64": 10.1 / 32, "float32": 10.1, "float16": 40.3}
_RTX_2080TI = {"float64": 13.4 / 32, "float32": 13.4, "float16": 53.8}
_TITAN_RTX = {"float64": 16.3 / 32, "float32": 16.3, "float16": 130.5}
_A10 = {
    "float64": 31.2 / 64, "float32": 31.2, "tfloat32": 62.5, "float16": 125.0, "bfloat16": 125.0,
}  # fmt: skip
_A10G = {
    "float64": 35.0 / 64, "float32": 35.0, "tfloat32": 35.0, "float16": 70.0, "bfloat16": 70.0,
}  # fmt: skip
_RTX_3090 = {
    "float64": 35.6 / 64, "float32": 35.6, "tfloat32": 35.6, "float16": 71.0, "bfloat16": 71.0,
}  # fmt: skip
_A100 = {
    "float64": 9.7, "float32": 19.5, "tfloat32": 156.0, "float16": 312.0, "bfloat16": 312.0,
}  # fmt: skip
_H100_PCIE = {
    "float64": 26.0, "float32": 51.0, "tfloat32": 378.0, "float16": 756.5, "bfloat16": 756.5,
    "float8": 1513.0,
}  # fmt: skip
_HOPPER = {
    "float64": 34.0, "float32": 67.0, "tfloat32": 494.7, "float16": 989.5, "bfloat16": 989.5,
    "float8": 1979.0,
}  # fmt: skip
_B200 = {
    "float64": 37.0, "float32": 75.0, "tfloat32": 1125.0, "float16": 2250.0, "bfloat16": 2250.0,
    "float8": 4500.0,
}  # fmt: skip
_L4 = {
    "float64": 30.3 / 64, "float32": 30.3, "tfloat32": 60.5, "float16": 121.0, "bfloat16": 121.0,
    "float8": 242.5,
}  # fmt: skip
_L40S = {
    "float64": 91.6 / 64, "float32": 91.6, "tfloat32": 183.0, "float16": 362.05,
    "bfloat16": 362.05, "float8": 733.0,
}  # fmt: skip
_MI100 = {
    "float64": 11.5, "float32": 23.1, "float32_matrix": 46.1, "float16": 184.6, "bfloat16": 92.3,
}  # fmt: skip
_MI210 = {
    "float64": 22.6, "float32": 22.6, "float32_matrix": 45.3, "float16": 181.0, "bfloat16": 181.0,
}  # fmt: skip
_MI300X = {
    "float64": 81.7, "float32": 163.4, "tfloat32": 653.7, "float16": 1307.4, "bfloat16": 1307.4,
    "float8": 2614.9,
}  # fmt: skip

# 64 cores x 2.45 GHz x 2 FMA units x 8 lanes x 2 FLOP; half of it in double precision.
_EPYC_7763 = {"float64": 64 * 2.45e-3 * 16, "float32": 64 * 2.45e-3 * 32}

_GP100_SXM2, _GP100_PCIE = (56, 1480, 4, 64 + 24, 16), (56, 1303, 4, 64 + 24, 16)
_GV100_SXM2, _GV100_PCIE = (80, 1530, 6, 128, 12), (80, 1380, 6, 128, 12)
_GA100 = (108, 1410, 40, 192, 7)
_ALDEBARAN = (104, 1700, 8, 64 + 16, 6)  # one die
_EPYC = (0, 0.0, 0.0, 0.0, 0.0)  # it has no such processors

# Peaks are dense (no structured sparsity) at the rated boost clock. `float32` is the plain FP32
# rate of the vector units, because that is what PyTorch's matrix multiplications use by default;
# a run with TF32 tensor cores states it by a device of its own, `custom_device(base="A100-80GB",
# name="A100-80GB-TF32", peak_flops={"float32": "156TFLOP/s"})`. `float16`, `bfloat16` and
# `float8` are the rates of the tensor cores (AMD's matrix cores) with FP32 accumulation where the
# device has them. `float64` is the rate of the vector units. A dtype the maker gives no rate for is
# absent, and computing in it is an error (`envs.cost`). The capacity is the marketed number read as
# GiB: a 16 GB card carries 16 GiB of memory cells. The H200 alone is marketed in decimal units
# (141 GB). Processors, clocks, caches and power are those of the data sheets and of the makers'
# architecture white papers and tuning guides; the clock is the highest rated one.
CATALOGUE: dict[str, DeviceSpec] = {
    spec.name: spec
    for spec in (
        _device(
            "V100-16GB", _V100_SXM2, 900, 16 * GIBI, _GV100_SXM2, 300,
            "NVIDIA Tesla V100 GPU Accelerator, data sheet, SXM2 column",
        ),
        _device(
            "V100-32GB", _V100_SXM2, 900, 32 * GIBI, _GV100_SXM2, 300,
            "NVIDIA Tesla V100 GPU Accelerator, data sheet, SXM2 column",
        ),
        _device(
            "V100-PCIe-16GB", _V100_PCIE, 900, 16 * GIBI, _GV100_PCIE, 250,
            "NVIDIA Tesla V100 GPU Accelerator, data sheet, PCIe column",
        ),
        _device(
            "V100-PCIe-32GB", _V100_PCIE, 900, 32 * GIBI, _GV100_PCIE, 250,
            "NVIDIA Tesla V100 GPU Accelerator, data sheet, PCIe column",
        ),
        _device(
            "P100-16GB", _P100_SXM2, 732, 16 * GIBI, _GP100_SXM2, 300,
            "NVIDIA Tesla P100 (NVLink-optimized servers), data sheet",
        ),
        _device(
            "P100-PCIe-16GB", _P100_PCIE, 732, 16 * GIBI, _GP100_PCIE, 250,
            "NVIDIA Tesla P100 (PCIe-based servers), data sheet, 16 GB column",
        ),
        _device(
            "P4", _P4, 192, 8 * GIBI, (20, 1114, 2, 96 + 48, 16), 75,
            "NVIDIA Tesla P4, data sheet; float64: 1/32 of float32 (CUDA C++ Programming Guide, "
            "compute capability 6.1); no float16, which libraries compute in float32 there",
        ),
        _device(
            "T4", _T4, 320, 16 * GIBI, (40, 1590, 4, 96, 12), 70,
            "NVIDIA T4 Tensor Core GPU, product brief; float64: 1/32 of float32 (Turing "
            "architecture white paper)",
        ),
        _device(
            "RTX-2080", _RTX_2080, 448, 8 * GIBI, (46, 1710, 4, 96, 12), 215,
            "NVIDIA Turing GPU Architecture, white paper, GeForce RTX 2080, reference column",
        ),
        _device(
            "RTX-2080Ti", _RTX_2080TI, 616, 11 * GIBI, (68, 1545, 5.5, 96, 12), 250,
            "NVIDIA Turing GPU Architecture, white paper, GeForce RTX 2080 Ti, reference column",
        ),
        _device(
            "Titan-RTX", _TITAN_RTX, 672, 24 * GIBI, (72, 1770, 6, 96, 12), 280,
            "NVIDIA Ampere GA102 GPU Architecture, white paper, Titan RTX column; float64: 1/32 of "
            "float32 (Turing architecture white paper)",
        ),
        _device(
            "RTX-3090", _RTX_3090, 936, 24 * GIBI, (82, 1695, 6, 128, 8), 350,
            "NVIDIA Ampere GA102 GPU Architecture, white paper, GeForce RTX 3090 column, dense "
            "rates with FP32 accumulation",
        ),
        _device(
            "A10", _A10, 600, 24 * GIBI, (72, 1695, 6, 128, 8), 150,
            "NVIDIA A10 Tensor Core GPU, data sheet; float64: 1/64 of float32 (Ampere GA102 "
            "architecture white paper)",
        ),
        _device(
            "A10G", _A10G, 600, 24 * GIBI, (80, 1710, 6, 128, 8), 300,
            "NVIDIA A10G, data sheet; processors and power as the driver reports them; float64: "
            "1/64 of float32 (Ampere GA102 architecture white paper)",
        ),
        _device(
            "A100-40GB", _A100, 1555, 40 * GIBI, _GA100, 400,
            "NVIDIA A100 Tensor Core GPU, data sheet, 40GB SXM column",
        ),
        _device(
            "A100-80GB", _A100, 2039, 80 * GIBI, _GA100, 400,
            "NVIDIA A100 Tensor Core GPU, data sheet, 80GB SXM column",
        ),
        _device(
            "A100-PCIe-40GB", _A100, 1555, 40 * GIBI, _GA100, 250,
            "NVIDIA A100 Tensor Core GPU, data sheet, 40GB PCIe column",
        ),
        _device(
            "A100-PCIe-80GB", _A100, 1935, 80 * GIBI, _GA100, 300,
            "NVIDIA A100 Tensor Core GPU, data sheet, 80GB PCIe column",
        ),
        _device(
            "H100", _HOPPER, 3350, 80 * GIBI, (132, 1980, 50, 256, 4), 700,
            "NVIDIA H100 Tensor Core GPU, data sheet, SXM column, tensor rates halved to dense; "
            "tfloat32: H100 architecture white paper",
        ),
        _device(
            "H100-PCIe", _H100_PCIE, 2000, 80 * GIBI, (114, 1755, 50, 256, 4), 350,
            "NVIDIA H100 Tensor Core GPU, data sheet, PCIe column, tensor rates halved to dense",
        ),
        _device(
            "H200", _HOPPER, 4800, 141 * GIGA, (132, 1980, 60, 256, 4), 700,
            "NVIDIA H200 Tensor Core GPU, data sheet, SXM column, tensor rates halved to dense; "
            "tfloat32: H100 architecture white paper; cache: as its driver reports it",
        ),
        _device(
            "GH200", _HOPPER, 4000, 96 * GIBI, (132, 1980, 60, 256, 4), 1000,
            "NVIDIA GH200 Grace Hopper Superchip, data sheet, 96GB HBM3, tensor rates halved to "
            "dense; tfloat32: H100 architecture white paper; cache: that of a GH100 with six "
            "stacks of memory; power: the most of the whole module, Grace and its memory too",
        ),
        _device(
            "B200", _B200, 8000, 180 * GIBI, (148, 1980, 126, 256, 4), 1000,
            "NVIDIA DGX B200, data sheet (memory, tensor rates) and HGX B200, specifications "
            "(float32, float64), an eighth of each; tensor rates halved to dense",
        ),
        _device(
            "L4", _L4, 300, 24 * GIBI, (58, 2040, 48, 128, 4), 72,
            "NVIDIA L4 Tensor Core GPU, data sheet, tensor rates halved to dense; float64: 1/64 of "
            "float32 (Ada GPU architecture white paper); tfloat32: half of float16, which the "
            "sheet rounds down",
        ),
        _device(
            "L40S", _L40S, 864, 48 * GIBI, (142, 2520, 96, 128, 4), 350,
            "NVIDIA L40S GPU, data sheet, the dense one of two tensor rates; float64: 1/64 of "
            "float32 (Ada GPU architecture white paper)",
        ),
        _device(
            "MI100", _MI100, 1228.8, 32 * GIBI, (120, 1502, 8, 64 + 16, 7), 300,
            "AMD Instinct MI100 Accelerator, data sheet: vector rates of float32 and float64, "
            "matrix rates of the others",
        ),
        _device(
            "MI210", _MI210, 1638.4, 64 * GIBI, _ALDEBARAN, 300,
            "AMD Instinct MI210 Accelerator, data sheet: vector rates of float32 and float64, "
            "matrix rates of the others",
        ),
        _device(
            "MI250", _MI210, 1638.4, 64 * GIBI, _ALDEBARAN, 250,
            "AMD Instinct MI250 Accelerator, data sheet, half of every figure: one of the two dies "
            "(GCDs) of a module, which PyTorch sees as a device; vector rates of float32 and "
            "float64, matrix rates of the others",
        ),
        _device(
            "MI300X", _MI300X, 5300, 192 * GIBI, (304, 2100, 256, 64 + 32, 5), 750,
            "AMD Instinct MI300X Accelerator, data sheet: vector rates of float32 and float64, "
            "matrix rates of the others, without sparsity; cache: the Infinity Cache, behind 8 L2 "
            "of 4 MiB",
        ),
        _device(
            "CPU", _EPYC_7763, 204.8, 256 * GIBI, _EPYC, 0,
            "AMD EPYC 7763, product page: 64 cores, 2.45 GHz base clock, AVX2, 8 channels of "
            "DDR4-3200; 256 GiB fitted",
            CPU_LAUNCH_OVERHEAD,
        ),
    )
}  # fmt: skip


# Names that the words of the catalogue's own do not say.
_ALIASES = {
    "P100": "P100-16GB",
    "RTX-2080-Ti": "RTX-2080Ti",
    "H100-80GB": "H100",
    "GH-96": "GH200",
    "GH200-480GB": "GH200",  # it counts the memory of the CPU
}
_COMMON = re.compile("nvidia|amd|tesla|instinct|geforce|sxm[0-9]?|hbm[0-9]?e?")


def _words(text: str) -> frozenset[str]:
    """What a name says in any order, but for the maker, the SXM socket and the kind of memory."""
    words = re.findall("[a-z0-9]+", text.lower())
    return frozenset(w.removesuffix("gb") for w in words if not _COMMON.fullmatch(w)) - {""}


_BY_WORDS = {_words(name): name for name in CATALOGUE}
_BY_WORDS |= {_words(alias): name for alias, name in _ALIASES.items()}


def device_spec(kind: str | DeviceSpec) -> DeviceSpec:
    """The catalogue's entry for `kind`; a `DeviceSpec` stands for itself.

    A name may be that of the catalogue or as profilers and tables write it,
    "NVIDIA_A100-SXM4-80GB" or "A100-80". Without the memory it names no device that comes in two
    sizes.

    Raises:
        InputError: the catalogue has no such kind.
    """
    if isinstance(kind, DeviceSpec):
        return kind
    if not isinstance(kind, str):
        raise InputError(f"{kind!r} is not the name of a device kind", field="device")
    words = _words(kind)
    name = kind if kind in CATALOGUE else _BY_WORDS.get(words)
    if name is None:
        near = [name for name in CATALOGUE if words < _words(name)] or CATALOGUE
        raise InputError(
            f"unknown device kind {kind!r} ({meant(kind, near)}known: {', '.join(CATALOGUE)})",
            field="device",
        )
    return CATALOGUE[name]


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
        if dtype not in (*DTYPES, *MATRIX_RATES):
            known = ", ".join((*DTYPES, *MATRIX_RATES))
            raise InputError(f"unknown dtype (known: {known})", field=key)
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
