"""What a learned cost model is given of a kernel and of a device's data sheet."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from envs.arrays import BoolArray, FloatArray, IntArray
from envs.errors import InputError
from envs.graphs.kernels import MATRIX, Family, Kernels
from envs.hardware.devices import DeviceSpec

# A product that runs on is slowed down to what the board's power allows: of float32 arithmetic a
# FLOP takes about so many joules in 12 nm, and less in newer processes.
JOULES_PER_FLOP, PROCESS_NM, SHRINKING = 17.5e-12, 12.0, 1.6
VECTOR_FLOP = 256.0  # of a processor in a clock at most; a float32 rate above it is one of TF32
HEATING_S = 3e-4  # a kernel as long as this is slowed down halfway
WINOGRAD = 2.25  # a convolution of 3 x 3 in fewer multiplications
TILES = (32, 64, 128)
# Operands of a tile of 128 x 128 come from the last-level cache, which gives each processor so many
# bytes a clock (A100: 5,120 for 108).
TILE, CACHE_BYTES_PER_CLOCK = 128, 40.0
ELEMENT_BYTES = {"float16": 2.0, "bfloat16": 2.0, "float8": 1.0}
PLAIN = "float32"  # whose rate power is measured against
MEASURED = (
    Family.LINEAR, Family.PRODUCT, Family.CONVOLUTION, Family.NORM, Family.SOFTMAX,
    Family.ELEMENTWISE,
)  # fmt: skip
FIGURES = ("processors", "clock_hz", "l2_bytes", "shared_bytes", "power_w", "process_nm")
DEVICE_COLUMNS = 2
OF_PRODUCTS, OF_BOTH = 20, 2  # columns
INPUTS = OF_PRODUCTS + 8 + OF_BOTH + len(MEASURED) + DEVICE_COLUMNS
TWOS = np.array([6, *((n & -n).bit_length() - 1 for n in range(1, 64))], np.float32) / 6.0
FloatRows = NDArray[np.float32]


def sustained_share(spec: DeviceSpec) -> float:
    """Of the float32 peak, what the board's power allows for as long as one likes."""
    joules = JOULES_PER_FLOP * (spec.process_nm / PROCESS_NM) ** SHRINKING
    rate = min(spec.peak_flops[PLAIN], VECTOR_FLOP * spec.processors * spec.clock_hz)
    return float(min(1.0, spec.power_w / (joules * rate)))


def check_device(spec: DeviceSpec) -> None:
    """Refuse a device of which features cannot be made.

    Raises:
        InputError: naming device and figure.
    """
    missing = [figure for figure in FIGURES if not getattr(spec, figure)]
    missing += [] if PLAIN in spec.peak_flops else [f"{PLAIN} rate"]
    if missing:
        reason = f"device {spec.name} has no {missing[0]}, which a learned cost reads"
        raise InputError(reason, field="device")


