"""`OpGraph` to networkx and back; networkx is met nowhere else."""

from __future__ import annotations

import networkx as nx

from envs.errors import InputError
from envs.graphs.builder import GraphBuilder
from envs.graphs.op_graph import NONE, Kind, OpGraph, Phase
from envs.units import DTYPES


def to_networkx(graph: OpGraph) -> nx.MultiDiGraph:
    """A multigraph of operators (nodes, by name) and uses of tensors (edges, by tensor number).

    Node attributes: kind, phase, micro_batch, replica, flop, bytes_read, bytes_written, dtype,
    colocation, mirror (a name, or None), parameter_bytes, gradient_bytes, optimizer_bytes and
    profile_seconds (a tuple). Edge attributes: bytes, dtype, link_seconds (a tuple). Graph
    attributes: name, profile_classes, link_classes. Tensors without consumers have no edge.
    """
    result = nx.MultiDiGraph(
        name=graph.name, profile_classes=graph.profile_classes, link_classes=graph.link_classes
    )
    for op, name in enumerate(graph.op_names):
        mirror = graph.mirror[op]
        result.add_node(
            name,
            kind=Kind(graph.kind[op]).name,
            phase=Phase(graph.phase[op]).name,
            micro_batch=int(graph.micro_batch[op]),
            replica=int(graph.replica[op]),
            flop=float(graph.flop[op]),
            bytes_read=float(graph.bytes_read[op]),
            bytes_written=float(graph.bytes_written[op]),
            dtype=DTYPES[graph.op_dtype[op]],
            colocation=int(graph.colocation[op]),
            mirror=graph.op_names[mirror] if mirror != NONE else None,
            parameter_bytes=0.0,
            gradient_bytes=0.0,
            optimizer_bytes=0.0,
            profile_seconds=tuple(graph.profile_seconds[op]) if graph.profile_classes else (),
        )
    for parameter, owner in enumerate(graph.parameter_owner):
        node = result.nodes[graph.op_names[owner]]
        for column in ("parameter_bytes", "gradient_bytes", "optimizer_bytes"):
            node[column] += float(getattr(graph, column)[parameter])
    for producer, consumer, tensor in graph.edges:
        result.add_edge(
            graph.op_names[producer],
            graph.op_names[consumer],
            key=int(tensor),
            bytes=float(graph.tensor_bytes[tensor]),
            dtype=DTYPES[graph.tensor_dtype[tensor]],
            link_seconds=tuple(graph.link_seconds[tensor]) if graph.link_classes else (),
        )
    return result


def from_networkx(source: nx.DiGraph) -> OpGraph:
    """The graph of a directed networkx graph with the attributes `to_networkx` writes.

    Every attribute may be absent: costs are then 0, the phase forward, the operator free. In a
    multigraph the edges of a node with one key are one tensor; in a plain graph all of them are.
    The parameters of an operator become one, named after it.

    Raises:
        InputError: a cycle, two sizes for one tensor, or a column `OpGraph` rejects.
    """
    name = str(source.graph.get("name") or "networkx")
    builder = GraphBuilder(
        name=name,
        profile_classes=tuple(source.graph.get("profile_classes", ())),
        link_classes=tuple(source.graph.get("link_classes", ())),
    )
    handle = {node: index for index, node in enumerate(source.nodes)}
    for node, facts in source.nodes(data=True):
        mirror = facts.get("mirror")
        builder.add_operator(
            str(node),
            kind=Kind[facts.get("kind", "OTHER")],
            phase=Phase[facts.get("phase", "FORWARD")],
            micro_batch=facts.get("micro_batch", 0),
            replica=facts.get("replica", 0),
            flop=facts.get("flop", 0.0),
            bytes_read=facts.get("bytes_read", 0.0),
            bytes_written=facts.get("bytes_written", 0.0),
            dtype=facts.get("dtype", "float32"),
            colocation=facts.get("colocation", NONE),
            mirror=NONE if mirror is None else handle[mirror],
            profile=facts.get("profile_seconds", ()),
        )
        state = [facts.get(f"{part}_bytes", 0.0) for part in ("parameter", "gradient", "optimizer")]
        if any(state):
            builder.add_parameter(
                str(node), handle[node], parameter=state[0], gradient=state[1], optimizer=state[2]
            )
    tensors: dict[tuple[object, object], tuple[int, float]] = {}
    edges = source.edges(keys=True) if source.is_multigraph() else source.edges()
    for producer, consumer, *key in edges:
        facts = source.edges[producer, consumer, *key]
        size = facts.get("bytes", 0.0)
        identity = (producer, tuple(key))
        if identity not in tensors:
            tensor = builder.add_tensor(
                handle[producer],
                size,
                dtype=facts.get("dtype", "float32"),
                link=facts.get("link_seconds", ()),
            )
            tensors[identity] = tensor, size
        if tensors[identity][1] != size:
            raise InputError(
                f"has {size} bytes here and {tensors[identity][1]} on another edge",
                file=f"graph {name}",
                record=f"edge {producer} -> {consumer}",
                field="bytes",
            )
        builder.add_use(tensors[identity][0], handle[consumer])
    return builder.build()
