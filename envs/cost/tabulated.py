"""`TabulatedCost`: the measured times a published graph carries, in place of a cost model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from envs.cost.transfer import link_transfer_seconds
from envs.errors import InputError
from envs.graphs.op_graph import FloatArray, OpGraph
from envs.hardware.topology import Topology


@dataclass(frozen=True)
class TabulatedCost:
    """Times as they stand in `profile_seconds` and `link_seconds` of the graph.

    A device takes the column named after its spec. A graph without a table of transfers (PipeDream
    profiles give bytes alone) takes latency + bytes / bandwidth of the link class.
    """

    def operator_seconds(self, graph: OpGraph, topology: Topology) -> FloatArray:
        """(N, D) seconds; inf where the device cannot run the operator.

        Raises:
            InputError: the graph has no profile, or none for one of the devices.
        """
        column = {name: index for index, name in enumerate(graph.profile_classes)}
        if not column:
            raise InputError("has no measured operator times", file=f"graph {graph.name}")
        for device in topology.devices:
            if device.spec.name not in column:
                raise InputError(
                    f"{device.spec.name!r} is not among the measured device classes of graph "
                    f"{graph.name} ({', '.join(column)})",
                    file=f"topology {topology.name}",
                    record=device.name,
                    field="spec",
                )
        columns = [column[device.spec.name] for device in topology.devices]
        return np.ascontiguousarray(graph.profile_seconds[:, columns])

    def transfer_seconds(self, graph: OpGraph, topology: Topology) -> FloatArray:
        """(T, L) seconds of each tensor on each link class; column 0 (same device) is 0.

        Raises:
            InputError: the graph's table is of other link classes than the topology's.
        """
        if not graph.link_classes:
            return link_transfer_seconds(graph, topology)
        column = {name: index for index, name in enumerate(graph.link_classes)}
        for name in topology.class_names:
            if name not in column:
                raise InputError(
                    f"link class {name!r} is not among the measured ones of graph {graph.name} "
                    f"({', '.join(column)})",
                    file=f"topology {topology.name}",
                    field="class_names",
                )
        return graph.link_seconds[:, [column[name] for name in topology.class_names]]
