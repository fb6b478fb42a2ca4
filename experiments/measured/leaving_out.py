"""What costs are fitted to, and costs fitted without one GPU."""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from envs.arrays import FloatArray, IntArray
from envs.errors import InputError
from envs.graphs.kernels import Kernels
from envs.hardware.devices import DeviceSpec
from experiments.measured.pricing import Cost, row_seconds
from experiments.measured.tables import (
    FLOAT32,
    MeasuredKernels,
    ModelRow,
    found_table,
    read_kernels,
    read_models,
)
from experiments.run.display import ProgressDisplay
from models.step.kernel_cost import Amid, KernelCostConfig, KernelShares, priced
from models.step.kernel_features import FloatRows, Inputs, sustained_share

if TYPE_CHECKING:  # it imports torch, which most studies do without
    from models.step.kernel_fit import KernelFit

BLOCK = 50  # steps of an optimizer between two lines of progress


class Rows(NamedTuple):
    """K measured kernels as a network reads them: what `KernelFit` takes."""

    columns: FloatRows
    ideal_s: FloatArray
    most: FloatArray
    device: IntArray
    seconds: FloatArray


@dataclass(frozen=True, eq=False)
class Data:
    """What costs are fitted to: kernels alone, and whole models in float32 on one device."""

    kernels: MeasuredKernels
    models: list[ModelRow]
    files: tuple[str, str]

    @classmethod
    def read(cls, folder: str | Path) -> Data:
        """From the tables `kernels` and `models` in a folder."""
        kernels, models = (found_table(folder, kind) for kind in ("kernels", "models"))
        plain = [x for x in read_models(models) if not x.parallel and x.precision in {"", FLOAT32}]
        return cls(read_kernels(kernels), plain, (kernels, models))

    @property
    def devices(self) -> list[str]:
        """Whose kernels were measured."""
        return [spec.name for spec in self.kernels.devices]

    @cached_property
    def rows(self) -> Rows:
        """All kernels, in the order of the table."""
        table = self.kernels
        own = [np.flatnonzero(table.device == number) for number in range(len(table.devices))]
        inputs = [
            Inputs(table.kernels.take(rows), spec)
            for rows, spec in zip(own, table.devices, strict=True)
        ]
        order = np.argsort(np.concatenate(own))
        columns = np.concatenate([x.columns for x in inputs], axis=1)
        ideal_s, most = (
            np.concatenate([getattr(x, name) for x in inputs]) for name in ("ideal_s", "most")
        )
        return Rows(columns[:, order], ideal_s[order], most[order], table.device, table.seconds)

    def kept(self, without: str | None) -> Rows:
        """Kernels that are not on one device.

        Raises:
            InputError: there are none.
        """
        kept = np.array([name != without for name in self.devices])[self.kernels.device]
        if not kept.any():
            raise InputError(f"no kernels but those of {without} are left")
        rows = self.rows
        return Rows(
            rows.columns[:, kept], rows.ideal_s[kept], rows.most[kept],
            np.unique(rows.device[kept], return_inverse=True)[1], rows.seconds[kept],
        )  # fmt: skip

    def fit(self, config: KernelCostConfig, seed: int, without: str | None = None) -> KernelFit:
        """To kernels that are not on one device."""
        from models.step.kernel_fit import KernelFit

        return KernelFit(config, *self.kept(without), seed)

    def amid(self, shares: KernelShares, without: str | None = None) -> Amid:
        """From models that are not fused and not on one device.

        Raises:
            InputError: there are none.
        """
        from models.step.kernel_fit import fit_amid

        rows = [x for x in self.models if "fused" not in x.mode and x.device.name != without]
        if not rows:
            raise InputError(f"no models but those of {without} are left")
        alone = partial(priced, shares, Amid())
        launch_s = np.array([row_seconds(row, _launches).sum() for row in rows])
        names = [row.device.name for row in rows]
        return fit_amid(
            np.array([row_seconds(row, alone).sum() for row in rows]) - launch_s,
            launch_s,
            np.array([sustained_share(row.device) for row in rows]),
            np.array([row.seconds for row in rows]),
            np.unique(names, return_inverse=True)[1],
        )


def _launches(kernels: Kernels, spec: DeviceSpec) -> FloatArray:
    return np.full(len(kernels), spec.launch_overhead_s)


def fitted_without(data: Data, device: str, seed: int, display: ProgressDisplay) -> Cost:
    """A cost that knows nothing of a device but its data sheet.

    Raises:
        InputError: no rows of others are left.
    """
    config = KernelCostConfig()
    fit = data.fit(config, seed, device)
    task, start = display.begin(f"without {device}"), time.perf_counter()
    while fit.steps < config.steps:
        loss = fit.train(BLOCK)
        news = f"{fit.steps} of {config.steps} steps, loss {loss:.3f}"
        display.update(task, time.perf_counter() - start, news)
    display.end(task, f"{config.steps} steps in {time.perf_counter() - start:.0f} s")
    shares = fit.network.shares()
    return partial(priced, shares, data.amid(shares, device))
