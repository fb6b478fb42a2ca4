"""Reader of PipeDream layer profiles (Narayanan et al., SOSP 2019): text, plain or .gz."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from envs.bounds import Count, bounded
from envs.errors import InputError
from envs.files import read_content
from envs.graphs.builder import GraphBuilder
from envs.graphs.op_graph import NONE, Phase
from envs.graphs.readers.graph_file import (
    GraphFile,
    cost,
    kind_of,
    stem,
    tabulated_topology,
)
from envs.units import GIGA, MILLISECOND

GPU = "gpu"
FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_ELEMENT = re.compile(r"__getitem__\((\d+)\)")


@dataclass(frozen=True)
class _Node:
    identifier: str
    description: str
    forward_s: float
    backward_s: float
    activations: tuple[float, ...]  # bytes of each output
    parameter_bytes: float

    @property
    def is_input(self) -> bool:
        return self.description.startswith("Input")


@bounded
@dataclass(frozen=True)
class PipeDreamReader:
    """A layer graph profiled on one GPU: one operator per node of the file.

    Times are milliseconds in the file and seconds here. `Input` nodes take no time: theirs is the
    data loader's. A node with several outputs (`[a; b; c]` bytes) writes as many tensors, and
    `__getitem__(i)` reads the i-th of them alone.

    With `training`, every node but the inputs gets a backward operator in its co-location group.
    It reads what the forward operator read and the gradients of its outputs (the last layer's
    outputs themselves stand for the loss), and writes a gradient of the same size for every tensor
    that an operator with a backward one produced; parameters then have a gradient of their size.

    With `micro_batches` the step is as many equal parts of the profiled minibatch: every time and
    every tensor is divided by their number (a GPU that is less busy with small parts would take
    longer), parameters and gradients stand once, and the parts of a layer share a co-location
    group. The profile times no update of the parameters, so there is none.

    The file names no devices: the topology has `devices` of `memory_bytes`, linked all to all by
    `bandwidth` bytes/s without latency (default 25 Gb/s), one port pair each. Transfer times
    follow from bytes, so the graph has no table of them.
    """

    training: bool = False
    micro_batches: Count = 1
    devices: int = 4
    memory_bytes: float = 16 * GIGA
    bandwidth: float = 25 * GIGA / 8  # bytes/s: 25 Gb/s
    format: str = "pipedream"

    def accepts(self, content: bytes) -> bool:
        """A line `node -- description -- forward_compute_time=...`."""
        return re.search(rb"(?m)^\S+ -- .* -- forward_compute_time=", content) is not None

    def read(self, path: Path) -> GraphFile:
        """The layers of the file, or the step of their training.

        Raises:
            InputError: naming file, record and field.
        """
        nodes, edges = _parse(path)
        builder = GraphBuilder(name=stem(path), profile_classes=(GPU,))
        for batch in range(self.micro_batches):
            _add_micro_batch(builder, nodes, edges, self.training, batch, self.micro_batches)
        topology = tabulated_topology(
            path,
            [(f"{GPU}{index}", GPU, self.memory_bytes) for index in range(self.devices)],
            (1 - np.eye(self.devices)).astype(np.int64),
            ("same", "link"),
            np.array([np.inf, self.bandwidth]),
        )
        provenance: dict[str, str | float] = {
            "format": "pipedream",
            "file": path.name,
            "time_unit": "ms",
            "phases": "forward, backward" if self.training else "forward",
            "micro_batches": self.micro_batches,
        }
        return GraphFile(builder.build(), topology, provenance)


def _add_micro_batch(
    builder: GraphBuilder,
    nodes: list[_Node],
    edges: list[tuple[str, str]],
    training: bool,
    batch: int,
    micro_batches: int,
) -> None:
    """One of the equal parts of the step; the first brings the parameters."""
    number = {node.identifier: index for index, node in enumerate(nodes)}
    prefix = f"mb{batch}/" if micro_batches > 1 else ""
    shared = training or micro_batches > 1
    forward: list[int] = []
    backward: dict[int, int] = {}
    outputs: list[list[int]] = []  # tensors of each node
    reads: dict[int, list[int]] = defaultdict(list)  # node -> tensors
    producer: dict[int, int] = {}  # tensor -> node
    sizes: dict[int, float] = {}  # of each tensor
    for index, node in enumerate(nodes):
        written = [size / micro_batches for size in node.activations]
        operator = builder.add_operator(
            f"{prefix}{node.identifier}",
            kind=kind_of(node.description),
            micro_batch=batch,
            bytes_written=sum(written),
            colocation=index if shared else NONE,
            profile=(0.0 if node.is_input else node.forward_s / micro_batches,),
        )
        forward.append(operator)
        outputs.append([builder.add_tensor(operator, size) for size in written])
        producer |= dict.fromkeys(outputs[index], index)
        sizes |= zip(outputs[index], written, strict=True)
        if node.parameter_bytes > 0 and batch == 0:
            gradient = node.parameter_bytes if training else 0.0
            builder.add_parameter(
                node.identifier, operator,
                parameter=node.parameter_bytes, gradient=gradient,
            )  # fmt: skip
    for source, target in edges:
        u, v = number[source], number[target]
        for tensor in _read(nodes[v], outputs[u]):
            builder.add_use(tensor, forward[v])
            reads[v].append(tensor)
    if not training:
        return
    for index, node in enumerate(nodes):
        if not node.is_input:
            backward[index] = builder.add_operator(
                f"{prefix}{node.identifier}.backward",
                kind=kind_of(node.description),
                phase=Phase.BACKWARD,
                micro_batch=batch,
                colocation=index,
                mirror=forward[index],
                profile=(node.backward_s / micro_batches,),
            )
    used = {tensor for tensors in reads.values() for tensor in tensors}
    for index, operator in backward.items():
        for tensor in reads[index]:
            builder.add_use(tensor, operator)
            if producer[tensor] in backward:
                gradient_tensor = builder.add_tensor(operator, sizes[tensor])
                builder.add_use(gradient_tensor, backward[producer[tensor]])
        if not used.intersection(outputs[index]):
            for tensor in outputs[index]:
                builder.add_use(tensor, operator)


def _read(consumer: _Node, tensors: list[int]) -> list[int]:
    """The outputs of a producer that `consumer` reads."""
    element = _ELEMENT.fullmatch(consumer.description)
    if element is None or not 0 <= int(element[1]) < len(tensors):
        return tensors
    return [tensors[int(element[1])]]


def _parse(path: str | Path) -> tuple[list[_Node], list[tuple[str, str]]]:
    try:
        text = read_content(path).decode()
    except UnicodeDecodeError as error:
        raise InputError(f"is not text ({error})") from error
    nodes: dict[str, _Node] = {}
    edges = []
    for number, line in enumerate(text.splitlines(), start=1):
        parts = [part.strip() for part in line.split(" -- ")]
        if not line.strip():
            continue
        if len(parts) == 2:
            edges.append((number, parts[0], parts[1]))
        elif len(parts) > 2:
            node = _node(parts)
            if node.identifier in nodes:
                raise InputError("stands twice", record=node.identifier, field="id")
            nodes[node.identifier] = node
        else:
            raise InputError("is neither a node nor an edge", record=f"line {number}")
    for number, *ends in edges:
        for end, field in zip(ends, ("source", "destination"), strict=True):
            if end not in nodes:
                record = f"line {number}"
                raise InputError(f"unknown node {end!r}", record=record, field=field)
    return list(nodes.values()), [(source, target) for _, source, target in edges]


def _node(parts: list[str]) -> _Node:
    identifier, description, facts = parts[0], " -- ".join(parts[1:-1]), parts[-1]
    values = dict(re.findall(r"(\w+)=(\[[^\]]*\]|[^,]*)", facts))
    for field in FIELDS:
        if field not in values:
            raise InputError("is missing", record=identifier, field=field)

    def number(field: str) -> float:
        return cost(values[field].strip(), identifier, field)

    return _Node(
        identifier=identifier,
        description=description,
        forward_s=number("forward_compute_time") * MILLISECOND,
        backward_s=number("backward_compute_time") * MILLISECOND,
        activations=tuple(
            cost(size.strip(), identifier, "activation_size")
            for size in values["activation_size"].strip("[] ").split(";")
        ),
        parameter_bytes=number("parameter_size"),
    )
