"""How long a tensor travels, from the latency and bandwidth of the link classes."""

from __future__ import annotations

import numpy as np

from envs.graphs.op_graph import OpGraph
from envs.hardware.topology import FloatArray, Topology


def link_transfer_seconds(graph: OpGraph, topology: Topology) -> FloatArray:
    """(T, L) seconds: latency + bytes / bandwidth.

    Column 0 (same device) is 0, and so is the row of a tensor without bytes: it is a control
    dependency, which needs no message.
    """
    size = graph.tensor_bytes[:, None]
    seconds: FloatArray = topology.class_latency + size / topology.class_bandwidth
    seconds = np.where(size > 0, seconds, 0.0)
    seconds[:, 0] = 0.0
    return seconds
