"""Costs of kernels by name, and what whole models cost."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Protocol

from envs.arrays import FloatArray
from envs.cost import RooflineCost
from envs.graphs.kernels import Kernels
from envs.graphs.transformer import Execution
from envs.hardware.devices import DeviceSpec
from experiments.measured.models import NO_OTHERS, KernelSeconds, Parallel, Server, model_seconds
from experiments.measured.tables import FLOAT32, ModelRow, plain_rate
from models.step.kernel_cost import SPEC_FILE, LearnedCost

LEARNED, ROOFLINE = "learned", "roofline"


class Cost(Protocol):
    """How long kernels take on a device."""

    def __call__(self, kernels: Kernels, spec: DeviceSpec, alone: bool = False) -> FloatArray:
        """(K,) seconds amid others of a step, or alone as when measured by themselves."""


Costs = Callable[[DeviceSpec], Cost]  # the cost of each device


def cost_of(name: str) -> tuple[Cost, Sequence[Path]]:
    """A cost, and the files that it comes from: learned, roofline or a folder of a learned one.

    Raises:
        InputError: the folder holds none.
    """
    if name == ROOFLINE:
        return RooflineCost().kernel_seconds, ()
    cost = LearnedCost(None if name == LEARNED else name)
    return cost.kernel_seconds, (cost.folder / SPEC_FILE,)


def element_bytes(rate: str) -> float:
    """Of activations."""
    return 2.0 if rate in {"float16", "bfloat16"} else 4.0


def row_seconds(
    row: ModelRow, cost: KernelSeconds, links: Mapping[str, str] = NO_OTHERS
) -> FloatArray:
    """(2,) seconds forward and backward of a whole model, as `model_seconds`."""
    rate = plain_rate(row.device) if row.precision in {"", FLOAT32} else row.precision
    return model_seconds(
        row.size, row.mode, row.batch, Parallel.of(row.parallel),
        Execution(rate=rate, element_bytes=element_bytes(rate)), Server(row.device, cost, links),
    )  # fmt: skip
