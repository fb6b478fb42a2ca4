"""Random kernels, and times that follow a law of our own."""

from __future__ import annotations

import numpy as np

from envs.arrays import FloatArray
from envs.graphs.kernels import MATRIX, Family, Kernels
from envs.hardware.devices import CATALOGUE, DeviceSpec
from models.step.kernel_cost import LAUNCH_S, KernelCostConfig
from models.step.kernel_features import Inputs
from models.step.kernel_fit import KernelFit

KNOWN = [spec for spec in CATALOGUE.values() if spec.known]
SMALL = KernelCostConfig(members=2, hidden=16, steps=200, batch=64)


def random_kernels(seed: int, count: int, rates: tuple[str, ...] = ("float32",)) -> Kernels:
    """Of every family, from one element to billions."""
    rng = np.random.default_rng(seed)
    family = rng.integers(0, len(Family), count)
    matrix, convolution = np.isin(family, MATRIX), family == Family.CONVOLUTION
    batch, m, n, k = (np.round(10.0 ** rng.uniform(0, top, count)) for top in (3, 5, 5, 4))
    batch, k = np.where(matrix, batch, 1.0), np.where(matrix, k, 1.0)
    return Kernels(
        family, batch, m, n, k,
        np.where(matrix, 2.0 * batch * m * n * k, 0.0),
        4.0 * batch * (m * k + k * n),
        4.0 * batch * m * n,
        np.where(convolution, rng.integers(1, 8, count), 0.0),
        np.where(convolution, rng.integers(1, 3, count), 0.0),
        tuple(rng.choice(rates, count).tolist()),
    )  # fmt: skip


def law(kernels: Kernels, spec: DeviceSpec) -> FloatArray:
    """Seconds of a device that small sums and few elements use badly."""
    matrix = np.isin(kernels.family, MATRIX)
    share = np.where(matrix, kernels.k / (kernels.k + 300.0), 0.7)
    return Inputs(kernels, spec).least_s / share + LAUNCH_S


def toy_fit(seed: int, config: KernelCostConfig = SMALL) -> KernelFit:
    """A fit, not begun, to the law on two devices."""
    specs = (CATALOGUE["V100-16GB"], CATALOGUE["T4"])
    kernels = [random_kernels(seed + number, 400) for number in range(2)]
    inputs = [Inputs(*pair) for pair in zip(kernels, specs, strict=True)]
    return KernelFit(
        config,
        np.concatenate([x.columns for x in inputs], axis=1),
        np.concatenate([x.ideal_s for x in inputs]),
        np.concatenate([x.most for x in inputs]),
        np.repeat([0, 1], 400),
        np.concatenate([law(*pair) for pair in zip(kernels, specs, strict=True)]),
        seed,
    )
