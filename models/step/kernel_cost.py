"""How long kernels take, by a network that says what share of the peaks they reach; in numpy.

A fitted one is a folder: kernel_cost.safetensors, the weights, and spec.json, the settings, the
factor of kernels amid others, origin and sha256. `models.step.kernel_fit` makes it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Annotated

import numpy as np
from annotated_types import Ge, Le

from envs.arrays import FloatArray
from envs.bounds import Count, NonNegative, Positive, bounded
from envs.cost import link_transfer_seconds
from envs.graphs.kernels import Kernels, kernels_of
from envs.graphs.op_graph import OpGraph
from envs.hardware.devices import DeviceSpec
from envs.hardware.topology import Topology
from models.artifacts import (
    read_checked_spec,
    read_json_object,
    read_settings,
    read_weights,
    sha256_of,
)
from models.step.kernel_features import (
    DEVICE_COLUMNS,
    INPUTS,
    FloatRows,
    Inputs,
    sustained_share,
)

LIMIT = 3.0  # standard deviations beyond which an input counts no further
LAUNCH_S = 5e-6  # of every measured kernel, whatever it does
KIND, SCHEMA_VERSION = "meshwright.kernel_cost", 1
WEIGHTS_FILE, SPEC_FILE = "kernel_cost.safetensors", "spec.json"
SHIPPED = Path(__file__).resolve().parent / "shipped" / "kernel_cost"
AT_ONCE = 512  # kernels whose states stay in the processor's cache
MOST = 1024  # members, and width


@bounded
@dataclass(frozen=True)
class KernelCostConfig:
    """The network and how it is fitted.

    Args:
        members: of the ensemble, whose logarithms are averaged; every second one is not given
            the columns of the device.
        hidden: width of both layers.
        steps: of the optimizer.
        batch: kernels a member sees in each of them.
        learning_rate: at its highest.
        weight_decay: of AdamW.
        noise: deviation of what is added to the device's columns, in their own deviations.
        tolerance: errors of the logarithm below it count by their square.
    """

    members: Annotated[int, Ge(1), Le(MOST)] = 4
    hidden: Annotated[int, Ge(1), Le(MOST)] = 48
    steps: Count = 800
    batch: Count = 256
    learning_rate: Positive = 0.008
    weight_decay: NonNegative = 0.001
    noise: NonNegative = 0.1
    tolerance: Positive = 0.1

    def weights(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the weights, by their names."""
        e, h = self.members, self.hidden
        layers = {"first": (INPUTS, h), "second": (h, h), "third": (h, 1)}
        found: dict[str, tuple[int, ...]] = {"centre": (INPUTS,), "scale": (INPUTS,)}
        for name, (rows, columns) in layers.items():
            found |= {f"{name}_weights": (e, rows, columns), f"{name}_bias": (e, 1, columns)}
        return found


class KernelShares:
    """What `models.step.kernel_fit.KernelNetwork` says, by its weights."""

    def __init__(self, weights: Mapping[str, FloatRows]) -> None:
        first = weights["first_weights"].transpose(0, 2, 1).copy()
        first[1::2, :, -DEVICE_COLUMNS:] = 0.0
        self._members, self._hidden = first.shape[:2]
        biases = weights["first_bias"].reshape(-1, 1)  # the weights of a last input, which is 1
        self._first = np.concatenate([first.reshape(-1, INPUTS), biases], axis=1)
        self._second = np.ascontiguousarray(weights["second_weights"].transpose(0, 2, 1))
        self._second_bias = weights["second_bias"].transpose(0, 2, 1)
        self._third = weights["third_weights"].transpose(0, 2, 1)
        self._third_bias = weights["third_bias"]
        self._centre = weights["centre"][:, None]
        self._scale = weights["scale"][:, None]

    def __call__(self, inputs: Inputs) -> FloatArray:
        """(K,) logarithms of the share of the peaks."""
        count = inputs.columns.shape[1]
        found = np.empty(count)
        for first in range(0, count, AT_ONCE):
            part = slice(first, first + AT_ONCE)
            columns = inputs.columns[:, part]
            x = np.ones((INPUTS + 1, columns.shape[1]), np.float32)
            np.divide(columns - self._centre, self._scale, out=x[:-1])
            np.clip(x[:-1], -LIMIT, LIMIT, out=x[:-1])
            states = self._first @ x
            np.maximum(states, 0.0, out=states)
            states = self._second @ states.reshape(self._members, self._hidden, -1)
            states += self._second_bias
            np.maximum(states, 0.0, out=states)
            logits = (self._third @ states + self._third_bias)[:, 0]  # (E, K)
            found[part] = -np.logaddexp(0.0, -logits).mean(axis=0)
        return found + np.log(inputs.most)


