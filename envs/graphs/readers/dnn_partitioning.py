"""Reader of the dnn-partitioning workloads (Tarnawski et al., NeurIPS 2020): JSON, plain or .gz."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from envs.errors import InputError
from envs.files import read_json
from envs.graphs.builder import GraphBuilder
from envs.graphs.op_graph import NONE, Phase
from envs.graphs.readers.graph_file import (
    GraphFile,
    cost,
    kind_of,
    stem,
    tabulated_topology,
)
from envs.hardware.topology import Topology
from envs.units import MILLISECOND

MOST_ACCELERATORS = 1024  # every pair of them has a route
CPU, ACCELERATOR = "cpu", "accelerator"
LINK_CLASSES = ("same", "host", "via_host")  # one device; CPU and accelerator; two accelerators

Record = dict[str, Any]


@dataclass(frozen=True)
class DnnPartitioningReader:
    """A graph with CPU and accelerator times, and the accelerators and host it is meant for.

    Node times are milliseconds in the file and seconds here; an accelerator time is infinite where
    `supportedOnFpga` is false. Nodes of one `colorClass` are a co-location group; a node without
    one is free. `isBackwardNode` is the phase. A backward node mirrors the forward node its name
    stands for (`node7grad`, `MatMul1_Grad/Gemm_0`), or else the only forward node of its class.

    The outgoing edges of a node with the same cost and size are one tensor. An edge's cost is the
    time between an accelerator and the host: once between CPU and accelerator, twice (out and in)
    between two accelerators.

    Memory follows the file: a node's `size` covers its weights and its outputs and stays resident,
    so it is the operator's parameter, and tensors carry no bytes of their own. Their sizes are in
    the operators' `bytes_written`.

    The topology has `maxFPGAs` accelerators of `maxSizePerFPGA` bytes and one `cpu` of unlimited
    memory, standing for the pool of `maxCPUs`; one port pair each. Its bandwidth is the median of
    size over cost, for features: transfers take the tabulated times.
    """

    format: str = "dnn-partitioning"

    def accepts(self, content: bytes) -> bool:
        """JSON that limits the size on an accelerator."""
        return content.lstrip().startswith(b"{") and b'"maxSizePerFPGA"' in content

    def read(self, path: Path) -> GraphFile:
        """The graph, and the accelerators and host it is meant for.

        Raises:
            InputError: naming record and field.
        """
        document = read_json(path)
        nodes = _records(document, "nodes")
        edges = _records(document, "edges")
        for node in nodes:
            for field, (fits, what) in _FIELDS.items():
                if not fits(value := node.get(field)):
                    record = f"node {node.get('name' if field == 'id' else 'id')}"
                    raise InputError(f"{value!r} is not {what}", record=record, field=field)
        identifiers = [node["id"] for node in nodes]
        for number, times in Counter(identifiers).items():
            if times > 1:
                raise InputError(f"stands {times} times", record=f"node {number}", field="id")
        handle = {identifier: index for index, identifier in enumerate(identifiers)}
        mirrors = _mirrors(nodes)
        outputs = _outputs(edges, handle)
        groups: dict[int, int] = {}

        builder = GraphBuilder(
            name=stem(path),
            profile_classes=(CPU, ACCELERATOR),
            link_classes=LINK_CLASSES,
        )
        for index, node in enumerate(nodes):
            record = f"node {identifiers[index]}"
            name = str(node.get("name", identifiers[index]))
            colour = node.get("colorClass")
            seconds = [
                cost(node.get(field), record, field) * MILLISECOND
                for field in ("cpuLatency", "fpgaLatency")
            ]
            builder.add_operator(
                name,
                kind=kind_of(name),
                phase=Phase.BACKWARD if node["isBackwardNode"] else Phase.FORWARD,
                colocation=NONE if colour is None else groups.setdefault(colour, len(groups)),
                mirror=mirrors.get(index, NONE),
                bytes_written=sum(size for _, size in outputs[index]),
                profile=(seconds[0], seconds[1] if node["supportedOnFpga"] else np.inf),
            )
            size = cost(node.get("size"), record, "size")
            if size > 0:
                builder.add_parameter(name, index, parameter=size)
        for index in range(len(nodes)):
            for (milliseconds, _), consumers in outputs[index].items():
                seconds_to_host = milliseconds * MILLISECOND
                tensor = builder.add_tensor(
                    index, 0.0, link=(0.0, seconds_to_host, 2 * seconds_to_host)
                )
                for consumer in consumers:
                    builder.add_use(tensor, consumer)
        return GraphFile(
            graph=builder.build(),
            topology=_topology(document, outputs, path),
            provenance={"format": self.format, "file": path.name, "time_unit": "ms"},
        )


Outputs = dict[int, dict[tuple[float, float], list[int]]]  # node -> (cost ms, bytes) -> consumers


def _is_flag(value: object) -> bool:
    return value in (0, 1)


_FIELDS: Mapping[str, tuple[Callable[[object], bool], str]] = {  # of a node: what fits it, in words
    "id": (lambda value: type(value) is int, "an integer"),
    "isBackwardNode": (_is_flag, "true or false"),
    "supportedOnFpga": (_is_flag, "true or false"),
    # a node without a class is tied to no other
    "colorClass": (lambda value: value is None or isinstance(value, int), "an integer"),
}


def _records(document: Record, field: str) -> list[Record]:
    records = document.get(field)
    if not isinstance(records, list) or not all(isinstance(record, dict) for record in records):
        raise InputError("is not a list of records", field=field)
    return records


def _outputs(edges: list[Record], handle: dict[int, int]) -> Outputs:
    outputs: Outputs = defaultdict(lambda: defaultdict(list))
    for edge in edges:
        ends = []
        record = f"edge {edge.get('sourceId')} -> {edge.get('destId')}"
        for field in ("sourceId", "destId"):
            identifier = edge.get(field)
            if not isinstance(identifier, int) or identifier not in handle:
                raise InputError(f"unknown node {identifier!r}", record=record, field=field)
            ends.append(handle[identifier])
        key = (
            cost(edge.get("cost"), record, "cost"),
            cost(edge.get("size", 0.0), record, "size"),
        )
        outputs[ends[0]][key].append(ends[1])
    return outputs


def _mirrors(nodes: list[Record]) -> dict[int, int]:
    """Backward node -> forward node, where the name or the colour class tells."""
    backward = [bool(node["isBackwardNode"]) for node in nodes]
    colours = [node.get("colorClass") for node in nodes]
    by_name = {str(node.get("name")): i for i, node in enumerate(nodes) if not backward[i]}
    by_colour: dict[int | None, list[int]] = defaultdict(list)
    for index, colour in enumerate(colours):
        if not backward[index] and colour is not None:
            by_colour[colour].append(index)
    mirrors = {}
    for index, node in enumerate(nodes):
        if not backward[index]:
            continue
        name = str(node.get("name"))
        forward = by_name.get(name.removesuffix("grad"), by_name.get(name.partition("_Grad")[0]))
        relatives = by_colour[colours[index]]
        if forward is not None:
            mirrors[index] = forward
        elif len(relatives) == 1:
            mirrors[index] = relatives[0]
    return mirrors


def _topology(document: Record, outputs: Outputs, path: str | Path) -> Topology:
    limits = {
        field: cost(document.get(field), "header", field)
        for field in ("maxFPGAs", "maxCPUs", "maxSizePerFPGA")
    }
    if limits["maxFPGAs"] > MOST_ACCELERATORS:
        message = f"{limits['maxFPGAs']:g} are more than {MOST_ACCELERATORS}"
        raise InputError(message, record="header", field="maxFPGAs")
    accelerators = int(limits["maxFPGAs"])
    devices = [
        (f"{ACCELERATOR}{index}", ACCELERATOR, limits["maxSizePerFPGA"])
        for index in range(accelerators)
    ]
    devices.append((CPU, CPU, np.inf))
    link = np.full((len(devices), len(devices)), 2, dtype=np.int64)
    link[-1, :] = link[:, -1] = 1
    np.fill_diagonal(link, 0)
    rates = [
        size / (milliseconds * MILLISECOND)
        for tensors in outputs.values()
        for milliseconds, size in tensors
        if milliseconds > 0 and size > 0
    ]
    rate = float(np.median(rates)) if rates else np.inf
    bandwidth = np.array([np.inf, rate, rate / 2])
    return tabulated_topology(path, devices, link, LINK_CLASSES, bandwidth)
