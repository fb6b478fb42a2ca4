"""Costs of kernels that tests know."""

from __future__ import annotations

import numpy as np

from envs.arrays import FloatArray
from envs.graphs.kernels import Family, Kernels
from envs.hardware.devices import DeviceSpec


class Even:
    """Every kernel takes a second."""

    def kernel_seconds(self, kernels: Kernels, spec: DeviceSpec) -> FloatArray:
        return np.ones(len(kernels))


class Products:
    """A second for a product with weights, but nothing for those with a vocabulary of `width`."""

    def __init__(self, width: int) -> None:
        self.width = width

    def kernel_seconds(self, kernels: Kernels, spec: DeviceSpec) -> FloatArray:
        sizes = np.stack([kernels.m, kernels.n, kernels.k])
        counts = (kernels.family == Family.LINEAR) & (sizes != self.width).all(axis=0)
        return counts.astype(np.float64)


class Peaks:
    """FLOP, then bytes, at the peaks of the data sheet, and a microsecond."""

    def kernel_seconds(self, kernels: Kernels, spec: DeviceSpec) -> FloatArray:
        rates = np.array([spec.peak_flops[rate] for rate in kernels.rate])
        moved = kernels.bytes_read + kernels.bytes_written
        return np.asarray(kernels.flop / rates + moved / spec.memory_bandwidth + 1e-6)