@dataclass(frozen=True)
class Amid:
    """What a kernel takes amid others of a step, over what it takes alone, launch apart.

    It was measured in float32 and is that of kernels in float32; of others nothing is known, and
    they take what they take alone.

    The factor is exp(constant + slope * log(share of the peak that the board's power sustains)).
    """

    constant: float = 0.0
    slope: float = 0.0

    def factor(self, spec: DeviceSpec) -> float:
        """On a device."""
        return math.exp(self.constant + self.slope * math.log(sustained_share(spec)))


@dataclass(frozen=True)
class LearnedCost:
    """Times of kernels by a network fitted to 19,500 measured ones of five NVIDIA GPUs.

    It says what share of the data sheet's peaks a kernel reaches, from its sizes and the figures of
    the device, as in Lee et al., "Forecasting GPU performance for deep learning training and
    inference", ASPLOS 2025. Tensors travel in latency + bytes / bandwidth.

    All that was measured is float32 without TF32. For other types and TF32 stands the share in
    float32, of the peak of that type; for fused attention that of a batch of products; for
    operators that are fused to one that of a linear layer of their FLOP, if they have many; for all
    other kinds, collectives among them, that of elementwise ones, whose FLOP count nothing.
    Operators on integers and booleans are bound by memory alone. The efficiencies of a device are
    not read; its launch overhead is.

    Args:
        path: the folder that `experiments.train task=kernel_cost` wrote; None: the shipped one.
    """

    path: str | None = None

    @property
    def folder(self) -> Path:
        """Where its weights lie."""
        return SHIPPED if self.path is None else Path(self.path)

    def kernel_seconds(self, kernels: Kernels, spec: DeviceSpec, alone: bool = False) -> FloatArray:
        """(K,) seconds.

        Args:
            kernels: on one device.
            spec: of it.
            alone: as a kernel by itself is measured, over and over; else amid others of a step.

        Raises:
            InputError: naming the device and the figure or dtype that it lacks; the folder holds
                no cost.
        """
        return priced(*read_cost(self.folder), kernels, spec, alone)

    def operator_seconds(self, graph: OpGraph, topology: Topology) -> FloatArray:
        """(N, D) seconds; an operator with neither FLOP nor bytes costs nothing.

        Raises:
            InputError: as `kernel_seconds`.
        """
        columns = (graph.kind, graph.op_dtype, graph.flop, graph.bytes_read, graph.bytes_written)
        table = np.ascontiguousarray(np.stack(columns, axis=1, dtype=np.float64))
        rows: list[bytes] = table.view(f"V{table.itemsize * len(columns)}").ravel().tolist()
        known: dict[bytes, int] = {}
        firsts = np.fromiter(map(known.setdefault, rows, range(len(rows))), np.int64, len(rows))
        first, which = np.unique(firsts, return_inverse=True)
        kernels = kernels_of(graph).take(first)
        idle = (graph.flop + graph.bytes_read + graph.bytes_written == 0)[first]
        found: dict[int, FloatArray] = {}
        for device in topology.devices:
            if id(device.spec) not in found:
                seconds = np.where(idle, 0.0, self.kernel_seconds(kernels, device.spec))
                found[id(device.spec)] = seconds[which]
        return np.stack([found[id(device.spec)] for device in topology.devices], axis=1)

    def transfer_seconds(self, graph: OpGraph, topology: Topology) -> FloatArray:
        """(T, L) seconds; see `envs.cost.link_transfer_seconds`."""
        return link_transfer_seconds(graph, topology)


def priced(
    shares: KernelShares, amid: Amid, kernels: Kernels, spec: DeviceSpec, alone: bool = False
) -> FloatArray:
    """(K,) seconds of kernels on a device, as `LearnedCost.kernel_seconds`."""
    inputs = Inputs(kernels, spec)
    factor = np.where(inputs.plain & (not alone), amid.factor(spec), 1.0)
    seconds = factor * inputs.ideal_s * np.exp(-shares(inputs))
    return np.maximum(seconds, inputs.least_s) + spec.launch_overhead_s


def read_cost(folder: Path) -> tuple[KernelShares, Amid]:
    """The cost in a folder; read again only where the folder was written anew.

    Raises:
        InputError: naming the file that is missing, damaged, of another kind or version, or about
            other columns than those of today.
    """
    read_json_object(folder / SPEC_FILE)  # before its hash: says what is wrong with it
    return _read(folder, sha256_of(folder / SPEC_FILE))


@lru_cache(maxsize=4)
def _read(folder: Path, spec_sha256: str) -> tuple[KernelShares, Amid]:
    del spec_sha256
    read_checked_spec(folder, KIND, SCHEMA_VERSION, [WEIGHTS_FILE])
    path = folder / SPEC_FILE
    config, factor = read_settings(path, KernelCostConfig), read_settings(path, Amid, "amid")
    weights = read_weights(folder / WEIGHTS_FILE, lambda found: config.weights())
    return KernelShares(weights), factor
