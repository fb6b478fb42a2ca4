"""Fits the network of a learned cost to measured kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from envs.arrays import FloatArray, IntArray
from models.artifacts import (
    atomic_folder,
    load_optimizer,
    optimizer_arrays,
    save_weights,
    write_spec,
)
from models.step.kernel_cost import (
    KIND,
    LAUNCH_S,
    LIMIT,
    SCHEMA_VERSION,
    WEIGHTS_FILE,
    Amid,
    KernelCostConfig,
    KernelShares,
)
from models.step.kernel_features import DEVICE_COLUMNS, INPUTS, FloatRows


class KernelNetwork(nn.Module):
    """(K,) logarithms of the share of the peaks that kernels reach, at most log(most)."""

    centre: Tensor
    scale: Tensor
    seen: Tensor
    third_weights: Tensor
    third_bias: Tensor

    def __init__(self, config: KernelCostConfig) -> None:
        super().__init__()
        self.config = config
        for name, shape in config.weights().items():
            if name.endswith("weights"):
                first = torch.randn(shape) * math.sqrt(2.0 / shape[1])
                self.register_parameter(name, nn.Parameter(first))
            elif name.endswith("bias"):
                self.register_parameter(name, nn.Parameter(torch.zeros(shape)))
            else:
                self.register_buffer(name, torch.full(shape, float(name == "scale")))
        seen = torch.ones(config.members, 1, INPUTS)
        seen[1::2, :, -DEVICE_COLUMNS:] = 0.0
        self.register_buffer("seen", seen, persistent=False)

    def members(self, columns: Tensor, noise: Tensor | None = None) -> Tensor:
        """(E, K) what each member says, unbounded, of (K, INPUTS) or (E, K, INPUTS) columns."""
        x = ((columns - self.centre) / self.scale).clamp(-LIMIT, LIMIT)
        if noise is not None:
            x = x + noise
        x = x * self.seen
        for name in ("first", "second"):
            weights, bias = getattr(self, f"{name}_weights"), getattr(self, f"{name}_bias")
            x = torch.relu(torch.baddbmm(bias, x, weights))
        return torch.baddbmm(self.third_bias, x, self.third_weights)[..., 0]

    def forward(self, columns: Tensor, most: Tensor) -> Tensor:
        """(K,) of (K, INPUTS) columns."""
        return bounded_share(self.members(columns), most).mean(dim=0)

    def shares(self) -> KernelShares:
        """The same in numpy."""
        return KernelShares({name: x.numpy().copy() for name, x in self.state_dict().items()})


def bounded_share(logits: Tensor, most: Tensor) -> Tensor:
    """Logarithms of shares below `most`."""
    return most.log() + nn.functional.logsigmoid(logits)


def log_share(ideal_s: FloatArray, seconds: FloatArray) -> FloatArray:
    """(K,) what a network is fitted to: logarithms of the share of the peaks, launch apart."""
    share: FloatArray = np.log(ideal_s / np.maximum(seconds - LAUNCH_S, 0.1 * seconds))
    return share


class KernelFit:
    """Fits a network to measured seconds; every device counts alike.

    Args:
        config: of the network and the fit.
        columns: (INPUTS, K) of `Inputs`.
        ideal_s: (K,) of them.
        most: (K,) of them.
        device: (K,) number of the device.
        seconds: (K,) measured.
        seed: of the weights, the rows and the noise.
    """

    def __init__(
        self,
        config: KernelCostConfig,
        columns: FloatRows,
        ideal_s: FloatArray,
        most: FloatArray,
        device: IntArray,
        seconds: FloatArray,
        seed: int,
    ) -> None:
        self.config, self.generator = config, torch.Generator().manual_seed(seed)
        self._inputs = torch.from_numpy(np.ascontiguousarray(columns.T))
        self._target = torch.from_numpy(log_share(ideal_s, seconds)).float()
        self._most = torch.from_numpy(most).float()
        self._weight = torch.from_numpy(1.0 / np.bincount(device)[device])
        with torch.random.fork_rng():
            torch.manual_seed(seed)
            self.network = KernelNetwork(config)
        self.network.centre.copy_(self._inputs.mean(dim=0))
        self.network.scale.copy_(self._inputs.std(dim=0) + 1e-3)
        self.optimizer = torch.optim.AdamW(
            self.network.parameters(), config.learning_rate, weight_decay=config.weight_decay
        )
        self._schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, config.learning_rate, total_steps=config.steps
        )

    @property
    def steps(self) -> int:
        """Done so far."""
        return int(self._schedule.last_epoch)

    def train(self, steps: int) -> float:
        """So many steps, if as many are left; the mean loss."""
        config, total = self.config, 0.0
        steps = min(steps, config.steps - self.steps)
        if steps < 1:
            return 0.0
        rows = torch.multinomial(
            self._weight, steps * config.members * config.batch, replacement=True,
            generator=self.generator,
        ).view(steps, config.members, config.batch)  # fmt: skip
        noise = torch.zeros(config.members, config.batch, INPUTS)
        for chosen in rows:
            noise[..., -DEVICE_COLUMNS:].normal_(0.0, config.noise, generator=self.generator)
            logits = self.network.members(self._inputs[chosen], noise)
            found = bounded_share(logits, self._most[chosen])
            loss = nn.functional.smooth_l1_loss(found, self._target[chosen], beta=config.tolerance)
            self.optimizer.zero_grad()
            (config.members * loss).backward()
            self.optimizer.step()
            self._schedule.step()
            total += loss.item()
        return total / steps

    def state(self) -> tuple[dict[str, object], dict[str, Mapping[str, Tensor]]]:
        """What the fit needs to go on: plain numbers, and arrays by file and name."""
        files: dict[str, Mapping[str, Tensor]] = {
            "weights": self.network.state_dict(),
            "optimizer": optimizer_arrays(self.optimizer),
            "random": {"rows": self.generator.get_state()},
        }
        groups = [
            {key: group[key] for key in ("lr", "betas")} for group in self.optimizer.param_groups
        ]
        return {"steps": self.steps, "groups": groups}, files

    def load(self, numbers: Mapping[str, Any], files: Mapping[str, Mapping[str, Tensor]]) -> None:
        """Go on from what `state` gave."""
        self.network.load_state_dict(dict(files["weights"]))
        load_optimizer(self.optimizer, files["optimizer"])
        self._schedule.last_epoch = numbers["steps"]
        for group, saved in zip(self.optimizer.param_groups, numbers["groups"], strict=True):
            group["lr"], group["betas"] = saved["lr"], tuple(saved["betas"])
        self.generator.set_state(files["random"]["rows"])


def fit_amid(
    alone_s: FloatArray,
    launch_s: FloatArray,
    sustained: FloatArray,
    seconds: FloatArray,
    device: IntArray,
) -> Amid:
    """The factor by which whole models take what they were measured to; every device counts alike.

    Args:
        alone_s: (R,) seconds of a model's kernels alone, launches apart.
        launch_s: (R,) of their launches.
        sustained: (R,) `sustained_share` of the device.
        seconds: (R,) measured.
        device: (R,) number of the device.
    """
    from scipy.optimize import least_squares

    weight = np.bincount(device)[device] ** -0.5

    def errors(x: FloatArray) -> FloatArray:
        found = alone_s * np.exp(x[0] + x[1] * np.log(sustained)) + launch_s
        off: FloatArray = weight * np.log(found / seconds)
        return off

    constant, slope = least_squares(errors, np.zeros(2), loss="soft_l1", f_scale=0.1).x
    return Amid(float(constant), float(slope))


def save_cost(
    network: KernelNetwork, amid: Amid, folder: Path, provenance: Mapping[str, object]
) -> None:
    """Write the folder whole or not at all."""
    with atomic_folder(folder) as temporary:
        save_weights(network, temporary / WEIGHTS_FILE)
        spec = {
            "kind": KIND,
            "schema_version": SCHEMA_VERSION,
            "config": asdict(network.config),
            "amid": asdict(amid),
            "provenance": dict(provenance),
        }
        write_spec(temporary, spec)
