"""What every reader returns, and the checks they share."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from reprlib import repr as shortened
from typing import Protocol

from envs.arrays import FloatArray, IntArray
from envs.errors import InputError
from envs.graphs.op_graph import Kind, OpGraph
from envs.hardware.devices import Device, DeviceSpec
from envs.hardware.topology import Topology, port_topology

Provenance = Mapping[str, str | float]


@dataclass(frozen=True, eq=False)
class GraphFile:
    """A published graph and the devices it was measured on.

    `provenance` says where it came from and in which unit its times stand; it suits `save_graph`.
    `topology` is what `topology=from_graph` takes; None when the file names no devices.
    """

    graph: OpGraph
    topology: Topology | None
    provenance: Provenance


class GraphReader(Protocol):
    """A format: recognises its files by their content and reads them."""

    @property
    def format(self) -> str:
        """The name of the format."""

    def accepts(self, content: bytes) -> bool:
        """Whether `content` (a whole file, decompressed) looks like this format."""

    def read(self, path: Path) -> GraphFile:
        """The graph in `path`; InputError names record and field of what is wrong."""


def stem(path: str | Path) -> str:
    """The file's name without its suffixes: the name of its graph."""
    name = Path(path).name
    for suffix in (".gz", ".json", ".txt", ".xls"):
        name = name.removesuffix(suffix)
    return name


def cost(value: object, record: object, field: str) -> float:
    """`value` as a finite number >= 0.

    Raises:
        InputError: it is missing, no number, negative or not finite.
    """
    if value is None or value == "":
        raise InputError("is missing", record=record, field=field)
    try:
        if isinstance(value, bool) or not isinstance(value, int | float | str):
            raise ValueError
        number = float(value)
    except (ValueError, OverflowError):
        message = f"{shortened(value)} is not a number"
        raise InputError(message, record=record, field=field) from None
    if not math.isfinite(number) or number < 0:
        raise InputError(f"{value} is negative or not finite", record=record, field=field)
    return number


def tabulated_topology(
    path: str | Path,
    devices: Iterable[tuple[str, str, float]],
    link_class: IntArray,
    class_names: tuple[str, ...],
    class_bandwidth: FloatArray,
) -> Topology:
    """Devices known by their measured times alone, with a send and a receive port each.

    `devices` are names, kinds and bytes; every datasheet figure is 0, not published.
    """
    unknown = DeviceSpec(
        name="",
        peak_flops={},
        memory_bandwidth=0.0,
        memory_bytes=0.0,
        launch_overhead_s=0.0,
        compute_efficiency=1.0,
        memory_efficiency=1.0,
        source=str(path),
    )
    held = [
        Device(name, replace(unknown, name=kind, memory_bytes=nbytes), server=0)
        for name, kind, nbytes in devices
    ]
    return port_topology(stem(path), held, link_class, class_names, class_bandwidth)


_KINDS = {
    Kind.MATMUL: "matmul gemm linear classifier lstm emubidirlstm fusedmatmul",
    Kind.CONVOLUTION: "conv conv2d convgrad",
    Kind.ATTENTION: "recurrentattention",
    Kind.NORMALIZATION: "batchnormalization batchnorm2d layernormalization batchnormalizationgrad "
    "layernormalizationgrad",
    Kind.ELEMENTWISE: "relu add sub mul div dropout trainabledropout gelu tanh cast sqrt relugrad "
    "gelugrad trainabledropoutgrad accumulategrad",
    Kind.REDUCTION: "softmax sum maxpool maxpool2d avgpool2d averagepool globalaveragepool "
    "reducesum reducemean softmaxgrad softmaxcrossentropy sparsesoftmaxcrossentropy",
    Kind.EMBEDDING: "embedding gather gathernd gathergrad gatherndgrad",
    Kind.DATA_MOVEMENT: "input concat view size transpose reshape slice split unsqueeze squeeze "
    "shape getitem hidden identity",
    Kind.UPDATE: "adamoptimizer sgdoptimizer",
}
_KIND_OF = {word: kind for kind, words in _KINDS.items() for word in words.split()}


def kind_of(operator: str) -> Kind:
    """The kind in an operator's type name, such as `Conv2d(3, 64)` or `Gemm1_Grad/Gemm_2`."""
    word = re.match(r"_*([A-Za-z]+(?:2d)?)", operator.rpartition("_Grad/")[2])
    return _KIND_OF.get(word[1].lower(), Kind.OTHER) if word else Kind.OTHER