class Inputs:
    """K kernels on one device: what a network is given, and what bounds their times.

    Integers move bytes alone: a kernel without FLOP needs no rate.

    Attributes:
        columns: (INPUTS, K) ratios between a kernel and the device. They level off, so that a
            device which is larger than all that were measured is not told from the largest of them.
        ideal_s: (K,) seconds at the peaks of the data sheet, power considered.
        least_s: (K,) seconds at the peaks, Winograd considered: what cannot be undercut.
        most: (K,) share of the peaks that may be reached, above 1 where Winograd multiplies less.
        plain: (K,) whether its rate is that of float32 without TF32.

    Raises:
        InputError: naming device and what it lacks, a figure or the rate of a kernel.
    """

    columns: FloatRows
    ideal_s: FloatArray
    least_s: FloatArray
    most: FloatArray
    plain: BoolArray

    def __init__(self, kernels: Kernels, spec: DeviceSpec) -> None:
        check_device(spec)
        compute, memory, self.plain = _peak_seconds(kernels, spec)
        hot = np.where(self.plain, compute / (compute + HEATING_S), 0.0)
        self.ideal_s = np.maximum(compute * sustained_share(spec) ** -hot, memory)
        fewer = (kernels.window == 3) & (kernels.stride == 1)
        self.most = np.where(fewer, WINOGRAD, 1.0)
        self.least_s = np.maximum(compute, memory) / self.most
        self.columns = np.zeros((INPUTS, len(kernels)), np.float32)
        matrix = np.isin(kernels.family, MATRIX)
        products, others = np.flatnonzero(matrix), np.flatnonzero(~matrix)
        of_products = kernels.take(products)
        self.columns[:OF_PRODUCTS, products] = _of_products(of_products, spec.processors)
        first = OF_PRODUCTS
        n = kernels.n[others]
        self.columns[first : first + 2, others] = n % 4 == 0, n <= 1024
        first += 2
        convolutions = np.flatnonzero(kernels.family == Family.CONVOLUTION)
        window, stride = kernels.window[convolutions], kernels.stride[convolutions]
        self.columns[first : first + 3, convolutions] = (
            np.where(window > 0, window - 3.0, 0.0),  # 0: not known
            np.where(stride > 0, stride - 1.0, 0.0),
            fewer[convolutions],
        )
        first += 3
        self.columns[first : first + 2, others] = _near(n, 256), _near(n, 2048)
        first += 2
        self.columns[first : first + OF_BOTH] = _near(self.ideal_s, 1e-5), _near(self.ideal_s, 1e-4)
        first += OF_BOTH
        two = kernels.bytes_read[others] > 1.5 * kernels.bytes_written[others]
        self.columns[first, others] = two
        first += 1
        family = np.where(kernels.family == Family.ATTENTION, Family.PRODUCT, kernels.family)
        self.columns[first + family, np.arange(len(kernels))] = 1.0
        self.columns[-2] = np.log(spec.process_nm / PROCESS_NM)
        self.columns[-1] = np.log(spec.memory_bandwidth / spec.processors / spec.clock_hz / 8.0)


def _peak_seconds(kernels: Kernels, spec: DeviceSpec) -> tuple[FloatArray, FloatArray, BoolArray]:
    """(K,) seconds of arithmetic, of memory, and which are at the plain rate."""
    numbers = {name: number for number, name in enumerate(dict.fromkeys(kernels.rate))}
    which: IntArray = np.fromiter(map(numbers.__getitem__, kernels.rate), np.int64, len(kernels))
    needed = np.bincount(which, kernels.flop, minlength=len(numbers)) > 0
    rates = [_rate(spec, name) if needed[number] else np.inf for name, number in numbers.items()]
    compute = kernels.flop / np.array(rates, np.float64)[which]
    memory = (kernels.bytes_read + kernels.bytes_written) / spec.memory_bandwidth
    return compute, memory, which == numbers.get(PLAIN, -1)


def _rate(spec: DeviceSpec, name: str) -> float:
    """FLOP/s of a product: the peak, or what its operands come from the last-level cache at."""
    if name not in spec.peak_flops:
        known = ", ".join(spec.peak_flops)
        raise InputError(f"device {spec.name} has no {name} rate (it has: {known})", field="dtype")
    element = ELEMENT_BYTES.get(name, 4.0)
    streamed = CACHE_BYTES_PER_CLOCK * spec.processors * spec.clock_hz * TILE / (2.0 * element)
    return min(spec.peak_flops[name], 2.0 * streamed)


def _of_products(kernels: Kernels, processors: int) -> FloatRows:
    """(OF_PRODUCTS, K)."""
    sizes = kernels.batch, kernels.m, kernels.n, kernels.k
    batch, m, n, k = (size.astype(np.float32) for size in sizes)
    short, work = np.minimum(m, n), batch * m * n
    columns = [
        _near(k, 64), _near(k, 512), _near(short, 64), _near(short, 512),
        np.log(np.minimum(batch, 512.0)),
    ]  # fmt: skip
    for tile in TILES:
        tiles = batch * np.ceil(m / tile) * np.ceil(n / tile)
        waves = tiles / np.float32(processors)
        columns += [
            _near(waves, 1), _near(waves, 8), waves / np.ceil(waves), work / (tiles * tile * tile)
        ]  # fmt: skip
    columns += [TWOS[size.astype(np.int64) & 63] for size in sizes[1:]]
    return np.stack(columns).astype(np.float32)


def _near(value: NDArray[np.floating], scale: float) -> NDArray[np.floating]:
    """1 far below the scale, 0 far above it."""
    return 1.0 / (1.0 + value / np.float32(scale))
